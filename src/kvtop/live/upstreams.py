"""The servers that captured turns went to: which may be asked for tokens, and whether one has something to do."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kvtop.clock import Clock
from kvtop.errors import UsageError
from kvtop.live.captures import LOST_S, Captures
from kvtop.live.casebooks import Place
from kvtop.live.endpoint import Endpoint
from kvtop.live.factories import Factories
from kvtop.live.kv_watch import KvWatch
from kvtop.live.named import Named
from kvtop.live.taps import Taps
from kvtop.model.here import is_local, same_port_here, server_of
from kvtop.readings import HostReading, VllmProcess
from kvtop.sources.url import normalise

if TYPE_CHECKING:
    from kvtop.triage.kv_facts import Told


class Upstreams:
    """Asked on the dashboard's loop."""

    def __init__(
        self,
        endpoints: Callable[[], Sequence[Endpoint]],
        named: Named,
        taps: Taps,
        captures: Captures,
        *,
        factories: Factories,
        clock: Clock,
        kv: KvWatch,
        host: Callable[[], HostReading | None] = lambda: None,
    ) -> None:
        """`endpoints`: those that are watched now. `host`: what was read of this machine last."""
        self._endpoints, self._named, self._taps, self._captures = endpoints, named, taps, captures
        self._factories, self._clock, self._kv, self._host = factories, clock, kv, host

    def place(self, upstream: str) -> Place | None:
        """A prompt goes to the server that has seen it before, where that is watched or of this machine, and nowhere
        else. None also for one that is watched and does not answer."""
        url = self._taps.behind(upstream)  # through the tap it would be captured
        watched = self._watched(url)
        if watched is not None:
            history = watched.history
            if history.latest is None:
                return None
            moment = self._captures.told(upstream)
            typed = self._named.typed(history.url)
            return Place(
                typed,
                self._named.key(history.url),
                latest=history.latest,
                rate=moment.rate if moment is not None else None,
                started_at=history.started_at,
                process=partial(self._process, history.url),
                events=partial(self._events, history.url, typed),
            )
        try:
            shown = normalise(url)
        except UsageError:
            return None
        if not is_local(shown):
            return None
        configured, typed = self._named.server(shown), self._named.typed(shown)
        return Place(
            typed,
            self._named.key(shown),
            source=lambda: self._factories.server(typed, configured),
            process=partial(self._process, shown),
            events=partial(self._factories.kv_events, typed, configured),
        )

    async def _events(self, url: str, typed: str) -> Told | None:
        """Those that were followed, with what the server had kept when that began; else what it still has."""
        return self._kv.told(url) or await self._factories.kv_events(typed, self._named.server(url))

    def busy(self, upstream: str) -> bool:
        """Something runs or waits there, as far as the last scrape and the taps know."""
        watched = self._watched(self._taps.behind(upstream))
        if watched is not None and watched.history.in_flight:
            return True
        return self._captures.in_hand(upstream, self._clock.wall() - LOST_S)

    def _process(self, url: str) -> VllmProcess | None:
        return server_of(url, self._host(), (socket.gethostname(),))

    def _watched(self, url: str) -> Endpoint | None:
        place = same_port_here(url)
        return next((one for one in self._endpoints() if same_port_here(one.history.url) == place), None)
