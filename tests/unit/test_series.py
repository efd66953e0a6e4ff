"""Rings of cells: nothing lost, nothing doubled, gaps stay gaps, whatever the sampling."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.model.series import STEPS, How, Kind, Medians, Series

START = 1_795_953_600.0  # a whole minute

irregular = st.lists(
    st.tuples(st.floats(0.01, 90.0), st.floats(0, 1e9), st.booleans()),
    min_size=1,
    max_size=60,
)
"""(seconds since the sample before, growth, was it observed)"""


def feed(series: Series, samples: list[tuple[float, float, bool]]) -> list[tuple[float, float, float]]:
    at, kept = START, []
    for gap, value, observed in samples:
        if observed:
            series.add(at, at + gap, value)
            kept.append((at, at + gap, value))
        at += gap
    return kept


@settings(max_examples=150, derandomize=True, deadline=None)
@given(irregular)
def test_a_flow_loses_and_doubles_nothing_in_any_resolution(samples: list[tuple[float, float, bool]]) -> None:
    series = Series(Kind.FLOW)
    kept = feed(series, samples)
    total = sum(value for _, _, value in kept)
    for span in (3_600.0, 21_600.0, 86_400.0):
        columns = series.query(span, 60, How.SUM, end=START + span - 1)
        assert sum(c or 0.0 for c in columns) == pytest.approx(total if kept else 0.0, rel=1e-6, abs=1e-6)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(irregular)
def test_gaps_stay_gaps_and_only_gaps(samples: list[tuple[float, float, bool]]) -> None:
    series = Series(Kind.LEVEL)
    kept = feed(series, samples)
    columns = series.query(3_600.0, 3_600, How.MEAN, end=START + 3_599)
    for second, value in enumerate(columns):
        lo, hi = START + second, START + second + 1
        seen = sum(max(0.0, min(b, hi) - max(a, lo)) for a, b, _ in kept)
        if value is None:
            assert seen < 1e-4
        else:
            assert seen > 0
            inside = [v for a, b, v in kept if a < hi and b > lo]
            assert min(inside) * (1 - 1e-4) - 1e-6 <= value <= max(inside) * (1 + 1e-4) + 1e-6


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.floats(0.05, 30.0), st.integers(0, 99)), min_size=1, max_size=60))
def test_the_peak_of_a_level_survives_every_resolution(samples: list[tuple[float, int]]) -> None:
    series = Series(Kind.LEVEL)
    feed(series, [(gap, value, True) for gap, value in samples])
    top = max(value for _, value in samples)
    for span in (3_600.0, 21_600.0, 86_400.0):
        assert max(c for c in series.query(span, 60, How.PEAK, end=START + span - 1) if c is not None) == top


def test_the_peak_of_a_flow_is_the_best_second_wherever_it_is_asked() -> None:
    series = Series(Kind.FLOW)
    for second in range(600):
        for fifth in range(5):
            at = START + second + fifth / 5
            series.add(at, at + 0.2, 1e6 if second == 300 else 1e3)
    series.add(START + 600, START + 601, 0.0)
    for span, columns in ((1_800.0, 60), (21_600.0, 60), (86_400.0, 60)):
        found = series.query(span, columns, How.PEAK, end=START + span - 1)
        assert max(c for c in found if c is not None) == pytest.approx(5e6, rel=1e-4)


def test_a_cell_hardly_observed_makes_no_huge_rate() -> None:
    series = Series(Kind.FLOW)
    series.add(START + 0.9, START + 0.91, 1_000.0)
    assert series.over(START, START + 1, How.PEAK) == pytest.approx(2_000.0)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(irregular, st.floats(0.0, 200.0))
def test_a_clock_set_back_forgets_the_future_and_goes_on(samples: list[tuple[float, float, bool]], back: float) -> None:
    series = Series(Kind.FLOW)
    feed(series, samples)
    if series.end is None:
        return
    to = max(START, series.end - back)
    series.rewind(to)
    series.add(to, to + 5, 50.0)
    assert series.end == to + 5 or back == 0
    end = START + 86_399
    fine = [c or 0.0 for c in series.query(3_600.0, 3_600, How.SUM, end=START + 3_599)]
    wide = [c or 0.0 for c in series.query(86_400.0, 1_440, How.SUM, end=end)]
    if series.end < START + 3_600:
        assert sum(fine) == pytest.approx(sum(wide), rel=1e-5, abs=1e-3)


def test_what_comes_twice_counts_once() -> None:
    series = Series(Kind.FLOW)
    series.add(START, START + 10, 10.0)
    series.add(START, START + 10, 10.0)
    series.add(START + 5, START + 5, 10.0)
    series.add(START + 20, START + 19, 10.0)
    series.add(START + 20, START + 21, math.nan)
    series.add(START + 20, START + 21, math.inf)
    assert sum(c or 0.0 for c in series.query(60, 60, How.SUM)) == pytest.approx(10.0)


def test_a_day_passes_and_memory_stays_the_same() -> None:
    series = Series(Kind.FLOW)
    for minute in range(26 * 60):
        series.add(START + minute * 60, START + minute * 60 + 60, 60.0)
    now = START + 26 * 3_600
    assert all(c == pytest.approx(1.0, rel=1e-4) for c in series.query(3_600.0, 360, How.MEAN, end=now - 1))
    assert all(c == pytest.approx(1.0, rel=1e-4) for c in series.query(86_400.0, 360, How.MEAN, end=now - 1))
    assert sum(len(ring.total) for ring in series._rings) == sum(size for _, size in STEPS)
    later = series.query(86_400.0, 24, How.MEAN, end=now + 40 * 3_600)
    assert later == (None,) * 24


def test_columns_stand_still_while_time_goes_on_inside_one() -> None:
    series = Series(Kind.FLOW)
    for second in range(300):
        series.add(START + second, START + second + 1, float(second))
    early = series.query(1_800.0, 180, How.MEAN, end=START + 291)
    late = series.query(1_800.0, 180, How.MEAN, end=START + 298)
    assert early == late


def test_an_empty_series_is_all_gap() -> None:
    assert Series(Kind.LEVEL).query(60, 6) == (None,) * 6
    assert Series(Kind.LEVEL).over(0, 60) is None


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 30.0), st.floats(0.01, 100.0)), min_size=1, max_size=80))
def test_the_median_of_a_column_is_that_of_its_observations(samples: list[tuple[float, float]]) -> None:
    medians, at, seen = Medians(), START, []
    for gap, value in samples:
        at += gap
        medians.add(at, value, 1)
        seen.append((at, value))
    for column, found in enumerate(medians.query(3_600.0, 60, START + 3_599)):
        inside = sorted(v for t, v in seen if START + 60 * column <= t < START + 60 * column + 60)
        assert found == (inside[(len(inside) - 1) // 2] if inside else None)


def test_medians_weigh_groups_and_stay_bounded() -> None:
    medians = Medians(kept=80)
    medians.add(START, 1.0, 1)
    medians.add(START + 1, 9.0, 3)
    medians.add(START + 1, 5.0, 100)
    assert medians.query(60.0, 1, START + 2) == (9.0,)
    for second in range(2, 400):
        medians.add(START + second, float(second), 1)
    assert len(medians._at) <= 90
    medians.rewind(START + 350)
    assert medians.query(10.0, 1, START + 349) == (344.0,)
