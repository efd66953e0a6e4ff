"""Sources that do as a test says, and time that moves only when a test moves it."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from live_texts import Server

from fixed_clock import FixedClock
from kvtop.capture.control.running import Running
from kvtop.config import Poll, Settings
from kvtop.config import Server as Configured
from kvtop.live.factories import Factories, StoreLike
from kvtop.live.kv_watch import Find
from kvtop.live.watch import Watch
from kvtop.model.own import OwnRequest
from kvtop.readings import Discovery, Gpu, GpuReading, HostReading, Scrape, ServerFacts, SourceDown, State

T = TypeVar("T")


class Time:
    """A clock, and sleeps that end when the clock is moved past them."""

    def __init__(self) -> None:
        self.clock = FixedClock()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    async def sleep(self, seconds: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.clock.now + seconds, next(self._order), done))
        await done

    async def settle(self) -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    async def go(self, seconds: float) -> None:
        """Let `seconds` pass: each sleeper wakes at its own time."""
        end = self.clock.now + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end + 1e-9:
            at, _, done = heapq.heappop(self._sleepers)
            self.clock.now = max(self.clock.now, at)
            if not done.done():
                done.set_result(None)
            await self.settle()
        self.clock.now = end


class Inline:
    """Calls in place, so that a test needs no thread."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def call(self, read: Callable[[], T], timeout_s: float) -> T:
        return read()


class FakeServer:
    """A vLLM server. `answer` may be replaced by anything that gives, raises or waits."""

    def __init__(self, clock: FixedClock) -> None:
        self.clock = clock
        self.box = Server(started=clock.now - 1_000)
        self.scrapes: list[float] = []
        self.asked_facts = 0
        self.closed = False
        self.answer: Callable[[], Scrape | SourceDown] | None = None
        self.hangs = False
        self.doing = ""

    async def scrape(self) -> Scrape | SourceDown:
        self.scrapes.append(self.clock.now)
        if self.hangs:
            await asyncio.Event().wait()
        if self.answer is not None:
            return self.answer()
        return self.box.scrape(self.clock.now)

    async def facts(self) -> ServerFacts | SourceDown:
        self.asked_facts += 1
        return ServerFacts("0.32.0")

    async def aclose(self) -> None:
        self.closed = True

    def down(self, state: State = State.REFUSED) -> None:
        self.answer = lambda: SourceDown(state, "as the test says", self.clock.now)

    def back(self) -> None:
        self.answer = None


class FakeGpu:
    def __init__(self, clock: FixedClock) -> None:
        self.clock = clock
        self.reads: list[tuple[float, bool]] = []
        self.read_now: Callable[[], GpuReading] | None = None

    def read(self, pcie: bool = True) -> GpuReading:
        self.reads.append((self.clock.now, pcie))
        if self.read_now is not None:
            return self.read_now()
        sampled = max((i for i, (_, pcie) in enumerate(self.reads, 1) if pcie), default=None)
        return GpuReading((Gpu(0, "H200", pcie_tx_bytes_per_s=sampled),), at=self.clock.now)

    def close(self) -> None: ...


class FakeHost:
    def __init__(self, clock: FixedClock) -> None:
        self.clock = clock
        self.reads: list[float] = []
        self.reading: Callable[[], HostReading] = HostReading

    def read(self) -> HostReading:
        self.reads.append(self.clock.now)
        return self.reading()


class FakeFinder:
    def __init__(self, clock: FixedClock) -> None:
        self.clock = clock
        self.looks: list[float] = []
        self.finds: Callable[[], Discovery] = Discovery

    async def read(self, host: HostReading | None) -> Discovery:
        self.looks.append(self.clock.now)
        return self.finds()


class Bench:
    """A Watch among fakes."""

    def __init__(
        self,
        *urls: str,
        poll: Poll | None = None,
        servers: list[Configured] | None = None,
        kv_places: Find | None = None,
    ) -> None:
        self.time = Time()
        self.clock = self.time.clock
        self.servers: dict[str, FakeServer] = {}
        self.made: list[tuple[str, Configured | None]] = []
        self.kv_asked: list[tuple[str, Configured | None]] = []
        self.gpu, self.host, self.finder = FakeGpu(self.clock), FakeHost(self.clock), FakeFinder(self.clock)
        self.order: list[str] = []
        self.changes = 0
        self.settings = Settings(poll=poll or Poll(metrics_timeout_s=0.01), server=servers or [])
        self.explained: Callable[[SourceDown], SourceDown] = lambda down: down
        self.captures: Callable[[], StoreLike | None] = lambda: None
        self.taps: list[Running] = []
        self.replays: list[OwnRequest] = []
        factories = Factories(
            server=self._server,
            gpu=lambda: self._note("gpu", self.gpu),
            host=lambda: self._note("host", self.host),
            finder=lambda: self._note("finder", self.finder),
            captures=lambda: self._note("captures", self.captures()),
            taps=lambda: self.taps,
            replays=lambda: self.replays,
            explain=lambda down, url, host, served: self.explained(down),
            worker=Inline,
            kv_events=self._kv_events,
            kv_places=kv_places,
        )
        self.watch = Watch(self.settings, urls, clock=self.clock, factories=factories, sleep=self.time.sleep)

    @property
    def urls(self) -> list[str]:
        """The servers that are watched now, in order."""
        return [server.url for server in self.watch.view("5m").servers]

    def server(self, url: str) -> FakeServer:
        return self.servers.setdefault(url, FakeServer(self.clock))

    def _server(self, url: str, configured: Configured | None) -> FakeServer:
        self.order.append("server")
        self.made.append((url, configured))
        return self.server(url)

    async def _kv_events(self, url: str, configured: Configured | None) -> None:
        self.kv_asked.append((url, configured))

    def _note(self, name: str, made: T) -> T:
        self.order.append(name)
        return made

    def _changed(self) -> None:
        self.changes += 1

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Time]:
        task = asyncio.create_task(self.watch.run(self._changed))
        try:
            await self.time.settle()
            yield self.time
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
