"""Looks for servers on this machine while nobody has named one, as they come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from kvtop.clock import Clock
from kvtop.errors import UsageError
from kvtop.live.endpoint import Sleep
from kvtop.live.factories import FinderLike
from kvtop.live.machine import HostWatch
from kvtop.live.servers import Servers
from kvtop.readings import Discovery, State
from kvtop.sources.url import normalise
from kvtop.worker import Caller

HOST_FIRST_S = 2.0
"""The first look waits this long for the processes of this machine."""
LOOK_S = 10.0
"""A look that takes longer is given up."""
BAD_FOR_S = 5.0
"""A found server that has not answered for so long may have moved: others are looked for, too."""
SELDOM_S = 30.0
"""Between two looks while all that were found answer. A look costs about 10 ms, beside the loop."""


class Lookout:
    """`run` until cancelled; `discovery` is what came of the last look."""

    def __init__(
        self,
        servers: Servers,
        made: Callable[[], FinderLike],
        worker: Caller,
        host: HostWatch,
        *,
        clock: Clock,
        sleep: Sleep,
        every_s: float,
    ) -> None:
        """`made` makes what looks, and may block; `every_s`: between two looks at most so often."""
        self.discovery: Discovery | None = None
        self.looks = 0
        self._servers, self._made, self._worker, self._host = servers, made, worker, host
        self._clock, self._sleep, self._every_s = clock, sleep, every_s
        self._looked_at = 0.0
        """Monotonic time of the last look."""
        self._no_servers: set[str] = set()
        """Found, and no vLLM."""

    async def run(self, changed: Callable[[], None]) -> None:
        finder: FinderLike | None = None
        with contextlib.suppress(TimeoutError):  # the processes say most; without them the ports are looked at
            async with asyncio.timeout(HOST_FIRST_S):
                await self._host.tried.wait()
        while True:
            if self._is_due:
                try:
                    if finder is None:
                        finder = await self._worker.call(self._made, LOOK_S)
                    async with asyncio.timeout(LOOK_S):
                        found = await finder.read(self._host.reading)
                    self._apply(found)
                except Exception as error:  # noqa: BLE001  a look that failed is a line of what was looked at
                    why = "took too long" if isinstance(error, TimeoutError) else f"failed: {type(error).__name__}"
                    self.discovery = Discovery(looked=(("this box", why),), at=self._clock.wall())
                self.looks += 1
                self._looked_at = self._clock.mono()
                changed()
            await self._sleep(self._every_s)

    @property
    def _is_due(self) -> bool:
        """No server is known, or those that are were all found and one of them does not answer, or it is long since.
        One that is given by its URL is what the user wants to see."""
        watched = self._servers.all
        if not all(one.found and one.tried.is_set() for one in watched):
            return False
        if not any(one.good for one in watched):
            return True
        now = self._clock.mono()
        bad = any(one.bad_since is not None and now - one.bad_since >= BAD_FOR_S for one in watched)
        return bad or now - self._looked_at >= SELDOM_S

    def _apply(self, discovery: Discovery) -> None:
        self.discovery = discovery
        there = set()
        watched = {one.history.url for one in self._servers.all}
        for found in discovery.found:
            try:
                url = normalise(found.url)
            except UsageError:
                continue
            there.add(url)
            if url not in self._no_servers:
                self._servers.add(url, found=True)
        new = {one.history.url for one in self._servers.all} - watched
        for endpoint in list(self._servers.all):
            if not endpoint.found or not endpoint.tried.is_set():
                continue
            if endpoint.history.state is State.NOT_VLLM:
                self._no_servers.add(endpoint.history.url)
                self._servers.forget(endpoint)
            elif new and endpoint.history.url not in there and not endpoint.good:
                # it is gone, and another one has come: one that was there before takes nobody's place
                self._servers.forget(endpoint)
