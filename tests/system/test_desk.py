"""What the dashboard does when it is asked: a captured turn in full, and taps started and ended as processes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tapstandin import Program, free_ports, program

from kvtop.capture.control import detached, plan, running
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured, Part, Route, TurnState
from kvtop.errors import KvtopError, UsageError
from kvtop.live.desk import Desk
from kvtop.live.factories import StoreLike
from kvtop.live.taps import Taps
from kvtop.worker import Worker

UP = "http://127.0.0.1:8000"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "turns.db"


def desk_on(path: Path) -> tuple[Desk, Taps]:
    taps = Taps(running.alive, Worker("taps"), asyncio.sleep)

    def opened() -> StoreLike | None:
        return Store.open(path) if path.exists() else None

    return Desk(opened, taps, Worker), taps


def spoil(path: Path) -> None:
    path.write_bytes(b"no database at all, but long enough to be looked at" * 40)


async def test_a_turn_in_full_and_its_bodies(path: Path) -> None:
    outline = [Part("tool", 3, "a" * 16, name="edit")]
    turn = Captured(upstream=UP, route=Route.COMPLETIONS, started_at=1.0, request_bytes=9, outline=outline)
    with Store.open(path, write=True) as store:
        first = store.begin(turn, b'{"a": 1}')
        second = store.begin(replace(turn, conversation=f"c{first}", parent=first, relation="next"), b"{}")
        kept = store.turn(second)
        assert kept is not None
        answer = json.dumps({"choices": [{"text": "four"}]}).encode()
        store.finish(replace(kept, state=TurnState.DONE, ended_at=2.0), answer)
    desk, _ = desk_on(path)
    found = await desk.detail(second)
    assert found is not None
    assert (found.turn.id, found.turn.outline) == (second, outline)
    assert [piece.text for piece in found.answer] == ["four"]
    assert [one.id for one in found.siblings] == [second, first]
    assert await desk.bodies(second) == (b"{}", answer)
    assert await desk.bodies(first) == (b'{"a": 1}', None)
    assert await desk.detail(99) is None
    assert await desk.bodies(99) == (None, None)


async def test_without_a_store_there_is_no_turn_and_a_broken_one_is_an_error(path: Path) -> None:
    desk, _ = desk_on(path)
    assert await desk.detail(1) is None
    spoil(path)
    with pytest.raises(KvtopError):
        await desk.detail(1)


@pytest.fixture
def kvtop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    with program(tmp_path) as made:
        monkeypatch.setattr(detached, "PROGRAM", (sys.executable, "-P", str(made.script)))
        yield made


async def test_a_tap_is_started_on_a_free_port_seen_and_ended(
    kvtop: Program, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, up = free_ports(2)
    monkeypatch.setattr(plan, "_PORTS", (up, port))
    desk, taps = desk_on(path)
    looks = asyncio.Event()
    watching = asyncio.create_task(taps.run(looks.set))
    try:
        way = await desk.planned(f"http://127.0.0.1:{up}")
        assert way.listen == f"127.0.0.1:{port}", "not the server's own port"
        assert await desk.would(f"http://127.0.0.1:{up}") == way
        said = await desk.start(way)
        assert said.startswith(f"it listens on http://127.0.0.1:{port} (process ")
        async with asyncio.timeout(20):
            while not desk.taps:
                looks.clear()
                await looks.wait()
        [record] = desk.taps
        assert desk.listens(f"http://localhost:{up}") == (f"127.0.0.1:{port}",)
        assert taps.behind(f"http://127.0.0.1:{port}") == f"http://127.0.0.1:{up}"
        [row] = await desk.rows()
        assert (row.record, row.connections) == (record, 0)
        with pytest.raises(KvtopError, match="is taken by"):
            await desk.planned(f"http://127.0.0.1:{up}")
        assert await desk.stop(record) == f"127.0.0.1:{port} ended: no open connections cut"
        assert running.alive() == []
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_tap_that_does_not_start_says_why(kvtop: Program, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port, up = free_ports(2)
    monkeypatch.setattr(plan, "_PORTS", (port,))
    monkeypatch.setenv("TAP_FAULT", "as the test says")
    desk, _ = desk_on(path)
    way = await desk.planned(f"http://127.0.0.1:{up}")
    with pytest.raises(KvtopError, match="the tap ended with RuntimeError"):
        await desk.start(way)


async def test_a_server_of_another_host_gets_no_tap_from_here(path: Path) -> None:
    desk, _ = desk_on(path)
    with pytest.raises(UsageError, match="not an address of this machine's loopback"):
        await desk.planned("http://192.0.2.1:8000")
