"""The columns of the live charts, kept between two looks: only what can still change is worked out again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvtop.model.series import How, Kind, Series
from kvtop.model.view import Chart, seconds_of

WINDOWS_A_CHART = 6

MOST_OF_SEEN = 4.0
"""So many times what was seen a chart spans at most: data in two columns at its edge say nothing."""

SMALL_S = 600.0
"""So much may always be spanned: scales do not jump in the first minutes."""

_SPANS = (300.0, 600.0, 1_800.0, 3_600.0, 7_200.0, 21_600.0, 43_200.0, 86_400.0)
"""What a chart may span that does not span six windows."""

_SHORTEST_MEAN_S = 6.0

_COLUMNS = 360

Column = Callable[[float, float, float, "Held | None"], "Held | None"]


class Held:
    """A column's value and the time it was measured for; it may be shown a little longer."""

    __slots__ = ("at", "value")

    def __init__(self, value: float, at: float) -> None:
        self.value = value
        self.at = at


def span_of(window_key: str, seen_s: float) -> float:
    """Seconds that the charts span: six windows, or less where not so much was seen; for `start` the shortest span
    that holds what was seen, up to a day."""
    seconds = seconds_of(window_key)
    if seconds is None:
        return next((s for s in _SPANS if seen_s <= s), _SPANS[-1])
    most = max(SMALL_S, MOST_OF_SEEN * seen_s)
    full = WINDOWS_A_CHART * seconds
    return full if full <= most else max(s for s in _SPANS if s <= most)


def mean_of(span_s: float) -> float:
    """Seconds that one point of the share chart is a mean of: a minute where the chart spans half an hour."""
    return max(_SHORTEST_MEAN_S, span_s / 30)


class Rolling:
    """One chart. `column(start, end, span, before)` works out one column, `before` being the one at its left."""

    def __init__(self, column: Column) -> None:
        self._column = column
        self._columns: deque[Held | None] = deque()
        self._last = -1
        self._settled = -1
        self._span = 0.0

    def forget(self) -> None:
        self._span = 0.0

    def at(self, end: float, span_s: float, data_end: float | None, columns: int = 0) -> Chart:
        """The chart that ends in the column of `end`. Data may still come from `data_end` on.

        `columns` 0: as many as the live charts have, 360 of at least a second.
        """
        columns = columns or int(min(_COLUMNS, max(1.0, span_s)))
        width = span_s / columns
        last = int(end // width)
        if span_s != self._span or last < self._last or last - self._settled >= columns:
            self._columns = deque(maxlen=columns)
            first = last - columns + 1
        else:
            first = self._settled
            for _ in range(self._last - first + 1):
                self._columns.pop()
        for i in range(first, last + 1):
            before = self._columns[-1] if self._columns else None
            self._columns.append(self._column(i * width, (i + 1) * width, span_s, before))
        self._span, self._last = span_s, last
        open_from = int((data_end if data_end is not None else end) // width)
        self._settled = max(last - columns + 1, min(last, open_from))
        return Chart(tuple(None if c is None else c.value for c in self._columns), span_s)


def plain(series: Series, how: How) -> Rolling:
    """A column is the series' own value in it."""

    def column(start: float, end: float, span_s: float, before: Held | None) -> Held | None:
        value = series.over(start, end, how, span_s=span_s)
        return None if value is None else Held(value, end)

    return Rolling(column)


def share(part: Series, whole: Series) -> Rolling:
    """A column is the token-weighted mean that ends with it, held two and a half times as long, then a gap."""

    def column(start: float, end: float, span_s: float, before: Held | None) -> Held | None:
        mean_s = mean_of(span_s)
        reach = span_s + mean_s
        of = whole.over(end - mean_s, end, How.SUM, span_s=reach)
        if of:
            found = part.over(end - mean_s, end, How.SUM, span_s=reach)
            if found is not None:
                return Held(min(1.0, found / of), end)
        return before if before is not None and end - before.at <= 2.5 * mean_s else None

    return Rolling(column)


def flow() -> Series:
    return Series(Kind.FLOW)


def level() -> Series:
    return Series(Kind.LEVEL)
