"""Where the causes of a sheet stand, and which sections are in view."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from diff_sheets import of, sheet, sheets
from kvtop.triage.kinds import Kind
from kvtop.triage.places import places
from kvtop.triage.prompt import in_words
from kvtop.triage.result import Cause

SECTIONS = ((0, "tools[0]"), (10, "tools[1]"), (20, "tools[10]"), (30, "system"), (40, "messages[1]"))


def cause(section: str) -> Cause:
    return Cause(Kind.TEXT_EDITED, "/x", section, "says", "fix")


def placed(*names: str) -> tuple[int | None, ...]:
    """Changes at pieces 12, 20 (a removal) and 45."""
    old = [str(n) for n in range(60)]
    new = [*old[:12], "x", *old[13:20], *old[23:45], "y", *old[48:]]
    made = of(old, new, *(cause(name) for name in names))
    return places(replace(made, sections=SECTIONS)).at_cause


def test_a_cause_stands_at_the_first_change_of_its_section() -> None:
    assert placed("tools[1].function.parameters", "messages[1].content", "tools[10]") == (0, 2, 1)
    assert placed("tools[1]") == (0,)


def test_a_section_without_a_change_and_one_that_is_none() -> None:
    assert placed("tools[0].function", "model", "tools[100]", "tools[1]x", "") == (None,) * 5


def test_without_sections_one_cause_is_the_only_change() -> None:
    made = replace(of(["a", "b"], ["a", "c"], cause("x")), sections=())
    assert places(made).at_cause == (0,)
    made = replace(of(["a", "b"], ["a", "c"], cause("x"), cause("y")), sections=())
    assert places(made).at_cause == (None, None)


def test_a_real_one() -> None:
    found = places(sheet())
    assert found.at_cause == (0, 2)
    assert found.first is not None and found.section(found.first.new.start) == "tools[4]"
    assert not found.appended
    assert places(sheet(appended=True)).appended


def test_sections_in_words() -> None:
    found = places(replace(of([str(n) for n in range(60)], ["x"] * 60), sections=SECTIONS, counts=(("tools", 14),)))
    assert found.sections(0, 25) == "tools[0] to tools[10] of 14"
    assert found.sections(12, 13) == "tools[1] of 14"
    assert found.sections(12, 45) == "tools[1] to messages[1]"
    assert found.sections(31, 32) == "system"
    assert places(of([], [])).sections(0, 0) == ""


@pytest.mark.parametrize(
    ("pointer", "words"),
    [("/messages/124/content", "messages[124].content"), ("/a~1b/~0c", "a/b.~c"), ("", ""), ("/²/x", "².x")],
)
def test_pointers(pointer: str, words: str) -> None:
    assert in_words(pointer) == words


@given(sheets())
def test_any_sheet(made: object) -> None:
    from kvtop.triage.sheet import Sheet

    assert isinstance(made, Sheet)
    found = places(made)
    assert len(found.at_cause) == len(made.diff.causes)
    assert all(at is None or 0 <= at < len(found.changes) for at in found.at_cause)
    for piece in (0, len(made.new) - 1, 10**9):
        assert isinstance(found.sections(0, piece), str)
