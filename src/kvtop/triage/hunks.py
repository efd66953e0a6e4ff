"""Which stretches of two token sequences are the same, fit to be drawn: few, long, in order, in bounded time.

Equal ends first. Between them anchors: runs of tokens that occur once in either side, grown as far as they are equal;
the heaviest chain of them that does not cross is kept, and what lies between its links is looked at again in the same
way, with shorter runs. What holds no anchor is one changed hunk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from kvtop.triage.ids import WIDTH, common, count
from kvtop.triage.sheet import Hunk

RUNS = (24, 8, 4)
"""Tokens of an anchor: shorter ones only inside what the longer ones left."""
SHORT = 4
"""An equal run of fewer tokens between two changes belongs to the change: it is by chance, or not worth a hunk."""
BY_CHANCE = 16
"""So does one of fewer tokens than these where both changes are longer than it."""
MOST_SCANNED = 1_000_000
"""Tokens that are looked at for anchors, all stretches together; what is left then is one changed hunk each."""

_Run = tuple[int, int, int]
"""(place in the old side, place in the new side, tokens): equal."""


def hunks(old_ids: bytes, new_ids: bytes) -> tuple[Hunk, ...]:
    """Of packed token ids (`kvtop.triage.ids`). ValueError for bytes that are none: not four each."""
    for packed in (old_ids, new_ids):
        if len(packed) % WIDTH:
            raise ValueError(f"not packed token ids: {len(packed)} bytes")
    runs = _late(_runs(old_ids, new_ids), old_ids, new_ids)
    return tuple(_filled(runs, count(old_ids), count(new_ids)))


def hunks_of(old: Sequence[str], new: Sequence[str]) -> tuple[Hunk, ...]:
    """Of words."""
    numbers: dict[str, int] = {}

    def packed(words: Sequence[str]) -> bytes:
        return array("i", [numbers.setdefault(word, len(numbers)) for word in words]).tobytes()

    return hunks(packed(old), packed(new))


def _filled(runs: Sequence[_Run], old_size: int, new_size: int) -> Iterator[Hunk]:
    """The equal runs that are worth a hunk, with the changed ones between them."""
    i = j = 0
    for n, (at, to, size) in enumerate(runs):
        before = max(at - i, to - j)
        next_at, next_to, _ = runs[n + 1] if n + 1 < len(runs) else (old_size, new_size, 0)
        after = max(next_at - at, next_to - to) - size
        if before and after and (size < SHORT or size < min(BY_CHANCE, before, after)):
            continue
        if before:
            yield Hunk(range(i, at), range(j, to), same=False)
        i, j = at + size, to + size
        yield Hunk(range(at, i), range(to, j), same=True)
    if i < old_size or j < new_size:
        yield Hunk(range(i, old_size), range(j, new_size), same=False)


def _runs(old: bytes, new: bytes) -> list[_Run]:
    """Equal runs in the order of both sides; two that touch are one."""
    found: list[_Run] = []
    left = MOST_SCANNED
    todo: list[tuple[_Run | None, int, int, int, int, int]] = [(None, 0, count(old), 0, count(new), 0)]
    while todo:  # from the front, so that the front is told best where it is too much for all
        known, i, i_end, j, j_end, level = todo.pop()
        if known is not None:
            _add(found, known)
            continue
        a, b = old[i * WIDTH : i_end * WIDTH], new[j * WIDTH : j_end * WIDTH]
        head = common(a, b)
        _add(found, (i, j, head))
        tail = _back(a, len(a) // WIDTH, b, len(b) // WIDTH, min(i_end - i, j_end - j) - head)
        i, j, a, b = i + head, j + head, *(side[head * WIDTH : len(side) - tail * WIDTH] for side in (a, b))
        links: list[_Run] = []
        while not links and level < len(RUNS) and left > 0:
            if min(len(a), len(b)) >= RUNS[level] * WIDTH:
                left -= (len(a) + len(b)) // WIDTH
                links = chain(_anchors(a, b, RUNS[level]))
            level += not links
        rest: list[tuple[_Run | None, int, int, int, int, int]] = []
        at, to = i, j
        for x, y, size in links:
            rest += [(None, at, i + x, to, j + y, level), ((i + x, j + y, size), 0, 0, 0, 0, 0)]
            at, to = i + x + size, j + y + size
        if links:
            rest.append((None, at, i_end - tail, to, j_end - tail, level))
        rest.append(((i_end - tail, j_end - tail, tail), 0, 0, 0, 0, 0))
        todo += reversed(rest)
    return found


def _late(runs: Sequence[_Run], old: bytes, new: bytes) -> list[_Run]:
    """The same, with what only one side holds as late as it can stand: of `a.` and `a. b.` the new text is ` b.` behind
    all of the old one, not `. b` before its last sign."""
    out: list[_Run] = []
    for at, to, size in runs:
        moved = 0
        if out:
            x, y = out[-1][0] + out[-1][2], out[-1][1] + out[-1][2]
            if at == x:
                moved = min(size, _forward(new, y, new, to))
            elif to == y:
                moved = min(size, _forward(old, x, old, at))
            if moved:
                _add(out, (x, y, moved))
        _add(out, (at + moved, to + moved, size - moved))
    return out


def _add(found: list[_Run], run: _Run) -> None:
    at, to, size = run
    if not size:
        return
    if found and (found[-1][0] + found[-1][2], found[-1][1] + found[-1][2]) == (at, to):
        at, to, size = found[-1][0], found[-1][1], found[-1][2] + size
        found.pop()
    found.append((at, to, size))


def _anchors(a: bytes, b: bytes, run: int) -> list[_Run]:
    """Equal runs that do not overlap in b, in its order, each around `run` tokens that a holds once, and b too."""
    step, wide = WIDTH, run * WIDTH
    of_a = _once(a, wide)
    of_b = _once(b, wide)
    out: list[_Run] = []
    done = 0
    for gram, y in of_b.items():  # a dict keeps the order in which it was filled
        if y < done:
            continue
        x = of_a.get(gram, -1)
        if x < 0:
            continue
        at, to = x // step, y // step
        back = _back(a, at, b, to, min(at, to - done // step))
        size = back + run + _forward(a, at + run, b, to + run)
        out.append((at - back, to - back, size))
        done = (to - back + size) * step
    return out


def _once(ids: bytes, wide: int) -> dict[bytes, int]:
    """Each run of so many bytes that occurs once, with the byte at which it begins; those that do not: -1."""
    places: dict[bytes, int] = {}
    for at in range(0, len(ids) - wide + 1, WIDTH):
        gram = ids[at : at + wide]
        places[gram] = -1 if gram in places else at
    return places


def _forward(a: bytes, i: int, b: bytes, j: int) -> int:
    """Tokens from there on that are equal."""
    i, j, size, step = i * WIDTH, j * WIDTH, 0, 16 * WIDTH
    most = min(len(a) - i, len(b) - j)
    while size < most and a[i + size : i + size + step] == b[j + size : j + size + step]:
        size += step
        step *= 2
    if size >= most:
        return most // WIDTH
    return size // WIDTH + common(a[i + size : i + size + step], b[j + size : j + size + step])


def _back(a: bytes, i: int, b: bytes, j: int, most: int) -> int:
    """Tokens before these places that are equal, at most so many."""
    size, step = 0, 16
    while size < most:
        step = min(step, most - size)
        x, y = (i - size) * WIDTH, (j - size) * WIDTH
        if a[x - step * WIDTH : x] == b[y - step * WIDTH : y]:
            size += step
            step *= 2
        else:
            most = size + step - 1
            step = max(1, step // 2)
    return size


def chain(anchors: Sequence[_Run]) -> list[_Run]:
    """The heaviest of the chains in which both places grow. `anchors` in the order of the new side."""
    ends = sorted({at + size for at, _, size in anchors})
    tree: list[tuple[int, int]] = [(0, -1)] * (len(ends) + 1)
    """Of a Fenwick tree over the ends in the old side: (most tokens of a chain that ends there, its last link)."""
    before: list[int] = []
    best = (0, -1)
    for n, (at, _, size) in enumerate(anchors):
        slot, found = bisect_right(ends, at), (0, -1)
        while slot:
            found = max(found, tree[slot])
            slot &= slot - 1
        before.append(found[1])
        weight = (found[0] + size, n)
        best = max(best, weight)
        slot = bisect_right(ends, at + size)
        while slot <= len(ends):
            tree[slot] = max(tree[slot], weight)
            slot += slot & -slot
    out: list[_Run] = []
    n = best[1]
    while n >= 0:
        out.append(anchors[n])
        n = before[n]
    return out[::-1]
