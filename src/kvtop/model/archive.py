"""Earlier scrapes of one server, thinned as they age, so that any window can be counted exactly from two of them.

A scrape is kept as one array of its values; the series names are shared between scrapes. A vLLM 0.32 text (about 450
values) takes 3.6 kB, so the whole archive stays near 1 MB.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvtop.model.samples import summed
from kvtop.readings import Scrape, SeriesKey

LEVELS: tuple[tuple[float, float], ...] = ((0.0, 15.0), (1.0, 75.0), (5.0, 330.0), (60.0, 3_780.0))
"""(seconds between two kept scrapes, how far back): the windows 10 s, 1 min, 5 min and 1 hour, each to about 2 %."""

USUAL_VALUES = 1_500
"""A server with more values than this (many engines) is kept more seldom, in proportion."""

_UNPACKED = 8


@dataclass(slots=True)
class _Packed:
    at: float
    keys: tuple[SeriesKey, ...]
    numbers: array[float]
    types: Mapping[str, str]
    flags: Scrape = field(repr=False)
    """The scrape without its values."""


class Archive:
    """Scrapes by age. `at` of each is set and later than the one before."""

    def __init__(self) -> None:
        self._levels: tuple[deque[_Packed], ...] = tuple(deque() for _ in LEVELS)
        self._open: OrderedDict[int, tuple[_Packed, Scrape]] = OrderedDict()
        self._keys: tuple[SeriesKey, ...] = ()
        self._types: Mapping[str, str] = {}
        self._told: tuple[SeriesKey, ...] = ()
        """The series of the last scrape as they came."""

    def __len__(self) -> int:
        return len({id(p) for level in self._levels for p in level})

    def add(self, scrape: Scrape, at: float) -> None:
        packed = self._pack(scrape, at)
        scarcity = max(0.0, len(packed.keys) / USUAL_VALUES - 1.0)
        for level, (apart, back) in zip(self._levels, LEVELS, strict=True):
            apart = apart * (1.0 + scarcity) + 0.2 * scarcity
            # a poll that comes a moment early still counts as the next one
            if not level or at - level[-1].at >= apart - 0.1 * min(apart, 1.0):
                level.append(packed)
            # one older than asked stays, so that the wanted moment lies between two
            while len(level) > 2 and at - level[1].at > back:
                level.popleft()

    def clear(self) -> None:
        """Forget everything: the counters began again."""
        for level in self._levels:
            level.clear()
        self._open.clear()

    def rewind(self, to: float) -> None:
        """The clock was set back: forget what is not earlier than `to`."""
        for level in self._levels:
            while level and level[-1].at >= to:
                level.pop()

    def nearest(self, at: float, before: float) -> Scrape | None:
        """The kept scrape nearest to `at` among those earlier than `before`."""
        best: _Packed | None = None
        for level in self._levels:
            for packed in reversed(level):
                if packed.at < before and (best is None or abs(packed.at - at) < abs(best.at - at)):
                    best = packed
                if packed.at <= at:
                    break
        return None if best is None else self._unpack(best)

    def _pack(self, scrape: Scrape, at: float) -> _Packed:
        keys = tuple(scrape.values)
        if keys != self._told:
            self._told = keys
            if len(keys) > USUAL_VALUES:  # a new set of many series: label sets may come and go for ever
                scrape = summed(scrape)
                keys = tuple(scrape.values)
        if keys != self._keys:
            self._keys = keys
        if scrape.types != self._types:
            self._types = scrape.types
        numbers = array("d", scrape.values.values())
        return _Packed(at, self._keys, numbers, self._types, replace(scrape, values={}, types={}, at=at))

    def _unpack(self, packed: _Packed) -> Scrape:
        """The same object as long as it is among the last few asked for: a window remembers what it sorted."""
        mark = id(packed)
        known = self._open.get(mark)
        if known is not None and known[0] is packed:
            self._open.move_to_end(mark)
            return known[1]
        scrape = replace(packed.flags, values=dict(zip(packed.keys, packed.numbers, strict=True)), types=packed.types)
        self._open[mark] = (packed, scrape)
        while len(self._open) > _UNPACKED:
            self._open.popitem(last=False)
        return scrape
