"""What a tap in front of the box would have recorded of its agents: kept in memory, read like the store of turns."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from kvtop.capture.api.routes import read_request
from kvtop.capture.conversations.agents import name_of
from kvtop.capture.turn import Captured, Route, TurnState
from kvtop.sim.agents import Ask, Conversation
from kvtop.sim.engine import Request
from kvtop.sim.prompt import Message, Tool
from kvtop.sim.spec import EngineSpec
from kvtop.sim.text import pieces

SINCE_S = 600.0
"""The tap was started so long before the port opened."""
KEPT = 1_000
"""Turns; the oldest go first."""
PATH = "/v1/chat/completions"
_EVENT_TOKENS = 8
"""Tokens in one event of an answer."""
_USER_AGENTS = {
    "claude-code": "claude-cli/2.0.14 (external, cli)",
    "opencode": "opencode/1.0.120",
    "pi": "pi/0.30.2",
    "qwen-code": "QwenCode/0.5.0 (linux; x64)",
}


@dataclass(slots=True, eq=False)
class _Turn:
    row: Captured
    request: Request
    reply: str
    model: str
    system: str
    tools: Sequence[Tool]
    messages: tuple[Message, ...]

    def seen(self) -> Captured:
        """As of now: its first token may have come."""
        first = self.request.first_token_at
        if first is None or self.row.first_token_at is not None:
            return self.row
        return replace(self.row, first_byte_at=first, first_token_at=first)

    def body(self) -> bytes:
        return b"".join((_opening(self.model, self.tools, self.system), *map(_member, self.messages), _CLOSING))


@dataclass(slots=True)
class _Talk:
    """A conversation, as of its last turn."""

    name: str
    turn: _Turn
    broke: bool = False


class Tapped:
    """Written by the box's thread, read by others."""

    def __init__(self) -> None:
        self.upstream = ""
        """URL of the box."""
        self.since: float | None = None
        """Unix time from which on turns are recorded."""
        self._lock = threading.Lock()
        self._turns: dict[int, _Turn] = {}
        self._flying: dict[Request, int] = {}
        self._talks: WeakKeyDictionary[Conversation, _Talk] = WeakKeyDictionary()
        self._next = 1
        self._changes = 0
        self._told: tuple[int, int] = (0, 0)
        self._revision = 0

    # -- what the box says

    def asked(self, spec: EngineSpec, request: Request, act: Ask) -> None:
        """An agent has sent its conversation."""
        at, talk = request.arrived_at, act.conversation
        if self.since is None or at < self.since:
            return
        with self._lock:
            headers = [("User-Agent", _USER_AGENTS.get(talk.agent, talk.agent)), ("Content-Type", "application/json")]
            agent, version = name_of(headers, {})
            before, messages = self._talks.get(talk), tuple(talk.messages)
            turn = _Turn(
                Captured(
                    id=self._next,
                    upstream=self.upstream,
                    method="POST",
                    path=PATH,
                    route=Route.CHAT,
                    stream=True,
                    model=spec.model,
                    started_at=at,
                    sent_at=at,
                    request_headers=headers,
                    agent=agent,
                    agent_version=version,
                    conversation=before.name if before is not None else f"c{self._next}",
                    parent=before.turn.row.id if before is not None else None,
                    relation=_relation(before, messages),
                ),
                request, act.reply, spec.model, talk.system, talk.tools, messages,
            )  # fmt: skip
            turn.row = replace(turn.row, request_bytes=_size(turn, before))
            self._talks[talk] = _Talk(turn.row.conversation or "", turn)
            self._turns[self._next] = turn
            self._flying[request] = self._next
            self._next += 1
            self._changes += 1
            if len(self._turns) > KEPT:
                del self._turns[next(iter(self._turns))]

    def answered(self, spec: EngineSpec, request: Request) -> None:
        """Its answer is complete."""
        with self._lock:
            if (turn := self._ended(request)) is None:
                return
            gaps = max(0, request.reply - 1)
            first, last = request.first_token_at or request.last_token_at, request.last_token_at
            turn.row = replace(
                turn.seen(),
                state=TurnState.DONE,
                ended_at=request.finished_at,
                status=200,
                finish_reason=request.reason,
                response_id=f"chatcmpl-demo-{turn.row.id:08x}",
                prompt_tokens=request.prompt,
                cached_tokens=request.device + request.host,
                cached_source="usage",
                completion_tokens=request.reply,
                usage=usage(request, spec.block_tokens),
                inter_token_p50_s=(last - first) / gaps if gaps else None,
                inter_token_n=gaps,
            )
            turn.row = replace(turn.row, response_bytes=len(_answer(turn)))

    def broke(self, request: Request, at: float) -> None:
        """The server went away."""
        with self._lock:
            if (turn := self._ended(request)) is None:
                return
            row = turn.seen()
            begun = row.first_token_at is not None
            error = None if begun else "the connection was reset before an answer came"
            state = TurnState.CUT if begun else TurnState.FAILED
            turn.row = replace(row, state=state, status=200 if begun else None, ended_at=at, error=error)
            for talk in self._talks.values():
                talk.broke = talk.broke or talk.turn is turn

    def _ended(self, request: Request) -> _Turn | None:
        id = self._flying.pop(request, None)
        self._changes += 1
        return None if id is None else self._turns.get(id)

    # -- what the dashboard asks

    def revision(self) -> int:
        """Another number after every change."""
        with self._lock:
            begun = sum(request.first_token_at is not None for request in self._flying)
            now = (self._changes, begun)
            if now != self._told:
                self._told, self._revision = now, self._revision + 1
            return self._revision

    def count(self) -> int:
        return len(self._turns)

    def turns(
        self, *, last: int = 100, conversation: str | None = None, since_id: int = 0, before_id: int | None = None
    ) -> list[Captured]:
        """Newest first."""
        with self._lock:
            chosen = [
                turn
                for id, turn in reversed(self._turns.items())
                if id > since_id
                and (before_id is None or id < before_id)
                and conversation in (None, turn.row.conversation)
            ]
            return [turn.seen() for turn in chosen[:last]]

    def turn(self, id: int) -> Captured | None:
        with self._lock:
            found = self._turns.get(id)
            row = found.seen() if found is not None else None
        if found is None or row is None:
            return None
        return replace(row, outline=read_request("POST", PATH, row.request_headers, found.body()).outline)

    def request_body(self, id: int) -> bytes | None:
        found = self._turns.get(id)
        return None if found is None else found.body()

    def response_body(self, id: int) -> bytes | None:
        found = self._turns.get(id)
        return _answer(found) if found is not None and found.row.state is TurnState.DONE else None

    def close(self) -> None:
        """It is kept as long as the box."""


def usage(request: Request, block_tokens: int, *, details: bool = True) -> dict[str, Any]:
    """The usage object of a finished request, as vLLM 0.32 writes it."""
    cached = request.device + request.host
    created = request.prompt // block_tokens * block_tokens - cached
    told = {"cached_tokens": cached, "created_cache_tokens": created, "multimodal_tokens": None}
    return {
        "prompt_tokens": request.prompt,
        "total_tokens": request.prompt + request.reply,
        "completion_tokens": request.reply,
        "prompt_tokens_details": told if details else None,
    }


def _relation(before: _Talk | None, messages: Sequence[Message]) -> str:
    if before is None:
        return "first"
    if len(messages) < len(before.turn.messages):
        return "compaction"
    return "retry" if before.broke and len(messages) == len(before.turn.messages) else "next"


_CLOSING = b"]}"


def _opening(model: str, tools: Sequence[Tool], system: str) -> bytes:
    """The body up to its first message after the system's."""
    head: Mapping[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    text = json.dumps({**head, "tools": tools, "messages": [{"role": "system", "content": system}]})
    return text[:-2].encode()


def _member(message: Message) -> bytes:
    return b", " + json.dumps(message).encode()


def _size(turn: _Turn, before: _Talk | None) -> int:
    """Of its body. What it has in common with the turn before is not written out again."""
    old = before.turn if before is not None else None
    if old is None or old.row.request_bytes is None:
        return len(turn.body())
    if old.tools is turn.tools and old.system is turn.system:
        same = len(old.messages)
        if len(turn.messages) >= same and all(a is b for a, b in zip(old.messages, turn.messages, strict=False)):
            return old.row.request_bytes + sum(len(_member(message)) for message in turn.messages[same:])
    return len(turn.body())


def _answer(turn: _Turn) -> bytes:
    """The answer as a stream of events."""
    row = turn.row
    head = {
        "id": row.response_id,
        "object": "chat.completion.chunk",
        "created": int(row.started_at),
        "model": row.model,
    }
    said = pieces(turn.reply)
    parts = ["".join(said[i : i + _EVENT_TOKENS]) for i in range(0, len(said), _EVENT_TOKENS)]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": {"content": part}, "finish_reason": None} for part in parts]
    choices.append({"index": 0, "delta": {}, "finish_reason": row.finish_reason})
    events = [json.dumps({**head, "choices": [choice]}) for choice in choices]
    events += [json.dumps({**head, "choices": [], "usage": row.usage}), "[DONE]"]
    return "".join(f"data: {event}\n\n" for event in events).encode()
