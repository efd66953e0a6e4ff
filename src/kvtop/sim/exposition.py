"""Counters, gauges and histograms with a text form that is quick to write again.

The official client library is not used here for two reasons: its histograms take one observation at a time (a simulated
stretch of decoding brings thousands), and writing 800 lines anew costs it several milliseconds. Only lines whose
value moved are written again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvtop.readings import Scrape, SeriesKey

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _number(value: float) -> str:
    return repr(float(value))


@dataclass(slots=True)
class Line:
    """One sample: its key, its text up to the value, the value."""

    key: SeriesKey
    head: str
    value: float = 0.0
    _written: float | None = None
    _text: str = ""

    @property
    def text(self) -> str:
        if self.value != self._written:
            self._written = self.value
            self._text = f"{self.head} {_number(self.value)}\n"
        return self._text

    def add(self, n: float) -> None:
        self.value += n

    def set(self, value: float) -> None:
        self.value = value


def line(name: str, labels: Sequence[tuple[str, str]], value: float = 0.0) -> Line:
    """A sample line; labels are put in order of their names, as the official client does."""
    ordered = tuple(sorted(labels))
    inside = ",".join(f'{k}="{v.translate(_ESCAPES)}"' for k, v in ordered)
    return Line((name, ordered), f"{name}{{{inside}}}" if inside else name, value)


class HistogramChild:
    """Cumulative buckets, count and sum of one label set."""

    def __init__(self, name: str, labels: Sequence[tuple[str, str]], bounds: Sequence[float]) -> None:
        self._bounds = bounds
        words = [_number(b) if b < 1e6 else f"{b:.2g}" for b in bounds]
        self._buckets = [line(f"{name}_bucket", (*labels, ("le", word))) for word in (*words, "+Inf")]
        self._count = line(f"{name}_count", labels)
        self._sum = line(f"{name}_sum", labels)

    def observe(self, value: float, times: int = 1) -> None:
        """`times` observations of `value`."""
        for bucket in self._buckets[bisect_left(self._bounds, value) :]:
            bucket.value += times
        self._count.value += times
        self._sum.value += value * times

    @property
    def count(self) -> float:
        return self._count.value

    @property
    def sum(self) -> float:
        return self._sum.value

    def lines(self) -> Iterator[Line]:
        yield from self._buckets
        yield self._count
        yield self._sum


@dataclass
class Family:
    """One metric: its children by label values, made when first asked for."""

    name: str
    """Without `_total`."""
    kind: str
    words: str
    common: tuple[tuple[str, str], ...]
    created_at: float | None = None
    """Unix time for `_created`; None where the kind has none."""
    bounds: tuple[float, ...] = ()
    _lines: dict[tuple[tuple[str, str], ...], Line] = field(default_factory=dict)
    _histograms: dict[tuple[tuple[str, str], ...], HistogramChild] = field(default_factory=dict)
    _created: list[Line] = field(default_factory=list)

    @property
    def sample(self) -> str:
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def _born(self, labels: Sequence[tuple[str, str]], at: float | None) -> None:
        if self.created_at is not None:
            self._created.append(line(f"{self.name}_created", labels, at or self.created_at))

    def child(self, *labels: tuple[str, str], at: float | None = None) -> Line:
        """The counter or gauge with these extra labels."""
        found = self._lines.get(labels)
        if found is None:
            found = self._lines[labels] = line(self.sample, (*self.common, *labels))
            self._born((*self.common, *labels), at)
        return found

    def histogram(self, *labels: tuple[str, str], at: float | None = None) -> HistogramChild:
        """The histogram with these extra labels."""
        found = self._histograms.get(labels)
        if found is None:
            found = self._histograms[labels] = HistogramChild(self.name, (*self.common, *labels), self.bounds)
            self._born((*self.common, *labels), at)
        return found

    @property
    def children(self) -> int:
        return len(self._lines) + len(self._histograms)

    def lines(self) -> Iterator[Line]:
        yield from self._lines.values()
        for child in self._histograms.values():
            yield from child.lines()

    def types(self) -> Iterator[tuple[str, str]]:
        """The `# TYPE` lines: of the family, and of its creation times where it has children."""
        yield self.sample, self.kind
        if self._created:
            yield f"{self.name}_created", "gauge"

    def text(self) -> str:
        heads = [f"# HELP {name} {self.words}\n# TYPE {name} {kind}\n" for name, kind in self.types()]
        out = heads[0] + "".join(one.text for one in self.lines())
        return out + heads[1] + "".join(one.text for one in self._created) if self._created else out


class Registry:
    """All families, in the order they are written."""

    def __init__(self) -> None:
        self.families: list[Family] = []
        self._children = 0
        self._flat: list[Line] = []
        self._types: dict[str, str] = {}
        self._http = False

    def add(self, family: Family) -> Family:
        self.families.append(family)
        return family

    def text(self) -> str:
        """The whole /metrics text."""
        return "".join(family.text() for family in self.families)

    def scrape(self, at: float) -> Scrape:
        """What reading `text()` gives, without the way over text: for the time before anyone could have asked."""
        children = sum(family.children for family in self.families)
        if children != self._children:
            self._children = children
            kept = [f for f in self.families if f.name.startswith(("vllm:", "process_start_time"))]
            self._flat = [one for family in kept for one in family.lines()]
            self._types = {name: kind for family in kept for name, kind in family.types() if name.startswith("vllm:")}
            self._http = any(f.name.startswith("http_") for f in self.families)
        return Scrape({one.key: one.value for one in self._flat}, self._types, at, has_http=self._http)
