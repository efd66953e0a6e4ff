"""The taps that run on this machine, looked at beside the loop; and which of them lead to a server."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from kvtop.live.endpoint import Sleep, rest
from kvtop.model.here import same_port_here
from kvtop.model.merged import Span
from kvtop.worker import Caller, Hangs

if TYPE_CHECKING:
    from kvtop.capture.control.running import Running

LOOK_S = 2.0
READ_S = 5.0
MOST_IN_A_ROW = 4
"""Taps in front of taps that are looked through."""


class Taps:
    """`run` until cancelled."""

    def __init__(self, read: Callable[[], Sequence[Running]], worker: Caller, sleep: Sleep) -> None:
        self.here: tuple[Running, ...] = ()
        """Oldest first."""
        self.tried = False
        """They were looked at once."""
        self.version = 0
        """Grows with every change."""
        self._read, self._worker, self._sleep = read, worker, sleep
        self._soon = asyncio.Event()
        self._unwritten: dict[str, Span] = {}
        """Server -> when a tap to it could not write its store, as far as that was seen."""

    async def run(self, changed: Callable[[], None]) -> None:
        while True:
            try:
                here = tuple(await self._worker.call(self._read, READ_S))
            except (TimeoutError, Hangs):
                here = self.here
            except Exception:  # noqa: BLE001  state files that cannot be read: no tap is known
                here = ()
            if here != self.here or not self.tried:
                self.here, self.tried = here, True
                self.version += 1
                changed()
            await self._pause()

    def look_soon(self) -> None:
        """One was started or ended: do not wait for the next look."""
        self._soon.set()

    async def _pause(self) -> None:
        try:
            await rest(self._sleep, LOOK_S, self._soon)
        finally:
            self._soon.clear()

    def listens(self, url: str) -> tuple[str, ...]:
        """host:port of those that lead to the server with this base URL."""
        place = same_port_here(url)
        ways = (mapped for record in self.here for mapped in record.mappings)
        return tuple(mapped.listen for mapped in ways if same_port_here(mapped.upstream) == place)

    def behind(self, url: str) -> str:
        """The server that is reached at this URL: where a tap listens there, the one behind it."""
        for _ in range(MOST_IN_A_ROW):
            place = same_port_here(url)
            ways = (mapped for record in self.here for mapped in record.mappings)
            upstream = next((m.upstream for m in ways if same_port_here(f"http://{m.listen}") == place), None)
            if upstream is None:
                break
            url = upstream
        return url

    def since(self, url: str) -> float | None:
        """Unix time since when one that records leads to that server; None where none does."""
        began = [_unix(record.since) for record in self._recording(url)]
        return min((at for at in began if at is not None), default=None)

    def unwritten(self, url: str) -> str:
        """Why one that leads to that server cannot write its store; empty where they all can."""
        missed = (record.missed for record in self._recording(url))
        return next((one.unwritten for one in missed if one is not None and one.unwritten is not None), "")

    def unsure(self, url: str, now: float) -> Span | None:
        """From when to when what went through them to that server may not be in the store, all in all: it could not be
        written, or the recorder did not keep up. `now`: Unix time."""
        spans: list[Span] = []
        waits: list[float] = []
        for missed in (one for record in self._recording(url) if (one := record.missed) is not None):
            if missed.unwritten is not None:
                waits.append(missed.unwritten_since if missed.unwritten_since is not None else 0.0)
            if missed.first_at is not None:
                over = missed.behind_since is None and missed.last_at is not None
                spans.append((missed.first_at, missed.last_at or now if over else math.inf))
        before = self._unwritten.get(url)
        if waits:
            before = self._unwritten[url] = (min([*waits, *([before[0]] if before else [])]), math.inf)
        elif before is not None and before[1] == math.inf:
            before = self._unwritten[url] = (before[0], now)
        spans += [before] if before else []
        return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None

    def _recording(self, url: str) -> list[Running]:
        """Those that lead to that server and record."""
        place = same_port_here(url)
        return [
            record
            for record in self.here
            if record.store is not None and any(same_port_here(m.upstream) == place for m in record.mappings)
        ]


def _unix(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
