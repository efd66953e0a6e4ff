"""Rows of cells as aligned lines."""

from __future__ import annotations

from collections.abc import Sequence


def show(lines: Sequence[Sequence[str]], left: int) -> None:
    """Print them, numbers to the right; the last `left` columns hold words."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    words = len(widths) - left
    for line in lines:
        cells = [
            cell.ljust(width) if i >= words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
