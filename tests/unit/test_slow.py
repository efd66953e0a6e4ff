"""Which captured turns were slow."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvtop.capture.slow import is_slow, lost, prefill_rates, queued, usual_rate
from kvtop.capture.turn import Captured, Sample
from kvtop.model.judge import Thresholds
from kvtop.model.timing import waited_s

LIMITS = Thresholds()
TURN = Captured(upstream="u", model="m", sent_at=100.0, prompt_tokens=10_000, cached_tokens=9_000, first_token_at=101.0)


def no_rate(turn: Captured) -> float | None:
    return None


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


def test_the_rate_is_the_usual_one_and_no_mean_of_one_slow_turn() -> None:
    usual = [replace(TURN, prefill_s=0.5) for _ in range(12)]
    assert prefill_rates([*usual, replace(TURN, cached_tokens=0, prefill_s=80.0)]) == {("u", "m"): 2000.0}


def test_a_turn_is_judged_by_the_turns_that_had_ended_before_it() -> None:
    before = [replace(TURN, started_at=0.0, ended_at=50.0, prefill_s=0.5)]
    still = replace(TURN, started_at=0.0, ended_at=150.0, prefill_s=20.0)
    turn = replace(TURN, started_at=100.0, prefill_s=5.0)
    assert usual_rate(turn, [*before, still]) == 2000.0
    assert usual_rate(turn, [still]) == 200.0, "its own"
    assert usual_rate(replace(turn, prefill_s=None), [still]) is None


def test_a_long_wait_that_its_input_explains_is_not_slow() -> None:
    turn = replace(TURN, cached_tokens=0, first_token_at=112.0)
    assert not is_slow(turn, lambda _: 1000.0, LIMITS, nothing_before)


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
    assert is_slow(turn, lambda _: rate, LIMITS, nothing_before) is slow


@pytest.mark.parametrize(("before", "slow"), [(9_500, True), (5_000, False), (None, False)])
def test_slow_is_judged_by_what_should_have_been_reused(before: int | None, slow: bool) -> None:
    """The cache was lost: 10,000 tokens at 1,000 a second took 10 s, and that is what is wrong."""
    turn = replace(TURN, first_token_at=110.0, cached_tokens=0)
    assert is_slow(turn, lambda _: 1000.0, LIMITS, lambda _: before) is slow


def test_an_answer_in_one_piece() -> None:
    whole = replace(TURN, first_token_at=None)
    assert (waited_s(whole), is_slow(whole, no_rate, LIMITS, nothing_before)) == (None, None)
    told = replace(whole, queue_s=9.0, prefill_s=2.0)
    assert (waited_s(told), is_slow(told, no_rate, LIMITS, nothing_before)) == (11.0, True)


@pytest.mark.parametrize(
    ("prompt", "cached", "before", "unit", "was"),
    [
        (948, 768, 772, 128, False),  # all whole blocks of what was there before
        (197, 128, 197, 128, False),
        (256, 128, 256, 128, False),  # the last token is always read
        (12_000, 0, 10_000, 16, True),
        (12_000, 9_489, 10_000, 16, False),  # 511 are no news
        (12_000, 9_400, 10_000, 16, True),
        (12_000, 9_000, 10_000, 1_072, False),
        (12_000, 8_900, 10_000, 1_072, True),
        (12_000, 9_000, 10_000, None, False),
        (12_000, 8_900, 10_000, None, True),
        (12_000, 0, None, 16, None),
        (12_000, None, 10_000, 16, None),
        (5_000, 4_992, 10_000, 16, False),
    ],
)
def test_lost_is_more_than_growth_and_a_unit_explain(
    prompt: int, cached: int | None, before: int | None, unit: int | None, was: bool | None
) -> None:
    turn = replace(TURN, prompt_tokens=prompt, cached_tokens=cached)
    assert lost(turn, before, unit) is was


def gauges(*waiting: float, running: float = 8, loaded: float = 0.0) -> list[Sample]:
    """One sample a second from the begin of TURN on; each loads so many bytes."""
    return [Sample(at=100.0 + i, running=running, waiting=w, load_bytes=loaded * i) for i, w in enumerate(waiting)]


@pytest.mark.parametrize(
    ("samples", "was"),
    [
        (gauges(0, 1, 1, 1, 1, 1, 1, 1, 1), True),
        (gauges(0, 0, 0, 0, 0, 1, 1), False),  # only the end of its wait
        (gauges(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3), False),  # after its first token
        (gauges(1, 1, 1, 1, 1, 1, running=0), False),  # nothing ran: it waited for something else
        (gauges(1, 1, 1, 1, 1, 1, loaded=1e6), False),  # a KV load waits in the queue too
        ([], False),
    ],
)
def test_a_turn_queued_where_others_ran_and_requests_waited(samples: list[Sample], was: bool) -> None:
    assert queued(replace(TURN, first_token_at=109.1, samples=samples)) is was
