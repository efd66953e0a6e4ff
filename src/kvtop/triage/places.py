"""Where things stand on a sheet: its changes, its sections, its causes."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvtop.triage.kinds import KEYS
from kvtop.triage.result import Cause
from kvtop.triage.sheet import Hunk, Sheet

COMPARED = 20_000
"""Pieces, and characters, of a side that are looked at for a difference that cannot be seen."""


@dataclass(frozen=True, slots=True)
class Places:
    """Of one sheet. Changes are numbered from 0 in the order of the prompt."""

    sheet: Sheet
    changes: tuple[int, ...]
    """The hunks that differ."""
    at_cause: tuple[int | None, ...]
    """For each cause the change that it explains; None where that is not known, or where it is none of the prompt."""
    appended: bool
    """All of the old side stands in the new one, at its beginning, and no text was named that differs."""
    _starts: tuple[int, ...] = field(default=())

    @property
    def first(self) -> Hunk | None:
        """The first hunk that differs."""
        return self.sheet.hunks[self.changes[0]] if self.changes else None

    def section(self, piece: int) -> str:
        """The section that a piece of the new side stands in; empty where that is not known."""
        at = bisect_right(self._starts, piece) - 1
        return self.sheet.sections[at][1] if at >= 0 else ""

    def sections(self, first: int, last: int) -> str:
        """Those of a stretch of the new side, as words: `tools[3] to tools[7] of 14`."""
        a, b = self.section(first), self.section(last)
        if not a or not b:
            return a or b
        words = a if a == b else f"{a} to {b}"
        kind = _kind(a)
        if kind != _kind(b) or kind == a:
            return words
        many = dict(self.sheet.counts).get(kind)
        return f"{words} of {many}" if many is not None else words


def places(sheet: Sheet) -> Places:
    """Looks at each hunk once."""
    changes = tuple(n for n, hunk in enumerate(sheet.hunks) if not hunk.same)
    texts = [cause for cause in sheet.diff.causes if cause.kind not in KEYS]
    appended = not texts and all(not sheet.hunks[n].old for n in changes) and len(changes) <= 1
    starts = tuple(piece for piece, _ in sheet.sections)
    named: dict[str, int] = {}
    for n, (_, name) in enumerate(sheet.sections):
        named.setdefault(name, n)
    at_cause = tuple(_place(sheet, cause, changes, named) for cause in sheet.diff.causes)
    return Places(sheet, changes, at_cause, appended, starts)


def unseen(sheet: Sheet, hunk: Hunk) -> bool:
    """What differs are white space and the forms of characters alone: it would be drawn alike on both sides."""
    sides: set[str] = set()
    for pieces, span in ((sheet.old, hunk.old), (sheet.new, hunk.new)):
        if len(span) > COMPARED:
            return False
        text = "".join(pieces[span.start : span.stop])
        if len(text) > COMPARED:
            return False
        sides.add("".join(unicodedata.normalize("NFC", text).split()))
    return len(sides) == 1


def _kind(name: str) -> str:
    return name.partition("[")[0]


def _place(sheet: Sheet, cause: Cause, changes: tuple[int, ...], named: Mapping[str, int]) -> int | None:
    """The first change in the section of the new prompt that the cause names. `named`: the first section of a name."""
    best = next((named[name] for name in _holders(cause.section) if name in named), None)
    if best is None:
        return 0 if changes and len(sheet.diff.causes) == 1 and not sheet.sections else None
    start = sheet.sections[best][0]
    end = sheet.sections[best + 1][0] if best + 1 < len(sheet.sections) else len(sheet.new)
    for n in range(bisect_left(changes, start, key=lambda at: sheet.hunks[at].new.stop), len(changes)):
        new = sheet.hunks[changes[n]].new
        if (new.start < end and new.stop > start) if new else start <= new.start <= end:
            return n
        if new.start > end:
            return None
    return None


def _holders(section: str) -> Iterator[str]:
    """What a section is within, itself first: tools[3].function is within tools[3] and tools, not within tools[33]."""
    yield from (section[:at] for at in range(len(section), 0, -1) if section[at : at + 1] in ("", ".", "[", " "))
