"""A placed turn as the linker keeps it: what of its outline and hints decides which turn follows which."""

from __future__ import annotations

import itertools
import sys
from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtop.capture.api.markers import SUGGESTION, SUMMARY
from kvtop.capture.conversations.agents import UNKNOWN, name_of
from kvtop.capture.conversations.sessions import Session, session_of
from kvtop.capture.turn import Captured, Part, Route, TurnState

_ROLES = {"user": "u", "assistant": "a", "tool": "t", "function": "t"}
_INSTRUCTIONS = ("system", "developer")
_COARSE_S = 1.0
_CALLING = frozenset({"tool_calls", "tool_use", "function_call"})


class Place(NamedTuple):
    """Where a turn belongs."""

    conversation: str | None
    """None: a new one."""
    parent: int | None
    relation: str
    changed: tuple[str, ...] = ()
    """As `Captured.changed`."""


@dataclass(slots=True, eq=False)
class Linked:
    """One turn. The chain holds the digests of its messages in order, without system and developer messages: those are
    put in, taken out and rewritten in the middle of a conversation."""

    id: int
    conversation: str
    at: tuple[str, str | None, Route]
    """Upstream, model, route."""
    chain: tuple[str, ...]
    prefixes: tuple[int, ...]
    """A hash over the chain up to each message."""
    roles: str
    """A letter for each message of the chain."""
    sizes: array[int]
    """Bytes of each message of the chain."""
    bare: frozenset[str]
    """What its messages before the first reply say without their tagged blocks, as digests."""
    rest: tuple[str, int]
    """Of a prompt without messages: digest and size of its last, partial piece."""
    tools: int
    head: int
    """The system prompt: what stands before the first message."""
    system: int
    """All of it, and of the messages those of the system."""
    has_tools: bool
    summary: bool
    """Its first messages hold a summary in place of a history."""
    suggestion: bool
    """Its last message asks for what the user might say next."""
    session: Session
    agent: str
    """Who sent it, as its headers tell: a side call of a program may hold other instructions than its talk."""
    started_at: float
    ended_at: float | None = None
    failed: bool = False
    calls: bool = False
    """Its answer calls a tool: the program has work to do before it goes on."""
    response: str | None = None
    followers: set[bool] = field(default_factory=set)
    """Turns go on from it: whether such a one has tools."""
    contents: frozenset[str] = frozenset()
    replies: frozenset[str] = frozenset()
    """What of the contents the model has said."""

    def weight(self, contents: frozenset[str]) -> int:
        """Bytes of its messages that are among these."""
        return sum(size for digest, size in zip(self.chain, self.sizes, strict=True) if digest in contents)

    def runs_at(self, at: float) -> bool:
        """Whether it was in flight then. Of an import the end is known from the start, and its clock is coarse."""
        return self.ended_at is None or self.ended_at > at + _COARSE_S

    @property
    def last_at(self) -> float:
        """When it was last heard of."""
        return self.ended_at or self.started_at

    def followed(self, by: Linked) -> bool:
        """A turn of the same kind goes on from it: a call without tools leaves it to the one with tools."""
        return by.has_tools in self.followers

    def heard(self, turn: Captured) -> None:
        """Take over how it went on or ended."""
        ended = turn.ended_at
        if ended is None and turn.state is not TurnState.IN_FLIGHT:
            ended = self.started_at  # an import without an end, a row whose recorder died
        self.ended_at = ended
        self.failed = turn.state not in (TurnState.DONE, TurnState.IN_FLIGHT)
        self.calls = turn.finish_reason in _CALLING
        self.response = turn.response_id


def linked(turn: Captured) -> Linked:
    """What of a turn counts for linking."""
    messages = [part for part in turn.outline if part.kind == "message"]
    talk = [part for part in messages if part.role not in _INSTRUCTIONS] or messages
    rest = ("", 0)
    if not talk:
        talk = [part for part in turn.outline if part.kind == "prompt"]
        if len(talk) > 1:  # the piece at the end grows with the prompt
            rest = (talk[-1].digest, talk[-1].size)
            talk.pop()
    tools = [part.digest for part in turn.outline if part.kind == "tool"]
    system = [part for part in turn.outline if part.kind == "system" or part.role in _INSTRUCTIONS]
    head = itertools.takewhile(lambda part: part.kind != "message" or part.role in _INSTRUCTIONS, turn.outline)
    chain = tuple(sys.intern(part.digest) for part in talk)
    found = Linked(
        id=turn.id,
        conversation=turn.conversation or f"c{turn.id}",
        at=(turn.upstream, turn.model, turn.route),
        chain=chain,
        prefixes=_prefixes(chain),
        roles="".join(_role(part) for part in talk),
        sizes=array("Q", (part.size for part in talk)),
        bare=frozenset(part.bare for part in talk if part.bare),
        rest=rest,
        tools=hash(tuple(tools)),
        head=hash(tuple(part.digest for part in head if part in system)),
        system=hash(tuple(part.digest for part in system)),
        has_tools=bool(tools),
        summary=any(part.name == SUMMARY for part in talk[:3]),
        suggestion=bool(talk) and talk[-1].name == SUGGESTION,
        session=session_of(turn),
        agent=_sender(turn),
        started_at=turn.started_at,
    )
    found.contents = frozenset(chain)
    found.replies = frozenset(name for name, role in zip(chain, found.roles, strict=True) if role in "ao")
    found.heard(turn)
    return found


def common_prefix(old: tuple[str, ...], new: tuple[str, ...]) -> int:
    """How many messages at the start are the same."""
    most = min(len(old), len(new))
    if old[:most] == new[:most]:
        return most
    low, high = 0, most  # equal up to low, different at high or before
    while high - low > 1:
        middle = (low + high) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _sender(turn: Captured) -> str:
    name, _ = name_of(turn.request_headers, turn.hints)
    return turn.agent if name == UNKNOWN else name


def _role(part: Part) -> str:
    """o: one that the route does not name, in the Responses API an item of the model's own."""
    return "p" if part.kind == "prompt" else _ROLES.get(part.role, "o")


def _prefixes(chain: tuple[str, ...]) -> tuple[int, ...]:
    found, last = [], 0
    for digest in chain:
        last = hash((last, digest))
        found.append(last)
    return tuple(found)
