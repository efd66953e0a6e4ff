"""Rows of cells as aligned lines."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence

GAP = "  "
_NARROW = re.compile("[ -~\u00a0-\u02ff\u2010-\u2027]*")
"""Where every character takes one terminal cell."""


def room() -> int | None:
    """Cells of a line on this terminal, or as COLUMNS says; None: it goes to a file or a program, whole."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return None
    return shutil.get_terminal_size().columns


def cells(text: str) -> int:
    """Terminal cells that the text takes: wide characters take two, combining marks none."""
    if _NARROW.fullmatch(text):
        return len(text)
    from kvtop.ui import draw  # what knows their widths is rich's, and takes its time

    return draw.cells(text)


def cut(text: str, w: int) -> str:
    """At most `w` cells, with an ellipsis where something was cut."""
    if cells(text) <= w:
        return text
    from kvtop.ui import draw

    return draw.clip(text, w)


def wrapped(text: str, w: int) -> list[str]:
    """Lines of at most `w` cells, broken at spaces; those after the first are indented by two."""
    from kvtop.ui import draw

    return ["".join(part for part, _ in row) for row in draw.wrap([(text, "t")], w, 2)]


def widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """Cells of each column."""
    return [max(map(cells, column)) for column in zip(*lines, strict=True)]


def across(wide: Sequence[int]) -> int:
    """Cells of a line with columns of these widths."""
    return sum(wide) + len(GAP) * (len(wide) - 1)


def fitting(names: Sequence[str], wide: Sequence[int], w: int | None, spare: Sequence[str]) -> list[int]:
    """The columns that are shown, by their places. `wide`: their widths; `w` and `spare`: as for `show`."""
    shown = list(range(len(wide)))
    for name in spare:
        if w is None or across([wide[i] for i in shown]) <= w:
            break
        shown.remove(names.index(name))
    return shown


def show(lines: Sequence[Sequence[str]], left: int, *, w: int | None = None, spare: Sequence[str] = ()) -> None:
    """Print them, numbers to the right; the last `left` columns hold words. The first line are the names.

    `w`: cells that a line may take. The columns of these names are `spare`: one after the other goes till lines fit.
    """
    words = len(lines[0]) - left
    wide = widths(lines)
    shown = fitting(lines[0], wide, w, spare)
    for line in lines:
        said = GAP.join(_padded(line[i], wide[i], left=i >= words) for i in shown).rstrip()
        print(said if w is None else cut(said, w))


def _padded(text: str, w: int, *, left: bool) -> str:
    pad = " " * (w - cells(text))
    return text + pad if left else pad + text
