"""What KV events tell of one turn's prefix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from kvtop.capture.turn import Captured
from kvtop.triage.certainty import Missing
from kvtop.triage.ids import unpack
from kvtop.triage.kv_events import CPU, GPU, STORAGE
from kvtop.triage.prompt import Prompt
from kvtop.triage.residency import Residency
from kvtop.triage.seen import Gone, KvFacts

TIERS = (GPU, CPU, STORAGE)
SETTLES_S = 1.0
"""A step tells at its end what it did, and of an idle engine only with the next one."""
NOT_IN_YET = "the KV events of its time are not all in"


class Told(Protocol):
    """Who has the KV events of a server."""

    async def facts(self, turn: Captured, prompt: Prompt, ids: bytes, old: Captured) -> KvFacts:
        """As the function `facts`."""
        ...


@dataclass(frozen=True, slots=True)
class Past:
    """What was read once."""

    index: Residency

    async def facts(self, turn: Captured, prompt: Prompt, ids: bytes, old: Captured) -> KvFacts:
        return facts(self.index, turn, prompt, ids, old)


@dataclass(frozen=True, slots=True)
class Unheard:
    """Nobody heard them."""

    short: str
    """Why, in words."""

    async def facts(self, turn: Captured, prompt: Prompt, ids: bytes, old: Captured) -> KvFacts:
        return KvFacts(short=self.short)


def looked_into_until(turn: Captured) -> float:
    """Unix time up to which events may tell of what a turn found."""
    return (turn.first_token_at or turn.ended_at or _arrived(turn)) + SETTLES_S


def facts(
    index: Residency, turn: Captured, prompt: Prompt, ids: bytes, old: Captured, *, known_to: float = math.inf
) -> KvFacts:
    """From the end of `old`, whose prefix this turn goes on with, to the turn's first token. `ids`: packed, of the
    turn's prompt. Of an adapter, which is asked for as a model, the events tell by its name. `known_to`: Unix time
    up to which all that was published is in."""
    salt = prompt.inputs.get("cache_salt")
    arrived, until = _arrived(turn), looked_into_until(turn)
    since = old.ended_at or old.started_at
    prefix = index.prefix(unpack(ids)[:-1], salt if isinstance(salt, str) else None)
    device, anywhere = index.leading(prefix, at=arrived), index.leading(prefix, TIERS, at=arrived)
    held = index.leading(prefix, at=max(since, min(since + SETTLES_S, arrived)))
    missing = index.missing(since, until)
    late = missing is None and known_to < until
    return KvFacts(
        complete=missing is None and not late,
        gone=tuple(Gone(one.at, one.tier, one.end_tokens) for one in index.removals(prefix, since, until)),
        cleared_at=tuple(one.at for one in index.clearings(since, until) if not one.restart),
        held=held.tokens,
        on_device=device.tokens if device.known else None,
        anywhere=anywhere.tokens if anywhere.known else None,
        short=NOT_IN_YET if late else _short(missing, old),
    )


def _arrived(turn: Captured) -> float:
    return turn.sent_at or turn.started_at


def _short(missing: Missing | None, old: Captured) -> str:
    if missing is Missing.BEFORE:
        return f"KV events are known only from a time after turn {old.id} had ended"
    if missing is Missing.LOST:
        return f"KV events since turn {old.id} were lost: what the others do not tell may have happened all the same"
    if missing is Missing.BROKEN_OFF:
        return f"the stream of KV events broke off after turn {old.id}"
    return ""
