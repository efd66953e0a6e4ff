"""Pieces in rows: each row fits, nothing is cut, rows end at spaces and newlines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from diff_sheets import hostile
from kvtop.triage.flow import NEWLINE, SEPARATOR, flow, parted
from kvtop.ui.draw import cells
from kvtop.ui.pieces import shown

plain = shown()


def rows(pieces: list[str], w: int) -> list[str]:
    return ["".join(row.parts) for row in flow(pieces, range(len(pieces)), w, plain, cells)]


def test_rows_end_at_spaces() -> None:
    pieces = [" one", " two", " three", " four", "teen", " five"]
    assert rows(pieces, 12) == [" one two ", "three ", "fourteen ", "five"]
    assert [row.at for row in flow(pieces, range(6), 12, plain, cells)] == [0, 2, 3, 5]


def test_words_that_end_with_spaces() -> None:
    assert rows(["one ", "two ", "three ", "four "], 9) == ["one two ", "three ", "four "]


def test_a_word_that_is_longer_than_a_row_is_broken_where_the_row_ends() -> None:
    assert rows([" a", "b" * 25, " c"], 10) == [" abbbbbbbb", "b" * 10, "b" * 7 + " c"]
    assert rows(["漢" * 5, "字"], 5) == ["漢漢", "漢漢", "漢字"]


def test_newlines_end_rows() -> None:
    assert rows(["a", ".\n\n", "b", "\n", "\n    ", "c"], 20) == ["a.", "", "b", "", "    c"]
    assert rows(["\n"], 20) == [""]
    assert rows([], 20) == []


def test_told_apart() -> None:
    pieces = ["a", "", " b", "\n  ", "c" * 12]
    made = parted(pieces, range(5), 10, shown(parted=True), cells)
    assert ["".join(row.parts) for row in made] == ["a▏▏ b▏⏎  ▏", "c" * 9, "ccc▏"]
    assert [row.at for row in made] == [0, 4, 4]


@given(hostile, st.integers(2, 60))
def test_every_row_fits_and_nothing_is_lost(pieces: list[str], w: int) -> None:
    made = flow(pieces, range(len(pieces)), w, plain, cells)
    assert all(cells("".join(row.parts)) <= w for row in made)
    told = "".join(text for piece in pieces for text, _ in plain(piece))
    assert "".join("".join(row.parts) for row in made) == told
    assert [row.at for row in made] == sorted(row.at for row in made)


@given(hostile, st.integers(2, 60))
def test_told_apart_every_row_fits_and_each_piece_has_its_separator(pieces: list[str], w: int) -> None:
    show = shown(parted=True)
    made = parted(pieces, range(len(pieces)), w, show, cells)
    assert all(cells("".join(row.parts)) <= w for row in made)
    told = "".join("".join(text for text, _ in show(piece)) + SEPARATOR for piece in pieces)
    assert "".join("".join(row.parts) for row in made) == told
    assert sum(part == SEPARATOR for row in made for part in row.parts[1::2]) == len(pieces)
    assert all("\n" not in part for row in made for part in row.parts)
    assert sum(told.count(char) for char in NEWLINE) >= sum(piece.count("\n") for piece in pieces)
