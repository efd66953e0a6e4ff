"""24 hours of one quantity in bounded memory: 1 s cells for an hour, 10 s cells for six, 60 s cells for a day.

A quantity is a *flow* (a counter's growth, for instance bytes) or a *level* (a gauge, for instance running requests).
Each cell knows how much there was, how many of its seconds were observed, and the peak: so means, sums and peaks stay
true in every resolution, and what was not observed stays a gap.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from enum import StrEnum

STEPS: tuple[tuple[float, int], ...] = ((1.0, 3_900), (10.0, 2_400), (60.0, 1_560))
"""Seconds of a cell, and cells kept: somewhat more than 1 h, 6 h and 24 h, so that a mean may look back a little."""

MOST = 1e18
"""No amount, level or observation is larger: what is over it is no number that can be true."""
LATEST_S = 1e11
"""Nor does any time lie later."""

_HALF = 0.5
"""A cell observed for less than half a step does not make a rate of its few milliseconds."""


class Kind(StrEnum):
    FLOW = "flow"
    LEVEL = "level"


class How(StrEnum):
    """What a column of a query says."""

    MEAN = "mean"
    """Flow: per second observed. Level: mean over time."""
    PEAK = "peak"
    """Flow: the highest 1-second mean. Level: the highest value read."""
    SUM = "sum"
    """Flow: all of it. Level: value times seconds."""


class _Ring:
    """Cells of one width; the newest overwrites the oldest."""

    __slots__ = ("covered", "newest", "peak", "size", "step", "total")

    def __init__(self, step: float, size: int) -> None:
        self.step = step
        self.size = size
        self.newest = -1
        """Index (time // step) of the newest cell; -1: empty."""
        self.total = array("d", bytes(8 * size))
        self.covered = array("f", bytes(4 * size))
        self.peak = array("d", [-math.inf]) * size

    def clear(self, first: int, last: int) -> None:
        for i in range(max(first, last - self.size + 1), last + 1):
            at = i % self.size
            self.total[at] = self.covered[at] = 0.0
            self.peak[at] = -math.inf

    def advance(self, index: int) -> None:
        if index > self.newest:
            self.clear(self.newest + 1 if self.newest >= 0 else index - self.size + 1, index)
            self.newest = index

    def rewind(self, index: int) -> None:
        if 0 <= index < self.newest:
            self.clear(index + 1, self.newest)
            self.newest = index

    def holds(self, index: int) -> bool:
        return self.newest - self.size < index <= self.newest

    def put(self, start: float, end: float, amount: float) -> None:
        """Spread an amount evenly over [start, end); what is older than the ring is dropped."""
        first, last = int(start // self.step), int(end // self.step)
        if last * self.step == end:
            last -= 1
        self.advance(last)
        length = end - start
        for i in range(max(first, last - self.size + 1), last + 1):
            inside = min(end, (i + 1) * self.step) - max(start, i * self.step)
            at = i % self.size
            self.total[at] += amount * inside / length
            self.covered[at] += inside

    def raise_peak(self, index: int, value: float) -> None:
        if self.holds(index):
            at = index % self.size
            self.peak[at] = max(self.peak[at], value)


class Series:
    """One quantity over time. Times are Unix seconds and go forward; see `rewind` for a clock that was set back."""

    def __init__(self, kind: Kind, steps: tuple[tuple[float, int], ...] = STEPS) -> None:
        self.kind = kind
        self._rings = tuple(_Ring(step, size) for step, size in steps)
        self.end: float | None = None
        """End of the last interval added."""

    def add(self, start: float, end: float, value: float) -> None:
        """A flow grew by `value` in [start, end), or a level stood at `value`.

        An interval that begins before the end of the last one is cut; one that is empty after that is dropped whole,
        and so is a value that is no possible number.
        """
        if self.end is not None and start < self.end:
            start = self.end
        if not (0.0 <= start < end <= LATEST_S and -MOST <= value <= MOST):
            return
        fine = self._rings[0]
        before = fine.newest if fine.newest >= 0 else int(start // fine.step)
        amount = value * (end - start) if self.kind is Kind.LEVEL else value
        for ring in self._rings:
            ring.put(start, end, amount)
            if self.kind is Kind.LEVEL:
                for i in range(max(int(start // ring.step), ring.newest - ring.size + 1), ring.newest + 1):
                    ring.raise_peak(i, value)
        self.end = end
        if self.kind is Kind.FLOW:
            self._fold(before, fine.newest)

    def _fold(self, first: int, last: int) -> None:
        """Give the rates of the fine cells that can grow no more, [first, last), to the wider cells as their peaks."""
        fine = self._rings[0]
        for i in range(max(first, last - fine.size + 1), last):
            rate = self._rate(fine, i)
            if rate is not None:
                for ring in self._rings[1:]:
                    ring.raise_peak(int(i * fine.step // ring.step), rate)

    @staticmethod
    def _rate(ring: _Ring, index: int) -> float | None:
        covered = ring.covered[index % ring.size]
        if covered <= 0:
            return None
        return ring.total[index % ring.size] / max(covered, _HALF * ring.step)

    def rewind(self, to: float) -> None:
        """The clock was set back: forget what was recorded as later than `to`, so that time stays monotone.

        The cells of every width that hold `to` are made anew of the 1-second cells before it.
        """
        if self.end is None or to >= self.end:
            return
        fine = self._rings[0]
        keep = int(to // fine.step) - 1
        for ring in self._rings:
            cut = int(to // ring.step)
            ring.rewind(cut)
            if ring.holds(cut):
                ring.clear(cut, cut)
        for ring in self._rings[1:]:
            cut = int(to // ring.step)
            for i in range(max(int(cut * ring.step // fine.step), keep + 1 - fine.size, 0), keep + 1):
                at = i % fine.size
                if fine.covered[at] > 0 and ring.holds(cut):
                    ring.total[cut % ring.size] += fine.total[at]
                    ring.covered[cut % ring.size] += fine.covered[at]
                    ring.raise_peak(cut, self._peak(fine, i))
        self.end = to

    def over(self, start: float, end: float, how: How = How.MEAN, *, span_s: float | None = None) -> float | None:
        """The value of [start, end), or None where nothing of it was observed. A cell that sticks out counts in part.

        `span_s` chooses the cells: the finest that reach back that far (default: as far as `start`).
        """
        if self.end is None:
            return None
        ring = self._ring(self.end - start if span_s is None else span_s)
        first = max(int(start // ring.step), ring.newest - ring.size + 1, 0)
        last = min(math.ceil(end / ring.step) - 1, ring.newest)
        total = covered = 0.0
        peak = -math.inf
        for i in range(first, last + 1):
            at = i % ring.size
            if ring.covered[at] <= 0:
                continue
            part = (min(end, (i + 1) * ring.step) - max(start, i * ring.step)) / ring.step
            total += ring.total[at] * part
            covered += ring.covered[at] * part
            if how is How.PEAK:
                peak = max(peak, self._peak(ring, i))
        if covered <= 0:
            return None
        if how is How.PEAK:
            return peak
        return total if how is How.SUM else total / covered

    def _peak(self, ring: _Ring, index: int) -> float:
        rate = self._rate(ring, index) or 0.0
        if self.kind is Kind.FLOW and ring is self._rings[0]:
            return rate
        known = ring.peak[index % ring.size]
        return known if known > -math.inf else rate

    def _ring(self, span_s: float) -> _Ring:
        for ring in self._rings:
            if span_s <= ring.step * (ring.size - 1):
                return ring
        return self._rings[-1]

    def query(
        self, span_s: float, columns: int, how: How = How.MEAN, end: float | None = None
    ) -> tuple[float | None, ...]:
        """Equal columns, oldest first; the last one holds `end` (default: the newest value).

        Columns begin at multiples of their width, so that a chart moves by whole columns and never flickers.
        """
        end = self.end if end is None else end
        if end is None:
            return (None,) * columns
        width = span_s / columns
        last = int(end // width)
        return tuple(
            self.over(i * width, (i + 1) * width, how, span_s=span_s) for i in range(last - columns + 1, last + 1)
        )


class Medians:
    """Single observations with their times, so that any column has an honest median; the oldest go first."""

    def __init__(self, kept: int = 20_000) -> None:
        self._kept = kept
        self._at = array("d")
        self._value = array("d")
        self._n = array("Q")

    def add(self, at: float, value: float, n: int) -> None:
        """`n` observations that are known to lie about `value`; what is not later than the last one is dropped, and so
        is what is no possible number."""
        if not (0.0 <= at <= LATEST_S and -MOST <= value <= MOST and 1 <= n <= MOST):
            return
        if self._at and at <= self._at[-1]:
            return
        # All three are judged before any is written: they must stay equally long.
        self._at.append(at)
        self._value.append(value)
        self._n.append(int(n))
        if len(self._at) > self._kept + self._kept // 8:
            for kept in (self._at, self._value, self._n):
                del kept[: self._kept // 8]

    def rewind(self, to: float) -> None:
        cut = bisect_left(self._at, to)
        for kept in (self._at, self._value, self._n):
            del kept[cut:]

    def query(self, span_s: float, columns: int, end: float) -> tuple[float | None, ...]:
        """The weighted median of each column of the kind that `Series.query` gives; None where there was none."""
        width = span_s / columns
        last = int(end // width)
        return tuple(self._over(i * width, (i + 1) * width) for i in range(last - columns + 1, last + 1))

    def _over(self, start: float, end: float) -> float | None:
        first, last = bisect_left(self._at, start), bisect_left(self._at, end)
        if first == last:
            return None
        pairs = sorted(zip(self._value[first:last], self._n[first:last], strict=True))
        middle, seen = sum(n for _, n in pairs) / 2, 0
        for value, n in pairs:
            seen += n
            if seen >= middle:
                return value
        return pairs[-1][0]
