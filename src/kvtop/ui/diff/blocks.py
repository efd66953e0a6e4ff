"""What stands under each other on a diff: stretches of both prompts, folds, and the words between them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

from kvtop.ui.diff.document import Document

BEFORE, AFTER = 48, 24
"""Pieces that stay unfolded before and after a place where something changes."""
LEAST_FOLDED = 60
"""A shorter equal stretch is not folded."""
NEAR = 12
"""A fold begins and ends at an end of a line, where there is one so many pieces away or less."""

_NONE = range(0)


class What(StrEnum):
    """What a block shows."""

    SAME = "same"
    PAIR = "pair"
    """What differs, both sides beside each other."""
    OLD = "old"
    NEW = "new"
    FOLD = "fold"
    CACHED = "cached"
    """Where the cached part ends."""
    REUSABLE = "reusable"
    """Where the part ends that could be reused, if it is not the cached one."""
    BREAK = "break"
    """The first difference."""
    BEHIND = "behind"
    NOTE = "note"
    """A cause."""

    @property
    def equal(self) -> bool:
        """Text that both have, or words between it."""
        return self in (What.SAME, What.FOLD, What.CACHED, What.REUSABLE, What.BEHIND)


@dataclass(frozen=True, slots=True)
class Block:
    """A few rows that belong together, and are laid out together."""

    what: What
    hunk: int
    old: range = _NONE
    new: range = _NONE
    cause: int = -1
    """Of a note."""


def blocks(doc: Document, side: bool, opened: Collection[int]) -> list[Block]:
    """All of them. `side`: both prompts beside each other. `opened`: pieces of the new side at which folds began that
    are open now."""
    return list(_blocks(doc, side, opened))


def _blocks(doc: Document, side: bool, opened: Collection[int]) -> Iterator[Block]:
    places, hunks = doc.places, doc.sheet.hunks
    noted = _notes(doc)
    for cause in noted.pop(-1, []):
        yield Block(What.NOTE, -1, cause=cause)
    edges = _edges(doc)
    changed = 0
    for n, hunk in enumerate(hunks):
        if hunk.same:
            if n and changed == 1:
                yield Block(What.BEHIND, n)
            last = n == len(hunks) - 1
            points = [at for at, _ in edges if at <= hunk.new.stop]
            at = hunk.new.start
            for stop in (*points, hunk.new.stop):
                yield from _same(doc, n, range(at, stop), opened, ends=last and stop == hunk.new.stop)
                if edges and edges[0][0] == stop:
                    yield Block(edges.pop(0)[1], n)
                    if edges and edges[0][0] == stop:
                        yield Block(edges.pop(0)[1], n)
                at = stop
            continue
        if not changed:
            yield from (Block(what, n) for _, what in edges)
            edges = []
            yield Block(What.BREAK, n)
        yield from (Block(What.NOTE, n, cause=cause) for cause in noted.get(changed, ()))
        changed += 1
        old, new = doc.chunks(hunk.old, new=False), doc.chunks(hunk.new, new=True)
        if side:
            yield from (Block(What.PAIR, n, a, b) for a, b in zip_longest(old, new, fillvalue=_NONE))
        else:
            yield from (Block(What.OLD, n, a, _NONE) for a in old)
            yield from (Block(What.NEW, n, _NONE, b) for b in new)
    assert places.changes == () or changed == len(places.changes)


def _notes(doc: Document) -> dict[int, list[int]]:
    """Causes by the change that they stand at; -1: at the top, as they are of the request and not of its prompt."""
    out: dict[int, list[int]] = {}
    for n, change in enumerate(doc.places.at_cause):
        out.setdefault(-1 if change is None else change, []).append(n)
    return out


def _edges(doc: Document) -> list[tuple[int, What]]:
    """Where the cached part ends, and the reusable one where that is another place; in order."""
    cached, reusable = doc.cached, doc.reusable
    if cached is None:
        return [] if reusable is None else [(reusable, What.REUSABLE)]
    if reusable is None or reusable <= cached:
        return [(cached, What.CACHED)]
    return [(cached, What.CACHED), (reusable, What.REUSABLE)]


def _same(doc: Document, n: int, new: range, opened: Collection[int], *, ends: bool) -> Iterator[Block]:
    """An equal stretch between two places where something is said. `ends`: nothing comes behind it."""
    hunk = doc.sheet.hunks[n]
    apart = hunk.old.start - hunk.new.start
    kept = _line_end(doc, new.start + AFTER, new), _line_end(doc, new.stop - (AFTER if ends else BEFORE), new)
    folded = range(*kept)
    if len(folded) < LEAST_FOLDED or folded.start in opened:
        folded = range(new.stop, new.stop)
    for part in (range(new.start, folded.start), range(folded.stop, new.stop)):
        for chunk in doc.chunks(part, new=True):
            yield Block(What.SAME, n, range(chunk.start + apart, chunk.stop + apart), chunk)
        if folded and part.start == new.start:
            yield Block(What.FOLD, n, range(folded.start + apart, folded.stop + apart), folded)


def _line_end(doc: Document, at: int, within: range) -> int:
    """The end of a line that is nearest to a piece; the piece where none is near."""
    pieces = doc.sheet.new
    for away in range(NEAR + 1):
        for near in (at - away, at + away):
            if within.start < near < within.stop and pieces[near - 1].endswith("\n"):
                return near
    return at
