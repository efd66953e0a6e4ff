"""What is typed, as events; a paste that never ends is not what all that follows belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from textual.events import Key, Paste
from textual.message import Message

from kvtop.ui.typed import END, PASTE_CHARS, START, Typed


def said(typed: Typed, *texts: str) -> list[str]:
    return [word(event) for text in texts for event in typed.feed(text)]


def word(event: Message) -> str:
    return f"paste {event.text}" if isinstance(event, Paste) else event.key if isinstance(event, Key) else "?"


def test_a_paste_with_its_end_is_one() -> None:
    assert said(Typed(), f"a{START}some text{END}b", "c") == ["a", "paste some text", "b", "c"]


def cuts(text: str) -> st.SearchStrategy[Sequence[int]]:
    return st.lists(st.integers(0, len(text)), max_size=8).map(sorted)


TWO = f"a{START}one{END}b{START}two{END}c"


@given(cuts(TWO))
def test_it_is_one_wherever_the_reads_cut_it(at: Sequence[int]) -> None:
    typed = Typed()
    pieces = [TWO[i:j] for i, j in zip([0, *at], [*at, len(TWO)], strict=True)]
    assert said(typed, *pieces) == ["a", "paste one", "b", "paste two", "c"]
    typed.silent()
    assert said(typed, "q") == ["q"]


@given(cuts(TWO[: TWO.rindex(END)]))
def test_after_a_silence_what_follows_are_keys(at: Sequence[int]) -> None:
    text = TWO[: TWO.rindex(END)]
    typed = Typed()
    said(typed, *[text[i:j] for i, j in zip([0, *at], [*at, len(text)], strict=True)])
    assert said(typed, "q") == []
    typed.silent()
    assert said(typed, "q") == ["q"]


def test_a_silence_outside_of_a_paste_changes_nothing() -> None:
    typed = Typed()
    assert said(typed, "a\x1b[") == ["a"]
    typed.silent()
    assert said(typed, "A") == ["up"]


def test_a_paste_that_is_too_long_is_dropped_up_to_its_end() -> None:
    typed = Typed()
    part = "q" * (PASTE_CHARS // 2)
    assert said(typed, START, part, part, "q", "q", f"q{END[:3]}", f"{END[3:]}a{START}b{END}c") == ["a", "paste b", "c"]


def test_one_that_is_too_long_and_never_ends_is_given_up_too() -> None:
    typed = Typed()
    assert said(typed, START + "q" * (PASTE_CHARS + 1), "q") == []
    typed.silent()
    assert said(typed, "q") == ["q"]
