"""Any number in any series: nothing raises, nothing that cannot be true is told, and what was well goes on."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_texts import made, raw, scrape, texts_of

from kvtop.clock import iso
from kvtop.model import document, sentence
from kvtop.model.downs import Around
from kvtop.model.history import ServerHistory
from kvtop.model.samples import MAX_ENGINES, samples, summed
from kvtop.model.series import How, Kind, Medians, Series
from kvtop.model.turns import TurnTracker
from kvtop.model.view import WINDOWS
from kvtop.model.window import between, since_start
from kvtop.readings import State

NOW = 1_795_953_600.0
E0 = '{engine="0",model_name="m"}'
LINE = re.compile(r"^((?:vllm:|process_start)\S*(?:\{.*\})?) (\S+)$", re.MULTILINE)

absurd = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, -1.0, 0.0, 1.7e12, 1e18, 5e-324]), st.floats()
)
numbers = st.one_of(absurd, st.integers(-(10**400), 10**400))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_nothing_raises(data: st.DataObject, captures: Callable[[str], Path]) -> None:
    whole = raw(texts_of(captures(data.draw(st.sampled_from(["vllm-0.32.0-tier", "dp2", "spec-ngram"]))))[-1])
    names = sorted({re.split(r"[{ ]", match[1])[0] for match in LINE.finditer(whole)})
    history, tracker, before = ServerHistory("http://h:1", "h"), TurnTracker(), None
    for step in range(4):
        everywhere = data.draw(st.one_of(st.none(), absurd))
        chosen = set(data.draw(st.lists(st.sampled_from(names), max_size=12)))
        values = {name: data.draw(absurd) for name in sorted(chosen)}

        def put(match: re.Match[str], everywhere: float | None = everywhere, values: dict[str, float] = values) -> str:
            value = values.get(re.split(r"[{ ]", match[1])[0], everywhere)
            return match[0] if value is None else f"{match[1]} {value!r}"

        now = NOW + step
        one = scrape(LINE.sub(put, whole), now)
        history.scrape(one)
        for turn in (*tracker.add(one), *tracker.in_flight()):
            json.dumps(document.turn(turn), allow_nan=False)
        for window in (between(before or one, one, 1.0), since_start(one)):
            assert possible(asdict(window.all))
            json.dumps(document.snapshot(window), allow_nan=False)
        for key, _, _ in WINDOWS:
            view = history.view(now, key)
            assert possible(asdict(view.window.all))
            assert sentence.make([view], 0, Around(now)).text
        for name in ("share", "ttft_p50_s", "running", "kv_cache_usage_share", "store_bytes_per_s"):
            assert possible(history.series(name, 3_600.0, 60, now))
        before = one


def possible(value: object) -> bool:
    if isinstance(value, dict):
        return all(possible(v) for v in value.values())
    if isinstance(value, list | tuple):
        return all(possible(v) for v in value)
    return isinstance(value, bool) or not isinstance(value, int | float) or -1e18 <= value <= 1e18


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=12))
def test_what_the_charts_are_fed_never_desynchronises_them(rows: list[tuple[float, float, float]]) -> None:
    medians = Medians()
    series = [Series(kind) for kind in Kind]
    for a, b, c in rows:
        medians.add(a, b, c)  # type: ignore[arg-type]
        for one in series:
            one.add(a, b, c)
    for one in (medians, *series):
        one.rewind(NOW)
    medians.add(NOW + 1, 3.0, 2)
    assert medians.query(60.0, 1, NOW + 2) == (3.0,)
    for one in series:
        one.add(NOW + 1, NOW + 2, 4.0)
        assert one.over(NOW + 1, NOW + 2, How.MEAN) == pytest.approx(4.0)


def test_an_absurd_count_does_not_stop_the_medians() -> None:
    medians = Medians()
    medians.add(NOW, 1.0, 10**30)
    medians.add(NOW + 1, 2.0, 5)
    assert medians.query(10.0, 1, NOW + 2) == (2.0,)


@pytest.mark.parametrize("start", [1.7e12, 1e18, 1e308, -5.0, 0.0, math.nan, math.inf, NOW + 90_000])
def test_a_start_that_is_no_time_is_not_known(start: float) -> None:
    series = {f"prompt_tokens_total{E0}": 5}
    a, b = made(series, NOW, start=start), made(series, NOW + 1, start=NOW - 100)
    window = between(b, a, 1.0)
    assert (window.state, window.started_at) == (State.UP, None)
    assert document.snapshot(window)["started_at"] is None
    assert since_start(a).window_s is None
    assert not samples(a).multiprocess, "it was told, although it cannot be believed"


def test_a_date_that_no_calendar_has_is_none() -> None:
    assert [iso(at) for at in (1.7e12, 1e18, 1e308, -1e15, math.nan, math.inf)] == [None] * 6
    assert iso(0.0) == "1970-01-01T00:00:00Z"


def test_gauges_that_cannot_be_are_unknown() -> None:
    def requests(running: float, usage: float) -> tuple[int | None, float | None]:
        one = made({f"num_requests_running{E0}": running, f"kv_cache_usage_perc{E0}": usage})
        got = since_start(one).all.requests
        return got.running, got.kv_cache_usage_share

    assert requests(-1, -1) == (None, None)
    assert requests(1e308, 1.5) == (None, None)
    assert requests(3, 1.0000001) == (3, 1.0)
    assert requests(0, 0.25) == (0, 0.25)


def test_a_counter_that_was_absurd_for_a_moment_is_no_restart() -> None:
    well, ill = made({f"prompt_tokens_total{E0}": 500}), made({f"prompt_tokens_total{E0}": 1e16})
    for a, b in ((well, ill), (ill, well)):
        window = between(a, b, 1.0)
        assert (window.state, window.all.cached.prompt_tokens) == (State.UP, None)


def test_engines_beyond_the_cap_count_only_together() -> None:
    def text(step: int) -> dict[str, float]:
        return {f'prompt_tokens_total{{engine="{i}"}}': 10.0 * step for i in range(MAX_ENGINES + 44)}

    a, b = made(text(1)), made(text(3))
    window = between(a, b, 1.0)
    assert [one.engine for one in window.engines] == [str(i) for i in range(MAX_ENGINES)]
    assert window.all.cached.prompt_tokens == 20 * (MAX_ENGINES + 44)
    assert "300 engines: the first 256" in window.detail
    assert between(summed(a), b, 1.0).all == window.all
    assert len(samples(summed(a)).engines) == MAX_ENGINES


@pytest.mark.parametrize("name", ["vllm-0.32.0-tier", "dp2", "spec-ngram"])
def test_summed_series_say_the_same(name: str, captures: Callable[[str], Path]) -> None:
    first, *_, last = (scrape(raw(path)) for path in texts_of(captures(name)))
    assert between(summed(first), summed(last), 2.0) == between(first, last, 2.0)


def test_label_sets_that_come_and_go_leave_nothing_in_the_history() -> None:
    history = ServerHistory("http://h:1", "h")
    for step in range(20):
        series = {f'prompt_tokens_total{{engine="0",model_name="m{step}_{i}"}}': 2.0 for i in range(2_000)}
        history.scrape(made(series, NOW + 5 * step))
    kept = history._archive._levels[0]
    assert len(kept) > 2 and all(len(packed.keys) < 10 for packed in kept)
    assert history.view(NOW + 95, "1m").life.all.cached.prompt_tokens == 4_000
