"""Where the sources of a Watch come from. The default makes the real ones and imports each only when it is made."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kvtop import paths
from kvtop.config import Server, Settings
from kvtop.model.states import explain
from kvtop.readings import Discovery, GpuReading, HostReading, Scrape, ServerFacts, SourceDown
from kvtop.worker import Caller, Worker

if TYPE_CHECKING:
    from kvtop.capture.control.running import Running
    from kvtop.capture.turn import Captured
    from kvtop.clock import Clock
    from kvtop.live.kv_watch import Find
    from kvtop.live.profile_view import Looking
    from kvtop.model.own import OwnRequest
    from kvtop.sources.kv_places import KvPlaces
    from kvtop.sources.vllm import VllmSource
    from kvtop.triage.kv_facts import Told

LOG = logging.getLogger("kvtop.live")


class ServerLike(Protocol):
    """One vLLM endpoint."""

    @property
    def doing(self) -> str:
        """What a `scrape` under way waits for, in words; empty where it cannot tell."""
        ...

    async def scrape(self) -> Scrape | SourceDown: ...

    async def facts(self) -> ServerFacts | SourceDown: ...

    async def aclose(self) -> None: ...


class GpuLike(Protocol):
    def read(self, pcie: bool = True) -> GpuReading:
        """Without `pcie` the PCIe numbers are those of the last reading that sampled them."""
        ...

    def close(self) -> None: ...


class HostLike(Protocol):
    def read(self) -> HostReading: ...


class FinderLike(Protocol):
    async def read(self, host: HostReading | None) -> Discovery: ...


class StoreLike(Protocol):
    """The turns on disk; all of it may block."""

    def revision(self) -> int: ...

    def count(self) -> int: ...

    def turns(
        self, *, last: int = 100, conversation: str | None = None, since_id: int = 0, before_id: int | None = None
    ) -> list[Captured]: ...

    def turn(self, id: int) -> Captured | None: ...

    def request_body(self, id: int) -> bytes | None: ...

    def response_body(self, id: int) -> bytes | None: ...

    def close(self) -> None: ...


async def no_events(url: str, configured: Server | None) -> Told | None:
    """Of a box that publishes none."""
    return None


@dataclass(frozen=True)
class Factories:
    """All but `server` may block and import: they are called beside the event loop.

    `server` is called on it, since nothing can be shown before its first answer anyway.
    """

    server: Callable[[str, Server | None], ServerLike]
    gpu: Callable[[], GpuLike]
    host: Callable[[], HostLike]
    finder: Callable[[], FinderLike]
    captures: Callable[[], StoreLike | None] = lambda: None
    """The store of captured turns, opened for reading; None where there is none yet."""
    taps: Callable[[], Sequence[Running]] = tuple
    """The taps that run on this machine."""
    replays: Callable[[], Sequence[OwnRequest]] = tuple
    """What kvtop's own replays asked of servers, oldest first."""
    recorded_since: Callable[[], float | None] = lambda: None
    """Unix time since when the servers themselves fill the store, as the box of the demo does; None: only taps do."""
    explain: Callable[[SourceDown, str, HostReading | None, int | None], SourceDown] = explain
    """What the machine knows about a server that does not answer."""
    given: Callable[[Captured, str], None] = lambda turn, verdict: None
    """Is told of each verdict that was given on a turn of the store."""
    worker: Callable[[str], Caller] = Worker
    kv_events: Callable[[str, Server | None], Awaitable[Told | None]] = no_events
    """What a server still has of its KV events; None: it publishes none. It takes seconds."""
    kv_places: Find | None = None
    """Where a server publishes them; None: nobody follows them."""
    profiles: Callable[[], Looking] | None = None
    """What looks at the profiles; None: there are none, as in the demo."""


def _replays() -> Sequence[OwnRequest]:
    if not paths.replays_file().exists():
        return ()
    from kvtop.triage import replay_notes

    return replay_notes.read()


def _profiles() -> Looking:
    from kvtop.live.profile_look import ProfileLook

    return ProfileLook()


def _noted(turn: Captured, verdict: str) -> None:
    from kvtop.capture.store import given

    try:
        given.add(paths.turns_file(), turn.id, turn.started_at, verdict)
    except OSError as error:  # a list cannot name it then, and nothing else is amiss
        LOG.info("a verdict is not noted: %s", error)


def real(settings: Settings, clock: Clock) -> Factories:
    """The sources of this machine."""

    def server(url: str, configured: Server | None) -> ServerLike:
        from kvtop.model.metrics import wanted
        from kvtop.sources.vllm import VllmSource

        def made(key: Callable[[], str | None]) -> ServerLike:
            return VllmSource(
                url,
                key=key,
                timeout_s=settings.poll.metrics_timeout_s,
                max_bytes=settings.poll.metrics_max_bytes,
                wanted=wanted,
                clock=clock,
            )

        if configured is None:
            return made(lambda: None)
        if configured.api_key_env or not configured.api_key_file:
            return made(configured.api_key)
        from kvtop.live.keyfile import WithKeyFile

        return WithKeyFile(made, configured.api_key, Worker("key-file"), clock)

    def gpu() -> GpuLike:
        from kvtop.sources.nvml import NvmlSource

        return NvmlSource()

    def host() -> HostLike:
        from kvtop.sources.host import HostSource

        return HostSource()

    def finder() -> FinderLike:
        from kvtop.sources.discovery import DiscoverySource

        return DiscoverySource(configured=len(settings.server), clock=clock)

    def captures() -> StoreLike | None:
        path = paths.turns_file()
        if not path.exists():
            return None  # nothing of SQLite is imported where nothing was ever captured
        from kvtop.capture.store.store import NoStore, Store

        try:
            return Store.open(path)
        except NoStore:
            return None

    def taps() -> Sequence[Running]:
        from kvtop.capture.control import running

        return running.alive()

    def asker(url: str, configured: Server | None) -> VllmSource:
        from kvtop.model.metrics import wanted
        from kvtop.sources.vllm import VllmSource

        key = configured.api_key if configured is not None else lambda: None
        return VllmSource(url, key=key, timeout_s=settings.poll.metrics_timeout_s, wanted=wanted, clock=clock)

    async def kv_events(url: str, configured: Server | None) -> Told | None:
        from kvtop.live.kv_past import past
        from kvtop.model.here import is_local, server_of
        from kvtop.sources.host import HostSource
        from kvtop.sources.url import normalise

        shown = normalise(url)
        here = is_local(shown)
        process = server_of(shown, HostSource().read()) if here else None
        source = asker(url, configured)
        try:
            named = configured.kv_events if configured is not None else ""
            return await past(source.probe, process.command if process is not None else (), named, here=here)
        finally:
            await source.aclose()

    async def kv_places(url: str, configured: Server | None, command: Sequence[str]) -> KvPlaces:
        from kvtop.live.kv_events import places
        from kvtop.model.here import is_local
        from kvtop.sources.url import normalise

        source = asker(url, configured)
        try:
            named = configured.kv_events if configured is not None else ""
            return await places(source.probe, command, named, here=is_local(normalise(url)))
        finally:
            await source.aclose()

    return Factories(
        server, gpu, host, finder, captures, taps, _replays, given=_noted, kv_events=kv_events, kv_places=kv_places,
        profiles=_profiles,
    )  # fmt: skip
