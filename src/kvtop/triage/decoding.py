"""Whether a turn wrote slowly, beside others of its server."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from kvtop.capture.document import decode_s
from kvtop.capture.turn import Captured
from kvtop.model.timing import tokens_per_s
from kvtop.model.words import exact, secs
from kvtop.triage.between import own_samples
from kvtop.triage.seen import Seen
from kvtop.triage.words import were_preempted

SLOWER = 3.0
"""Times slower than others write."""
EXTRA_S = 3.0
"""And so many seconds longer than it should have taken."""
NO_RATE = 4.0
"""Tokens a second; where nothing is known of others, below it nobody can read along."""
NO_RATE_S = 10.0
WRITES = 16
"""Tokens that a turn must have written for its speed to be one."""


@dataclass(frozen=True, slots=True)
class Slow:
    words: str
    """`3.1 tokens a second for 92 s; turns of this server write 38`."""
    extra_s: float
    """Longer than it should have taken."""
    evidence: tuple[str, ...]


def speed(turn: Captured) -> float | None:
    """Tokens a second while it wrote; None where it wrote too few to tell."""
    if turn.completion_tokens is None or turn.completion_tokens < WRITES:
        return None
    return tokens_per_s(turn.completion_tokens, decode_s(turn))


def slow(seen: Seen) -> Slow | None:
    """None: it did not write slowly, or nobody can tell."""
    turn, took = seen.turn, decode_s(seen.turn)
    wrote = speed(turn)
    if wrote is None or took is None or turn.completion_tokens is None:
        return None
    known = [
        one
        for other in seen.others
        if (other.upstream, other.model) == (turn.upstream, turn.model) and (one := speed(other)) is not None
    ]
    typical = median(known) if known else None
    if typical is None:
        if wrote >= NO_RATE or took < NO_RATE_S:
            return None
        extra, beside = took - turn.completion_tokens / NO_RATE, ""
    else:
        extra = took - (turn.completion_tokens - 1) / typical
        if wrote * SLOWER >= typical or extra < EXTRA_S:
            return None
        beside = f"; turns of this server write {_rate(typical)}"
    words = f"{_rate(wrote)} tokens a second for {secs(took)}{beside}"
    return Slow(words, extra, _evidence(seen))


def _evidence(seen: Seen) -> tuple[str, ...]:
    first = seen.turn.first_token_at or 0.0
    kept = [one for one in seen.turn.samples if one.at >= first] or own_samples(seen, 0.0)
    found = []
    preempted = [one.preempted for one in kept if one.preempted is not None]
    if len(preempted) > 1 and preempted[-1] > preempted[0]:
        found.append(f"{were_preempted(preempted[-1] - preempted[0])} while it wrote")
    running = [one.running for one in kept if one.running is not None]
    if running and max(running) > 1:
        found.append(f"up to {exact(max(running))} requests ran while it wrote")
    return tuple(found)


def _rate(tokens: float) -> str:
    return f"{tokens:.1f}" if tokens < 9.95 else f"{tokens:.0f}"
