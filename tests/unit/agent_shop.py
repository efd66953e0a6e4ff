"""Agents whose turns lie in a store as a recorder leaves them: each one's head, and what was said."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from captured_turns import FULL
from msgspec.structs import replace
from triage_server import WordServer

from kvtop.capture.api.routes import read_request
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Source, TurnState
from kvtop.triage.casebook import Casebook, Known
from kvtop.triage.engine import Engine

RULES = [f"Rule {n}: look at file number {n} before you change it, and say what you saw there." for n in range(40)]
OTHER = [f"Note {n}: a ticket of class {n} goes to the desk that sold it, with a stamp." for n in range(40)]


def tools(*names: str, turned: bool = False) -> list[dict[str, Any]]:
    """Tools of these names; `turned`: with the keys of their schemas in another order."""
    keys = {name: {"type": "string", "description": f"the {name} of it " * 8} for name in ("path", "first", "count")}
    keys = dict(reversed(keys.items())) if turned else keys
    schema = {"type": "object", "properties": keys}
    return [{"type": "function", "function": {"name": name, "parameters": schema}} for name in names]


@dataclass(frozen=True)
class Agent:
    """What stands at the head of all its prompts."""

    name: str = "Main"
    rules: list[str] = field(default_factory=lambda: RULES)
    tools: tuple[str, ...] = ("read", "edit")
    asks: dict[str, Any] = field(default_factory=dict)

    def head(self, clock: str = "10:00:00") -> dict[str, Any]:
        text = "\n".join([f"You are {self.name}.", *self.rules, f"The time is 2026-11-30 {clock}."])
        return {"role": "system", "content": text}


def said(n: int, about: str = "the parser") -> list[dict[str, Any]]:
    """A talk of n questions, each but the last one answered."""
    found: list[dict[str, Any]] = []
    for i in range(n):
        found.append({"role": "user", "content": f"Question {i} of {about}: " + f"why does part {i} fail here? " * 6})
        found.append({"role": "assistant", "content": f"Part {i} of {about} fails since {i} is odd. " * 6})
    return found[:-1]


class Box:
    """The store. Turns are put in one after the other, some 37 seconds apart."""

    def __init__(self, store: Store) -> None:
        self.store, self.count = store, 0

    def turn(
        self,
        agent: Agent,
        messages: list[dict[str, Any]],
        *,
        talk: str,
        relation: str = "first",
        clock: str = "10:00:00",
        turned: bool = False,
        parent: int | None = None,
        **known: Any,
    ) -> int:
        body = {"model": "q", "messages": [agent.head(clock), *messages], "tools": tools(*agent.tools, turned=turned)}
        sent = json.dumps(body | agent.asks).encode()
        outline = read_request("POST", "/v1/chat/completions", [], sent).outline
        at = FULL.started_at + 37.3 * self.count + self.count**2 % 11
        self.count += 1
        turn = replace(
            FULL, source=Source.TAP, state=TurnState.DONE, error=None, model="q", prompt_tokens=None,
            cached_tokens=None, started_at=at, sent_at=at, first_token_at=at + 1, ended_at=at + 5, conversation=talk,
            parent=parent, relation=relation, samples=[], prompt_unproven="", outline=outline,
        )  # fmt: skip
        return self.store.begin(replace(turn, **known), sent)

    def book(self) -> Casebook:
        return Casebook(self.store, WordServer(), Known(engine=Engine(block=16)))
