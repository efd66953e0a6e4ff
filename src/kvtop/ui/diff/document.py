"""A sheet made ready to be laid out at any width: no piece is long, and it is known where something is to be said."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from kvtop.triage.flow import Show
from kvtop.triage.places import Places, places, unseen
from kvtop.triage.sheet import Hunk, Sheet
from kvtop.ui.pieces import shown

LONG = 4_000
"""Characters; a longer piece is laid out in parts."""
CHUNK = 400
"""Pieces that are laid out at once, at most."""
CHUNK_CHARS = 12_000


class Document:
    """Values that no width, no theme and no choice of the user changes, and caches of them."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet, self.old_numbers, self.new_numbers = _in_parts(sheet)
        self.places: Places = places(self.sheet)
        first = self.places.first
        self.common = first.new.start if first is not None else len(self.sheet.new)
        """Pieces before the first difference."""
        self.cached, self.reusable = self._edges()
        self._cuts: dict[tuple[bool, int, int], tuple[range, ...]] = {}
        self._unseen: dict[int, bool] = {}
        self._shows: dict[tuple[bool, bool, bool], Show] = {}

    def _edges(self) -> tuple[int | None, int | None]:
        """Pieces that were cached, that could be reused: those that end before the first difference; None: not known,
        or not there."""
        diff = self.sheet.diff
        if not self.sheet.tokens:
            return None, None

        def at(tokens: int | None) -> int | None:
            if tokens is None or tokens < 0:
                return None
            piece = bisect_left(self.new_numbers, tokens) if self.new_numbers is not None else tokens
            return piece if piece <= self.common else None

        return at(diff.cached_tokens), at(diff.tokens.reusable)

    @property
    def changed(self) -> int:
        """Changes but for what was appended at the end of the new prompt."""
        changes = self.places.changes
        if not changes:
            return 0
        last, sheet = self.sheet.hunks[changes[-1]], self.sheet
        rest = list(sheet.old[last.old.start :])  # what ends every prompt stands behind what was appended before it
        appended = not last.old and list(sheet.new[last.new.start : last.new.start + len(rest)]) == rest
        return len(changes) - appended

    @property
    def shaded(self) -> int:
        """Pieces that came from the cache, or would have."""
        return next((n for n in (self.cached, self.reusable) if n is not None), 0)

    def number(self, piece: int, *, new: bool) -> int:
        """The token's number of a piece."""
        numbers = self.new_numbers if new else self.old_numbers
        return piece if numbers is None else numbers[piece]

    def count(self, span: range, *, new: bool = True) -> int:
        """Tokens, or words, of a stretch of pieces."""
        numbers = self.new_numbers if new else self.old_numbers
        if numbers is None or not span:
            return len(span)
        return numbers[span.stop - 1] - numbers[span.start] + 1

    def chunks(self, span: range, *, new: bool) -> tuple[range, ...]:
        """The stretch in parts that can be laid out at once; they end at ends of lines where they can."""
        key = (new, span.start, span.stop)
        if key not in self._cuts:
            self._cuts[key] = _chunks(self.sheet.new if new else self.sheet.old, span)
        return self._cuts[key]

    def unseen(self, hunk: int) -> bool:
        """What differs in this hunk would not be seen."""
        if hunk not in self._unseen:
            self._unseen[hunk] = unseen(self.sheet, self.sheet.hunks[hunk])
        return self._unseen[hunk]

    def show(self, hunk: int, parted: bool) -> Show:
        """How its pieces are shown."""
        kept = self.sheet.hunks[hunk].same
        key = (kept, not kept and self.unseen(hunk), parted)
        if key not in self._shows:
            self._shows[key] = shown(*key)
        return self._shows[key]


def _in_parts(sheet: Sheet) -> tuple[Sheet, list[int] | None, list[int] | None]:
    """The sheet without long pieces; and for each piece of both sides its number in the sheet as it was."""
    if all(len(piece) <= LONG for side in (sheet.old, sheet.new) for piece in side):
        return sheet, None, None
    old, old_at, old_numbers = _parts(sheet.old)
    new, new_at, new_numbers = _parts(sheet.new)
    made = replace(
        sheet,
        old=old,
        new=new,
        hunks=tuple(Hunk(_moved(h.old, old_at), _moved(h.new, new_at), h.same) for h in sheet.hunks),
        sections=tuple((new_at[min(piece, len(sheet.new))], name) for piece, name in sheet.sections),
    )
    return made, old_numbers, new_numbers


def _parts(pieces: Sequence[str]) -> tuple[list[str], list[int], list[int]]:
    """The pieces in parts, the part at which each of them begins, and the piece that each part is of."""
    out: list[str] = []
    starts: list[int] = []
    numbers: list[int] = []
    for n, piece in enumerate(pieces):
        starts.append(len(out))
        parts = [piece[at : at + LONG] for at in range(0, len(piece), LONG)] or [""]
        out += parts
        numbers += [n] * len(parts)
    starts.append(len(out))
    return out, starts, numbers


def _moved(span: range, starts: Sequence[int]) -> range:
    return range(starts[span.start], starts[span.stop])


def _chunks(pieces: Sequence[str], span: range) -> tuple[range, ...]:
    out: list[range] = []
    start, end_of_line, chars = span.start, 0, 0
    for i in span:
        piece = pieces[i]
        chars += len(piece)
        full = i + 1 - start >= CHUNK or chars >= CHUNK_CHARS
        if "\n" in piece and (full or i + 1 - start >= CHUNK // 2):
            end_of_line = i + 1
        if full:
            stop = end_of_line or i + 1
            out.append(range(start, stop))
            start, end_of_line = stop, 0
            chars = sum(map(len, pieces[stop : i + 1]))
    if start < span.stop:
        out.append(range(start, span.stop))
    return tuple(out)
