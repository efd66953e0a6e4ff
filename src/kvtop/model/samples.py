"""One scrape, sorted by engine, family and row, so that a window can look numbers up by what they mean."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvtop.model import metrics
from kvtop.model.metrics import Series
from kvtop.readings import Scrape, SeriesKey, State

_SKIP, _TOTAL, _ROW, _BUCKET, _INFO = range(5)

_Place = tuple[int, str, str, str, str | float]
"""Of a series: which table, engine, family, sample name, and the row's label value or the bucket's bound."""

_SKIPPED: _Place = (_SKIP, "", "", "", "")
_places: dict[SeriesKey, _Place] = {}
_MAX_PLACES = 60_000

_latest: OrderedDict[int, tuple[Scrape, Samples]] = OrderedDict()
_MAX_LATEST = 12
"""Sorted scrapes kept: a view asks for several windows that end in the same one."""

_types: tuple[Mapping[str, str], frozenset[str]] = ({}, frozenset())
"""The last scrape's types and the families that they name."""

Quantity = tuple[Series, ...]


@dataclass(slots=True)
class Engine:
    """The samples of one engine (data-parallel rank), or of several added up."""

    totals: dict[str, float] = field(default_factory=dict)
    """Sample name -> sum over its rows."""
    rows: dict[str, dict[str, float]] = field(default_factory=dict)
    """Sample name -> row label value -> value, for families that are split by a label."""
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    """Family -> upper bound -> cumulative count."""
    info: dict[str, dict[str, str]] = field(default_factory=dict)
    families: set[str] = field(default_factory=set)
    """Families of which there is at least one sample."""
    members: int = 1


@dataclass(slots=True)
class Samples:
    """A scrape by engine. `all` is the engines added up; its gauges are sums too."""

    scrape: Scrape
    engines: dict[str, Engine]
    """By engine label, in numeric order; empty where no series has one."""
    all: Engine
    families: frozenset[str]
    """Families with a `# TYPE` or a sample."""
    start: float | None
    """process_start_time_seconds; None in multiprocess mode."""
    cut: str = ""
    """The family at which a truncated text ends: rows of it may be missing."""
    multiprocess: bool = False

    @property
    def state(self) -> State:
        """What this text alone says: up, sleeping, no_stats or not_vllm."""
        if not any(not name.startswith(metrics.API_SERVER_PREFIXES) for name in self.families):
            return State.NO_STATS if self.scrape.has_vllm or self.scrape.has_http else State.NOT_VLLM
        states = self.all.rows.get(metrics.SLEEP[0].name, {})
        asleep = any(value > 0 for name, value in states.items() if name != "awake")
        return State.SLEEPING if asleep else State.UP

    def has(self, quantity: Quantity) -> bool:
        return any(series.name in self.families for series in quantity)

    def newest(self, quantity: Quantity) -> Series | None:
        """The first generation of a quantity that this text has."""
        for series in quantity:
            if series.name in self.families:
                return series
        return None

    def value(self, engine: Engine, series: Series, part: str = "") -> float | None:
        """A sample's value, finite; `part` is '_count' or '_sum' of a histogram.

        An absent sample is 0 where its family has a type and nothing happened yet, else None.
        """
        name = series.name + part
        found = engine.rows.get(name, {}).get(series.row) if series.row else engine.totals.get(name)
        if found is not None:
            return found if math.isfinite(found) and self._whole(engine, series.name) else None
        return self._absent(engine, series.name)

    def row(self, engine: Engine, family: str, row: str) -> float | None:
        """A row of a family that is split by a label, finite; absent ones as in `value`."""
        found = engine.rows.get(family, {}).get(row)
        if found is not None:
            return found if math.isfinite(found) and self._whole(engine, family) else None
        return self._absent(engine, family)

    def before(self, engine: Engine, family: str, row: str, part: str) -> float | None:
        """What a series of a later text stood at here. A family that is not here at all began at 0 in multiprocess
        mode, where a series appears with its first write; elsewhere nobody knows."""
        name = family + part
        found = engine.rows.get(name, {}).get(row) if row else engine.totals.get(name)
        if found is not None:
            return found if math.isfinite(found) and self._whole(engine, family) else None
        return 0.0 if not self.lacks(engine, family) else None

    def lacks(self, engine: Engine, family: str) -> bool:
        """Whether an absent sample of this family is unknown here, rather than not counted yet."""
        if family not in self.families:
            return not self.multiprocess
        return self._absent(engine, family) is None

    def _whole(self, engine: Engine, family: str) -> bool:
        """Whether a sum over engines has all of them: a rank may be missing where a text was cut."""
        if engine.members == 1:
            return True
        if family == self.cut:
            return False
        return self.multiprocess or all(family in one.families for one in self.engines.values())

    def _absent(self, engine: Engine, family: str) -> float | None:
        if family not in self.families or family == self.cut:
            return None
        if family in engine.families:
            return 0.0 if family in metrics.GROWING else None
        # nothing of this family in this engine: nothing happened yet, unless the others have it from the start
        nobody = family not in self.all.families
        return 0.0 if nobody or family in metrics.GROWING or self.multiprocess else None


def samples(scrape: Scrape) -> Samples:
    """The scrape sorted; the last few are remembered."""
    mark = id(scrape)
    known = _latest.get(mark)
    if known is not None and known[0] is scrape:  # the entry holds the scrape, so its id cannot be another's
        return known[1]
    newest = next(reversed(_latest.values()), None)
    if newest is not None and newest[0].values is scrape.values and replace(newest[0], at=scrape.at) == scrape:
        result = replace(newest[1], scrape=scrape)  # nothing moved since
    else:
        result = _sort(scrape)
    _latest[mark] = (scrape, result)
    while len(_latest) > _MAX_LATEST:
        _latest.popitem(last=False)
    return result


def _sort(scrape: Scrape) -> Samples:
    engines: dict[str, Engine] = {}
    start = None
    family = ""
    for key, value in scrape.values.items():
        place = _places.get(key)
        if place is None:
            if key[0] == metrics.START_TIME:
                start = value if math.isfinite(value) else None
                continue
            place = _place(key)
        kind, label, family_here, name, row = place
        if kind == _SKIP:
            continue
        family = family_here
        engine = engines.get(label)
        if engine is None:
            engine = engines[label] = Engine()
        engine.families.add(family)
        if kind == _BUCKET:
            bounds = engine.buckets.get(family)
            if bounds is None:
                bounds = engine.buckets[family] = {}
            bounds[row] = bounds.get(row, 0.0) + value  # type: ignore[index,arg-type]
            continue
        if kind == _INFO:
            engine.info.setdefault(family, dict(key[1]))
            continue
        totals = engine.totals
        totals[name] = totals[name] + value if name in totals else value
        if kind == _ROW:
            rows = engine.rows.get(name)
            if rows is None:
                rows = engine.rows[name] = {}
            rows[row] = rows.get(row, 0.0) + value  # type: ignore[index,arg-type]
    named = {label: engines[label] for label in sorted(engines, key=_numeric) if label}
    all_engines = next(iter(engines.values())) if len(engines) == 1 else _added(engines, len(named))
    return Samples(
        scrape=scrape,
        engines=named,
        all=all_engines,
        families=_named(scrape.types) | all_engines.families,
        start=start,
        cut=family if scrape.truncated else "",
        multiprocess=start is None and not scrape.truncated,
    )


def _numeric(label: str) -> tuple[int, int, str]:
    small = label.isascii() and label.isdigit() and len(label) < 10
    return (0, int(label), label) if small else (1, 0, label)


def _named(types: Mapping[str, str]) -> frozenset[str]:
    """The families that the `# TYPE` lines name, as on the wire."""
    global _types  # noqa: PLW0603  a reader hands out the same types as long as they are the same
    if _types[0] is not types:
        _types = types, frozenset(_wire(name) for name in types)
    return _types[1]


def _wire(family: str) -> str:
    """OpenMetrics types name a counter without the `_total` of its samples."""
    return f"{family}_total" if f"{family}_total" in metrics.COUNTER_NAMES else family


def _place(key: SeriesKey) -> _Place:
    place = _work_out(key)
    if len(_places) >= _MAX_PLACES:
        _places.clear()
    _places[key] = place
    return place


def _work_out(key: SeriesKey) -> _Place:
    name, pairs = key
    if name not in metrics.SAMPLE_NAMES:
        return _SKIPPED
    labels = dict(pairs)
    engine = labels.get("engine", "")
    if name in metrics.INFO_NAMES:
        return _INFO, engine, name, name, ""
    family = name
    for part in ("_bucket", "_count", "_sum"):
        if name.endswith(part) and name[: -len(part)] in metrics.HISTOGRAM_NAMES:
            family = name[: -len(part)]
            break
    if name.endswith("_bucket"):
        try:
            bound = float(labels["le"])
        except (KeyError, ValueError):
            return _SKIPPED
        return _SKIPPED if math.isnan(bound) else (_BUCKET, engine, family, name, bound)
    split = metrics.ROW_LABEL.get(family)
    if split is None:
        return _TOTAL, engine, family, name, ""
    return _ROW, engine, family, name, labels.get(split, "")


def _added(engines: dict[str, Engine], members: int) -> Engine:
    total = Engine(members=max(1, members))
    for engine in engines.values():
        total.families |= engine.families
        for name, value in engine.totals.items():
            total.totals[name] = total.totals.get(name, 0.0) + value
        for name, rows in engine.rows.items():
            into = total.rows.setdefault(name, {})
            for row, value in rows.items():
                into[row] = into.get(row, 0.0) + value
        for family, bounds in engine.buckets.items():
            into_bounds = total.buckets.setdefault(family, {})
            for bound, value in bounds.items():
                into_bounds[bound] = into_bounds.get(bound, 0.0) + value
        for family, labels in engine.info.items():
            total.info.setdefault(family, labels)
    return total
