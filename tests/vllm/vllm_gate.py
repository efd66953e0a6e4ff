"""A plain pipe before a server that tells when a /metrics text went through it, and what went through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Passed:
    """One connection, as it passed."""

    asked: bytearray = field(default_factory=bytearray)
    answered: bytearray = field(default_factory=bytearray)


@asynccontextmanager
async def gate(
    url: str, kept: list[Passed] | None = None, swap: tuple[bytes, bytes] = (b"", b"")
) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """The URL to ask instead, and an event: the first text with engine series has passed. `kept` is given each
    connection. `swap`: bytes of what is asked, and as many to put in their place."""
    target = urlsplit(url)
    passed = asyncio.Event()
    pipes: set[asyncio.Task[None]] = set()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, into: bytearray, *, watch: bool) -> None:
        try:
            with suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    into += data
                    if not watch and swap[0]:
                        data = data.replace(*swap)
                    sink.write(data)
                    await sink.drain()
                    if watch and b"vllm:" in data:
                        passed.set()
        finally:
            sink.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(target.hostname, target.port)
        one = Passed()
        if kept is not None:
            kept.append(one)
        ways = ((reader, up_writer, one.asked, False), (up_reader, writer, one.answered, True))
        for source, sink, into, watch in ways:
            task = asyncio.create_task(pump(source, sink, into, watch=watch))
            pipes.add(task)
            task.add_done_callback(pipes.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", passed
    finally:
        server.close()
        for task in list(pipes):
            task.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)
