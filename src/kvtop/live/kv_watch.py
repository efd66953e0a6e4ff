"""The KV events of the watched servers, each followed for as long as it is watched.

A busy server tells of thousands of blocks a second: all of it is read in one thread with a loop of its own, beside the
dashboard's. That thread begins with the first server that is to be looked at, and ends with the dashboard.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvtop.config import Server
from kvtop.model.here import server_of
from kvtop.readings import HostReading, KvPublisher

if TYPE_CHECKING:
    from kvtop.capture.turn import Captured
    from kvtop.clock import Clock
    from kvtop.live.endpoint import Endpoint
    from kvtop.live.kv_events import Engine, KvEvents, StreamLike
    from kvtop.live.named import Named
    from kvtop.sources.kv_places import KvPlaces
    from kvtop.triage.kv_facts import Told
    from kvtop.triage.prompt import Prompt
    from kvtop.triage.residency import Residency
    from kvtop.triage.seen import KvFacts

MAX_BLOCKS = 200_000
"""Blocks of one server that are kept in mind: a pool of 3,200,000 tokens in blocks of 16, with its tiers. Where it has
more, those that were named longest ago are forgotten. With MAX_CHANGES 125 MB (`benchmarks/kv_events.py`)."""
MAX_CHANGES = 100_000
"""Stores and removals of one server that can be looked back at."""
IN_S = 3.0
"""A verdict waits so long at most until the events of its turn's time are in."""
LOOK_S = 0.05
ENDS_S = 2.0
"""The thread may take so long to close its connections; it never holds up the end of kvtop."""
RANKS = "KV events of several engines behind one address are not followed"

Find = Callable[[str, Server | None, Sequence[str]], Awaitable["KvPlaces"]]
"""Where a server publishes: its URL as given, its table in config.toml, the command line of its process."""


@dataclass(slots=True)
class Subject:
    """A server whose events are looked for."""

    typed: str
    """Its URL as given."""
    configured: Server | None
    command: Sequence[str]
    """Of its process on this machine; empty where none is known."""


@dataclass(slots=True)
class _Followed:
    """In the thread alone, but for `subject`, which is replaced whole."""

    subject: Subject
    events: KvEvents
    task: asyncio.Task[None]


class KvWatch:
    """Called on the dashboard's loop, but for `told`, which any thread may call. `run` until cancelled."""

    def __init__(self, find: Find | None, named: Named, clock: Clock) -> None:
        """`find` None: nothing is followed."""
        self._find, self._named, self._clock = find, named, clock
        self._followed: dict[str, _Followed] = {}
        self._marks: dict[str, tuple[float | None, int | None]] = {}
        """Server -> what was known of its process at the last look."""
        self._running = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self) -> None:
        """What `follow` begins ends with it."""
        self._running = True
        try:
            await asyncio.Event().wait()
        finally:
            self._running = False
            await self._close()

    def follow(self, watched: Sequence[Endpoint], host: HostReading | None) -> None:
        """These servers, each from its first answer on, and no others. Cheap where it is the same process as before."""
        if self._find is None or not self._running:
            return
        urls = {one.history.url for one in watched}
        for url in [one for one in self._marks if one not in urls]:
            del self._marks[url]
            self._call(self._left(url))
        for endpoint in watched:
            history = endpoint.history
            mark = history.started_at, history.pid
            if endpoint.good and self._marks.get(history.url) != mark:
                self._marks[history.url] = mark
                self._call(self._looked(history.url, self._subject(history.url, host)))

    def _subject(self, url: str, host: HostReading | None) -> Subject:
        process = server_of(url, host, (socket.gethostname(),))
        return Subject(self._named.typed(url), self._named.server(url), process.command if process is not None else ())

    def told(self, url: str) -> Told | None:
        """Who has its events, or why nobody has; None: it publishes none, as far as is known."""
        followed = self._followed.get(url)
        if followed is None:
            return None
        from kvtop.triage.kv_facts import Unheard

        engine, problems = followed.events.engines.get(0), followed.events.problems
        if engine is not None and not engine.problem:
            return _Following(self, engine)
        problem = engine.problem if engine is not None else next(iter(problems), "")
        return Unheard(problem) if problem else None

    async def _close(self) -> None:
        """Every connection, and the thread."""
        thread, loop = self._thread, self._loop
        self._thread = self._loop = None
        self._marks.clear()
        if thread is None or loop is None:
            return
        with contextlib.suppress(RuntimeError, TimeoutError):
            ending = asyncio.run_coroutine_threadsafe(self._ended(), loop)
            await asyncio.wait_for(asyncio.wrap_future(ending), ENDS_S)
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join, ENDS_S)

    def _call(self, doing: Coroutine[Any, Any, None]) -> None:
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_forever, args=(loop,), name="kvtop-kv-events", daemon=True)
            self._thread.start()
        asyncio.run_coroutine_threadsafe(doing, self._loop)

    # -- in the thread

    async def _looked(self, url: str, subject: Subject) -> None:
        known = self._followed.get(url)
        if known is not None:
            known.subject = subject
            known.events.look_soon()
            return
        from kvtop.live.kv_events import KvEvents
        from kvtop.triage.residency import Residency

        def index() -> Residency:
            return Residency(max_blocks=MAX_BLOCKS, max_changes=MAX_CHANGES)

        events = KvEvents(lambda: self._places(url), _over_zmq, asyncio.sleep, index)
        self._followed[url] = _Followed(subject, events, asyncio.create_task(events.run(lambda: None)))

    async def _places(self, url: str) -> KvPlaces:
        from kvtop.sources.kv_places import KvPlaces

        assert self._find is not None
        subject = self._followed[url].subject
        try:
            found = await self._find(subject.typed, subject.configured, subject.command)
        except Exception as error:  # noqa: BLE001  whatever it is, the next look may do better
            return KvPlaces(problems=(f"kvtop itself failed while looking for KV events: {type(error).__name__}",))
        return found if len(found.publishers) < 2 else KvPlaces(problems=(*found.problems, RANKS))

    async def _left(self, url: str) -> None:
        followed = self._followed.pop(url, None)
        if followed is not None:
            followed.task.cancel()
            await asyncio.gather(followed.task, return_exceptions=True)

    async def _ended(self) -> None:
        await asyncio.gather(*(self._left(url) for url in list(self._followed)))

    async def facts(self, engine: Engine, turn: Captured, prompt: Prompt, ids: bytes, old: Captured) -> KvFacts:
        """In any loop: what one engine's events say, once those of that time are in."""
        from kvtop.triage.kv_facts import NOT_IN_YET
        from kvtop.triage.seen import KvFacts

        if self._loop is None:
            return KvFacts(short=NOT_IN_YET)
        asked = asyncio.run_coroutine_threadsafe(self._facts(engine, turn, prompt, ids, old), self._loop)
        return await asyncio.wrap_future(asked)

    async def _facts(self, engine: Engine, turn: Captured, prompt: Prompt, ids: bytes, old: Captured) -> KvFacts:
        from kvtop.triage.kv_facts import facts, looked_into_until

        known_to = await self._known_to(engine, looked_into_until(turn))
        found = facts(engine.index, turn, prompt, ids, old, known_to=known_to)
        if found.complete or (engine.source is not None and engine.source.connected):
            return found
        return replace(found, short=f"no connection to the KV events at {engine.publisher.endpoint}")

    async def _known_to(self, engine: Engine, until: float) -> float:
        """Unix time up to which all is in; waits a little for `until`."""
        latest = self._clock.mono() + IN_S
        before = -1
        while True:
            now, source = self._clock.wall(), engine.source
            idle = source is not None and source.waiting
            if idle and engine.index.batches == before and now >= until:
                return now
            if self._clock.mono() >= latest:
                return (now if idle else engine.index.last_at) or 0.0
            before = engine.index.batches if idle else -1
            await asyncio.sleep(LOOK_S)


@dataclass(frozen=True, slots=True)
class _Following:
    watch: KvWatch
    engine: Engine

    async def facts(self, turn: Captured, prompt: Prompt, ids: bytes, old: Captured) -> KvFacts:
        return await self.watch.facts(self.engine, turn, prompt, ids, old)


def _over_zmq(publisher: KvPublisher) -> StreamLike:
    from kvtop.sources.kv_events import KvEventSource

    return KvEventSource(publisher)


def _forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
