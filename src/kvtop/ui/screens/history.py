"""History: what the server did in the last ten minutes to 24 hours, one quantity large or all of them small."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from textual.worker import Worker

from kvtop.model.charts import mean_of
from kvtop.ui import faults, keys
from kvtop.ui.draw import Line, cells, fit, nice, peak, pick, pick_line, safe, spread, width
from kvtop.ui.keys import Keymap
from kvtop.ui.numbers import DASH, hm, pct, per_second, rate, secs, span
from kvtop.ui.plot import Curve, Scale, chart
from kvtop.ui.screens.page import Page
from kvtop.ui.widgets.panel import rule

SeriesSource = Callable[[str, float, int], Sequence[float | None]]
"""(series name, span in seconds, columns) -> equal columns of time ending now, oldest first; None is a gap.

Called on the UI loop, so it has to be quick. A name that nothing was recorded for gives columns of None. The names
and units are those of METRICS: shares of one, seconds, requests, bytes a second, tokens a second.
"""

SPANS: tuple[tuple[float, str], ...] = ((600, "10 min"), (3600, "1 h"), (6 * 3600, "6 h"), (24 * 3600, "24 h"))


def _byte_tick(v: float, top: float) -> str:
    unit, size = next(((u, n) for u, n in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)) if v >= n), ("B/s", 1.0))
    return f"{v / size:g} {unit}"


def _second_tick(v: float, top: float) -> str:
    return f"{v * 1000:g} ms" if top < 1 else f"{v:g} s" if v < 120 else secs(v)


def _share_tick(v: float, top: float) -> str:
    return pct(v)


def _from_to(start: float, end: float) -> str:
    """19:10 to 20:10; yesterday 19:15 to 19:15."""
    before = time.localtime(start)[:3] != time.localtime(end)[:3]
    return f"{'yesterday ' if before else ''}{hm(start)} to {hm(end)}"


def _count(v: float | None) -> str:
    return DASH if v is None else f"{v:.0f}" if v == round(v) else f"{v:.1f}"


def _tokens(v: float | None) -> str:
    return DASH if v is None else f"{rate(v)} tok/s"


@dataclass(frozen=True)
class Metric:
    """A chart: its series with their words and style keys, and how its numbers are written."""

    title: str
    curves: tuple[tuple[str, str, str], ...]
    """(series name, word, style key)."""
    write: Callable[[float | None], str]
    tick: Callable[[float, float], str]
    """A number of the scale that ends at the second one, in at most eight cells."""
    of: str
    """What its figures are; `{mean}` stands for how long each is taken over."""
    share: bool = False
    """Of one whole: the scale is 0 to 100 %."""
    fill: str = ""
    worst: str = "highest"
    """Which end of it matters: 'lowest' or 'highest'."""

    @property
    def bucketed(self) -> bool:
        """Its figures depend on how long each is taken over; a peak is the same in columns of any width."""
        return "{mean}" in self.of


METRICS: tuple[Metric, ...] = (
    Metric(
        "Cached share", (("share", "now", "cached-device"),), pct, _share_tick, "{mean} mean", share=True,
        fill="fill-device", worst="lowest",
    ),
    Metric("TTFT p50", (("ttft_p50_s", "now", "prefill"),), secs, _second_tick, "{mean} median"),
    Metric(
        "Queue", (("running", "running", "decode"), ("waiting", "waiting", "queue")), _count, lambda v, top: f"{v:g}",
        "peak of a column",
    ),
    Metric(
        "Store and load", (("store_bytes_per_s", "store", "store"), ("load_bytes_per_s", "load", "load")), per_second,
        _byte_tick, "peak of a column",
    ),
    Metric(
        "Generation", (("generation_tokens_per_s", "now", "decode"),), _tokens, lambda v, top: f"{v:g}/s",
        "{mean} mean",
    ),
    Metric("KV pool", (("kv_cache_usage_share", "now", "gauge"),), pct, _share_tick, "peak of a column", share=True),
)  # fmt: skip
ALL = "All"
BUCKETS = 30
"""Of means and medians the figures are those of so many parts of the span, whatever the columns are: see `mean_of`."""
SLIDING = 360
"""So finely the newest share is looked up: its mean ends with each column."""


class HistoryScreen(Page):
    """Left and right choose the span, up and down the quantity. Drawn by a thread, at most once in four seconds."""

    ON = keys.HISTORY
    BINDINGS = keys.bindings(keys.HISTORY)

    def __init__(
        self, keymap: Keymap, series: SeriesSource, label: str = "", now: Callable[[], float] = time.time,
        *, span: int = 1, title: str = "History",
    ) -> None:  # fmt: skip
        """`series` gives the columns; `label` is the server's, shown at the right end of the title where it fits."""
        super().__init__(keymap, now)
        self.series, self.label, self.title_words = series, safe(label), title
        self.span = span
        """Index into SPANS."""
        self.metric: str | None = None
        """A title, ALL, or None: whichever suits the size of the screen."""
        self._rows_made: list[Line] = []
        self._made_for: object = None
        self._made_at = -math.inf
        self._problem = ""

    # ---- what is chosen
    @property
    def choices(self) -> list[str]:
        """What can be shown at this size."""
        titles = [m.title for m in METRICS]
        return [ALL, *titles] if self.size.width >= 100 and self.size.height >= 30 else titles

    @property
    def chosen(self) -> str:
        choices = self.choices
        return self.metric if self.metric in choices else choices[0]

    def action_up(self) -> None:
        self._choose(-1)

    def action_down(self) -> None:
        self._choose(1)

    def _choose(self, by: int) -> None:
        choices = self.choices
        self.metric = choices[(choices.index(self.chosen) + by) % len(choices)]
        self.rebuild()

    def action_shorter(self) -> None:
        self._stretch(-1)

    def action_longer(self) -> None:
        self._stretch(1)

    def _stretch(self, by: int) -> None:
        self.span = max(0, min(len(SPANS) - 1, self.span + by))
        self.rebuild()

    # ---- painting
    def head(self, w: int) -> list[Line]:
        span_s, words = SPANS[self.span]
        end = self.now()
        column = f"a column is {span(span_s / _columns(_boxes(self.chosen, w, 12)[0].w))}"
        when = f"last {words}, {_from_to(end - span_s, end)}"
        context = [
            f"{self.label}  {when}, {column}".strip(),
            f"{when}, {column}",
            f"{words}, {column}",
            words,
        ]
        metrics = _tabs(self.choices, self.chosen, w - 2)
        spans = _tabs([s for _, s in SPANS], words, w - 2)
        return [
            rule(self.title_words, w, [(pick(context, w - cells(self.title_words) - 9), "d")]),
            *([[(" ", "t"), *metrics]] if w >= 60 else [[(" ", "t"), *fit(metrics, w - 1)]]),
            [(" ", "t"), *spans],
        ]

    def clicked(self, x: int, y: int) -> None:
        """A click on the rows of quantities and spans chooses."""
        w = self.size.width
        if y == 1:
            self.metric = _tab_at(self.choices, self.chosen, w - 2, x - 1) or self.metric
        elif y == 2:
            names = [words for _, words in SPANS]
            self.span = names.index(_tab_at(names, names[self.span], w - 2, x - 1) or names[self.span])
        else:
            return
        self.rebuild()

    def lines(self, w: int, h: int) -> list[Line]:
        if self._problem:
            return [[(" ", "t"), (self._problem, "warn")]]
        if self._made_for != self._wanted(w, h):
            self.call_later(self.rebuild)
        if not self._rows_made and _drawable(w, h):
            return [[(" ", "t"), ("drawing …", "d")]]
        return self._rows_made[:h]

    def _wanted(self, w: int, h: int) -> tuple[object, ...]:
        return self.chosen, self.span, w, h, self.app.current_theme.ansi

    def tick(self) -> None:
        super().tick()
        column_s = SPANS[self.span][0] / max(1, 2 * self.size.width)
        if self.is_current and self.now() - self._made_at >= max(4.0, column_s):
            self.rebuild()

    def rebuild(self) -> None:
        """Take the series and have them drawn by a thread; the screen changes when that is done."""
        w, h = self.size.width, max(0, self.size.height - 1 - 3)
        if not _drawable(w, h):
            return
        end, span_s = self.now(), SPANS[self.span][0]
        boxes = _boxes(self.chosen, w, h)
        data: list[Data] = [
            [tuple(self.series(name, span_s, _columns(box.w))) for name, _, _ in box.metric.curves] for box in boxes
        ]
        figures = [[self._figures(box.metric, name, span_s) for name, _, _ in box.metric.curves] for box in boxes]
        wanted = self._wanted(w, h)
        self._made_at = end
        # made only when it starts: one that is overtaken before that leaves nothing behind
        work = partial(self._draw, boxes, list(zip(data, figures, strict=True)), end, wanted)
        self.run_worker(work, exclusive=True, exit_on_error=False)  # type: ignore[arg-type]  # Textual types it Never

    def _figures(self, metric: Metric, name: str, span_s: float) -> Figures | None:
        if not metric.bucketed:
            return None
        parts = self.series(name, span_s, BUCKETS)
        newest = _newest(self.series(name, span_s, SLIDING) if metric.share else parts)
        whole = [v for v in parts[:-1] if v is not None]  # the last one has only begun
        return newest, [*whole, *([newest] if newest is not None else [])]

    async def _draw(
        self, boxes: list[Box], data: list[tuple[Data, list[Figures | None]]], end: float, wanted: object
    ) -> None:
        start = end - SPANS[self.span][0]
        fill = not self.app.current_theme.ansi  # sixteen colours have none that steps back behind the line
        drawn = await asyncio.to_thread(
            lambda: [picture(box, d, f, start, end, fill=fill) for box, (d, f) in zip(boxes, data, strict=True)]
        )
        self._rows_made = _tiled(drawn, self.size.width)
        self._made_for, self._problem = wanted, ""
        self.redraw()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A chart that cannot be drawn says so in its place, as often as that is tried, and leaves the rest alone."""
        event.prevent_default()
        if faults.failed(event):
            self._problem = f"the chart could not be drawn: {type(event.worker.error).__name__}"
            self.redraw()


@dataclass(frozen=True)
class Box:
    """One chart of the screen: what it shows, and its size in cells."""

    metric: Metric
    w: int
    h: int


Data = list[tuple[float | None, ...]]
"""The columns of each curve of a chart."""


Figures = tuple[float | None, list[float]]
"""The newest value of a curve, and all of which the one at the end that matters is told."""


def picture(
    box: Box, data: Data, figures: Sequence[Figures | None], start: float, end: float, *, fill: bool = True
) -> list[Line]:
    """One chart: a row with its name and figures, and the curves; `fill` also colours the area under a share.

    `figures`: of each curve; None: those of its columns.
    """
    metric, w, h = box.metric, box.w, box.h
    top = 1.0 if metric.share else nice(peak(*data) or 0.0)
    known = any(v is not None for values in data for v in values)
    words: Line = []
    for (_, word, style), values, known_of in zip(metric.curves, data, figures, strict=True):
        told = known_of or (_newest(values), [v for v in values if v is not None])
        words += [("   " if words else "", "t"), (f"{word} ", style), *_figures(metric, *told)]
    name: Line = [(f" {metric.title}   ", "t bold")]
    of = metric.of.format(mean=span(mean_of(end - start)))
    title = pick_line(
        [[*name, (f"{of}: ", "d"), *words], [*name, *words], [*name, *(part for part in words if part[1] != "d")]], w
    )
    curves = [Curve(values, style) for (_, _, style), values in zip(metric.curves, data, strict=True)]
    rows = chart(curves, w - 1, h - 1, Scale(start, end, top, _levels(metric, top, h - 1)), metric.fill if fill else "")
    if not known and len(rows) > 2:
        words_here = pick(["nothing was recorded in this span", "nothing recorded", "no data"], w - 14)
        middle = (len(rows) - 2) // 2
        room = w - 1 - 10
        rows[middle] = [
            *_first(rows[middle], 10),
            (" " * max(0, (room - cells(words_here)) // 2), "t"),
            (words_here, "d"),
        ]
    return [fit(title, w), *([(" ", "t"), *row] for row in rows)]


def _first(line: Line, n: int) -> Line:
    """The first n cells of a line of one-cell characters."""
    out: Line = []
    for text, style in line:
        out.append((text[:n], style))
        n -= len(out[-1][0])
    return out


def _newest(values: Sequence[float | None]) -> float | None:
    """The last one; the one before where that has nothing yet."""
    return next((v for v in reversed(values[-2:]) if v is not None), None)


def _figures(metric: Metric, newest: float | None, seen: Sequence[float]) -> Line:
    """The newest one, and the one at the end that matters. No mean: they weigh unequal."""
    if not seen:
        return [(DASH, "t")]
    end = min(seen) if metric.worst == "lowest" else max(seen)
    return [(metric.write(newest), "t"), (f"  {metric.worst} {metric.write(end)}", "d")]


def _levels(metric: Metric, top: float, h: int) -> tuple[tuple[float, str], ...]:
    """Where the scale is labelled; always in eight cells, so that charts of one screen stand under each other."""
    parts = 4 if h >= 14 else 2
    if metric.write is _count:  # there is no half request
        parts = next(n for n in (*range(parts + 1, 1, -1), 1) if top % n == 0 or n == 1)
    return tuple((top * i / parts, metric.tick(top * i / parts, top).rjust(8)) for i in range(parts + 1))


def _drawable(w: int, h: int) -> bool:
    """There is room for a chart."""
    return w >= 20 and h >= 4


def _columns(w: int) -> int:
    """Columns that a chart of w cells can tell apart: two dots a cell, without the scale."""
    return max(10, 2 * (w - 11))


def _boxes(chosen: str, w: int, h: int) -> list[Box]:
    """The charts of the screen: one, or all of them two in a row."""
    if chosen != ALL:
        return [Box(m, w, h) for m in METRICS if m.title == chosen]
    half = (w - 2) // 2
    rows = h // 3
    return [Box(m, half, rows) for m in METRICS]


def _tiled(drawn: list[list[Line]], w: int) -> list[Line]:
    """Charts side by side, two in a row; a single one alone."""
    if len(drawn) == 1:
        return drawn[0]
    rows: list[Line] = []
    for left, right in zip(drawn[::2], drawn[1::2], strict=True):
        rows += [spread(a, b, w) for a, b in zip(left, right, strict=True)]
    return rows


def _tab_at(names: Sequence[str], chosen: str, w: int, x: int) -> str | None:
    """The name that `_tabs` shows in cell x; where it shows the chosen one alone, the next one."""
    line = _tabs(names, chosen, w)
    if len(line) < 3 * len(names):
        return names[(names.index(chosen) + 1) % len(names)] if 0 <= x < width(line) else None
    for name, i in zip(names, range(0, len(line), 3), strict=True):
        if width(line[:i]) <= x < width(line[: i + 2]):
            return name
    return None


def _tabs(names: Sequence[str], chosen: str, w: int) -> Line:
    """All names with the chosen one marked; where they do not fit, the chosen one and which of how many it is."""
    line: Line = []
    for name in names:
        line += [
            ("▸" if name == chosen else " ", "bright"),
            (name, "bright bold" if name == chosen else "d"),
            ("  ", "t"),
        ]
    if width(line) <= w:
        return line
    return [("▸", "bright"), (chosen, "bright bold"), (f"  {names.index(chosen) + 1} of {len(names)}", "d")]
