"""How long a part of a turn's prompt took to read, by that turn's own times, and so the same ever after. Pure.

All parts of what it read together take no longer than it waited without its queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvtop.capture.turn import Captured
from kvtop.model.timing import waited_s
from kvtop.triage.pricing import charged
from kvtop.triage.result import Cause


def reading_s(turn: Captured, rate: float | None) -> float | None:
    """Seconds in which it read what did not come from the cache.

    Its prefill time, else its wait without the queue. Where nobody timed its queue it may have stood in one, and it
    took no longer than at `rate`, prompt tokens a second of the turns before it; None: nor is that known, or its wait.
    """
    ttft, new = waited_s(turn), turn.new_tokens
    if new is None or new <= 0 or ttft is None:
        return None
    most = max(0.0, ttft - (turn.queue_s or 0.0))
    if turn.prefill_s is not None:
        return min(turn.prefill_s, most)
    if turn.queue_s is not None or turn.alone:
        return most
    return min(new / rate, most) if rate else None


def cost_s(turn: Captured, tokens: int | None, rate: float | None) -> float | None:
    """Seconds that so many of its tokens took to read; None: not known."""
    whole, new = reading_s(turn, rate), turn.new_tokens
    if whole is None or not new or tokens is None:
        return None
    return whole * min(1.0, max(0, tokens) / new)


def priced(causes: Sequence[Cause], turn: Captured, rate: float | None) -> tuple[Cause, ...]:
    """Each cause with the seconds of the tokens that are told of it: together no more than the turn took to read."""
    whole, new = reading_s(turn, rate), turn.new_tokens
    all_ = max(new or 0, sum(one.told_tokens or 0 for one in causes))
    if whole is None or not all_:
        return tuple(replace(one, lost_s=None) for one in causes)
    return tuple(replace(one, lost_s=whole * one.told_tokens / all_ if one.told_tokens else None) for one in causes)


def costed(causes: Sequence[Cause], turn: Captured, rate: float | None, most: int | None) -> tuple[Cause, ...]:
    """Each cause with its tokens, that together are no more than `most`, and with its seconds. None: not known."""
    return priced(causes if most is None else charged(causes, max(0, most)), turn, rate)
