"""Which captured turns were slow, and of what, as far as the turns themselves tell."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from kvtop.capture.turn import Captured
from kvtop.model.judge import Thresholds
from kvtop.model.shown_turn import CONTINUES
from kvtop.model.timing import waited_s

LOST_TOKENS = 512
"""Fewer tokens that are read anew are no news: boundaries of blocks and of a hybrid model's states."""

RATED = 100
"""Turns before one, by number, that tell the rate it is judged by."""

UNIT_TOKENS = 1_024
"""A prefix is matched in units; of a server that does not tell its unit they are taken to be no larger."""

Rates = Mapping[tuple[str, str | None], float]
"""(upstream, model) -> prompt tokens that it computes in a second."""


def prefill_rates(turns: Iterable[Captured]) -> Rates:
    """From the turns of which both the new tokens and the prefill time are known: half of the tokens were read at this
    rate or a higher one. A mean would follow a single turn that was read slowly."""
    spans: dict[tuple[str, str | None], list[tuple[float, int]]] = {}
    for turn in turns:
        if turn.new_tokens is not None and turn.new_tokens > 0 and turn.prefill_s:
            rate = turn.new_tokens / turn.prefill_s
            spans.setdefault((turn.upstream, turn.model), []).append((rate, turn.new_tokens))
    return {key: _middle(told) for key, told in spans.items()}


def _middle(told: list[tuple[float, int]]) -> float:
    """`told`: rates, and the tokens that were read at each."""
    fastest = sorted(told, reverse=True)
    sums = list(accumulate(tokens for _, tokens in fastest))
    return fastest[bisect_left(sums, sums[-1] / 2)][0]


def usual_rate(turn: Captured, before: Iterable[Captured]) -> float | None:
    """Prompt tokens a second that its server computed when it came, and so the same whenever it is asked: of those of
    the turns before it (`RATED` of them) that had ended, else its own. None: nothing tells."""
    key = turn.upstream, turn.model
    ended = [one for one in before if one.ended_at is not None and one.ended_at <= turn.started_at]
    return prefill_rates(ended).get(key) or prefill_rates([turn]).get(key)


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


def is_slow(
    turn: Captured,
    rate: Callable[[Captured], float | None],
    limits: Thresholds,
    before: Callable[[Captured], int | None],
) -> bool | None:
    """Whether it waited much longer for its first token than it should have; None: its TTFT is not known.

    `rate` gives its server's prefill rate, `before` the prompt tokens of the turn that it continues; they are asked
    only where they may decide.
    """
    ttft = waited_s(turn)
    if ttft is None:
        return None
    if not may_be_slow(ttft, limits):
        return False
    return limits.slow(ttft, expected_s(turn, before(turn), rate(turn)))


def may_be_slow(ttft_s: float, limits: Thresholds) -> bool:
    """Whatever its server's rate, a shorter wait is not slow."""
    return ttft_s > limits.extra_s or limits.long(ttft_s)


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
