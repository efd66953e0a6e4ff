"""Charts with axes, by plotext, as lines of (text, style key).

plotext has one figure a process and a draw costs about 10 ms: `chart` holds a lock and is meant for a thread. It is
imported at the first chart. Colours are not plotext's: every part is drawn in a palette number of its own, and the
numbers become style keys, so that themes, sixteen colours and NO_COLOR work as everywhere else.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kvtop.ui.draw import Line, fit

_FIGURE = threading.Lock()
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_RULER, _AXES, _FIRST = 200, 201, 202
"""Palette numbers: tick labels, axes and grid, the first curve."""

MINUTE, HOUR = 60, 3600
_STEPS = (MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 20 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR,
          6 * HOUR, 12 * HOUR, 24 * HOUR)  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One line of a chart: equal columns of time, oldest first; None is a gap."""

    values: tuple[float | None, ...]
    style: str


@dataclass(frozen=True)
class Scale:
    """What a chart spans."""

    start: float
    """Unix time of the left edge."""
    end: float
    top: float
    """The value of the upper edge; the lower one is 0."""
    levels: tuple[tuple[float, str], ...]
    """(Value, its label at the left)."""


def clock_ticks(start: float, end: float, w: int) -> list[tuple[float, str]]:
    """(Unix time, HH:MM) of round local times between two Unix times, so many as fit into w cells."""
    span = end - start
    room = max(1, w // 12)
    step = next((s for s in _STEPS if span / s <= room), _STEPS[-1])
    offset = time.localtime(end).tm_gmtoff
    first = math.ceil((start + offset) / step) * step - offset
    ticks = [first + i * step for i in range(int((end - first) // step) + 1)] if first <= end else []
    return [(t, time.strftime("%H:%M", time.localtime(t))) for t in ticks]


def chart(curves: Sequence[Curve], w: int, h: int, scale: Scale, fill: str = "") -> list[Line]:
    """h rows of w cells. `fill` is the style of the area under the first curve; empty: a line alone."""
    if w < 20 or h < 4 or not scale.top > 0:
        return [fit([], w) for _ in range(max(0, h))]
    with _FIGURE:
        text = _draw(curves, w, h, scale)
    styles = {str(_RULER): "d", str(_AXES): "f", **{str(_FIRST + i): c.style for i, c in enumerate(curves)}}
    grid = [_cells(row, styles, w) for row in text.split("\n")[:h]]
    if fill and curves:
        _fill(grid, curves[0].style, fill)
    rows = [_line(row) for row in grid]
    return rows + [fit([], w)] * (h - len(rows))


def _draw(curves: Sequence[Curve], w: int, h: int, scale: Scale) -> str:
    import plotext

    plotext.terminal.limit(False, False)
    figure = plotext.figure
    figure.clear()
    figure.plot_size(w, h)
    figure.theme("colorless")
    label_cells = max((len(label) for _, label in scale.levels), default=0)
    ruler, axes = plotext.pixel(foreground=_RULER), plotext.pixel(foreground=_AXES)
    for i, curve in enumerate(curves):
        marker = plotext.marker("braille", pixel=plotext.pixel(foreground=_FIRST + i))
        width = (scale.end - scale.start) / max(1, len(curve.values))
        for run in runs(curve.values):
            xs = [scale.start + (k + 0.5) * width for k, _ in run]
            ys = [min(max(v, 0.0), scale.top) for _, v in run]
            figure.draw(figure.signal(xs, ys, marker=marker).lines())
    ticks = clock_ticks(scale.start, scale.end, w - label_cells)
    figure.ruler("x").lim(scale.start, scale.end).ticks([t for t, _ in ticks], [label for _, label in ticks]).pixel(
        ruler
    )
    figure.ruler("y").lim(0, scale.top).ticks([v for v, _ in scale.levels], [label for _, label in scale.levels])
    figure.ruler("y").pixel(ruler)
    figure.ruler("y").grid(True, pixel=axes)
    figure.axes(False)
    for axis in ("x", "y"):
        figure.axes(True, pixel=axes, axis=axis, side=0)
    return str(figure.build().string())


def runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The stretches without a gap, as (index, value)."""
    out: list[list[tuple[int, float]]] = []
    fresh = True
    for i, value in enumerate(values):
        if value is None or not math.isfinite(value):
            fresh = True
            continue
        if fresh:
            out.append([])
            fresh = False
        out[-1].append((i, value))
    return out


def _cells(row: str, styles: dict[str, str], w: int) -> list[tuple[str, str]]:
    """One (character, style key) a cell of a row that carries SGR sequences."""
    out: list[tuple[str, str]] = []
    style = "f"
    at = 0
    for match in _SGR.finditer(row):
        out += [(char, style) for char in row[at : match.start()]]
        code = match[1]
        if code.startswith("38;5;"):
            style = styles.get(code[5:], "f")
        elif code in ("", "0"):
            style = "f"
        at = match.end()
    out += [(char, style) for char in row[at:]]
    return (out + [(" ", "f")] * (w - len(out)))[:w]


_COLUMNS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Dots of the left and the right half of a braille cell, from the top down."""


def _fill(grid: list[list[tuple[str, str]]], curve: str, fill: str) -> None:
    """Fill what is under the curve, down to the time axis: its own cells in its colour, those below in `fill`."""
    bottom = next((y for y, row in enumerate(grid) if any(char == "└" for char, _ in row)), len(grid))
    for x in range(len(grid[0])):
        lowest = max((y for y in range(bottom) if grid[y][x][1] == curve), default=bottom)
        if lowest < bottom:
            grid[lowest][x] = (_filled(grid[lowest][x][0]), curve)
        for y in range(lowest + 1, bottom):
            grid[y][x] = ("⣿", fill)


def _filled(char: str) -> str:
    """A braille cell with every dot set that is under another one."""
    bits = ord(char) - 0x2800
    if not 0 <= bits <= 0xFF:
        return char
    for column in _COLUMNS:
        below = False
        for dot in column:
            below = below or bool(bits & dot)
            bits |= dot if below else 0
    return chr(0x2800 + bits)


def _line(row: list[tuple[str, str]]) -> Line:
    out: Line = []
    for char, style in row:
        if out and out[-1][1] == style:
            out[-1] = (out[-1][0] + char, style)
        else:
            out.append((char, style))
    return out
