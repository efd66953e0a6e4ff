"""Cells, wordings, bars and braille."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from kvtop.ui import draw

TEXT = st.text(max_size=60)
LINE = st.lists(st.tuples(TEXT.map(draw.safe), st.sampled_from(["t", "d", "bad bold"])), max_size=5)
quick = settings(max_examples=150, derandomize=True, deadline=None)


@quick
@given(TEXT)
def test_safe_text_holds_no_character_that_moves_a_cursor(text: str) -> None:
    shown = draw.safe(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
    assert draw.safe(shown) == shown


def test_controls_are_seen_and_not_sent() -> None:
    assert draw.safe("a\x1b[31mb\n\x7f\u202e") == "a␛[31mb␊␡�"


@quick
@given(LINE, st.integers(0, 80))
def test_a_fitted_line_is_exactly_as_wide_as_asked(line: draw.Line, w: int) -> None:
    fitted = draw.fit(line, w)
    assert draw.width(fitted) == w


@quick
@given(LINE, LINE, st.integers(1, 80))
def test_spread_fills_the_row_and_keeps_the_right_end(left: draw.Line, right: draw.Line, w: int) -> None:
    row = draw.spread(left, right, w)
    assert draw.width(row) == w
    if draw.width(right) < w:
        assert "".join(t for t, _ in row).endswith("".join(t for t, _ in right))


@quick
@given(LINE, st.integers(2, 80), st.integers(0, 10))
def test_wrapped_rows_fit_and_lose_nothing_but_spaces(line: draw.Line, w: int, indent: int) -> None:
    rows = draw.wrap(line, w, indent)
    assert all(draw.width(row) <= w for row in rows)
    squeeze = str.maketrans("", "", " \u00a0")
    before = "".join(t for t, _ in line).translate(squeeze)
    assert "".join(t for row in rows for t, _ in row).translate(squeeze) == before


def test_a_number_stays_with_its_unit() -> None:
    rows = draw.wrap([("turn 812 waited 92 s: and", "t")], 18)
    assert ["".join(t for t, _ in row) for row in rows] == ["turn 812 waited", "92 s: and"]


def test_wordings_give_way_to_shorter_ones_and_are_not_cut() -> None:
    options = ["waits for room in the KV pool", "waits for room", "waits"]
    assert [draw.pick(options, w) for w in (40, 20, 5)] == options


@quick
@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), max_size=5), st.integers(0, 60))
def test_a_stack_fills_its_width_and_no_part_that_is_something_is_nothing(parts: list[float | None], w: int) -> None:
    names = [f"s{i}" for i in range(len(parts))]
    bar = draw.stack(list(zip(parts, names, strict=True)), w)
    assert draw.width(bar) == w
    some = [name for part, name in zip(parts, names, strict=True) if part]
    if some and w >= len(some):
        assert {style for _, style in bar} == set(some)


def test_parts_are_told_apart_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert draw.stack([(2, "a"), (1, "b"), (1, "c")], 8) == [("████", "a"), ("▓▓", "b"), ("▒▒", "c")]
    assert draw.stack([(0, "a"), (2, "b"), (2, "c")], 8) == [("▓▓▓▓", "b"), ("▒▒▒▒", "c")]
    assert draw.meter([(0.0, "a"), (0.9, "b")], 8) == [("▓" * 7, "b"), ("─", "f")]
    assert draw.meter([(0.5, "a"), (0.4, "b")], 10) == [("━" * 5, "a"), ("▓" * 4, "b"), ("─", "f")]


def test_a_meter_of_something_is_never_empty_and_of_nothing_never_full() -> None:
    assert draw.meter([(0.001, "x")], 10) == [("━", "x"), ("─" * 9, "f")]
    assert draw.meter([(None, "x")], 4) == [("────", "f")]
    assert draw.meter([(7.0, "x")], 4) == [("━━━━", "x")]


def test_a_meter_is_full_only_at_all_of_it_and_alike_for_what_reads_alike() -> None:
    for share in (0.956, 0.964, 0.9999):
        assert draw.meter([(share, "x")], 12) == [("━" * 11, "x"), ("─", "f")]
        assert draw.expected(share, 12, "x") == [("┄" * 11, "x"), ("─", "f")]
    assert draw.meter([(1.0, "x")], 12) == [("━" * 12, "x")]
    assert draw.meter([(0.7, "x"), (0.3, "y")], 10) == [("━" * 7, "x"), ("━" * 3, "y")]
    assert draw.meter([(0.95, "x"), (0.04, "y")], 10) == [("━" * 9, "x"), ("─", "f")]
    assert draw.expected(0.001, 12, "x")[0] == ("┄", "x") and draw.expected(0.0, 4, "x") == [("────", "f")]


def test_zero_is_a_dot_and_a_gap_is_none() -> None:
    assert draw.area([0, 0, None, None, 1, 1], 3, 1, 1.0) == ["⣀ ⣿"]
    assert draw.area([0, 0, 1, 1], 2, 1, 1.0, down=True) == ["⠉⣿"]


@quick
@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), max_size=50), st.integers(0, 30),
       st.integers(0, 6))  # fmt: skip
def test_an_area_never_fails(values: list[float | None], w: int, h: int) -> None:
    rows = draw.area(values, w, h, draw.nice(draw.peak(values) or 0))
    assert len(rows) == h and all(cell_len(row) == w for row in rows)


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.7, 1), (1, 1), (1.2, 2), (2.5, 3), (4.1e6, 5e6), (6, 10), (1e9, 1e9)]
)
def test_scales_move_in_round_steps(value: float, top: float) -> None:
    assert draw.nice(value) == pytest.approx(top)
