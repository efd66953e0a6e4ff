"""What a source is.

A source does I/O and gives no meaning. It never raises for what the world does to it: a server that is gone, a driver
that was unloaded or a file that may not be read is a value (`SourceDown`, `GpuReading.error`, None), with its cause in
words.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from kvtop.readings import Discovery, HostReading, Scrape, ServerFacts, SourceDown

T_co = TypeVar("T_co", covariant=True)


class ServerSource(Protocol):
    """One vLLM endpoint, asked again and again from one event loop."""

    url: str
    """Fit to be shown: no user, no password."""

    async def scrape(self) -> Scrape | SourceDown: ...

    async def facts(self) -> ServerFacts | SourceDown: ...

    async def aclose(self) -> None: ...


class MachineSource(Protocol[T_co]):
    """Something of this machine. `read` blocks: call it in a thread, one call at a time."""

    def read(self) -> T_co: ...

    def close(self) -> None: ...


class Finder(Protocol):
    """Where servers are looked for."""

    async def read(self, host: HostReading | None) -> Discovery: ...
