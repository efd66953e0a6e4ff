"""Which captured turns stood in the server's queue: from the samples that the store keeps with each of them."""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.capture.slow import queued
from kvtop.capture.turn import Captured, Source
from kvtop.live.factories import StoreLike
from kvtop.model.timing import waited_s

SHORT_S = 2.0
"""A shorter wait needs no reason."""
AT_ONCE = 200
"""Turns whose samples are read at one look, the newest first. Of what is left out it stays unknown until it is read
again: those are the older ones of a page."""
REMEMBERED = 10_000


class Queued:
    """Reads a turn's samples once. May block."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, float], bool] = {}
        """Turn, by number and begin: of another store the numbers begin anew."""

    def among(self, store: StoreLike, rows: Iterable[Captured]) -> frozenset[int]:
        """Numbers of those that waited in the queue for most of their wait."""
        found, asked = set(), 0
        for row in sorted(rows, key=lambda row: -row.id):
            waited = waited_s(row)
            if row.source is not Source.TAP or row.queue_s is not None or waited is None or waited < SHORT_S:
                continue
            key = row.id, row.started_at
            if key not in self._known and asked < AT_ONCE:
                asked += 1
                whole = store.turn(row.id)
                if whole is not None and whole.samples:  # they are written a little after its end
                    self._keep(key, queued(whole))
            if self._known.get(key):
                found.add(row.id)
        return frozenset(found)

    def _keep(self, key: tuple[int, float], was: bool) -> None:
        self._known[key] = was
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
