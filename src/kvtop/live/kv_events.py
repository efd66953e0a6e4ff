"""The KV events of one server: where they are published, one stream a rank, and what lies where by them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvtop.live.endpoint import Sleep, rest
from kvtop.readings import KvMessage, KvPublisher, KvSilence
from kvtop.sources.http import HttpFailure
from kvtop.sources.kv_places import KvPlaces, asked, named, told
from kvtop.triage.kv_events import decode
from kvtop.triage.residency import Residency

LOOK_S = 300.0
"""Between two looks where events are published; a server that began anew is asked at once."""
NO_ZMQ = "KV events need pyzmq, which is not installed"
AGAIN_S = 5.0
"""Until a stream that could not be opened is tried again."""


async def places(
    probe: Callable[[str], Awaitable[tuple[int, bytes]]],
    command: Sequence[str] = (),
    configured: str = "",
    *,
    here: bool = True,
) -> KvPlaces:
    """Where a server publishes its KV events. `probe` asks it (`VllmSource.probe`); `command` is its command line,
    empty where no process of it is known; `configured` is `kv_events` of config.toml. What the server tells leads to
    this machine, so it is followed only where the server is `here`."""
    known = KvPlaces()
    if here:
        try:
            status, body = await probe("/kv_event_sources")
        except HttpFailure:
            status, body = 0, b""
        known = (told(body) if status == 200 else None) or asked(command)
    return named(configured, known) if configured else known


class StreamLike(Protocol):
    """One engine's events."""

    @property
    def connected(self) -> bool: ...

    @property
    def waiting(self) -> bool:
        """All that came was handed up, and nothing more is here."""
        ...

    def stream(self) -> AsyncIterator[KvMessage | KvSilence]: ...


@dataclass(slots=True)
class Engine:
    """One rank, and what its events told so far."""

    publisher: KvPublisher
    index: Residency
    source: StreamLike | None = None
    problem: str = ""
    """Why nothing is heard of it; empty where it is connected."""
    unread: int = 0
    """Messages that could not be read."""


class KvEvents:
    """`run` until cancelled; `engines` is what it knows."""

    def __init__(
        self,
        find: Callable[[], Awaitable[KvPlaces]],
        made: Callable[[KvPublisher], StreamLike],
        sleep: Sleep,
        index: Callable[[], Residency] = Residency,
    ) -> None:
        """`find` says where events are published, and raises nothing. `index` makes an empty one."""
        self.engines: dict[int, Engine] = {}
        """By rank."""
        self.problems: tuple[str, ...] = ()
        """Why some are not followed, in words."""
        self._find, self._made, self._sleep, self._index = find, made, sleep, index
        self._tasks: dict[KvPublisher, asyncio.Task[None]] = {}
        self._soon = asyncio.Event()

    def look_soon(self) -> None:
        """The server began anew: it may publish elsewhere, or not at all."""
        self._soon.set()

    async def run(self, changed: Callable[[], None]) -> None:
        try:
            while True:
                places = await self._find()
                self._follow(places, changed)
                await rest(self._sleep, LOOK_S, self._soon)
                self._soon.clear()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _follow(self, places: KvPlaces, changed: Callable[[], None]) -> None:
        self.problems = places.problems
        # A server that is down for a while does not tell; its streams connect again by themselves.
        if not places.publishers:
            return
        for publisher in [one for one in self._tasks if one not in places.publishers]:
            self._tasks.pop(publisher).cancel()
            if (engine := self.engines.get(publisher.rank)) is not None and engine.publisher == publisher:
                del self.engines[publisher.rank]
        for publisher in places.publishers:
            if publisher not in self._tasks:
                engine = self.engines[publisher.rank] = Engine(publisher, self._index())
                self._tasks[publisher] = asyncio.create_task(self._listen(engine, changed))

    async def _listen(self, engine: Engine, changed: Callable[[], None]) -> None:
        while True:
            try:
                engine.source = self._made(engine.publisher)
                engine.problem = ""
                async for item in engine.source.stream():
                    if isinstance(item, KvMessage):
                        self._take(engine, item)
                    else:
                        engine.index.suspended(item.at)
                    changed()
            except ImportError:
                engine.problem = NO_ZMQ
            except OSError as error:
                engine.problem = error.strerror or type(error).__name__
            except Exception as error:  # noqa: BLE001  one stream's fault is its own, never the end of the others
                engine.problem = f"kvtop itself failed while following KV events: {type(error).__name__}"
            engine.source = None
            changed()
            await self._sleep(AGAIN_S)

    @staticmethod
    def _take(engine: Engine, message: KvMessage) -> None:
        try:
            engine.index.feed(decode(message.seq, message.payload, message.rank))
        except ValueError:
            engine.unread += 1
            engine.index.interrupted(engine.index.last_at or 0.0)
