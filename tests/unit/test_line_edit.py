"""A text that is typed without a box for it."""

from __future__ import annotations

import pytest
from textual import events

from kvtop.ui.draw import cells
from kvtop.ui.line_edit import MOST, edited, pasted


@pytest.mark.parametrize(
    ("key", "character", "after"),
    [
        ("c", "c", "abc"),
        ("backspace", None, "a"),
        ("ctrl+h", None, "a"),
        ("ctrl+u", None, ""),
        ("f5", None, "ab"),
    ],
)
def test_a_key_types_or_deletes(key: str, character: str | None, after: str) -> None:
    assert edited("ab", events.Key(key, character)) == after


def test_it_never_takes_more_than_its_cells() -> None:
    full = "x" * (MOST - 1)
    assert edited(full, events.Key("漢", "漢")) == full
    assert edited(full, events.Key("y", "y")) == f"{full}y"
    made = pasted("a", events.Paste("漢" * MOST))
    assert made.startswith("a漢") and cells(made) == MOST - 1
    assert pasted("a ", events.Paste("b\nc\t d ")) == "a b c d"
