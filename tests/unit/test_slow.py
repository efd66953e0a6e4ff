"""Which captured turns were slow."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvtop.capture.slow import is_slow, prefill_rates
from kvtop.capture.turn import Captured
from kvtop.model.judge import Thresholds
from kvtop.model.timing import waited_s

LIMITS = Thresholds()
TURN = Captured(upstream="u", model="m", sent_at=100.0, prompt_tokens=10_000, cached_tokens=9_000, first_token_at=101.0)


def nothing_before(_: Captured) -> None:
    return None


def test_the_rate_is_that_of_an_upstream_and_a_model() -> None:
    turns = [
        replace(TURN, prefill_s=1.0),
        replace(TURN, prefill_s=3.0, cached_tokens=7_000),
        replace(TURN, prefill_s=2.0, model="other"),
        replace(TURN, prefill_s=None),
        replace(TURN, prefill_s=0.0),
        replace(TURN, prefill_s=9.0, cached_tokens=None),
        replace(TURN, prefill_s=9.0, cached_tokens=10_000),
    ]
    assert prefill_rates(turns) == {("u", "m"): 1000.0, ("u", "other"): 500.0}


@pytest.mark.parametrize(
    ("ttft", "rate", "cached", "slow"),
    [
        (4.0, 1000.0, 9_000, False),  # not over 1 s and 3 s
        (4.1, 1000.0, 9_000, True),
        (10.0, 1000.0, 7_000, True),  # over 3 times 3 s
        (8.9, 1000.0, 7_000, False),
        (10.0, None, 9_000, False),
        (10.1, None, 9_000, True),
        (9.0, 1000.0, None, False),  # no cached tokens: no expectation
        (10.1, 1000.0, None, True),
    ],
)
def test_slow_is_long_beside_what_its_new_tokens_take(
    ttft: float, rate: float | None, cached: int | None, slow: bool
) -> None:
    turn = replace(TURN, first_token_at=100.0 + ttft, cached_tokens=cached)
    rates = {("u", "m"): rate} if rate else {}
    assert is_slow(turn, rates, LIMITS, nothing_before) is slow


@pytest.mark.parametrize(("before", "slow"), [(9_500, True), (5_000, False), (None, False)])
def test_slow_is_judged_by_what_should_have_been_reused(before: int | None, slow: bool) -> None:
    """The cache was lost: 10,000 tokens at 1,000 a second took 10 s, and that is what is wrong."""
    turn = replace(TURN, first_token_at=110.0, cached_tokens=0)
    assert is_slow(turn, {("u", "m"): 1000.0}, LIMITS, lambda _: before) is slow


def test_an_answer_in_one_piece() -> None:
    whole = replace(TURN, first_token_at=None)
    assert (waited_s(whole), is_slow(whole, {}, LIMITS, nothing_before)) == (None, None)
    told = replace(whole, queue_s=9.0, prefill_s=2.0)
    assert (waited_s(told), is_slow(told, {}, LIMITS, nothing_before)) == (11.0, True)
