"""Which captured turns were slow, and of what, as far as the turns themselves tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kvtop.capture.turn import Captured
from kvtop.model.judge import Thresholds
from kvtop.model.shown_turn import CONTINUES
from kvtop.model.timing import waited_s

LOST_TOKENS = 512
"""Fewer tokens that are read anew are no news: boundaries of blocks and of a hybrid model's states."""

UNIT_TOKENS = 1_024
"""A prefix is matched in units; of a server that does not tell its unit they are taken to be no larger."""

Rates = Mapping[tuple[str, str | None], float]
"""(upstream, model) -> prompt tokens that it computes in a second."""


def prefill_rates(turns: Iterable[Captured]) -> Rates:
    """From the turns of which both the new tokens and the prefill time are known."""
    sums: dict[tuple[str, str | None], tuple[int, float]] = {}
    for turn in turns:
        if turn.new_tokens is not None and turn.new_tokens > 0 and turn.prefill_s:
            tokens, seconds = sums.get((turn.upstream, turn.model), (0, 0.0))
            sums[turn.upstream, turn.model] = tokens + turn.new_tokens, seconds + turn.prefill_s
    return {key: tokens / seconds for key, (tokens, seconds) in sums.items()}


def expected_s(turn: Captured, before: int | None, rate: float | None) -> float | None:
    """What its prompt takes to read at this rate (tokens a second) without what should have been in the cache.

    `before`: the prompt tokens of the turn that it continues, which should be; None: no such turn is known, and what it
    did read counts.
    """
    if not rate:
        return None
    if before is not None and turn.prompt_tokens is not None:
        return max(0, turn.prompt_tokens - before) / rate
    return None if turn.new_tokens is None else max(0, turn.new_tokens) / rate


def is_slow(turn: Captured, rates: Rates, limits: Thresholds, before: Callable[[Captured], int | None]) -> bool | None:
    """Whether it took much longer to its first token than it should have; None: its TTFT is not known.

    `before` gives the prompt tokens of the turn that one continues; it is asked only where they may decide.
    """
    ttft = waited_s(turn)
    if ttft is None:
        return None
    if ttft <= min(limits.extra_s, limits.no_rate_s):
        return False
    return limits.slow(ttft, expected_s(turn, before(turn), rates.get((turn.upstream, turn.model))))


def reread(turn: Captured, parent: Captured | None) -> bool:
    """Less than half of what the turn that it continues had from the cache came from there this time."""
    if parent is None or turn.relation not in CONTINUES or turn.model != parent.model:
        return False
    had, got = parent.cached_tokens, turn.cached_tokens
    return had is not None and got is not None and had - got >= max(LOST_TOKENS, had / 2)


def lost(turn: Captured, before: int | None, unit: int | None) -> bool | None:
    """It read more anew than its growth and what lies over the last whole unit explain. None: not known.

    `before`: the prompt tokens of the turn that it continues. `unit`: tokens of a prefix are matched in multiples of
    it; None: the server does not tell.
    """
    if before is None or turn.new_tokens is None or turn.prompt_tokens is None:
        return None
    grown = max(0, turn.prompt_tokens - before)
    return turn.new_tokens - grown > max(LOST_TOKENS, unit or UNIT_TOKENS)


def queued(turn: Captured) -> bool:
    """For most of its wait others ran while requests waited, by its samples, and no KV was loaded meanwhile: in vLLM
    a request waits in the queue for its load too."""
    if turn.sent_at is None or turn.first_token_at is None:
        return False
    kept = [sample for sample in turn.samples if turn.sent_at <= sample.at <= turn.first_token_at]
    stood = [sample for sample in kept if sample.waiting and sample.running]
    if not stood or 2 * len(stood) < len(kept):
        return False
    first, last = kept[0], kept[-1]
    return first.load_bytes == last.load_bytes and first.external_hits == last.external_hits
