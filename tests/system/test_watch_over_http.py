"""A watch with its real sources, over loopback, while the server behind the port changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from kvtop.clock import SystemClock
from kvtop.config import Poll, Settings
from kvtop.live.factories import real
from kvtop.live.watch import Watch
from kvtop.model.view import BoxView
from kvtop.readings import GpuReading, HostReading, State

POLL = Poll(metrics_s=0.02, metrics_busy_s=0.02, metrics_idle_s=0.02, metrics_timeout_s=0.3, metrics_max_bytes=300_000)


class NoGpu:
    def read(self, pcie: bool = True) -> GpuReading:
        return GpuReading(error="no NVIDIA driver here")

    def close(self) -> None: ...


class NoHost:
    def read(self) -> HostReading:
        return HostReading()


class Port:
    """One port; what it answers to /metrics is set by the test."""

    def __init__(self) -> None:
        self.body = b""
        self.kind = "text/plain"
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.number = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", self.number)
        self.number = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await self.speaks.wait()
                body = self.body if head.startswith(b"GET /metrics ") else b"{}"
                writer.write(
                    f"HTTP/1.1 200 OK\r\nContent-Type: {self.kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        self._writers.discard(writer)
        writer.close()


@contextlib.asynccontextmanager
async def watching(url: str) -> AsyncIterator[Callable[[Callable[[BoxView], bool]], Awaitable[BoxView]]]:
    settings = Settings(poll=POLL)
    factories = replace(real(settings, SystemClock()), gpu=NoGpu, host=NoHost)
    watch = Watch(settings, [url], factories=factories)
    changed = asyncio.Event()

    async def until(holds: Callable[[BoxView], bool]) -> BoxView:
        async with asyncio.timeout(20):
            while not holds(view := watch.view("5m")):
                changed.clear()
                await changed.wait()
        return view

    task = asyncio.create_task(watch.run(changed.set))
    try:
        yield until
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def state(view: BoxView) -> State:
    return view.servers[0].state


async def test_a_server_that_lives_hangs_dies_lies_and_comes_back(captures: Callable[[str], Path]) -> None:
    folder = captures("series-0.32.0")
    texts = sorted(folder.glob("[0-9]*.txt"))
    port = Port()
    port.body = texts[3].read_bytes()
    await port.open()
    try:
        async with watching(f"http://127.0.0.1:{port.number}") as until:
            view = await until(lambda v: bool(v.servers) and v.servers[0].last_good_at is not None)
            assert state(view) is State.UP
            port.body = texts[12].read_bytes()
            view = await until(lambda v: bool(v.servers[0].window.all.cached.prompt_tokens))
            done = [turn for turn in view.servers[0].turns if turn.state == "done"]
            assert len(done) == 1 and view.servers[0].turns_total == done[0].n > 1
            port.speaks.clear()
            view = await until(lambda v: state(v) is State.TIMEOUT)
            assert view.sentence.chip == "STALE" and view.servers[0].stale
            port.speaks.set()
            await until(lambda v: state(v) is State.UP)
            port.body, port.kind = b"<html><b>hello</b></html>", "text/html"
            view = await until(lambda v: state(v) is State.NOT_VLLM)
            assert view.sentence.chip == "NOT VLLM"
            port.body = b"# TYPE vllm:prompt_tokens_total counter\n" + b"x" * 400_000
            view = await until(lambda v: state(v) is State.TOO_LARGE)
            assert view.sentence.chip == "TOO LARGE"
            await port.close()
            view = await until(lambda v: state(v) is State.REFUSED)
            assert view.sentence.chip == "DOWN" and view.servers[0].failed_tries > 0
            port.body, port.kind = texts[3].read_bytes(), "text/plain"
            await port.open()
            view = await until(lambda v: state(v) is State.UP)
            assert view.servers[0].reset_at is not None and view.sentence.chip == "RESTARTED"
    finally:
        await port.close()
