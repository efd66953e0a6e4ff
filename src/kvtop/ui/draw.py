"""Drawing for a terminal, without a terminal: cells, wordings, bars, braille. Pure functions.

A *line* is a list of (text, style key). A style key is a few words: a colour name of the theme (`t` text, `d` dim,
`f` faint, or the name of a theme variable such as `cached-device`), then `bold`, `rev`, `ul`, and `@name` for a
shaded background. What a key looks like is `kvtop.ui.ink`'s business: no colour is named here.
"""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from rich.cells import cell_len, set_cell_size

from kvtop.model.words import NBSP

Line = list[tuple[str, str]]

SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹"
BAR = "▄"
"""The parts of a whole."""
TEXTURES = "█▓▒░"
"""The parts of a whole where there is no colour to tell them apart."""

_UNITS = re.compile(r"(?<=\d) (?=(?:s|ms|m|h|%|[kMGT]i?B(?:/[sh])?|tok)(?![A-Za-z]))|(?<=[mh]) (?=\d)")


# ---------------------------------------------------------------- text from outside
@lru_cache(maxsize=1024)
def safe(text: str) -> str:
    """Text that came from outside, fit for a cell grid: nothing in it can move the cursor, hide or reorder.

    C0 controls become their pictures (ESC is ␛), every other control, format, private, unassigned or line-breaking
    character becomes �. Variation selectors and joiners go: terminals disagree about their width. Of stacked
    combining marks the first stays.
    """
    out: list[str] = []
    marks = 0
    for char in unicodedata.normalize("NFC", text):
        code = ord(char)
        kind = unicodedata.category(char)
        if kind in ("Mn", "Me"):
            marks += 1
            if not (0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF) and marks == 1 and out:
                out.append(char)
            continue
        marks = 0
        if code < 0x20:
            out.append(chr(0x2400 + code))
        elif code == 0x7F:
            out.append("␡")
        elif code == 0x200D:
            continue
        elif kind[0] == "C" or kind in ("Zl", "Zp"):
            out.append("�")
        else:
            out.append(char)
    return "".join(out)


# ---------------------------------------------------------------- cells
def cells(text: str) -> int:
    """Terminal cells that the text takes: wide characters take two, combining marks none."""
    return len(text) if text.isascii() else cell_len(text)


def width(line: Line) -> int:
    """Cells that the line takes."""
    return sum(cells(text) for text, _ in line)


def clip(text: str, w: int) -> str:
    """At most w cells, with an ellipsis where something was cut. For names and log lines, not for wordings."""
    if cells(text) <= w:
        return text
    if w <= 0:
        return ""
    return set_cell_size(text, w - 1).rstrip() + "…" if w > 1 else "…"


def ljust(text: str, w: int) -> str:
    """Padded on the right to w cells."""
    return text + " " * max(0, w - cells(text))


def rjust(text: str, w: int) -> str:
    """Padded on the left to w cells."""
    return " " * max(0, w - cells(text)) + text


def fit(line: Line, w: int) -> Line:
    """Exactly w cells: cut with an ellipsis, or padded."""
    out: Line = []
    used = 0
    for text, style in line:
        room = w - used
        if room <= 0:
            break
        n = cells(text)
        if n > room:
            cut = clip(text, room)
            out.append((cut, style))
            used += cells(cut)
            break
        out.append((text, style))
        used += n
    if used < w:
        out.append((" " * (w - used), "t"))
    return out


def spread(left: Line, right: Line, w: int) -> Line:
    """Left and right on one line of w cells; the left one gives way."""
    taken = width(right)
    if taken >= w:
        return fit(left, w)
    return [*fit(left, w - taken - 1), (" ", "t"), *right]


def columns(parts: Sequence[Line], widths: Sequence[int], gap: int = 2) -> Line:
    """Lines side by side, each cut or padded to its width."""
    out: Line = []
    for i, (part, w) in enumerate(zip(parts, widths, strict=True)):
        if i:
            out.append((" " * gap, "t"))
        out += fit(part, w)
    return out


def rj(text: str, w: int, style: str = "t") -> Line:
    """A number in a fixed field, at its right end."""
    return [(rjust(clip(text, w), w), style)]


def lj(text: str, w: int, style: str = "t") -> Line:
    """A name in a fixed field, at its left end."""
    return [(ljust(clip(text, w), w), style)]


def pick(options: Sequence[str], w: int) -> str:
    """The first wording that fits, of wordings written longest first. An empty last one means: say nothing."""
    for text in options:
        if cells(text) <= w:
            return text
    return clip(options[-1], w) if options else ""


def pick_line(options: Sequence[Line], w: int) -> Line:
    """The first line that fits, of lines written longest first; the last one where none does."""
    for line in options:
        if width(line) <= w:
            return line
    return options[-1] if options else []


def wrap(line: Line, w: int, indent: int = 0) -> list[Line]:
    """Rows of at most w cells, broken at spaces; a number and its unit stay together.

    Rows after the first begin with `indent` spaces. A word longer than a row is broken where the row ends.
    """
    w = max(1, w)
    indent = max(0, min(indent, w - 2))  # room for a wide character
    rows: list[Line] = [[]]
    used = 0
    for word in _words(line):
        if word == [(" ", "")]:
            continue
        space, piece = (word[0], word[1:]) if word[0][0] == " " else (None, word)
        n = width(piece)
        start = indent if len(rows) > 1 else 0
        if used > start and used + (1 if space else 0) + n > w:
            rows.append([(" " * indent, "t")] if indent else [])
            used = start = indent
        elif space and used > start:
            rows[-1].append(space)
            used += 1
        while used + n > w and n:
            head, piece = _split(piece, w - used)
            if not head:
                break
            rows[-1] += head
            rows.append([(" " * indent, "t")] if indent else [])
            used = indent
            n = width(piece)
        rows[-1] += piece
        used += n
    return [[(text.replace(NBSP, " "), style) for text, style in row] for row in rows]


def shortened(rows: list[Line], h: int, w: int) -> list[Line]:
    """At most h of these rows of w cells; where that cuts some, the last one ends with an ellipsis."""
    if len(rows) <= h or h <= 0:
        return rows[: max(0, h)]
    last = rows[h - 1]
    style = last[-1][1] if last else "t"
    return [*rows[: h - 1], [*(last if width(last) < w else fit(last, w - 1)), ("…", style)]]


def _words(line: Line) -> list[Line]:
    """Runs without a space, each led by one space where there was one before it."""
    out: list[Line] = []
    fresh = True
    lead: tuple[str, str] | None = None
    for text, style in line:
        for i, part in enumerate(_UNITS.sub(NBSP, text).split(" ")):
            if i:
                lead, fresh = (" ", style), True
            if not part:
                continue
            if fresh:
                out.append([lead] if lead else [])
                lead, fresh = None, False
            out[-1].append((part, style))
    return out


def _split(line: Line, w: int) -> tuple[Line, Line]:
    """The first w cells of a line, and the rest."""
    head: Line = []
    for i, (text, style) in enumerate(line):
        n = cells(text)
        if n <= w:
            head.append((text, style))
            w -= n
            continue
        k = 0
        while k < len(text) and cells(text[: k + 1]) <= w:
            k += 1
        if k:
            head.append((text[:k], style))
        return head, [(text[k:], style), *line[i + 1 :]]
    return head, []


# ---------------------------------------------------------------- bars
def meter(parts: Sequence[tuple[float | None, str]], w: int, track: str = "f") -> Line:
    """A thin bar: how much of one whole. parts = (share, style); the rest is the track; None draws nothing.

    Full only where it is all of it, empty only where it is nothing. With NO_COLOR a second part has a texture.
    """
    out: Line = []
    glyphs = f"━{TEXTURES[1:]}" if _mono() else "━"
    used, total = 0, 0.0
    for i, (share, style) in enumerate(parts):
        if share is None or not share > 0:
            continue
        total += share
        end = _filled(total, w)
        if end == used and used < (w if total >= 1 else w - 1):
            end = used + 1  # something is never nothing
        if end > used:
            out.append((glyphs[i % len(glyphs)] * (end - used), style))
            used = end
    if used < w:
        out.append(("─" * (w - used), track))
    return out


def _mono() -> bool:
    """There is no colour to tell parts apart."""
    return bool(os.environ.get("NO_COLOR"))


def _filled(share: float, w: int) -> int:
    """Whole cells of so many that a share fills; one at least of something."""
    return min(w, max(1, int(share * w + 1e-9))) if share > 0 else 0


def expected(share: float, w: int, style: str) -> Line:
    """A thin bar of what is expected and not known yet; as `meter`."""
    n = _filled(share, w)
    return [("┄" * n, style), ("─" * (w - n), "f")] if n else [("─" * w, "f")]


def stack(parts: Sequence[tuple[float | None, str]], w: int) -> Line:
    """A thick bar: what a whole is made of. parts = (weight, style); dots where nothing is known.

    With NO_COLOR the parts are told apart by texture, in the same order.
    """
    known = [(i, float(weight), style) for i, (weight, style) in enumerate(parts) if weight is not None and weight > 0]
    total = sum(weight for _, weight, _ in known)
    if w <= 0 or not known or not math.isfinite(total):
        return [("·" * max(0, w), "f")]
    exact = [weight / total * w for _, weight, _ in known]
    count = [max(1, int(c)) for c in exact]
    order = sorted(range(len(exact)), key=lambda i: exact[i] - int(exact[i]), reverse=True)
    for i in order:
        if sum(count) >= w:
            break
        count[i] += 1
    while sum(count) > w:
        count[count.index(max(count))] -= 1
    mono = _mono()
    return [
        ((TEXTURES[i % len(TEXTURES)] if mono else BAR) * n, style)
        for n, (i, _, style) in zip(count, known, strict=True)
        if n
    ]


def pointer(share: float, says: Sequence[str], w: int, style: str) -> Line:
    """A mark under a bar of w cells at this share of it, with the longest of these words that fits beside it."""
    at = max(0, min(w - 1, int(share * w)))
    said = pick([*says, ""], w - at - 2)
    if said:
        return [(" " * at, "t"), (f"▴ {said}", style)]
    said = pick([*says, ""], at - 1)
    return [(" " * max(0, at - cells(said) - 1), "t"), (f"{said} ▴" if said else "▴", style)]


# ---------------------------------------------------------------- braille
_UP = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Dots of the left and the right column of a cell, from the bottom up."""
_DOWN = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The same from the top down."""


def bins(values: Sequence[float | None], n: int, mean: bool = False) -> list[float | None]:
    """The whole series over n columns. Traffic keeps its peaks, a share its mean; None is a gap."""
    size = len(values)
    if not size or n <= 0:
        return [None] * max(0, n)
    out: list[float | None] = []
    for c in range(n):
        a = c * size // n
        part = [v for v in values[a : max(a + 1, (c + 1) * size // n)] if v is not None]
        out.append(None if not part else sum(part) / len(part) if mean else max(part))
    return out


def area(
    values: Sequence[float | None], w: int, h: int, top: float, *, down: bool = False, mean: bool = False
) -> list[str]:
    """A braille area from 0 to top, h rows of w cells. One dot is 0, no dot is no data."""
    if w <= 0 or h <= 0:
        return [""] * max(0, h)
    bits = _DOWN if down else _UP
    grid = [bytearray(w) for _ in range(h)]
    dots = h * 4
    for x, value in enumerate(bins(values, w * 2, mean)):
        if value is None or not math.isfinite(value):
            continue
        n = max(1, min(dots, round(min(max(value / top, 0.0), 1.0) * dots))) if top > 0 else 1
        side, column = bits[x & 1], x >> 1
        for d in range(n):
            row = d >> 2
            grid[row if down else h - 1 - row][column] |= side[d & 3]
    return ["".join(chr(0x2800 + b) if b else " " for b in row) for row in grid]


_RUNS = re.compile(r" +|[^ ]+")


def edge(row: str, above: str, bright: str, muted: str) -> Line:
    """One row of an area: the top cell of each column bright, what is under it muted, so that it is not a slab."""
    if not above:
        return [(row, bright)] if row else []
    return [(row[m.start() : m.end()], bright if m[0][0] == " " else muted) for m in _RUNS.finditer(above)]


def nice(value: float) -> float:
    """The next of 1, 2, 3, 5, 10 times a power of ten: scales do not jump with each sample."""
    if not value > 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((m * power for m in (1, 2, 3, 5, 10) if value <= m * power * 1.0001), 10 * power)


def peak(*series: Sequence[float | None]) -> float | None:
    """The largest known value of several series."""
    known = [v for values in series for v in values if v is not None and math.isfinite(v)]
    return max(known, default=None)
