"""The pieces of a prompt as rows of a page: wrapped, never cut, broken at spaces where one is near."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Shown = tuple[tuple[str, int], ...]
"""A piece fit for a terminal: its lines, each with the cells that it takes."""
Show = Callable[[str], Shown]
Cells = Callable[[str], int]
"""Cells that a text takes which is fit for a terminal."""

REACH = 16
"""So many cells before the end of a row a space is looked for."""
SEPARATOR = "▏"
"""Behind each piece, where pieces are to be told apart."""
NEWLINE = "⏎"
"""A newline that is to be seen."""


@dataclass(frozen=True, slots=True)
class Flowed:
    """A row."""

    at: int
    """The piece that it begins in."""
    parts: tuple[str, ...]
    """Its text; where pieces are told apart each one and, behind it, the separator, in turn."""


def flow(
    pieces: Sequence[str], span: range, w: int, show: Show, cells: Cells, *, most: int | None = None
) -> list[Flowed]:
    """The text of these pieces in rows of at most w cells; a newline ends a row. `most`: about so many rows are
    enough."""
    if not span:
        return []
    page = _Page(max(2, w), cells)
    for i in span:
        for n, (text, size) in enumerate(show(pieces[i])):
            if n:
                page.close(i)
            if text:
                page.write(i, text, size)
        if most is not None and len(page.rows) > most:
            break
    return page.done(span.start)


def parted(pieces: Sequence[str], span: range, w: int, show: Show, cells: Cells) -> list[Flowed]:
    """The same with a separator behind each piece; rows end between pieces where they can, and behind newlines."""
    w = max(2, w)
    if not span:
        return []
    rows: list[Flowed] = []
    row: list[str] = []
    used, at = 0, span.start

    def close(begin: int) -> None:
        nonlocal used, at
        rows.append(Flowed(at, tuple(row)))
        row.clear()
        used, at = 0, begin

    for i in span:
        lines = show(pieces[i])
        for n, (text, size) in enumerate(lines):
            if n:
                close(i)
            separator = 1 if n == len(lines) - 1 else 0
            if not text and not separator:
                continue
            if used and used + size + separator > w:
                close(i)
            while size + separator > w:
                taken = max(1, _fitting(text, size, w - 1, cells))
                row.append(text[:taken])
                text = text[taken:]
                size = cells(text)
                close(i)
            row.append(text)
            used += size
            if separator:
                row.append(SEPARATOR)
                used += 1
                if NEWLINE in text:
                    close(i + 1)
    if row or not rows:
        close(span.stop)
    return rows


class _Page:
    """Rows that are being filled."""

    def __init__(self, w: int, cells: Cells) -> None:
        self.w, self.cells = w, cells
        self.rows: list[Flowed] = []
        self.row: list[str] = []
        self.used = 0
        self.at = -1
        """The piece that the row begins in; -1: the row has nothing yet."""
        self.gap: tuple[int, int, int] | None = None
        """The last place where the row may end: its texts, its cells, and the piece behind it."""

    def close(self, i: int) -> None:
        """The row ends, in this piece or before it."""
        self.rows.append(Flowed(i if self.at < 0 else self.at, ("".join(self.row),)))
        self.row, self.used, self.at, self.gap = [], 0, -1, None

    def write(self, i: int, text: str, size: int) -> None:
        while self.used + size > self.w:
            if self.used and text[0] == " ":
                if self.used < self.w:
                    self.row.append(" ")
                    text, size = text[1:], size - 1
                self.close(i)
                if not text:
                    return
            elif self.used and self.row[-1][-1:] == " ":
                self.close(i)
            elif self.gap is not None and self.used - self.gap[1] <= REACH:
                self._to_the_gap(i)
            elif self.used and size <= self.w:
                self.close(i)
            else:
                text, size = self._fill(i, text, size)
        if self.row and (text[0] == " " or self.row[-1][-1] == " "):
            self.gap = (len(self.row), self.used, i)
        if self.at < 0:
            self.at = i
        self.row.append(text)
        self.used += size

    def _to_the_gap(self, i: int) -> None:
        """The row ends where it may; what stands behind begins the next one."""
        assert self.gap is not None
        kept, used, at = self.gap
        behind, cells = self.row[kept:], self.used - used
        self.row = self.row[:kept]
        if behind[0][0] == " ":  # the gap was made before it, so there is room
            self.row.append(" ")
            behind[0] = behind[0][1:]
            cells -= 1
        self.close(i)
        behind = [text for text in behind if text]
        if behind:
            self.row, self.used, self.at = behind, cells, at

    def _fill(self, i: int, text: str, size: int) -> tuple[str, int]:
        """As much of a text as the row still holds; the rest of it."""
        taken = _fitting(text, size, self.w - self.used, self.cells)
        if taken < len(text):
            space = text.rfind(" ", max(0, taken - REACH), taken)
            taken = space + 1 if space > 0 else taken
        if not taken and not self.used:
            taken = 1  # nothing narrower can be had
        if taken:
            self.row.append(text[:taken])
            self.at = i if self.at < 0 else self.at
        self.close(i)
        return text[taken:], self.cells(text[taken:])

    def done(self, start: int) -> list[Flowed]:
        if self.row or not self.rows:
            self.close(start)
        return self.rows


def _fitting(text: str, size: int, room: int, cells: Cells) -> int:
    """Characters of it that so many cells hold."""
    if size == len(text) and text.isascii():
        return min(len(text), room)
    used = 0
    for n, char in enumerate(text):
        used += cells(char)
        if used > room:
            return n
    return len(text)
