"""`kvtop tap` as its users start it, a client that sees every byte, and what of two answers has to be equal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from kvtop.capture.store.schema import NoStore
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured, Sample, TurnState

PATIENCE_S = 60.0


class Tap:
    """A tap that runs, with a home of its own."""

    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        self.home = home
        (record,) = json.loads(self.kvtop("tap", "--status", "--json").stdout)
        self.pid: int = record["pid"]
        self.store = Path(record["store"])

    def kvtop(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return kvtop(self.home, *arguments)

    async def captured(self, count: int, *, settled: bool = False) -> list[Captured]:
        """The newest turns, oldest first, once they have ended; `settled`: and the counters were read after that."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                rows = self._read(count)
                over = all(row.state is not TurnState.IN_FLIGHT for row in rows)
                if len(rows) == count and over and (not settled or all(after(row) for row in rows)):
                    return rows
                await asyncio.sleep(0.1)

    async def turns(self, count: int) -> list[dict[str, Any]]:
        """The same from `kvtop turns --json`."""
        await self.captured(count)
        done = await asyncio.to_thread(self.kvtop, "turns", "--last", str(count), "--json")
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows[::-1]

    async def in_flight(self) -> None:
        """Until the newest turn is one that goes on."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if [row.state for row in self._read(1)] == [TurnState.IN_FLIGHT]:
                    return
                await asyncio.sleep(0.05)

    def wait_for_recorder(self) -> None:
        """It is a second behind the tap, and the first thing that it does is to open the store."""
        until = time.monotonic() + PATIENCE_S
        while not self.store.exists():
            assert time.monotonic() < until, "there is no recorder"
            time.sleep(0.05)

    def recorder(self) -> psutil.Process:
        (child,) = psutil.Process(self.pid).children()
        return child

    def _read(self, count: int) -> list[Captured]:
        with suppress(NoStore), Store.open(self.store) as store:
            return [found for row in store.turns(last=count)[::-1] if (found := store.turn(row.id))]
        return []


def after(row: Captured) -> list[Sample]:
    """The looks at the counters after the turn's end."""
    return [sample for sample in row.samples if sample.at > (row.ended_at or 0.0)]


def kvtop(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvtop", *arguments]
    env = os.environ | {"KVTOP_HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=PATIENCE_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def tapping(upstream: str, home: Path) -> Iterator[Tap]:
    """A detached tap in front of that URL, stopped at the end unless it is gone."""
    listen = f"127.0.0.1:{free_port()}"
    done = kvtop(home, "tap", "--listen", listen, "--upstream", upstream, "--detach")
    assert (done.returncode, done.stdout) == (0, f"kvtop tap listens: http://{listen} -> {upstream}\n"), done.stderr
    tap = Tap(f"http://{listen}", home)
    try:
        tap.wait_for_recorder()
        yield tap
    finally:
        if psutil.pid_exists(tap.pid):
            stopped = kvtop(home, "tap", "--stop", "--drain", "1")
            if stopped.returncode:
                with suppress(ProcessLookupError):
                    os.kill(tap.pid, signal.SIGKILL)
            assert stopped.returncode == 0, stopped.stderr


class Client:
    """One request on a connection of its own, as plain bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self.sent = sent
        self.data = bytearray()

    @classmethod
    async def ask(cls, url: str, path: str, body: dict[str, Any], mark: str = "") -> Client:
        target = urlsplit(url)
        reader, writer = await asyncio.open_connection(target.hostname, target.port)
        text = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: the-box:8000\r\nX-Mark: {mark}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        )
        client = cls(reader, writer, head.encode() + text)
        writer.write(client.sent)
        await writer.drain()
        return client

    async def until(self, mark: bytes) -> None:
        """Read until this has come. Raises ConnectionError after a reset, EOFError at an end before it."""
        async with asyncio.timeout(PATIENCE_S):
            while mark not in self.data:
                data = await self._reader.read(65536)
                if not data:
                    raise EOFError
                self.data += data

    async def rest(self) -> bytes:
        """Read to the end. Raises ConnectionError where it is a reset."""
        async with asyncio.timeout(PATIENCE_S):
            while data := await self._reader.read(65536):
                self.data += data
        self._writer.close()
        return bytes(self.data)

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._writer.transport.abort()


_TIMES = re.compile(rb'"(created|created_at|completed_at)":[0-9.]+')
_IDS = re.compile(rb'"(chatcmpl-tool|chatcmpl|cmpl|resp|msg|fc|call)[-_][0-9a-f]{16}"')


def head_and_body(raw: bytes) -> tuple[list[bytes], bytes]:
    """The lines of the head, and the body without its chunks' sizes."""
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if b"transfer-encoding: chunked" not in lines:
        return lines, body
    whole = bytearray()
    while True:
        size, _, body = body.partition(b"\r\n")
        n = int(size, 16)
        if not n:
            assert body == b"\r\n"
            return lines, bytes(whole)
        whole += body[:n]
        assert body[n : n + 2] == b"\r\n"
        body = body[n + 2 :]


def alike(raw: bytes) -> object:
    """What two answers to one request share. Of a stream the text is taken together: how many tokens go into one event
    is the server's mood."""
    lines, body = head_and_body(raw)
    head = [line for line in lines if not line.startswith(b"date: ")]
    body = _IDS.sub(rb'"\1"', _TIMES.sub(rb'"\1":0', body))
    if b"content-type: text/event-stream; charset=utf-8" not in lines:
        return head, body
    assert body.endswith(b"\n\n")
    text, events = [], []
    for block in body.split(b"\n\n")[:-1]:
        *names, data = block.split(b"\n")
        event = json.loads(data[6:]) if data.startswith(b"data: {") else data
        if isinstance(event, dict):
            piece, event = _without_text(event)
            text.append(piece)
        if event:
            events.append((names, event))
    return head, "".join(text), events


def _without_text(event: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """The text of an event, and the rest of it; None where it held nothing else."""
    event.pop("sequence_number", None)
    kind = str(event.get("type", ""))
    if kind.endswith(("_delta", ".delta")) and kind != "message_delta":
        delta = event["delta"]
        return delta if isinstance(delta, str) else str(delta.get("text", delta.get("partial_json"))), None
    for choice in event.get("choices", []):
        delta = choice.pop("delta", {"content": choice.pop("text", "")})
        calls = [call["function"] for call in delta.get("tool_calls", [])]
        piece = (delta.get("content") or "") + "".join(
            part for call in calls for part in (call.get("name", ""), call.get("arguments", ""))
        )
        kept = choice["finish_reason"] or "role" in delta
        return piece, event | {"role": delta.get("role")} if kept else None
    return "", event
