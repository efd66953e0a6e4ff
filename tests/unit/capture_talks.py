"""Traffic for the linker's tests: turns whose outlines are made of words, and a stand-in for the recorder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kvtop.capture.conversations.linker import Linker
from kvtop.capture.turn import Captured, Part, Route, TurnState

ROLES = {"u": "user", "a": "assistant", "t": "tool", "s": "system", "d": "developer"}


def part(kind: str, word: str, *, role: str = "", name: str = "", size: int = 0) -> Part:
    digest = hashlib.blake2b(f"{kind} {role} {word}".encode(), digest_size=8).hexdigest()
    return Part(kind=kind, size=size or 200 + len(word), digest=digest, role=role, name=name)


def message(word: str) -> Part:
    """`u look`: a user's message. `u summary=…`: one that is marked as a summary; `u 9000:env`: one of 9,000 bytes;
    `u look#env`: one that says `look`, and holds a block `env`."""
    role, _, text = word.partition(" ")
    name, found, _ = text.partition("=")
    size, sized, _ = text.partition(":")
    marked = name if found and name in ("summary", "suggestion") else ""
    made = part("message", text, role=ROLES[role], name=marked, size=int(size) if sized and size.isdigit() else 0)
    bare = text.partition(":")[2] or text
    return msgspec.structs.replace(made, bare=bare.partition("#")[0] if role == "u" else "")


class Where(NamedTuple):
    """A place in names: the first turn of the conversation, the parent, the relation."""

    conversation: str
    parent: str | None
    relation: str


class Recorder:
    """Places turns, gives ids, ends them: what the recorder does with a linker. One second passes with each call."""

    def __init__(self, linker: Linker | None = None) -> None:
        self.linker = linker or Linker()
        self.now = 1_000_000.0
        self.turns: dict[str, Captured] = {}
        self._names: dict[int, str] = {}

    def ask(
        self,
        name: str,
        messages: Iterable[str],
        *,
        agent: str = "pi",
        tools: Sequence[str] = ("read", "bash"),
        system: Sequence[str] = ("you are an agent",),
        hints: Mapping[str, str] | None = None,
        headers: Sequence[tuple[str, str]] = (),
        route: Route = Route.CHAT,
        model: str = "m",
        upstream: str = "http://127.0.0.1:8000",
    ) -> Where:
        """A request comes; where it was placed."""
        self.now += 1
        id = len(self.turns) + 1
        turn = Captured(
            id=id,
            upstream=upstream,
            route=route,
            model=model,
            started_at=self.now,
            agent=agent,
            hints=dict(hints or {}),
            request_headers=list(headers),
            outline=[
                *(part("tool", word, name=word) for word in tools),
                *(part("system", word) for word in system),
                *(message(word) for word in messages),
            ],
        )
        place = self.linker.place(turn)
        turn = msgspec.structs.replace(
            turn,
            conversation=place.conversation or f"c{id}",
            parent=place.parent,
            relation=place.relation,
            changed=list(place.changed),
        )
        self.linker.add(turn)
        self.turns[name], self._names[id] = turn, name
        assert turn.conversation
        parent = self._names[place.parent] if place.parent else None
        return Where(self._names[int(turn.conversation[1:])], parent, place.relation)

    def end(
        self, name: str, *, calls: bool = True, state: TurnState = TurnState.DONE, response_id: str | None = None
    ) -> None:
        """Its answer is there: a tool's call, or else the last word."""
        self.now += 1
        finish = ("tool_calls" if calls else "stop") if state is TurnState.DONE else None
        self.turns[name] = msgspec.structs.replace(
            self.turns[name], state=state, ended_at=self.now, finish_reason=finish, response_id=response_id
        )
        self.linker.update(self.turns[name])

    def turn(self, name: str, messages: Iterable[str], *, calls: bool = True, **kind: object) -> Where:
        """A request and its answer."""
        where = self.ask(name, messages, **kind)  # type: ignore[arg-type]
        self.end(name, calls=calls)
        return where
