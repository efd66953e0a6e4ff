"""The embedded box in a thread with a loop of its own, so that the dashboard starts while the box plays its past."""

from __future__ import annotations

import asyncio
import threading

from kvtop.readings import Scrape
from kvtop.sim.server import SimBox

_JOIN_S = 2.0


class BoxThread:
    """`start` returns as soon as the port is open; requests are answered once the past has been played."""

    def __init__(self, box: SimBox) -> None:
        self.box = box
        self.failure: BaseException | None = None
        """What ended the box, if it was not `stop`."""
        self._thread = threading.Thread(target=self._main, name="kvtop-demo-box", daemon=True)
        self._bound = threading.Event()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def start(self) -> str:
        """The URL. Raises OSError where no port on 127.0.0.1 can be opened."""
        self._thread.start()
        self._bound.wait()
        if isinstance(self.failure, OSError):
            raise self.failure
        return self.box.url

    def past(self) -> list[Scrape]:
        """The counters of the warm past, oldest first, handed over once; waits until it has been played."""
        self._ready.wait()
        if self.failure is not None:
            return []
        past, self.box.world.past = self.box.world.past, []
        return past

    def stop(self) -> None:
        """Close the port and wait for the thread."""
        self.box.leave()
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_JOIN_S)

    def _main(self) -> None:
        try:
            asyncio.run(self._live())
        except Exception as error:  # noqa: BLE001  kept for whoever waits in the other thread
            self.failure = error
        finally:
            self._bound.set()
            self._ready.set()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self.box.start(lambda _url: self._bound.set())
        self._ready.set()
        try:
            await self._stop.wait()
        finally:
            await self.box.stop()
