"""The pieces of a prompt, fit for a cell grid: nothing in them moves the cursor, hides or reorders.

What both prompts have is shown as any text from outside. In what differs nothing may be invisible: what has no cell of
its own is written as an escape. Where two texts differ in white space or in the form of their characters alone, these
are drawn too.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from kvtop.triage.flow import NEWLINE, Show, Shown
from kvtop.ui.draw import cells, safe

SPACE = "·"
"""A space that is to be seen."""


def shown(kept: bool = True, exactly: bool = False, parted: bool = False) -> Show:
    """How pieces are shown. `kept`: both prompts have them. `exactly`: white space and forms are what differs.

    `parted`: for rows on which pieces are told apart: a newline is drawn and ends no line of the piece.
    """
    of: dict[str, Shown] = {}
    fit = safe.__wrapped__ if kept else _exact if exactly else _told

    def show(piece: str) -> Shown:
        found = of.get(piece)
        if found is None:
            found = of[piece] = _shown(piece, fit, drawn=exactly or parted, broken=not parted)
        return found

    return show


def _shown(piece: str, fit: Callable[[str], str], *, drawn: bool, broken: bool) -> Shown:
    if piece.isascii() and piece.isprintable() and fit is not _exact:
        return ((piece, len(piece)),)
    *lines, last = (fit(line) for line in piece.split("\n"))
    if drawn:
        lines = [line + NEWLINE for line in lines]
    if not broken:
        lines, last = [], "".join([*lines, last])
    return tuple((line, cells(line)) for line in (*lines, last))


def _told(text: str) -> str:
    return _escaped(text, exactly=False)


def _exact(text: str) -> str:
    return _escaped(text, exactly=True)


def _escaped(text: str, *, exactly: bool) -> str:
    out: list[str] = []
    marks = 0
    for char in text:
        code, kind = ord(char), unicodedata.category(char)
        marks = marks + 1 if kind in ("Mn", "Me") else 0
        if char == " ":
            out.append(SPACE if exactly else " ")
        elif code < 0x20:
            out.append(chr(0x2400 + code))
        elif code == 0x7F:
            out.append("␡")
        elif kind[0] in "CZ" or marks > 1 or (marks and not out) or _selects(code) or (exactly and _composes(char)):
            out.append(char.encode("unicode_escape").decode("ascii"))
        else:
            out.append(char)
    return "".join(out)


def _selects(code: int) -> bool:
    """A variation selector: terminals disagree about what it does to the width."""
    return 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF


def _composes(char: str) -> bool:
    """There is another way to write what it looks like."""
    return (
        unicodedata.combining(char) > 0
        or unicodedata.normalize("NFC", char) != char
        or 0x1100 <= ord(char) <= 0x11FF  # parts of Hangul syllables
    )
