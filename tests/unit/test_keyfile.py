"""A key file is read beside the loop: a change is seen soon, a disk that hangs stops nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fixed_clock import FixedClock
from kvtop.config import Server, Settings
from kvtop.live import keyfile
from kvtop.live.factories import real
from kvtop.live.keyfile import KEPT_S, WithKeyFile
from kvtop.readings import Scrape, ServerFacts, SourceDown, State
from kvtop.worker import Worker


class Asked:
    """A server that notes the key of each request."""

    def __init__(self, key: Callable[[], str | None]) -> None:
        self.key = key
        self.keys: list[str | None] = []
        self.closed = False

    async def scrape(self) -> Scrape | SourceDown:
        self.keys.append(self.key())
        return SourceDown(State.REFUSED, "as the test says", 0.0)

    async def facts(self) -> ServerFacts | SourceDown:
        self.keys.append(self.key())
        return ServerFacts()

    async def aclose(self) -> None:
        self.closed = True


class Bench:
    def __init__(self, read: Callable[[], str | None]) -> None:
        self.clock = FixedClock()
        self.server: Asked
        self.source = WithKeyFile(self._made, read, Worker("key"), self.clock)

    def _made(self, key: Callable[[], str | None]) -> Asked:
        self.server = Asked(key)
        return self.server


async def test_the_first_request_has_the_key_and_a_change_is_seen_soon(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("old\n")
    reads: list[int] = []
    configured = Server("h:1", api_key_file=str(file))

    def read() -> str | None:
        reads.append(threading.get_ident())
        return configured.api_key()

    bench = Bench(read)
    for _ in range(5):
        await bench.source.scrape()
        await bench.source.facts()
    assert bench.server.keys == ["old"] * 10
    assert len(reads) == 1 and reads[0] != threading.get_ident()
    file.write_text("new\n")
    bench.clock.tick(KEPT_S)
    await bench.source.scrape()
    file.unlink()
    bench.clock.tick(KEPT_S)
    await bench.source.scrape()
    assert bench.server.keys[10:] == ["new", None]
    await bench.source.aclose()
    assert bench.server.closed


async def test_a_file_that_hangs_leaves_the_last_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyfile, "AGAIN_S", 0.01)
    gate, hangs = threading.Event(), False

    def read() -> str | None:
        if hangs:
            gate.wait(30)
        return "later" if hangs else "first"

    bench = Bench(read)
    await bench.source.scrape()
    hangs = True
    for _ in range(3):
        bench.clock.tick(KEPT_S)
        await asyncio.wait_for(bench.source.scrape(), 5)
    assert bench.server.keys == ["first"] * 4
    gate.set()
    async with asyncio.timeout(5):
        while bench.server.keys[-1] != "later":
            bench.clock.tick(KEPT_S)
            await bench.source.scrape()
            await asyncio.sleep(0)


async def test_without_a_key_nothing_is_asked_and_why_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyfile, "FIRST_S", 0.01)
    gate = threading.Event()

    def read() -> str | None:
        gate.wait(30)
        return "key"

    bench = Bench(read)
    for _ in range(2):
        answer = await asyncio.wait_for(bench.source.scrape(), 5)
        assert isinstance(answer, SourceDown) and answer.state is State.UNAUTHORIZED
        assert answer.cause.startswith("the configured API key cannot be read: ")
        bench.clock.tick(KEPT_S)
    assert bench.server.keys == []
    gate.set()
    async with asyncio.timeout(5):
        while not bench.server.keys:
            bench.clock.tick(KEPT_S)
            await bench.source.scrape()
            await asyncio.sleep(0)
    assert bench.server.keys == ["key"]


def test_only_a_key_in_a_file_takes_this_way() -> None:
    made = real(Settings(), FixedClock()).server
    assert isinstance(made("h:1", Server("h:1", api_key_file="/x")), WithKeyFile)
    for other in (None, Server("h:1"), Server("h:1", api_key_env="KEY", api_key_file="/x")):
        assert not isinstance(made("h:1", other), WithKeyFile)
