"""Pieces fit for a cell grid: nothing moves the cursor, and of what differs nothing is invisible."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diff_sheets import EVIL
from kvtop.triage.places import unseen
from kvtop.triage.sheet import Hunk, Sheet
from kvtop.ui.pieces import shown

from diff_sheets import of  # isort: skip


def text(piece: str, **how: bool) -> str:
    return "\n".join(line for line, _ in shown(**how)(piece))


@given(st.text(max_size=40) | st.just(EVIL), st.booleans(), st.booleans(), st.booleans())
def test_nothing_of_it_is_a_control(piece: str, kept: bool, exactly: bool, parted: bool) -> None:
    for line, size in shown(kept, exactly, parted)(piece):
        assert all(unicodedata.category(char)[0] != "C" for char in line)
        assert not any(unicodedata.category(char) in ("Zl", "Zp") for char in line)
        assert 0 <= size <= 2 * len(line)


@pytest.mark.parametrize(
    ("piece", "kept", "told", "exactly"),
    [
        ("a b", "a b", "a b", "a·b"),
        ("a\tb", "a␉b", "a␉b", "a␉b"),
        ("\x1b[31m", "␛[31m", "␛[31m", "␛[31m"),
        ("a\u200db", "ab", "a\\u200db", "a\\u200db"),
        ("a\u202eb", "a�b", "a\\u202eb", "a\\u202eb"),
        ("a\xa0b", "a\xa0b", "a\\xa0b", "a\\xa0b"),
        ("e\u0301", "é", "e\u0301", "e\\u0301"),
        ("é", "é", "é", "é"),
        ("\u0301", "", "\\u0301", "\\u0301"),
        ("漢", "漢", "漢", "漢"),
        ("\ud800", "�", "\\ud800", "\\ud800"),
        ("a\n", "a\n", "a\n", "a⏎\n"),
        ("\u212b", "Å", "\u212b", "\\u212b"),
    ],
)
def test_how_it_is_shown(piece: str, kept: str, told: str, exactly: str) -> None:
    assert text(piece) == kept
    assert text(piece, kept=False) == told
    assert text(piece, kept=False, exactly=True) == exactly


def test_where_pieces_are_told_apart_a_newline_is_drawn() -> None:
    assert text("a\n\n  b", parted=True) == "a⏎⏎  b"


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (["a b"], ["a  b"], True),
        (["a\n"], ["a"], True),
        ([], [" \n"], True),
        (["é"], ["e\u0301"], True),
        (["a"], ["b"], False),
        (["ab"], ["a\u200db"], False),
        ([" " * 30_000], [" "], False),
    ],
)
def test_what_would_not_be_seen(old: list[str], new: list[str], same: bool) -> None:
    made: Sheet = of(old, new)
    assert unseen(made, Hunk(range(len(old)), range(len(new)), same=False)) is same
