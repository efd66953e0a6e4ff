"""Rows of cells as aligned lines."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

GAP = "  "


def room() -> int | None:
    """Cells of a line on this terminal, or as COLUMNS says; None: it goes to a file or a program, whole."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return None
    return shutil.get_terminal_size().columns


def show(lines: Sequence[Sequence[str]], left: int, *, w: int | None = None, spare: Sequence[str] = ()) -> None:
    """Print them, numbers to the right; the last `left` columns hold words. The first line are the names.

    `w`: cells that a line may take. The columns of these names are `spare`: one after the other goes till lines fit.
    """
    words = len(lines[0]) - left
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = list(range(len(widths)))
    for name in spare:
        if w is None or sum(widths[i] for i in shown) + len(GAP) * (len(shown) - 1) <= w:
            break
        shown.remove(lines[0].index(name))
    for line in lines:
        cells = [line[i].ljust(widths[i]) if i >= words else line[i].rjust(widths[i]) for i in shown]
        said = GAP.join(cells).rstrip()
        print(said if w is None or len(said) <= w else f"{said[: max(0, w - 1)]}…")
