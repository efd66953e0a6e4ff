"""A request that the counters and a tap both tell of stands once."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.model import own as replays
from kvtop.model.merged import Ended, in_flight, tokens_of
from kvtop.model.own import OwnRequest
from kvtop.model.shown_turn import Estimate, Turn


def tap(id: int, ended_at: float | None, prompt: int = 1000, out: int = 10, **more: object) -> Turn:
    turn = Turn(id=id, ended_at=ended_at, source="tap", prompt_tokens=prompt, completion_tokens=out)
    return replace(turn, state="done" if ended_at is not None else "in_flight", **more)  # type: ignore[arg-type]


def row(id: int, ended_at: float, prompt: float = 1000, out: float = 10, n: int = 1) -> Turn:
    return Turn(
        id=id, ended_at=ended_at, n=n, prompt_tokens=prompt, completion_tokens=out, queue_s=0.25, prefill_s=1.5,
        cached_tokens=600, new_tokens=400, decode_s=2.0,
    )  # fmt: skip


def merge(
    captured: Sequence[Turn], counted: Sequence[Turn], tapped_since: float | None = None, own: Sequence[OwnRequest] = ()
) -> tuple[Turn, ...]:
    """Both lists in flight first, then the newest end first; so is the result."""
    ended = [tuple(turn for turn in turns if turn.state != "in_flight") for turns in (captured, counted)]
    beside = bool(captured)
    return (*in_flight(captured, counted, beside), *Ended().of(*ended, tapped_since, beside, tuple(own)))


def test_without_captured_turns_the_counted_rows_stand_as_they_are() -> None:
    rows = (row(2, 20.0), row(1, 10.0))
    assert merge((), rows) == rows


def test_a_request_that_both_tell_of_stands_once_and_knows_what_either_knows() -> None:
    (one,) = merge([tap(7, 10.0)], [row(1, 10.4)])
    assert (one.id, one.source, one.queue_s, one.prefill_s, one.cached_tokens) == (7, "tap", 0.25, 1.5, 600)


def test_usage_goes_before_the_counters() -> None:
    (one,) = merge([tap(7, 10.0, cached_tokens=512, new_tokens=488, queue_s=0.1)], [row(1, 10.4)])
    assert (one.cached_tokens, one.new_tokens, one.queue_s) == (512, 488, 0.1)


def test_what_went_past_the_tap_stays_and_the_order_is_by_the_ends() -> None:
    rows = merge([tap(8, 30.0), tap(7, 10.0)], [row(3, 30.5), row(2, 20.5, prompt=77), row(1, 10.5)])
    assert [(t.source, t.id) for t in rows] == [("tap", 8), ("metrics", 2), ("tap", 7)]


def test_tokens_that_a_version_does_not_count_are_not_unequal() -> None:
    """Old servers have no histogram of generated tokens."""
    rows = [replace(row(2, 30.2, prompt=900), completion_tokens=None), replace(row(1, 10.4), completion_tokens=None)]
    made = merge([tap(7, 10.0)], rows, 0.5, [own(30.0, 900, 600)])
    assert [(t.name, t.past_tap, t.prefill_s) for t in made] == [("r1", False, None), ("7", False, 1.5)]


@pytest.mark.parametrize(
    ("unsure", "past"), [(None, True), ((0.0, 5.0), True), ((12.0, math.inf), False), ((5.0, 9.5), False)]
)
def test_what_may_have_gone_through_without_being_recorded_is_not_said_to_have_gone_past(
    unsure: tuple[float, float] | None, past: bool
) -> None:
    counted = replace(row(1, 14.0), started_at=11.0)
    (one,) = Ended().of((), (counted,), 0.5, False, unsure=unsure)
    assert one.past_tap is past


def test_two_alike_take_a_row_each() -> None:
    rows = merge([tap(8, 10.2), tap(7, 10.0)], [row(2, 10.6), row(1, 10.4)])
    assert [(t.source, t.id) for t in rows] == [("tap", 8), ("tap", 7)]


def test_a_group_is_left_out_when_all_of_it_was_captured() -> None:
    captured = [tap(8, 10.2, prompt=300), tap(7, 10.0, prompt=100)]
    assert [t.id for t in merge(captured, [row(1, 10.5, prompt=200, n=2)])] == [8, 7]
    assert len(merge(captured, [row(1, 10.5, prompt=250, n=2)])) == 3


def test_a_row_from_another_time_is_not_the_same_request() -> None:
    assert len(merge([tap(7, 10.0)], [row(1, 14.0)])) == 2
    assert len(merge([tap(7, 10.0)], [row(1, 9.0)])) == 2


def own(at: float, prompt: int | None, cached: int | None = 0, took: float | None = 2.0) -> OwnRequest:
    return OwnRequest(f"{at}", "http://x", at - (took or 0.0), None if took is None else at, prompt, cached)


def test_what_a_replay_asked_is_named_and_what_others_asked_went_past_the_tap() -> None:
    rows = [row(3, 30.2, prompt=900, out=1), row(2, 20.2, prompt=77), row(1, 10.2, prompt=500, out=1)]
    made = merge([tap(7, 5.0)], rows, 0.5, [own(10.0, 500), own(30.0, 900, 512), own(40.0, 900)])
    assert [(t.name, t.agent, t.past_tap, t.prompt_tokens) for t in made] == [
        ("r3", "kvtop replay", False, 900),
        ("r2", "kvtop replay", False, 900),
        ("m2", None, True, 77),
        ("r1", "kvtop replay", False, 500),
        ("7", None, False, 1000),
    ]
    assert (made[1].cached_tokens, made[1].queue_s, made[1].source) == (512, None, "metrics")
    assert (made[0].cached_tokens, made[0].ttft_s) == (0, 2.0), "as it was noted, whether it was counted yet or not"
    assert len({t.key for t in made}) == 5
    broken_off = merge([tap(7, 5.0)], [row(1, 10.2, prompt=500, out=1)], 0.5, [own(10.0, None)])
    assert [t.agent for t in broken_off] == [None, None], "it could be any row"


def test_of_requests_that_were_counted_together_each_of_a_replay_is_a_row_and_the_rest_another() -> None:
    group = row(4, 12.0, prompt=1_200, out=1, n=3)
    made = merge([tap(7, 5.0)], [group], 0.5, [own(11.0, 1_000), own(11.8, 2_000, 1_984)])
    assert [(t.name, t.agent, t.n, t.past_tap) for t in made] == [
        ("m4", None, 1, True),
        ("r2", "kvtop replay", 1, False),
        ("r1", "kvtop replay", 1, False),
        ("7", None, 1, False),
    ]
    assert [t.cached_tokens for t in made[1:3]] == [1_984, 0]
    assert len({t.key for t in made}) == 4
    alone = merge([], [row(4, 12.0, prompt=1_500, out=1, n=2)], None, [own(11.0, 1_000), own(11.8, 2_000)])
    assert [(t.name, t.agent, t.ttft_s) for t in alone] == [("r2", "kvtop replay", 2.0), ("r1", "kvtop replay", 2.0)]


def test_the_requests_of_a_replay_never_share_a_number() -> None:
    """One prompt twice, the first read whole, the second from the cache: each keeps its own TTFT and its own share."""
    cold, warm = own(10.0, 6_000, 0, took=3.9), own(10.4, 6_000, 5_984, took=0.3)
    first = replace(row(14, 10.1, prompt=6_000, out=1), cached_tokens=0, ttft_s=3.6)
    second = replace(row(15, 10.6, prompt=6_000, out=1), cached_tokens=5_984, ttft_s=0.2)
    for rows in ([], [first], [second, first], [row(14, 10.6, prompt=6_000, out=1, n=2)]):
        made = merge([], rows, None, [cold, warm])
        assert [(t.name, t.cached_tokens, t.ttft_s) for t in made] == [
            ("r2", 5_984, pytest.approx(0.3)),
            ("r1", 0, pytest.approx(3.9)),
        ]


def test_a_row_of_a_replay_whose_cached_tokens_were_told_otherwise_is_no_row_of_somebody_else() -> None:
    made = merge([], [row(1, 10.1, prompt=900, out=1)], None, [own(10.0, 900, None)])
    assert [t.name for t in made] == ["r1"]
    made = merge([], [row(1, 10.1, prompt=900, out=1)], None, [own(10.0, 900, 512)])
    assert [(t.name, t.cached_tokens) for t in made] == [("r1", 512)]


def test_only_what_may_have_ended_since_a_server_is_watched_has_a_row() -> None:
    before, flying, after = own(10.0, 500), own(9.0, None, None, None), own(20.0, 500)
    assert replays.since([before, flying, after], 12.0) == (flying, after)
    assert replays.since([before, flying, after], 20.0 + replays.OPEN_S) == ()
    assert replays.since([before, after], None) == (before, after)


def test_what_was_counted_is_held_back_until_the_note_of_it_is_read() -> None:
    assert replays.lately([own(10.0, None)], 12.0, 3.0) and not replays.lately([own(10.0, 500)], 13.5, 3.0)
    assert replays.lately([own(10.0, None, None, None)], 60.0, 3.0)


def test_a_replay_in_flight_is_named_where_nothing_else_runs() -> None:
    running = Turn(id=9, ended_at=None, n=1, state="in_flight")
    asked = [own(10.0, None, None, None)]
    assert replays.in_flight(asked, 12.0) == 1 and replays.in_flight(asked, 10.0 + replays.OPEN_S) == 0
    assert [t.agent for t in in_flight((), [running], False, 1)] == ["kvtop replay"]
    assert [t.agent for t in in_flight((), [replace(running, n=2)], False, 1)] == [None]
    assert [t.agent for t in in_flight((), [running], False, 0)] == [None]


def test_in_flight_the_captured_stand_alone_and_the_rest_is_one_row() -> None:
    running = Turn(id=9, ended_at=None, n=3, state="in_flight", phase="writes")
    assert merge([tap(7, None)], [replace(running, n=1)]) == (tap(7, None),)
    first, second = merge([tap(7, None)], [running])
    assert (first.source, first.n, second.id) == ("metrics", 2, 7)


def test_the_tokens_of_a_window_are_those_whose_first_token_came_in_it() -> None:
    streamed = tap(1, 50.0, prompt=100, started_at=38.0, ttft_s=4.0)
    whole = tap(2, 45.0, prompt=30)
    assert tokens_of([streamed, whole], 40.0, 60.0) == 130
    assert tokens_of([streamed, whole], 43.6, 60.0) == 30
    assert tokens_of([tap(3, None, prompt=9)], 0.0, 60.0) == 0


def test_a_first_token_at_the_edge_of_a_window_may_be_counted_in_it() -> None:
    """Polls and the tap do not look at the same moment."""
    at_42 = tap(1, 50.0, prompt=100, started_at=38.0, ttft_s=4.0)
    assert [tokens_of([at_42], start, 60.0) for start in (42.5, 43.4, 43.6)] == [100, 100, 0]
    assert [tokens_of([at_42], 30.0, end) for end in (41.5, 40.6, 40.4)] == [100, 100, 0]


def test_a_first_token_that_nobody_saw_may_be_in_any_window_of_its_turn() -> None:
    whole = tap(2, 50.0, prompt=30, started_at=20.0)
    assert [tokens_of([whole], *span) for span in ((30.0, 40.0), (45.0, 60.0), (52.0, 60.0), (5.0, 15.0))] == [
        30, 30, 0, 0,
    ]  # fmt: skip
    read = tap(3, None, prompt=9, started_at=55.0, phase="reads")
    assert tokens_of([read], 50.0, 60.0) == 9
    assert tokens_of([replace(read, phase="waits")], 50.0, 60.0) == 0


def test_a_captured_turn_without_usage_is_found_by_its_end_and_length() -> None:
    untold = tap(7, 10.0, started_at=4.0, duration_s=6.0)
    untold = replace(untold, prompt_tokens=None, completion_tokens=None)
    (one,) = merge([untold], [replace(row(1, 10.6), duration_s=5.9)], tapped_since=0.0)
    assert (one.id, one.prompt_tokens, one.completion_tokens, one.counted) == (7, 1000, 10, 1)
    assert len(merge([untold], [replace(row(1, 10.6), duration_s=1.0)])) == 2, "another request: it took too short"
    assert len(merge([replace(untold, state="aborted")], [replace(row(1, 10.6), duration_s=5.9)])) == 2


def test_tokens_go_before_times() -> None:
    """The row belongs to the one with its tokens, though another one without any ended closer to it."""
    untold = replace(tap(8, 10.5), prompt_tokens=None, completion_tokens=None)
    rows = merge([untold, tap(7, 10.0)], [row(1, 10.6)])
    assert [(t.id, t.counted) for t in rows] == [(8, None), (7, 1)]


def test_of_a_group_that_was_captured_in_part_the_rest_stays() -> None:
    captured, rest = merge([tap(7, 10.0, prompt=300)], [row(1, 10.5, prompt=200, n=3)])[::-1]
    assert (captured.id, captured.counted) == (7, 1)
    assert (rest.n, rest.prompt_tokens, rest.ttft_s, rest.cached_tokens) == (2, 150, None, None)


def test_a_group_takes_no_captured_turn_of_the_group_before_it() -> None:
    """Each row takes those that ended since the one before it, and no later row takes them first."""
    captured = [tap(i, at, prompt=p) for i, at, p in ((10, 12.4, 700), (9, 12.2, 600), (8, 10.2, 500), (7, 10.0, 400))]
    rows = [row(2, 12.5, prompt=800, out=10, n=3), row(1, 10.5, prompt=600, out=10, n=4)]
    left = [t for t in merge(captured, rows, tapped_since=0.0) if not t.captured]
    assert [(t.id, t.n, t.prompt_tokens, t.cached_tokens) for t in left] == [(2, 1, 1100, None), (1, 2, 750, None)]


@pytest.mark.parametrize("poll_s", [0.2, 0.5, 2.0])
def test_of_two_conversations_the_captured_one_is_never_said_to_have_gone_past(poll_s: float) -> None:
    """Six turns each with pauses of 0.3 s, one conversation past the tap."""
    for seed in range(40):
        luck = random.Random(seed)
        ends: list[tuple[float, int, int, bool]] = []
        for seen in (True, False):
            at, prompt = luck.random(), 300
            for _ in range(6):
                at, prompt = at + luck.uniform(0.6, 1.8), prompt + luck.randint(50, 300)
                ends.append((at, prompt, luck.randint(20, 80), seen))
        rows, now, rest = [], 0.0, sorted(ends)
        while rest:
            now += poll_s * luck.uniform(0.7, 1.3)
            some = [one for one in rest if one[0] + luck.uniform(0, 0.1) <= now]
            rest = [one for one in rest if one not in some]
            if n := len(some):
                prompts, outs = (sum(one[i] for one in some) / n for i in (1, 2))
                rows.append(replace(row(len(rows), now, prompts, outs, n), started_at=0.1))
        captured = [tap(i, at, p, out) for i, (at, p, out, seen) in enumerate(sorted(ends)) if seen]
        made = merge(captured[::-1], rows[::-1], tapped_since=0.0)
        assert sum(t.n for t in made if not t.captured) == 6, seed
        assert sum(t.captured for t in made) == 6


def test_only_what_began_while_a_tap_ran_went_past_it() -> None:
    rows = [replace(row(2, 30.0), started_at=20.0), replace(row(1, 10.0), started_at=5.0)]
    assert [t.past_tap for t in merge([], rows)] == [False, False]
    assert [t.past_tap for t in merge([tap(7, 40.0)], rows, tapped_since=15.0)] == [False, True, False]


def test_of_thousands_only_what_changed_is_merged_again() -> None:
    captured, rows = tuple(tap(i, float(i)) for i in range(5000, 0, -1)), [row(1, 4000.4)]
    ended = Ended()
    first = ended.of(captured, rows, None, False)
    assert ended.of(captured, list(rows), None, False) is first
    assert len(first) == 5000
    assert ended.of(captured, [row(2, 4001.4), *rows], None, False) is not first


def test_what_told_no_tokens_is_estimated_or_nothing_is_said() -> None:
    guessed = replace(tap(1, 50.0, started_at=40.0, ttft_s=4.0), prompt_tokens=None, estimate=Estimate(70))
    assert tokens_of([guessed], 40.0, 60.0) == 70 * 1.25, "an estimate may be too small"
    assert tokens_of([replace(guessed, estimate=None)], 40.0, 60.0) is None
    refused = replace(guessed, estimate=None, ttft_s=None, state="failed")
    assert tokens_of([refused], 40.0, 60.0) == 0, "a refused request is not counted by the server either"


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(1, 5), st.integers(1, 3)), max_size=25), st.data())
def test_whatever_part_was_captured_each_request_stands_once(
    requests: list[tuple[float, int, int]], data: st.DataObject
) -> None:
    """Rows of one request each: captured ones are taken by their row, the others stay."""
    ends = sorted(requests, reverse=True)
    rows = [row(i, at, prompt=p, out=o) for i, (at, p, o) in enumerate(ends)]
    seen = [data.draw(st.booleans()) for _ in ends]
    captured = [tap(100 + i, at, prompt=p, out=o) for i, (at, p, o) in enumerate(ends) if seen[i]]
    merged = merge(captured, rows)
    assert len(merged) == len(rows)
    assert sum(t.source == "tap" for t in merged) == len(captured)
    assert [t.ended_at for t in merged] == sorted((t.ended_at for t in merged), reverse=True)


def test_beside_captured_turns_no_counted_row_has_one_of_the_stores_numbers() -> None:
    flight = Turn(4, None, state="in_flight", n=2)
    rows = merge([tap(9, None), tap(2, 30.0)], [flight, row(2, 20.5, prompt=77), row(1, 10.5, prompt=78)])
    assert [t.name for t in rows] == ["–", "9", "2", "m2", "m1"]
    assert [t.key for t in rows if t.source == "metrics"] == [("flight", 4), ("counted", 2), ("counted", 1)]
    assert [t.name for t in merge((), [flight, row(2, 20.5)])] == ["–", "2"]


def test_rows_are_named_anew_when_the_first_turn_in_flight_is_captured() -> None:
    ended, rows = Ended(), (row(1, 10.5),)
    none: tuple[Turn, ...] = ()
    assert [[t.name for t in ended.of(none, rows, None, beside)] for beside in (False, True, False)] == [
        ["1"], ["m1"], ["1"]
    ]  # fmt: skip


def test_what_only_the_counters_told_is_known_as_such() -> None:
    told = replace(tap(7, 10.0), prompt_tokens=None, completion_tokens=None, cached_tokens=3, ttft_s=2.0)
    (one,) = merge([told], [row(1, 10.4)])
    assert set(one.worked_out) == {
        "prompt_tokens", "new_tokens", "completion_tokens", "queue_s", "prefill_s", "decode_s",
    }  # fmt: skip
    assert (one.cached_tokens, one.cached_source, one.ttft_s) == (3, None, 2.0)
    (other,) = merge([replace(told, cached_tokens=None, ttft_s=None)], [row(1, 10.4)])
    assert (other.cached_source, other.ttft_s) == ("metrics", 1.75)
    assert {"cached_tokens", "ttft_s"} <= set(other.worked_out)


def test_a_row_that_its_tokens_tell_has_the_times_of_that_turn() -> None:
    (one,) = merge([replace(tap(7, 10.0), ttft_s=2.0)], [row(1, 10.4)])
    assert (one.queue_s, one.cached_tokens, set(one.worked_out)) == (0.25, 600, {"cached_tokens", "new_tokens"})
