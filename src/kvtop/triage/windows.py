"""Where two texts differ: regions, each with what stands there in the old and in the new one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

MOST_LINES = 4_000
MOST_WORDS = 3_000
"""Of a longer stretch nothing is compared piece by piece: it is one region."""
APART = 24
"""Characters of equal text that part two regions of a line."""

MOST_PAIRS = 60_000
"""Of two stretches in which equal words meet more often than this, too: such a search takes seconds."""
MOST_REGIONS = 200
"""Of a text with more regions all between the first and the last one is one."""

_WORD = re.compile(r"\w+[^\S\n]*|\s+|[^\w\s][^\S\n]*")


@dataclass(frozen=True, slots=True)
class Region:
    """What stands between two equal stretches. One of the texts may be empty."""

    old: str
    new: str
    old_at: int
    new_at: int
    """Characters before it."""


Stretch = str | Region


def meetings(a: Sequence[str], b: Sequence[str]) -> int:
    """How often an element of one is equal to one of the other: what a search for equal stretches goes through."""
    ours, theirs = Counter(a), Counter(b)
    return sum(n * theirs[one] for one, n in ours.items())


def common_head(a: Sequence[object], b: Sequence[object]) -> int:
    """Items (characters) that both begin with."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    step = 64  # most differences are near one that was found before, or near the start
    while step < high and a[low:step] == b[low:step]:
        low, step = step, step * 4
    high = min(high, step)
    while low + 1 < high:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def common_tail(a: Sequence[object], b: Sequence[object], head: int) -> int:
    """Items that both end with, the first `head` of both left out."""
    return common_head(a[head:][::-1], b[head:][::-1])


def stretches(old: str, new: str) -> list[Stretch]:
    """The new text in pieces: equal ones as text, others as regions. The old text follows from them as well."""
    regions = list(_regions(old, new))
    if len(regions) > MOST_REGIONS:
        first, last = regions[0], regions[-1]
        old_end, new_end = last.old_at + len(last.old), last.new_at + len(last.new)
        regions = [Region(old[first.old_at : old_end], new[first.new_at : new_end], first.old_at, first.new_at)]
    out: list[Stretch] = []
    at = 0
    for region in regions:
        if region.new_at > at:
            out.append(new[at : region.new_at])
        out.append(region)
        at = region.new_at + len(region.new)
    if at < len(new):
        out.append(new[at:])
    return out


def _regions(old: str, new: str) -> Iterator[Region]:
    head = common_head(old, new)
    if head == len(old) == len(new):
        return
    tail = common_tail(old, new, head)
    # Whole lines around the difference, so that lines pair with lines.
    start = old.rfind("\n", 0, head) + 1
    old_end, new_end = _line_end(old, len(old) - tail), _line_end(new, len(new) - tail)
    if len(old) - old_end != len(new) - new_end:
        old_end, new_end = len(old) - tail, len(new) - tail
    a, b = old[start:old_end].splitlines(keepends=True), new[start:new_end].splitlines(keepends=True)
    if len(a) > MOST_LINES or len(b) > MOST_LINES or meetings(a, b) > 10 * MOST_PAIRS:
        yield Region(old[head : len(old) - tail], new[head : len(new) - tail], head, head)
        return
    old_at = new_at = start
    for tag, a1, a2, b1, b2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        one, other = a[a1:a2], b[b1:b2]
        if tag == "replace" and len(one) == len(other):
            for line, now in zip(one, other, strict=True):
                yield from _in_line(line, now, old_at, new_at)
                old_at, new_at = old_at + len(line), new_at + len(now)
            continue
        before, after = "".join(one), "".join(other)
        if tag == "replace":
            yield from _in_line(before, after, old_at, new_at)
        elif tag != "equal":
            yield Region(before, after, old_at, new_at)
        old_at, new_at = old_at + len(before), new_at + len(after)


def _line_end(text: str, at: int) -> int:
    if at > 0 and text[at - 1 : at] == "\n":
        return at
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _in_line(old: str, new: str, old_at: int, new_at: int) -> Iterator[Region]:
    """The regions of one line, or of one stretch of lines."""
    if old == new:
        return
    head = common_head(old, new)
    tail = common_tail(old, new, head)
    # Not inside a word: 12 and 13 differ in a number, not in a digit.
    head, tail = _to_edge(old, new, head, tail)
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    one, other = _WORD.findall(a), _WORD.findall(b)
    long = len(one) > MOST_WORDS or len(other) > MOST_WORDS
    if not one or not other or long or meetings(one, other) > MOST_PAIRS:
        yield Region(a, b, old_at + head, new_at + head)
        return
    found: list[tuple[int, int, int, int]] = []
    i = j = 0
    for tag, a1, a2, b1, b2 in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        n, m = sum(map(len, one[a1:a2])), sum(map(len, other[b1:b2]))
        if tag != "equal":
            if found and i - found[-1][1] < APART:
                found[-1] = (found[-1][0], i + n, found[-1][2], j + m)
            else:
                found.append((i, i + n, j, j + m))
        i, j = i + n, j + m
    for a1, a2, b1, b2 in found:
        yield Region(a[a1:a2], b[b1:b2], old_at + head + a1, new_at + head + b1)


def _to_edge(old: str, new: str, head: int, tail: int) -> tuple[int, int]:
    def inside(text: str, at: int) -> bool:
        return 0 < at < len(text) and _joins(text[at - 1]) and _joins(text[at])

    while head > 0 and (inside(old, head) or inside(new, head)):
        head -= 1
    while tail > 0 and (inside(old, len(old) - tail) or inside(new, len(new) - tail)):
        tail -= 1
    return head, tail


def _joins(char: str) -> bool:
    return char.isalnum() or char == "_"
