"""Which element of one list is which of another: equal ones first, then those that are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import TypeVar

from kvtop.triage.hunks import chain
from kvtop.triage.windows import common_head, common_tail, meetings

MOST_PAIRS = 40_000
"""Of two stretches with more pairs of elements to be weighed, only what stands at the same place is looked at."""
MOST_WEIGHED = 120_000
"""So of all stretches of two lists together: what is left then is looked at in the same way."""
ALIKE = 0.3
"""From this share of likeness on two elements are taken to be one that was edited."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Aligned:
    """Places in both lists. Pairs never cross."""

    equal: tuple[tuple[int, int], ...]
    alike: tuple[tuple[int, int], ...]
    removed: tuple[int, ...]
    inserted: tuple[int, ...]


def align(old: Sequence[T], new: Sequence[T], key: Callable[[T], str], likeness: Callable[[T, T], float]) -> Aligned:
    """`key`: equal for what is equal. `likeness`: 0 to 1."""
    a, b = [key(one) for one in old], [key(one) for one in new]
    head = common_head(a, b)
    tail = common_tail(a, b, head)
    equal = [(i, i) for i in range(head)]
    alike: list[tuple[int, int]] = []
    i, j = head, head
    end_a, end_b = len(a) - tail, len(b) - tail
    one, other = a[head:end_a], b[head:end_b]
    if meetings(one, other) > MOST_PAIRS * 10:  # one and the same element over and over
        one, other = [f"{i} {key}" for i, key in enumerate(one)], [f"{i} {key}" for i, key in enumerate(other)]
    left = MOST_WEIGHED
    for at, to, size in (*_runs(one, other), (len(one), len(other), 0)):
        to_a, to_b = head + at, head + to
        ours, theirs = range(i, to_a), range(j, to_b)
        alike += _pairs(old, new, ours, theirs, likeness, between=bool(size or tail), most=min(left, MOST_PAIRS))
        left -= min(left, len(ours) * len(theirs))
        equal += [(to_a + n, to_b + n) for n in range(size)]
        i, j = to_a + size, to_b + size
    equal += [(end_a + n, end_b + n) for n in range(tail)]
    kept_a = {pair[0] for pair in (*equal, *alike)}
    kept_b = {pair[1] for pair in (*equal, *alike)}
    return Aligned(
        tuple(equal),
        tuple(alike),
        tuple(n for n in range(len(a)) if n not in kept_a),
        tuple(n for n in range(len(b)) if n not in kept_b),
    )


def insertions_last(found: Aligned, new: Sequence[T], key: Callable[[T], str]) -> Aligned:
    """The same where what was put in before the last equal elements is as well put in behind them: of
    `a, go on` and `a, go on, b, go on` the new ones are the last two."""
    equal = sorted(found.equal)
    inserted = set(found.inserted)
    run: list[tuple[int, int]] = []
    while equal and (not run or (equal[-1][0] + 1, equal[-1][1] + 1) == run[-1]):
        run.append(equal.pop())
    if not run or any(i > run[0][0] for i, _ in found.alike) or any(i > run[0][0] for i in found.removed):
        return found
    first = run[-1][1]
    start = first
    while start - 1 in inserted:
        start -= 1
    size = first - start
    if not size or any(key(new[j - size]) != key(new[j]) for _, j in run):
        return found
    end = run[0][1] + 1
    left = inserted - set(range(start, first)) | set(range(end - size, end))
    return replace(found, equal=(*equal, *((i, j - size) for i, j in reversed(run))), inserted=tuple(sorted(left)))


def _runs(one: Sequence[str], other: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Equal runs, without crossings: (place in one, place in other, length). Of long lists those elements are tied
    first that each of them holds once: to look for the longest run again and again takes seconds there."""
    ties: list[tuple[int, int, int]] = []
    if len(one) * len(other) > MOST_PAIRS * 10:
        seen, seen_there = Counter(one), Counter(other)
        places = {key: i for i, key in enumerate(one) if seen[key] == 1}
        ties = chain([(places[key], j, 1) for j, key in enumerate(other) if seen_there[key] == 1 and key in places])
    i = j = 0
    for to_i, to_j, size in (*ties, (len(one), len(other), 0)):
        for block in SequenceMatcher(None, one[i:to_i], other[j:to_j], autojunk=False).get_matching_blocks()[:-1]:
            yield i + block.a, j + block.b, block.size
        if size:
            yield to_i, to_j, size
        i, j = to_i + size, to_j + size


def _pairs(
    old: Sequence[T],
    new: Sequence[T],
    ours: range,
    theirs: range,
    likeness: Callable[[T, T], float],
    *,
    between: bool,
    most: int,
) -> list[tuple[int, int]]:
    """The pairs of two stretches without an equal element that are most alike in sum, without crossings. `between`:
    equal ones follow, so that one in the place of one is that one, edited, if they are alike at all. `most`: pairs that
    are weighed; of more only what stands at the same place is."""
    if not ours or not theirs:
        return []
    if between and len(ours) == len(theirs) == 1 and likeness(old[ours[0]], new[theirs[0]]) > 0:
        return [(ours[0], theirs[0])]
    if len(ours) * len(theirs) > most:
        return [(i, j) for i, j in zip(ours, theirs, strict=False) if likeness(old[i], new[j]) >= ALIKE]
    rows, columns = len(ours), len(theirs)
    score = [[likeness(old[i], new[j]) for j in theirs] for i in ours]
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for r in range(rows - 1, -1, -1):
        for c in range(columns - 1, -1, -1):
            taken = score[r][c] + best[r + 1][c + 1] if score[r][c] >= ALIKE else 0.0
            best[r][c] = max(taken, best[r + 1][c], best[r][c + 1])
    found: list[tuple[int, int]] = []
    r = c = 0
    while r < rows and c < columns:
        if score[r][c] >= ALIKE and best[r][c] == score[r][c] + best[r + 1][c + 1]:
            found.append((ours[r], theirs[c]))
            r, c = r + 1, c + 1
        elif best[r][c] == best[r + 1][c]:
            r += 1
        else:
            c += 1
    return found


def text_likeness(old: str, new: str) -> float:
    """A cheap share of what two texts have in common: their ends, else their lines."""
    if old == new:
        return 1.0
    longest = max(len(old), len(new))
    if not old or not new:
        return 0.0
    head = common_head(old, new)
    tail = common_tail(old, new, head)
    ends = (head + tail) / longest
    if ends >= ALIKE:
        return ends
    lines, others = set(old.splitlines()), set(new.splitlines())
    shared = sum(len(line) for line in lines & others)
    return max(ends, shared / max(1, sum(map(len, lines)), sum(map(len, others))))
