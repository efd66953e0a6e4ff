"""What a source is, and how text from outside is made fit for a screen.

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


def printable(text: str, limit: int = 200) -> str:
    """Text from outside with its control, format and private characters shown as escapes, cut to `limit` cells.

    Nothing that moves a cursor, sets a colour or turns the writing direction gets through.
    """
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[: limit + 1])
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"
