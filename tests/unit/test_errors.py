"""Text from outside in messages of one line."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.errors import printable


def test_what_moves_a_cursor_is_seen() -> None:
    assert printable("a\x1b[2J\n\u202eb\udc80 ü") == "a\\x1b[2J\\n\\u202eb\\udc80 ü"


def test_what_is_too_long_is_cut_and_says_so() -> None:
    assert printable("a" * 40, 40) == "a" * 40
    assert printable("a" * 41, 40) == "a" * 39 + "…"


@settings(derandomize=True, deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_one_line_of_the_length_asked_for(text: str) -> None:
    made = printable(text, 40)
    assert made.isprintable() and len(made) <= 40
    assert printable(made, 40) == made
