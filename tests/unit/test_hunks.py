"""Stretches of two token sequences: together they are both sides, equal ones are equal, and the time is bounded."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.triage.hunks import hunks, hunks_of
from kvtop.triage.ids import common, pack
from kvtop.triage.sheet import Hunk


def check(old: Sequence[object], new: Sequence[object], found: Sequence[Hunk]) -> None:
    i = j = 0
    for n, hunk in enumerate(found):
        assert (hunk.old.start, hunk.new.start) == (i, j)
        assert hunk.old or hunk.new
        assert n == 0 or found[n - 1].same is not hunk.same
        if hunk.same:
            assert old[hunk.old.start : hunk.old.stop] == new[hunk.new.start : hunk.new.stop]
        i, j = hunk.old.stop, hunk.new.stop
    assert (i, j) == (len(old), len(new))


few = st.lists(st.integers(0, 3), max_size=60)
many = st.lists(st.integers(0, 2**31 - 1), max_size=60)


@settings(max_examples=300, deadline=None)
@given(st.one_of(few, many), st.one_of(few, many))
def test_together_they_are_both_sides(old: list[int], new: list[int]) -> None:
    found = hunks(pack(old), pack(new))
    check(old, new, found)
    head = found[0].old.stop if found and found[0].same else 0
    assert head == common(pack(old), pack(new))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_an_edited_sequence_keeps_what_was_not_edited(data: st.DataObject) -> None:
    old = list(range(data.draw(st.integers(0, 400))))
    new = old[:]
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(new)))
        new[at : at + data.draw(st.integers(0, 5))] = [10**6 + n for n in range(data.draw(st.integers(0, 5)))]
    found = hunks(pack(old), pack(new))
    check(old, new, found)
    assert sum(len(h.old) for h in found if h.same) >= len(old) - 4 * (5 + 2 * 16)


def test_an_insertion_a_removal_and_an_edit() -> None:
    old = list(range(30))
    new = [*range(10), 99, *range(11, 20), 50, 51, *range(20, 30)]
    assert [(h.same, len(h.old), len(h.new)) for h in hunks(pack(old), pack(new))] == [
        (True, 10, 10), (False, 1, 1), (True, 9, 9), (False, 0, 2), (True, 10, 10)
    ]  # fmt: skip


def test_what_is_appended_begins_where_the_old_prompt_ends() -> None:
    """The end of the last message is the end of the new one, too: it is none of what came."""
    end = [7, 8, 9]
    old = [*range(100, 200), *end]
    new = [50, *old, *range(300, 340), *end]
    found = hunks(pack(old), pack(new))
    assert found[-1] == Hunk(range(103, 103), range(104, 147), False)
    assert found[-2] == Hunk(range(0, 103), range(1, 104), True)
    gone = hunks(pack(new), pack(old))
    assert gone[-1] == Hunk(range(104, 147), range(103, 103), False)


def test_a_few_tokens_that_are_equal_by_chance_part_nothing() -> None:
    old, new = [1] * 9 + [7, 8] + [1] * 9, [2] * 9 + [7, 8] + [2] * 9
    assert [h.same for h in hunks(pack(old), pack(new))] == [False]
    longer = [*range(100, 110)]
    old, new = [1] * 30 + longer + [3] * 30, [2] * 30 + longer + [4] * 30
    assert [h.same for h in hunks(pack(old), pack(new))] == [False]
    longer = [*range(100, 120)]
    old, new = [1] * 30 + longer + [3] * 30, [2] * 30 + longer + [4] * 30
    assert [h.same for h in hunks(pack(old), pack(new))] == [False, True, False]


def test_nothing_and_the_same() -> None:
    assert hunks(b"", b"") == ()
    one = pack([5])
    assert hunks(one, one) == (Hunk(range(1), range(1), same=True),)
    assert hunks(b"", one) == (Hunk(range(0), range(1), same=False),)


@pytest.mark.parametrize("bad", [b"abc", b"\0\0\0\0\0"])
def test_what_is_no_packed_ids(bad: bytes) -> None:
    for sides in ((bad, b""), (b"", bad)):
        with pytest.raises(ValueError, match="not packed token ids"):
            hunks(*sides)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=3), max_size=40), st.lists(st.text(max_size=3), max_size=40))
def test_words(old: list[str], new: list[str]) -> None:
    check(old, new, hunks_of(old, new))


TOKENS = 120_000


def prompt(seed: int) -> tuple[list[list[int]], list[int]]:
    """Thirty tools and a history of 100,000 tokens, of words as frequent as words are."""
    chance = random.Random(seed)

    def text(n: int) -> list[int]:
        return [min(20_000, int(chance.paretovariate(0.7))) for _ in range(n)]

    plain = text(20)
    tools = [plain + text(600) + plain for _ in range(30)]
    history: list[int] = []
    while len(history) < TOKENS - sum(map(len, tools)):
        history += [1, 2, 3, *text(chance.randint(50, 2_000)), 4, 5]
    return tools, history


def test_other_tools_in_front_and_three_edits_behind() -> None:
    tools, history = prompt(1)
    edited = history[:]
    for at in (90_000, 40_000, 5_000):
        edited[at : at + 5] = [30_000 + n for n in range(9)]
    old = [one for tool in tools for one in tool] + history
    new = [one for tool in tools[3:] + tools[:3] for one in tool] + edited
    found = hunks(pack(old), pack(new))
    check(old, new, found)
    equal = sum(len(hunk.old) for hunk in found if hunk.same)
    assert equal > len(old) - sum(map(len, tools[:3])) - 200
    assert len(found) <= 30


@pytest.mark.parametrize("kind", ["nothing", "by chance", "two values", "moved about", "repeats", "every sixth"])
def test_the_worst_ends(kind: str) -> None:
    chance = random.Random(2)
    old = [min(20_000, int(chance.paretovariate(0.7))) for _ in range(TOKENS)]
    new = [min(20_000, int(chance.paretovariate(0.7))) for _ in range(TOKENS)]
    if kind == "nothing":
        new = [one + 50_000 for one in new]
    elif kind == "two values":
        old, new = [one % 2 for one in old], [one % 2 for one in new]
    elif kind == "moved about":
        new = [one for at in range(TOKENS - 30, -1, -30) for one in old[at : at + 30]]
    elif kind == "repeats":
        old, new = [1, 2, 3, 4] * 30_000, [9, *[1, 2, 3, 4] * 29_000, 8, 8, *[1, 2, 3, 4] * 900]
    elif kind == "every sixth":
        new = [50_000 if n % 6 == 0 else one for n, one in enumerate(old)]
    check(old, new, hunks(pack(old), pack(new)))  # what were quadratic would not end
