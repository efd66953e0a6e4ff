"""The sentence on top of every screen: state chip, first clause in bold, the rest, and a context beside it."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.model.view import Sentence
from kvtop.model.words import NBSP, nb
from kvtop.ui.draw import Line, cells, pick, safe, spread, width, wrap

HANGING = 60
"""From so many cells on, rows after the first begin under the sentence and not under the chip."""


def _chip(sentence: Sentence) -> Line:
    return [(f"{NBSP}{nb(safe(sentence.chip))}{NBSP}", f"{sentence.tone} rev bold"), (" ", "t")]


def indent(sentence: Sentence, w: int) -> int:
    """Cells before the rows after the first."""
    return width(_chip(sentence)) if w >= HANGING else 0


def written(sentence: Sentence, first: str, rest: str, w: int) -> list[Line]:
    """The chip and this wording of its sentence, in as many rows of w cells as it takes."""
    text: Line = [(safe(first), "bright bold")]
    if rest:
        text += [(" ", "t"), (safe(rest), "t")]
    return wrap(_chip(sentence) + text, w, indent(sentence, w))


def beside(row: Line, contexts: Sequence[str], w: int, start: int, *, style: str = "d", alone_from: int = 0) -> Line:
    """A row with the longest of the contexts that fits at its right end.

    Where the row is empty and w is `alone_from` or more, the context begins in cell `start`.
    """
    said = pick([*contexts, ""], w - max(width(row) + 3, start))
    if not said:
        return row
    if width(row) <= start and cells(said) + start <= w and w >= alone_from:
        return [(" " * start, "t"), (said, style)]
    return spread(row, [(said, style)], w)


def headline(sentence: Sentence, contexts: Sequence[str], w: int) -> list[Line]:
    """Two rows or more."""
    start = indent(sentence, w)
    rows = written(sentence, sentence.first, sentence.rest, w)
    if len(rows) < 2:
        rows.append([(" " * start, "t")])
    rows[1] = beside(rows[1], contexts, w, start)
    return rows
