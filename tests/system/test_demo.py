"""`kvtop demo` from outside."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from kvtop.capture.control import running
from kvtop.capture.control.running import Mapped, Running
from kvtop.cli.demo_watch import DemoWatch
from kvtop.cli.main import main
from kvtop.config import Settings
from kvtop.model.shown_turn import Turn
from kvtop.model.view import BoxView
from kvtop.readings import State
from kvtop.sim.server import SimBox
from kvtop.sim.tapped import Tapped
from kvtop.sim.thread import BoxThread


def test_headless_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--headless", "--seconds", "1"]) == 0
    out = capsys.readouterr().out
    told = json.loads(out)
    assert out.count("\n") == 1
    assert list(told) == ["scrapes", "turns", "share", "ttft_p50_s", "states"]
    assert told["scrapes"] >= 3
    assert told["turns"] > 100
    assert 0.7 < told["share"] < 1.0
    assert 0.3 < told["ttft_p50_s"] < 10.0
    assert told["states"] == ["up"]


def test_other_play_other_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--headless", "--seconds", "0.5", "--scenario", "clock", "--seed", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["share"] == 0.0


def test_help_lists_the_plays(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["demo", "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert "tier-restores" in out and "--headless" in out


@pytest.mark.parametrize(
    "args",
    [
        ["--scenario", "none"],
        ["--seconds", "3"],
        ["--headless", "--seconds", "-1"],
        ["--headless", "--seconds", "x"],
        [],
    ],
)
def test_wrong_use_is_exit_2_and_words(args: list[str]) -> None:
    # In a process of its own, without a terminal.
    ran = subprocess.run(
        [sys.executable, "-m", "kvtop", "demo", *args], capture_output=True, text=True, timeout=20, check=False
    )
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert "Traceback" not in ran.stderr and ran.stderr.strip()


def test_no_port_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("asyncio.start_server", refuse)
    assert main(["demo", "--headless"]) == 1
    assert capsys.readouterr().err == "kvtop: no port could be opened on 127.0.0.1: Too many open files\n"


def captured(box: BoxView) -> list[Turn]:
    return [turn for turn in box.server.turns if turn.captured] if box.server else []


def tier_seen(box: BoxView) -> bool:
    """What maps it is looked for after the host's other figures are told."""
    return box.host is not None and len(box.host.offload_files) == 1


async def test_the_taps_of_the_machine_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tapped = Tapped()
    thread = BoxThread(SimBox("tier-restores", tapped=tapped))
    url = await asyncio.to_thread(thread.start)
    ways = [Mapped("127.0.0.1:8001", "http://127.0.0.1:9000"), Mapped("127.0.0.1:8002", url)]
    taps = [
        Running(
            name=way.listen, pid=1, birth="x", since="2026-11-29T12:00:00Z", drain_s=30.0, store="/t", mappings=[way]
        )
        for way in ways
    ]
    monkeypatch.setattr(running, "alive", lambda: taps)
    watch = DemoWatch(thread, url, Settings(), tapped)
    told = asyncio.Event()
    task = asyncio.create_task(watch.run(told.set))
    try:
        async with asyncio.timeout(10.0):
            while not (watch.desk.taps and captured(watch.view("5m"))):
                told.clear()
                await told.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(thread.stop)
    assert list(watch.desk.taps) == taps
    assert watch.desk.listens(url) == ("127.0.0.1:8002",)


async def test_first_word_of_the_watch_knows_the_past() -> None:
    tapped = Tapped()
    thread = BoxThread(SimBox("tier-restores", tapped=tapped))
    watch = DemoWatch(thread, await asyncio.to_thread(thread.start), Settings(), tapped)
    first: list[BoxView] = []
    told = asyncio.Event()

    def changed() -> None:
        first.append(watch.view("5m"))
        told.set()

    assert watch.telling and watch.view("5m").server is not None
    watching = asyncio.create_task(watch.run(changed))
    try:
        async with asyncio.timeout(10.0):
            await told.wait()
            while first[-1].gpu is None or not tier_seen(first[-1]) or not captured(first[-1]):
                told.clear()
                await told.wait()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await asyncio.to_thread(thread.stop)
    server, box = first[0].server, first[-1]
    assert first[0].demo and server is not None and server.state is State.UP
    assert server.turns_total > 50
    known = [i for i, v in enumerate(server.running_chart.values) if v is not None]
    assert None not in server.running_chart.values[known[0] : known[-1]]
    assert box.gpu is not None and len(box.gpu.gpus) == 2
    assert box.host is not None and len(box.host.offload_files) == 1
    seen = captured(box)
    assert {turn.agent for turn in seen} == {"opencode", "Claude Code"} and len(seen) > 10
    assert all(turn.counted is not None for turn in seen if turn.state == "done"), "both tell of it: one row"
    assert box.server is not None and box.server.tap is not None and box.server.tap.listens == ()
    assert not any(turn.past_tap for turn in box.server.turns)
