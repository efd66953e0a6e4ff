"""Watches servers and this machine: one loop a source, one view of all of it.

Nothing is sent but the polls and what verdicts on captured turns ask for, and nothing is written but the kinds of these
verdicts. A source that dies, hangs or raises becomes a state with an age; the others go on.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

from kvtop.clock import Clock, SystemClock
from kvtop.config import Settings
from kvtop.live.captures import Captures
from kvtop.live.casebooks import Casebooks
from kvtop.live.desk import Desk
from kvtop.live.endpoint import Sleep, Surroundings
from kvtop.live.factories import Factories, ServerLike, real
from kvtop.live.hook import Hook
from kvtop.live.joined import Joined
from kvtop.live.kv_watch import KvWatch
from kvtop.live.lookout import Lookout
from kvtop.live.machine import GpuWatch, HostWatch, held
from kvtop.live.named import Named
from kvtop.live.profiled import Profiled
from kvtop.live.profiles import Profiles
from kvtop.live.replaying import Replaying
from kvtop.live.replays import Replays
from kvtop.live.servers import Servers
from kvtop.live.taps import Taps
from kvtop.live.upstreams import Upstreams
from kvtop.live.verdicts import News, Verdicts
from kvtop.model import fleet, sentence
from kvtop.model.downs import Around
from kvtop.model.here import server_of, tier_files
from kvtop.model.judge import Thresholds
from kvtop.model.shown_turn import TurnKey
from kvtop.model.view import BoxView, ServerView
from kvtop.readings import SourceDown

if TYPE_CHECKING:
    from kvtop.live.profile_view import Looking

HEAD_START_S = 0.5
"""The machine's sources and their imports wait for the first answer of a server, but not longer."""


class Watch:
    """`run` until cancelled; `view` whenever something is to be drawn. All from one event loop.

    `urls` empty: the servers of config.toml, else those found on this machine, as they come and go.
    Raises UsageError for one of `urls` that is none; one in config.toml is skipped (`kvtop.servers` tells).
    """

    def __init__(
        self,
        settings: Settings,
        urls: Sequence[str] = (),
        *,
        demo: bool = False,
        clock: Clock | None = None,
        factories: Factories | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._demo = demo
        self._clock = clock or SystemClock()
        self._factories = factories or real(settings, self._clock)
        self._sleep = sleep
        self._changed: Callable[[], None] = lambda: None
        self._fault: asyncio.Future[None] | None = None
        self._named = Named(settings.server)
        poll, worker = settings.poll, self._factories.worker
        self._gpu = GpuWatch(self._factories.gpu, worker("gpu"), poll, self._clock, sleep)
        self._host = HostWatch(self._factories.host, worker("host"), poll, self._clock, sleep)
        self._captures = Captures(self._factories.captures, worker("captures"), sleep)
        self._taps = Taps(self._factories.taps, worker("taps"), sleep)
        self._replays = Replays(self._factories.replays, worker("replays"), sleep)
        self._servers = Servers(settings, self._named, self._taps, self._made, self._surroundings())
        self._lookout: Lookout | None = None
        """None where servers were named."""
        limits = settings.thresholds
        judged = Thresholds(limits.slow_factor, limits.slow_extra_s, limits.slow_ttft_s)
        self._kv = KvWatch(self._factories.kv_places, self._named, self._clock)
        upstreams = Upstreams(
            lambda: self._servers.all, self._named, self._taps, self._captures,
            factories=self._factories, clock=self._clock, kv=self._kv, host=lambda: self._host.reading,
        )  # fmt: skip
        self._hook = Hook("" if demo else settings.on_slow, worker("on_slow"), self._failed)
        cases = Casebooks(self._factories.captures, judged, self._factories.given, self._factories.replays)
        self._verdicts = Verdicts(
            self._captures, cases, upstreams,
            worker=worker, clock=self._clock, sleep=sleep, on_slow=self._hook.put,
        )  # fmt: skip
        replaying = Replaying(self._captures, cases, upstreams, worker)
        self.desk = Desk(self._factories.captures, self._taps, worker, self._verdicts, replaying)
        """Captured turns in full, and taps: asked for one by one."""
        self._joined = Joined(self._captures, self._taps, self._replays, judged, self._factories.recorded_since)
        self.profiles: Profiles | None = None
        """The profiles of this machine; None where there are none, as in the demo."""
        self._profiled: Profiled | None = None
        if self._factories.profiles is not None:
            self._follow_profiles(self._factories.profiles)
        self._begun: dict[str, int] = {}
        """Server -> the newest turn that was seen to begin at a tap to it."""
        self._opened: frozenset[tuple[str, TurnKey]] = frozenset()
        for url in urls or self._named.urls:
            self.add_url(url)
        if not self._servers.all:
            self._lookout = Lookout(
                self._servers, self._factories.finder, worker("import-finder"), self._host,
                clock=self._clock, sleep=sleep, every_s=poll.discovery_s,
            )  # fmt: skip

    def _follow_profiles(self, made: Callable[[], Looking]) -> None:
        self.profiles = Profiles(
            made, self._factories.worker, self._clock, self._sleep,
            processes=lambda: self._host.reading.processes if self._host.reading is not None else (),
            machine=lambda: held(self._host.reading, self._gpu.reading),
            figures=lambda: self._profiled.figures(self._clock.wall()) if self._profiled is not None else {},
            missed=self._profile_failed,
        )  # fmt: skip
        self._profiled = Profiled(
            self.profiles,
            lambda: self._servers.all,
            lambda url: self._servers.add(url, found=True),
            self._servers.forget,
        )

    def _profiles_changed(self) -> None:
        if self._profiled is not None:
            self._profiled.follow(self._lookout is not None)
        self._changed()

    def watch_profile(self, name: str) -> None:
        """The server of this profile is what the user wants to see, from its start on."""
        if self._profiled is not None:
            self._profiled.watch(name)

    # -- servers

    def add_url(self, url: str) -> None:
        """Watch one more server, from now on. The same one twice is once. Raises UsageError for nonsense."""
        self._servers.add(url, found=False)

    def drop_url(self, url: str) -> None:
        """Watch the server of this shown URL no more. One that is not watched is no error."""
        self._servers.drop(url)
        self._tell()

    def opened(self, url: str, turn: TurnKey) -> None:
        """The user has looked at this slow turn: the sentence speaks of it no more."""
        self._opened |= {(url, turn)}

    def _surroundings(self) -> Surroundings:
        return Surroundings(self._settings.poll, self._clock, self._sleep, self._tell, self._explained)

    def _tell(self) -> None:
        self._kv.follow(self._servers.all, self._host.reading)
        self._changed()

    def _made(self, url: str) -> ServerLike:
        return self._factories.server(self._named.typed(url), self._named.server(url))

    def _explained(self, down: SourceDown, url: str, served: int | None) -> SourceDown:
        return self._factories.explain(down, url, self._host.reading, served)

    def _task(self, loop: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(loop)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A loop ends only when it is cancelled; what else ends it is a fault of ours, and `run` raises it."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._fault is not None and not self._fault.done():
            self._fault.set_exception(error)

    # -- running

    async def run(self, changed: Callable[[], None]) -> None:
        """Until cancelled. `changed` is called on this loop, each time something new is there."""
        self._changed = changed
        self._fault = asyncio.get_running_loop().create_future()
        self._servers.start(self._task)
        loops = (
            self._later(self._gpu.run, self._tell),
            self._later(self._host.run, self._host_changed),
            self._later(self._captures.run, self._captures_changed),
            self._later(self._taps.run, self._taps_changed),
            self._later(self._replays.run, self._tell),
            self._verdicts.run(self._tell),
            self._hook.run(),
            self._kv.run(),
            *((self._lookout.run(changed),) if self._lookout is not None else ()),
            *((self._later(self.profiles.run, self._profiles_changed),) if self.profiles is not None else ()),
        )
        others = [self._task(loop) for loop in loops]
        try:
            await self._fault
        finally:
            mine = [*others, *self._servers.stop()]
            for task in mine:
                task.cancel()
            await asyncio.gather(*mine, return_exceptions=True)

    async def _head_start(self) -> None:
        """Let the first answer of a server come before the imports of everything else."""
        waits = [asyncio.create_task(e.tried.wait()) for e in self._servers.all]
        if not waits:
            return
        _, late = await asyncio.wait(waits, timeout=HEAD_START_S, return_when=asyncio.FIRST_COMPLETED)
        for task in late:
            task.cancel()

    async def _later(
        self, source: Callable[[Callable[[], None]], Awaitable[None]], changed: Callable[[], None]
    ) -> None:
        await self._head_start()
        await source(changed)

    def news(self) -> tuple[News, ...]:
        """What is to be said once since the last call: slow turns, and what kvtop could not do about them."""
        return self._verdicts.news()

    def _profile_failed(self, words: str, told_there: bool) -> None:
        self._verdicts.say(News(words, bad=True, of_profiles=True, told_there=told_there))
        self._tell()

    def _failed(self, words: str) -> None:
        self._verdicts.say(News(words, bad=True))
        self._tell()

    def _captures_changed(self) -> None:
        """A server that is asked seldom is asked at once when a turn begins at its tap."""
        for endpoint in self._servers.all:
            url = endpoint.history.url
            begun = self._captures.begun(self._taps.behind(url))
            if begun > self._begun.get(url, 0):
                self._begun[url] = begun
                if not endpoint.history.in_flight:
                    endpoint.ask_soon()
        self._changed()

    def _taps_changed(self) -> None:
        self._servers.past_taps()
        self._changed()

    def _host_changed(self) -> None:
        host = self._host.reading
        for endpoint in self._servers.all:
            process = server_of(endpoint.history.url, host, (socket.gethostname(),))
            if process is None:
                continue
            endpoint.history.maps(process.pid, tier_files(process.pid, host))
            if endpoint.good and process.ports:  # one that listens nowhere yet answers nobody
                endpoint.history.served_by(process.pid)
        self._changed()

    # -- showing

    def series(self, name: str, span_s: float, columns: int, selected: int = 0) -> tuple[float | None, ...]:
        """What the history page draws of the selected server, all its engines: see `ServerHistory.series`."""
        watched = self._servers.all
        if not watched:
            return (None,) * columns
        chosen = watched[max(0, min(selected, len(watched) - 1))]
        return chosen.history.series(name, span_s, columns, self._clock.wall())

    def view(self, window_key: str, selected: int = 0, engine: str | None = None) -> BoxView:
        """Everything at this moment. Cheap: what did not change since the last call is not worked out again."""
        now = self._clock.wall()
        selected = max(0, min(selected, len(self._servers.all) - 1))
        servers = tuple(
            self._marked(self._joined.view(e.history.view(now, window_key, engine if i == selected else None), now))
            for i, e in enumerate(self._servers.all)
        )
        host, lookout = self._host.reading, self._lookout
        discovery = lookout.discovery if lookout is not None else None
        settings = self._settings
        limits = settings.thresholds
        timeout_s = settings.poll.metrics_timeout_s
        around = Around(now, host, timeout_s, limits.kv_pool_full, limits.share_poor, limits.slow_ttft_s, self._opened)
        return BoxView(
            at=now,
            sentence=sentence.make(servers, selected, around, discovery),
            servers=servers,
            selected=selected,
            lines=fleet.lines(servers, selected, now),
            warning=fleet.warning(servers, selected, limits.share_poor),
            gpu=self._gpu.reading,
            host=host,
            discovery=discovery if not servers else None,
            demo=self._demo,
            window_key=window_key,
            looks=lookout.looks if lookout is not None else 0,
        )

    def _marked(self, server: ServerView) -> ServerView:
        return server if self._profiled is None else self._profiled.marked(server, self._clock.wall())
