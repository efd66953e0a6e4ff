"""What a quantity is now and by how much it grew, for one engine or all: the arithmetic under every window."""

from __future__ import annotations

from kvtop.model.possible import MOST_BYTES
from kvtop.model.samples import Engine, Quantity, Samples


def whole(value: float | None) -> int | None:
    """A count as an integer; None for what is none."""
    return None if value is None or not abs(value) <= MOST_BYTES else round(value)


def ratio(part: float | None, of: float | None) -> float | None:
    """part / of; None where either is not known, `of` is nothing, or the result cannot be true."""
    if part is None or of is None or of <= 0:
        return None
    result = part / of
    return result if abs(result) <= MOST_BYTES else None


class Growth:
    """Two sorted scrapes, seen through one engine.

    `base` None: there is nothing to compare with; then growth is counted from zero if `zero`, else it is None.
    `label` None: all engines together.
    """

    __slots__ = ("after", "base", "engine", "label", "old", "zero")

    def __init__(self, base: Samples | None, after: Samples, label: str | None, zero: bool) -> None:
        self.base = base
        self.after = after
        self.zero = zero
        self.label = label
        self.engine = after.all if label is None else after.engines[label]
        self.old = None if base is None else (base.all if label is None else base.engines.get(label) or Engine())

    def has(self, quantity: Quantity) -> bool:
        """Whether the second text has this quantity in any generation."""
        return self.after.has(quantity)

    def is_newer(self, *quantities: Quantity) -> bool:
        """Whether the server has these quantities, although the text may have lost them: then they are not known, and
        what older versions have in their place must not be taken for them."""
        if any(self.after.has(quantity) for quantity in quantities) or self.after.scrape.truncated:
            return True
        return self.base is not None and any(self.base.has(quantity) for quantity in quantities)

    def now(self, quantity: Quantity, part: str = "") -> float | None:
        series = self.after.newest(quantity)
        return None if series is None else self.after.value(self.engine, series, part)

    def grew(self, quantity: Quantity, part: str = "") -> float | None:
        """How much the quantity grew; `part` is '_count' or '_sum' of a histogram."""
        series = self.after.newest(quantity)
        if series is None:
            return None
        return self._minus(self.after.value(self.engine, series, part), series.name, series.row, part)

    def now_row(self, quantity: Quantity, row: str) -> float | None:
        """A row of a family that is split by a label."""
        series = self.after.newest(quantity)
        return None if series is None else self.after.row(self.engine, series.name, row)

    def grew_row(self, quantity: Quantity, row: str) -> float | None:
        series = self.after.newest(quantity)
        if series is None:
            return None
        return self._minus(self.after.row(self.engine, series.name, row), series.name, row, "")

    def row_names(self, quantity: Quantity) -> tuple[str, ...]:
        series = self.after.newest(quantity)
        return () if series is None else tuple(self.engine.rows.get(series.name, ()))

    def buckets(self, quantity: Quantity) -> list[tuple[float, float]]:
        """(upper bound, growth), by bound. Empty where the older text cannot say what stood in its buckets."""
        series = self.after.newest(quantity)
        if series is None:
            return []
        bounds = self.engine.buckets.get(series.name)
        if not bounds:
            return []
        old: dict[float, float] = {}
        if self.base is not None and self.old is not None:
            old = self.old.buckets.get(series.name, {})
            if old.keys() != bounds.keys() and (old or self.base.lacks(self.old, series.name)):
                return []
        elif not self.zero:
            return []
        return sorted([(bound, value - old.get(bound, 0.0)) for bound, value in bounds.items()])

    def _minus(self, new: float | None, family: str, row: str, part: str) -> float | None:
        if new is None:
            return None
        if self.base is None or self.old is None:
            return new if self.zero else None
        old = self.base.before(self.old, family, row, part)
        if old is None or (new < old and part != "_sum"):
            return None  # fell without a reset: its samples are missing from the newer text
        return new - old
