"""A sheet for pipes: lines that fit, nothing that moves a cursor, long things cut with a count."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diff_sheets import EVIL, big, of, sheet, sheets
from kvtop.triage.kinds import Kind
from kvtop.triage.plain import LINE, _cells, lines
from kvtop.triage.result import Cause
from kvtop.triage.sheet import Sheet


def paragraphs(made: Sheet, width: int | None = 80, around: int = 3) -> list[list[str]]:
    told = lines(made, width, around)
    return [list(part) for empty, part in groupby(told, key=lambda line: not line) if not empty]


@given(sheets(), st.none() | st.integers(0, 140), st.integers(0, 5))
def test_any_sheet(made: Sheet, width: int | None, around: int) -> None:
    most = LINE if width is None else max(20, width)
    for line in lines(made, width, around):
        assert line.isprintable(), line
        assert _cells(line) <= most


@pytest.mark.parametrize("says", ["“read” has the same keys in another order", "A clock changed."])
def test_what_was_seen_of_a_cause_is_a_sentence_of_its_own(says: str) -> None:
    made = sheet()
    first = replace(made.diff.causes[0], says=says, seen="in each of the last 6 turns of this agent")
    for cause, tail in ((first, " Seen: in each of the last 6 turns of this agent."), (replace(first, seen=None), "")):
        told = list(lines(replace(made, diff=replace(made.diff, causes=(cause,))), None))
        body = f"{says.removesuffix('.')}." if tail else says
        assert f"   {body}{tail}" in told


def test_head_causes_and_changes() -> None:
    head, first, second, *changes = paragraphs(sheet())
    assert head == [
        "turn 811 and turn 812: they part in tools[4].function.parameters",
        "7,883 and 8,034 tokens, the same up to token 795",
        "the prompts allow 512 of 7,680 tokens to be reused (blocks of 512); the server",
        "had 512",
        "rendered by the server, exact",
    ]
    assert first[0] == "1  tool_key_order  tools[4].function.parameters, 4,944 tokens, 86 s, gateway"
    assert first[-1] == "   fix: Sort the keys of tool schemas, or send them as they came."
    said = " ".join(row.strip() for row in first)
    assert "The keys of tools[4].function.parameters are in another order. Seen: 3 of the" in said
    assert second[0] == "2  reminder_moved  messages[20] -> messages[26], 2,144 tokens, 1.8 s, client"
    assert changes[0][0] == "@@ token 795, tools[4], the first difference, cause 1 @@"
    assert re.match(r"@@ token [\d,]+, messages\[20\], cause 2 @@", changes[1][0])
    assert [row[:2] for row in changes[0]][1:6] == ["  ", "  ", "  ", "- ", "+ "]
    assert "+ <system-reminder>plan mode</system-reminder>" in changes[1]


def test_words_have_no_counts() -> None:
    head, first, _, *changes = paragraphs(sheet(words=True))
    assert head[1:] == ["compared as text: no server was asked for tokens"]
    assert first[0] == "1  tool_key_order  tools[4].function.parameters, gateway"
    assert changes[0][0] == "@@ tools[4], the first difference, cause 1 @@"


def test_appended_and_the_same() -> None:
    head, change = paragraphs(sheet(appended=True))
    assert head[0] == "turn 811 and turn 812: nothing before the old end changed"
    assert change[0].endswith("what follows is new @@")
    assert not any(row.startswith("-") for row in change)
    assert paragraphs(of(["a"], ["a"]))[0][0] == "a.json and b.json: the prompts are the same"
    assert paragraphs(of([], []))[0][0] == "a.json and b.json: the prompts are the same"


@pytest.mark.parametrize("around", [0, 1, 3])
def test_around(around: int) -> None:
    old = [f"line {n}\n" for n in range(40)]
    (_, change) = paragraphs(of(old, [*old[:20], "other\n", *old[21:]]), around=around)
    assert change[1:] == [
        *(f"  line {n}" for n in range(20 - around, 20)), "- line 20", "+ other",
        *(f"  line {n}" for n in range(21, 21 + around)),
    ]  # fmt: skip


def test_changes_close_to_each_other_are_one_paragraph() -> None:
    old = [f"line {n}\n" for n in range(60)]
    for apart, parts in ((6, 1), (7, 2)):
        new = old[:]
        new[20] = new[21 + apart] = "other\n"
        assert len(paragraphs(of(old, new))) == 1 + parts


def test_a_long_change_is_cut_with_a_count() -> None:
    made = of(["a"], ["a", *(f"{n}\n" for n in range(1_000))])
    (_, change) = paragraphs(made)
    assert change[-1] == "+ [and 940 more tokens]"
    assert len(change) < 70


def test_a_line_of_a_megabyte() -> None:
    made = of(["a", "b" * 1_000_000], ["a", "c" * 1_000_000], tokens=False)
    told = list(lines(made, None))
    assert max(map(len, told)) <= LINE
    assert sum(map(len, told)) < 300_000
    assert any(re.fullmatch(r"- \[and .*more.*\]", line) for line in told)


def test_hostile_words() -> None:
    cause = Cause(Kind.TEXT_EDITED, EVIL, EVIL, EVIL, EVIL, pointer_new=f"/{EVIL}", seen=EVIL)
    made = of([EVIL, "a"], [EVIL, "b"], cause)
    made = replace(made, sections=((0, EVIL),), old_label=EVIL, new_label=EVIL)
    made = replace(made, diff=replace(made.diff, notes=(EVIL,), method=EVIL))
    told = "\n".join(lines(made, 80))
    assert "\\x1b[31mred" in told and "\\u202e" in told
    assert all(char == "\n" or char.isprintable() for char in told)


def test_a_change_of_white_space_is_drawn() -> None:
    (_, change) = paragraphs(of(["a", " ", "b"], ["a", "\n", "  ", "b"]))
    assert [row for row in change if row[0] in "-+"] == ["- ·", "+ ⏎", "+ ··"]


def test_a_large_one() -> None:
    assert len(list(lines(big(), 100))) < 80
