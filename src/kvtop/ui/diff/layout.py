"""A diff of any length, laid out where it is looked at: blocks of rows that are made when they come into view.

A place is (block, row of it). How many rows there are in all is never worked out, so that 120,000 tokens open at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection

from kvtop.ui.diff.blocks import What, blocks
from kvtop.ui.diff.document import Document
from kvtop.ui.diff.rows import Row, View, rows_of

Place = tuple[int, int]
"""(block, row of it)."""

KEPT = 300
"""Blocks whose rows are kept."""
ABOVE = 2
"""Rows that are seen above a change that was gone to."""
OF_THE_CHANGE = 4
"""Rows of the first difference that are seen at least, where the screen has them."""


class Layout:
    """Of one document in one view."""

    def __init__(self, doc: Document, view: View, opened: Collection[int] = ()) -> None:
        self.doc, self.view = doc, view
        self.blocks = blocks(doc, view.side, opened)
        self._rows: OrderedDict[int, list[Row]] = OrderedDict()
        self._hunks = [block.hunk for block in self.blocks]

    def rows(self, block: int) -> list[Row]:
        """Of one block."""
        found = self._rows.get(block)
        if found is None:
            found = self._rows[block] = rows_of(self.doc, self.blocks[block], self.view)
            if len(self._rows) > KEPT:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(block)
        return found

    # ---- moving
    def moved(self, place: Place, rows: int) -> Place:
        """So many rows further down; negative is up. It stops at the ends."""
        if not self.blocks:
            return 0, 0
        block, row = place
        row += rows
        while row < 0 and block > 0:
            block -= 1
            row += len(self.rows(block))
        while row >= len(self.rows(block)) and block + 1 < len(self.blocks):
            row -= len(self.rows(block))
            block += 1
        return block, max(0, min(row, len(self.rows(block)) - 1))

    def settled(self, place: Place, h: int) -> Place:
        """The place, or one above it where fewer than h rows come from there on."""
        return min(place, self.last(h))

    def last(self, h: int) -> Place:
        """From where on the last h rows are seen."""
        if not self.blocks:
            return 0, 0
        end = len(self.blocks) - 1
        return self.moved((end, len(self.rows(end)) - 1), 1 - max(1, h))

    def seen(self, place: Place, h: int) -> list[Row]:
        """The rows from there on, at most h."""
        out: list[Row] = []
        block, row = place
        while len(out) < h and block < len(self.blocks):
            out += self.rows(block)[row:]
            block, row = block + 1, 0
        return out[:h]

    # ---- finding
    def change(self, n: int) -> Place:
        """Where the change begins, with what is said of it."""
        return bisect_left(self._hunks, self.doc.places.changes[n]), 0

    def gone_to(self, n: int, h: int) -> Place:
        """From where on to look at a change."""
        return self.settled(self._above(n, min(ABOVE, max(0, h - 2)), h), h)

    def opening(self, h: int) -> Place:
        """From where on to look first: what is said of the first difference from its start, its text on both sides, and
        where the cached part ends if there is room for it."""
        if not self.doc.places.changes:
            return 0, 0
        start = self.change(0)
        room = max(0, h - self._said(0) - OF_THE_CHANGE)
        above = min(room, h // 3)
        for up in range(1, room + 1):
            place = self.moved(start, -up)
            if self.blocks[place[0]].what in (What.CACHED, What.REUSABLE):
                above = max(above, up + min(4, room - up))
                break
            if place == (0, 0):
                break
        return self.settled(self.moved(start, -above), h)

    def _said(self, n: int) -> int:
        """Rows of what is said of a change, before its text."""
        start = self.change(n)[0]
        text = next((at for at in range(start, len(self.blocks)) if self.blocks[at].what in _TEXT), start)
        return sum(len(self.rows(at)) for at in range(start, text))

    def _above(self, n: int, rows: int, h: int) -> Place:
        """So many rows above a change; fewer where its text would not be seen. What is said of it is read from its
        start, unless none of its text would be seen then."""
        place = max(-rows, self._said(n) + min(OF_THE_CHANGE, h) - h)
        return self.moved(self.change(n), min(place, 0) if self._said(n) < h else place)

    def change_at(self, place: Place) -> int:
        """The last change that begins there or above; -1: none does."""
        hunk = self._hunks[place[0]] if self.blocks else -1
        return bisect_right(self.doc.places.changes, hunk) - 1

    def change_of(self, row: Row) -> int:
        """The same of a row."""
        return bisect_right(self.doc.places.changes, row.block.hunk) - 1

    def find(self, row: Row) -> Place:
        """Where what a row of another layout of this document shows is shown here."""
        wanted = row.block
        first = bisect_left(self._hunks, wanted.hunk)
        behind = bisect_right(self._hunks, wanted.hunk)
        for n in range(first, behind):
            block = self.blocks[n]
            if row.old < 0 and row.new < 0:
                if (block.what, block.cause) == (wanted.what, wanted.cause):
                    return n, 0
            elif row.old in block.old or row.new in block.new:
                return n, self._row(n, row)
        return min(first, max(0, len(self.blocks) - 1)), 0

    def _row(self, block: int, wanted: Row) -> int:
        by_new = wanted.new in self.blocks[block].new
        found = 0
        for n, row in enumerate(self.rows(block)):
            at, piece = (row.new, wanted.new) if by_new else (row.old, wanted.old)
            if 0 <= at <= piece:
                found = n
        return found


_TEXT = frozenset({What.PAIR, What.OLD, What.NEW, What.SAME, What.FOLD})
