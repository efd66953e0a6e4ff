"""The recorder: the process beside the tap that makes turns of what the tap saw.

    python -m kvtop.capture.recorder.process --fd N [--done-fd N] --store PATH --tap NAME

It reads frames (`kvtop.capture.tap.wire`) from the descriptor until its end, and then finishes what is open and ends.
How much it has worked through stands in the memory behind --done-fd (`kvtop.capture.tap.progress`).
Only that ends it: signals that end the tap let the tap drain first. Nothing that it does reaches the traffic. Its log,
on stderr, has counts and kinds, never what was said.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvtop import config
from kvtop.capture.recorder.connection import Connection
from kvtop.capture.recorder.exchange import Desk, TurnExchange, refused
from kvtop.capture.recorder.ledger import Ledger, LinkerLike, StoreLike
from kvtop.capture.recorder.sampler import Sampler
from kvtop.capture.tap.progress import Progress
from kvtop.capture.tap.wire import Frame, Frames, Kind, Opened, frame_of
from kvtop.capture.turn import Captured
from kvtop.errors import UsageError

if TYPE_CHECKING:
    from kvtop.sources.vllm import VllmSource

READ_BYTES = 1 << 18
BATCH_S = 0.01
"""Frames are let gather for so long: their times stand in them, and waking up for each costs more than reading it."""
STREAM_BATCH_S = 0.05
"""The same while nothing but streams go on: then there is nothing to tell before one of them ends."""
BATCH_BYTES = 1 << 16
"""A read as large as this is followed by the next one at once."""

SWEEP_EVERY_S = 600.0
SWEEP_AGAIN_S = 5.0
"""While there is more to drop."""
TICK_S = 1.0
YIELD_AFTER = 16
"""After so many frames, and after each that is read at once, the tap may have this core: a scheduler that lets a slice
run to its end would keep it waiting, at the price of a chunk's delay."""
LATE_NS = 5_000_000_000
"""How long a slow stream may be put off."""
STRAY_S = 0.5
"""Further from the system's clock than this is wrong."""
DRAIN_S = 1.5
"""For the last look at an upstream's counters when the tap has ended."""
REFUSALS_EVERY_S = 1.0
"""Of connections that one upstream did not take, no more than one in this time becomes a turn."""


_CLOSE, _SERVER = Kind.CLOSE, int(Kind.SERVER)  # looked up once, not for each frame


class Recorder:
    """Connections and their frames, in; turns, out."""

    def __init__(self, desk: Desk, say: Callable[[str], None] = lambda _: None) -> None:
        self._desk = desk
        self._say = say
        self._connections: dict[int, Connection] = {}
        self._refused_ns: dict[str, int] = {}
        self._frames = Frames()

    def read(self, data: bytes) -> bool:
        """The next bytes of the tap, cut anywhere. Whether all that came can be read later. Raises ValueError for what
        are no frames."""
        connections, nothing_new = self._connections, True
        for nth, bare in enumerate(self._frames.feed(data)):
            if not nth % YIELD_AFTER:
                os.sched_yield()
            conn, kind, at_ns, payload = bare
            if kind != _SERVER or conn not in connections or not connections[conn].put_off(payload, at_ns):
                nothing_new = False
                self.feed(frame_of(bare))
                os.sched_yield()
        return nothing_new

    def feed(self, frame: Frame) -> None:
        connection = self._connections.get(frame.conn)
        if connection is None:
            if frame.kind is Kind.OPEN:
                self._connections[frame.conn] = self._opened(frame)
            elif frame.kind is Kind.REFUSED:
                self._refused(frame)
            return
        try:
            connection.feed(frame)
        except Exception as error:  # noqa: BLE001  one connection's fault must not end the recording of the others
            self._drop(frame.conn, error)
            return
        if frame.kind is _CLOSE:
            del self._connections[frame.conn]

    def catch_up(self, since_ns: int) -> None:
        """Read what was put off before that time, whatever comes. A fast stream comes up to it by itself, each at a
        time of its own: all of them at once would keep a core from the tap for milliseconds."""
        for conn, connection in list(self._connections.items()):
            try:
                if connection.late_since_ns is not None and connection.late_since_ns < since_ns:
                    connection.catch_up()
            except Exception as error:  # noqa: BLE001  as above
                self._drop(conn, error)

    @property
    def idle(self) -> bool:
        """No turn is going on."""
        return all(connection.idle for connection in self._connections.values())

    def end(self, at_ns: int) -> None:
        """No frame will come any more."""
        for conn, connection in list(self._connections.items()):
            try:
                connection.abandon(at_ns)
            except Exception as error:  # noqa: BLE001  as above
                self._drop(conn, error)
        self._connections.clear()

    def _drop(self, conn: int, error: Exception) -> None:
        self._say(f"a connection is not followed any further: {type(error).__name__}")
        connection = self._connections.pop(conn)
        with contextlib.suppress(Exception):  # what is open in it must not stay in flight
            connection.abandon(time.monotonic_ns())

    def _opened(self, frame: Frame) -> Connection:
        opened = _opened(frame.data)
        desk = self._desk
        return Connection(lambda at_ns: TurnExchange(desk, opened, at_ns), resumed=opened.resumed)

    def _refused(self, frame: Frame) -> None:
        opened = _opened(frame.data)
        last_ns = self._refused_ns.get(opened.upstream)
        if last_ns is None or frame.at_ns - last_ns >= REFUSALS_EVERY_S * 1e9:
            self._refused_ns[opened.upstream] = frame.at_ns
            refused(self._desk, opened, frame.at_ns)


def _opened(payload: bytes) -> Opened:
    try:
        return msgspec.json.decode(payload, type=Opened)
    except (msgspec.MsgspecError, ValueError):
        return Opened(upstream="", listen="", peer="", resumed=True)


class SteadyClock:
    """Unix time by one offset from CLOCK_MONOTONIC, so that the times of frames and of samples never turn round.

    The offset is wrong once the machine has slept, or its clock was set: between turns it is taken anew.
    """

    def __init__(self, unix: Callable[[], float] = time.time) -> None:
        self._unix = unix
        self._offset_s = self._now_s()

    def at(self, ns: int) -> float:
        """Unix time of ns of CLOCK_MONOTONIC."""
        return ns / 1e9 + self._offset_s

    def _now_s(self) -> float:
        return self._unix() - time.monotonic_ns() / 1e9

    @property
    def strayed(self) -> bool:
        return abs(self._now_s() - self._offset_s) > STRAY_S

    def set_right(self) -> None:
        self._offset_s = self._now_s()

    def wall(self) -> float:
        return self.at(time.monotonic_ns())

    def mono(self) -> float:
        return time.monotonic()


async def record(
    sock: socket.socket,
    recorder: Recorder,
    ledger: Ledger,
    sampler: Sampler,
    *,
    clock: SteadyClock,
    keep: config.Capture,
    done: Callable[[int], None] = lambda _: None,
) -> None:
    """Until the other end of the socket is closed. `done` gets how many bytes more are worked
    through. Raises ValueError where what comes are no frames."""
    loop = asyncio.get_running_loop()
    keeping = asyncio.create_task(_keep_house(ledger, recorder, clock, keep))
    sock.setblocking(False)
    buffer = memoryview(bytearray(READ_BYTES))  # to make one for each read costs more than the reading
    try:
        while True:
            try:
                size = await loop.sock_recv_into(sock, buffer)
            except ConnectionError:
                break
            if not size:
                break
            only_streams = recorder.read(bytes(buffer[:size]))
            done(size)
            await asyncio.sleep(0 if size >= BATCH_BYTES else STREAM_BATCH_S if only_streams else BATCH_S)
    finally:
        recorder.end(time.monotonic_ns())
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await sampler.drain(DRAIN_S)
        ledger.close()


async def _keep_house(ledger: Ledger, recorder: Recorder, clock: SteadyClock, keep: config.Capture) -> None:
    """Write what waits, and drop what is too old."""
    sweep_at = time.monotonic() + SWEEP_AGAIN_S
    while True:
        await asyncio.sleep(TICK_S)
        recorder.catch_up(time.monotonic_ns() - LATE_NS)
        ledger.retry()
        if clock.strayed and recorder.idle:
            clock.set_right()
        if time.monotonic() >= sweep_at:
            more = ledger.sweep(time.time(), keep.keep_days * 86_400, keep.max_bytes)
            sweep_at = time.monotonic() + (SWEEP_AGAIN_S if more else SWEEP_EVERY_S)


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"kvtop recorder: {line}", file=sys.stderr, flush=True)


def _source(settings: config.Settings, clock: SteadyClock) -> Callable[[str], VllmSource]:
    from kvtop.model.metrics import wanted
    from kvtop.sources.url import normalise
    from kvtop.sources.vllm import VllmSource

    known: dict[str, config.Server] = {}
    for server in settings.server:
        with contextlib.suppress(UsageError):
            known[normalise(server.url)] = server

    def source(url: str) -> VllmSource:
        server = known.get(url)
        return VllmSource(
            server.url if server is not None else url,
            key=server.api_key if server is not None else lambda: None,
            timeout_s=settings.poll.metrics_timeout_s,
            max_bytes=settings.poll.metrics_max_bytes,
            wanted=wanted,
            clock=clock,
        )

    return source


def _store(path: Path) -> Callable[[], StoreLike]:
    def opened() -> StoreLike:
        from kvtop.capture.store.store import Store

        return Store.open(path, write=True)

    return opened


def _linker(recent: Iterable[Captured]) -> LinkerLike:
    from kvtop.capture.conversations.linker import Linker

    return Linker(recent)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvtop.capture.recorder.process")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--done-fd", type=int)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--tap", default="")
    arguments = parser.parse_args(argv)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)

    from kvtop.capture.conversations.agents import name_of

    settings = config.load().settings
    ledger = Ledger(_store(arguments.store), _linker, tap=arguments.tap, say=_say, mono=time.monotonic)
    clock = SteadyClock()
    sampler = Sampler(_source(settings, clock), mono=time.monotonic)
    recorder = Recorder(Desk(ledger.keep, sampler.begins, name_of, clock.at, say=_say), _say)
    done = Progress(arguments.done_fd).add if arguments.done_fd is not None else lambda _: None
    ledger.open()
    gc.freeze()  # what was imported need not be looked through again and again
    try:
        with socket.socket(fileno=arguments.fd) as sock:
            asyncio.run(record(sock, recorder, ledger, sampler, clock=clock, keep=settings.capture, done=done))
    except ValueError:
        _say("what the tap sent are no frames")
        return 1
    except Exception as error:  # noqa: BLE001  the tap starts another one; a traceback could hold what was said
        at = traceback.extract_tb(error.__traceback__)[-1]
        _say(f"ended by {type(error).__name__} at {Path(at.filename).name}:{at.lineno}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
