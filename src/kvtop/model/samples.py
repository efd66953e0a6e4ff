"""One scrape, sorted by engine, family and row, so that a window can look numbers up by what they mean."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvtop.model import metrics
from kvtop.model.metrics import Series
from kvtop.model.possible import MOST, MOST_BYTES, believed, started
from kvtop.readings import Scrape, SeriesKey, State

MAX_ENGINES = 256
"""Engines that are looked at one by one, the first in numeric order; all of them together still count every one."""

OTHERS = "\U0010ffff"
"""Engine label under which `summed` adds up those that are not looked at; it sorts last."""

_TOTAL, _ROW, _BUCKET, _INFO, _START, _SKIP = range(6)

_Place = tuple[int, str, str, str, str | float, float]
"""Of a series: which table, engine, family, sample name, the row's label value or the bucket's bound, and the largest
value that can be true."""

_SKIPPED: _Place = (_SKIP, "", "", "", "", 0.0)
_STARTED: _Place = (_START, "", "", "", "", 0.0)
_places: dict[SeriesKey, _Place] = {}
_MAX_PLACES = 60_000

_latest: OrderedDict[int, tuple[Scrape, Samples]] = OrderedDict()
_MAX_LATEST = 12
"""Sorted scrapes kept: a view asks for several windows that end in the same one."""
_MAX_LATEST_VALUES = 120_000
"""Fewer where they are large; the two of one window always."""

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
    """process_start_time_seconds; None in multiprocess mode, and where it cannot be a time at which vLLM started."""
    multiprocess: bool = False
    engine_seen: bool = False
    """Something of an engine stands in the text, be it only a family that was cut."""
    engines_told: int = 0
    """Engines in the text; `engines` holds MAX_ENGINES of them at most."""

    @property
    def state(self) -> State:
        """What this text alone says: up, sleeping, no_stats or not_vllm."""
        if not self.engine_seen:
            return State.NO_STATS if self.scrape.has_vllm or self.scrape.has_http else State.NOT_VLLM
        states = self.all.rows.get(metrics.SLEEP[0].name, {})
        asleep = any(value > 0 for name, value in states.items() if name != "awake")
        return State.SLEEPING if asleep else State.UP

    def has(self, quantity: Quantity) -> bool:
        return any(series.name in self.families for series in quantity)

    def newest(self, quantity: Quantity) -> Series | None:
        """The first generation of a quantity that this text has. In a truncated one only the newest of all counts: it
        may stand behind the cut, and the older ones tell something else beside it."""
        for series in quantity[:1] if self.scrape.truncated else quantity:
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
        return self.multiprocess or all(family in one.families for one in self.engines.values())

    def _absent(self, engine: Engine, family: str) -> float | None:
        if family not in self.families:
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
        _latest.move_to_end(mark)
        return known[1]
    newest = next(reversed(_latest.values()), None)
    if newest is not None and newest[0].values is scrape.values and replace(newest[0], at=scrape.at) == scrape:
        result = replace(newest[1], scrape=scrape)  # nothing moved since
    else:
        result = _sort(scrape)
    _latest[mark] = (scrape, result)
    room = _MAX_LATEST_VALUES - sum(len(kept.values) for kept, _ in _latest.values())
    while len(_latest) > 2 and (len(_latest) > _MAX_LATEST or room < 0):
        room += len(_latest.popitem(last=False)[1][0].values)
    return result


def cut_short(scrape: Scrape) -> Samples:
    """The scrape sorted as a text that ends too early, although with a whole line: see `lost_some`."""
    return _sort(replace(scrape, truncated=True))


def lost_some(one: Samples, other: Samples) -> bool:
    """Whether `one` lacks families that the same server process told at another time: then its text is not whole.

    All families stand in the text from the process's start on, save for the info series. In multiprocess mode, where
    no start is known, they come with the first write and stay.
    """
    if one.scrape.types is other.scrape.types or one.start != other.start or one.scrape.truncated:
        return False
    if other.families <= one.families:
        return False
    return not metrics.LASTING_NAMES.isdisjoint(other.families - one.families)


def summed(scrape: Scrape) -> Scrape:
    """The same scrape with the series added up that no window tells apart (label sets that come and go), and the
    engines beyond MAX_ENGINES as one: its size depends on the vocabulary alone."""
    places = {key: _places.get(key) or _place(key) for key in scrape.values}
    labels = sorted({place[1] for place in places.values() if place[1]}, key=_numeric)
    looked_at = {"", *labels[:MAX_ENGINES]}
    values: dict[SeriesKey, float] = {}
    informed: set[tuple[str, str]] = set()
    for key, value in scrape.values.items():
        kind, label, family, name, row, _ = places[key]
        label = label if label in looked_at else OTHERS
        if kind == _START or (kind == _INFO and label != OTHERS and (label, family) not in informed):
            informed.add((label, family))
            values[key] = value
        if kind >= _INFO:
            continue
        split = "le" if kind == _BUCKET else metrics.ROW_LABEL.get(family)
        new = name, (("engine", label), (split, str(row))) if split else (("engine", label),)
        values[new] = values.get(new, 0.0) + value
    return replace(scrape, values=values)


def _sort(scrape: Scrape) -> Samples:
    engines: dict[str, Engine] = {}
    start = None
    told = False
    # Of the family at which the text was cut a row, a sum or a bucket may be missing: it is left out whole.
    cut = _cut(scrape)
    for key, value in scrape.values.items():
        kind, label, family, name, row, most = _places.get(key) or _place(key)
        if kind >= _START:
            if kind == _START:
                start, told = started(value, scrape.at), True
            continue
        if cut and family in cut:
            continue
        if not 0.0 <= value <= most:
            value = believed(name, value, most)
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
    labels = sorted((label for label in engines if label), key=_numeric)
    all_engines = next(iter(engines.values())) if len(engines) == 1 else _added(engines, len(labels))
    typed = _named(scrape.types)
    families = (typed - cut if cut else typed) | all_engines.families
    return Samples(
        scrape=scrape,
        engines={label: engines[label] for label in labels[:MAX_ENGINES]},
        all=all_engines,
        families=families,
        start=start,
        multiprocess=not told and not scrape.truncated,
        engine_seen=bool(all_engines.families)
        or any(name.startswith("vllm:") and not name.startswith(metrics.API_SERVER_PREFIXES) for name in typed | cut),
        engines_told=len(labels),
    )


def _cut(scrape: Scrape) -> frozenset[str]:
    """The families of which a truncated text may lack samples: the one that its last comment names, since a family's
    samples stand together behind its type, and that of the last sample where no comment names it."""
    if not scrape.truncated:
        return frozenset()
    cut = {_wire(scrape.ends)} if scrape.ends else set()
    named = _named(scrape.types)
    for key in reversed(tuple(scrape.values)):
        family = (_places.get(key) or _place(key))[2]
        if family:
            if family not in named:
                cut.add(family)
            break
    return frozenset(cut)


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
    if name == metrics.START_TIME:
        return _STARTED
    if name not in metrics.SAMPLE_NAMES:
        return _SKIPPED
    labels = dict(pairs)
    engine = labels.get("engine", "")
    if name in metrics.INFO_NAMES:
        return _INFO, engine, name, name, "", math.inf
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
        possible = 0.0 <= bound <= MOST or bound == math.inf
        return (_BUCKET, engine, family, name, bound, MOST) if possible else _SKIPPED
    most = 1.0 if family in metrics.SHARE_NAMES else MOST_BYTES if family in metrics.BYTE_NAMES else MOST
    split = metrics.ROW_LABEL.get(family)
    if split is None:
        return _TOTAL, engine, family, name, "", most
    return _ROW, engine, family, name, labels.get(split, ""), most


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
