"""A tap of a few lines in place of `kvtop.capture.tap.process`: what starts, shows and ends taps is tested with it.

As a program it is `kvtop` with that stand-in: `python .../kvtop tap ...`, also for the process that it detaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from kvtop.capture.tap.door import Mapping
from kvtop.capture.tap.ended import Cut, Ended, Missed

SCRIPT = f"""import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import tapstandin
tapstandin.entry(__file__)
"""


def serve(
    mappings: Sequence[Mapping],
    *,
    store: Path | None,
    name: str,
    on_listening: Callable[[Sequence[tuple[str, int]]], None],
    drain_s: float = 30.0,
    note: Callable[[str], None] | None = None,
    tell: Callable[[Missed], None],
) -> Ended:
    """Takes connections and holds them open until their clients go. TAP_MISSED: has missed that, as JSON."""
    missed = msgspec.json.decode(os.environ.get("TAP_MISSED", "{}"), type=Missed)

    def listening(addresses: Sequence[tuple[str, int]]) -> None:
        on_listening(addresses)
        if missed != Missed():
            tell(missed)

    ended = asyncio.run(_serve(mappings, listening, drain_s))
    return msgspec.structs.replace(ended, missed=missed if store else None)


async def _serve(
    mappings: Sequence[Mapping], on_listening: Callable[[Sequence[tuple[str, int]]], None], drain_s: float
) -> Ended:
    if fault := os.environ.get("TAP_FAULT"):
        raise RuntimeError(fault)
    told, again, idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
    held: dict[asyncio.StreamWriter, tuple[str, float]] = {}
    served = 0
    idle.set()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        host, port = writer.get_extra_info("peername")
        held[writer] = f"{host}:{port}", time.time()
        idle.clear()
        with contextlib.suppress(OSError):
            while await reader.read(65536):
                pass
        writer.close()
        held.pop(writer, None)
        if not held:
            idle.set()

    def end() -> None:
        (again if told.is_set() else told).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    servers = [await asyncio.start_server(hold, one.listen_host, one.listen_port) for one in mappings]
    on_listening([(one.listen_host, one.listen_port) for one in mappings])
    await told.wait()
    for server in servers:
        server.close()
    waits = [asyncio.ensure_future(event.wait()) for event in (again, idle)]
    await asyncio.wait(waits, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
    now = time.time()
    cuts = [
        Cut(peer=peer, upstream=mappings[0].upstream_url, began_at=began, ran_s=now - began)
        for peer, began in held.values()
    ]
    for writer in held:
        writer.transport.abort()
    for wait in waits:
        wait.cancel()
    return Ended(cut=len(cuts), served=served, cuts=cuts)


def entry(script: str) -> None:
    """The program."""
    from kvtop.capture.control import detached
    from kvtop.cli import main

    sys.modules["kvtop.capture.tap.process"] = sys.modules[__name__]
    detached.PROGRAM = (sys.executable, "-P", script)
    main.entry()


def free_ports(number: int) -> list[int]:
    """Ports of the loopback that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Program:
    """Runs it, and ends what it left behind."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "kvtop"
        self.script.write_text(SCRIPT)
        self._children: list[subprocess.Popen[str]] = []

    def command(self, *args: str) -> list[str]:
        return [sys.executable, str(self.script), *args]

    def run(self, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*args),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, **(env or {})},
        )

    def start(self, *args: str) -> subprocess.Popen[str]:
        """In the foreground, once it has said its first line."""
        child = subprocess.Popen(self.command(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._children.append(child)
        assert child.stdout is not None
        self.first_line = child.stdout.readline()
        return child

    def close(self) -> None:
        from kvtop.capture.control import running

        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.communicate()
        for record in running.alive():
            os.kill(record.pid, signal.SIGKILL)


@contextlib.contextmanager
def program(folder: Path) -> Iterator[Program]:
    made = Program(folder)
    try:
        yield made
    finally:
        made.close()
