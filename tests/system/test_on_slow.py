"""The command for a slow turn, as a real process."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from kvtop.live import hook
from kvtop.live.hook import WAITING, Hook, ran
from kvtop.worker import Worker

T = TypeVar("T")

DOCUMENT = json.dumps({"turn": "812", "sentence": "it broke", "evidence": ["x" * 200_000]}).encode()


class Counting(Worker):
    """Tells how many commands were begun and how many have ended."""

    def __init__(self) -> None:
        super().__init__("on_slow")
        self.begun, self.ended = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def call(self, read: Callable[[], T], timeout_s: float) -> T:
        self.begun.release()
        try:
            return await super().call(read, timeout_s)
        finally:
            self.ended.release()


def script(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "hook.py"
    file.write_text(text)
    return [sys.executable, str(file)]


def test_it_gets_the_document_and_no_terminal(tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = script(
        tmp_path,
        "import os, sys\n"
        "text = sys.stdin.buffer.read()\n"
        "print('printed'); print('complained', file=sys.stderr)\n"
        f"open({str(told)!r}, 'wb').write(text)\n"
        f"open({str(told) + '.sid'!r}, 'w').write(f'{{os.getsid(0)}} {{os.getpid()}}')\n",
    )
    assert ran(command, DOCUMENT) == ""
    assert told.read_bytes() == DOCUMENT
    session, pid = (tmp_path / "told.sid").read_text().split()
    assert session == pid != str(os.getsid(0))


def test_a_text_is_the_shells(tmp_path: Path) -> None:
    assert ran(f"cat | wc -c > {tmp_path}/n", DOCUMENT) == ""
    assert (tmp_path / "n").read_text().strip() == str(len(DOCUMENT))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo first >&2; echo 'no\x1b[31m way' >&2; exit 3", r"failed: exit status 3: no\x1b[31m way"),
        ("exit 4", "failed: exit status 4"),
        ("kill -9 $$", "failed: signal 9"),
        (["/nowhere/at/all"], "could not be started: /nowhere/at/all: No such file or directory"),
        (["/"], "could not be started: /: Permission denied"),
        (["a\0b"], "could not be started: embedded null byte"),
    ],
)
def test_what_goes_wrong_is_one_line(command: str | list[str], said: str) -> None:
    assert ran(command, b"{}") == said


def test_one_that_reads_nothing_is_no_fault() -> None:
    assert ran("true", DOCUMENT) == ""


def test_one_that_leaves_something_running_is_not_waited_for(tmp_path: Path) -> None:
    command = f"sleep 60 & echo $! > {tmp_path}/pid"
    assert ran(command, b"{}", lasts_s=20) == ""
    os.kill(int((tmp_path / "pid").read_text()), 9)  # it lived


def test_one_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    command = f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/pid; while true; do sleep 0.1; done"
    assert ran(command, b"{}", lasts_s=2.0) == "took longer than 2 s and was ended"
    try:
        lives = os.pidfd_open(int((tmp_path / "pid").read_text()))
    except ProcessLookupError:
        return
    try:
        assert select.select([lives], [], [], 10)[0], "what it started lives on"
    finally:
        os.close(lives)


async def test_one_at_a_time_in_order_and_the_oldest_of_too_many_go(tmp_path: Path) -> None:
    told = tmp_path / "told"
    go = tmp_path / "go"
    command = f"while [ ! -e {go} ]; do sleep 0.02; done; cat >> {told}; echo >> {told}"
    failures: list[str] = []
    worker = Counting()
    made = Hook(command, worker, failures.append)
    running = asyncio.create_task(made.run())
    try:
        made.put(b"first")
        await worker.begun.acquire()
        for n in range(WAITING + 3):
            made.put(b"%d" % n)
        wanted = ["first", *map(str, range(3, WAITING + 3))]
        go.touch()
        async with asyncio.timeout(20):
            for _ in wanted:
                await worker.ended.acquire()
        assert told.read_text().split() == wanted
        assert failures == []
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_failure_is_told_once_and_all_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[str] = []
    worker = Counting()
    made = Hook("exit 7", worker, failures.append)
    running = asyncio.create_task(made.run())
    try:
        for _ in range(3):
            made.put(b"{}")
        async with asyncio.timeout(20):
            for _ in range(3):
                await worker.ended.acquire()
            await asyncio.sleep(0)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert caplog.messages == ["on_slow failed: exit status 7"] * 3
    assert failures == ["on_slow failed: exit status 7"]


async def test_another_failure_is_told_again(tmp_path: Path) -> None:
    failures: list[str] = []
    worker = Counting()
    command = f"echo x >> {tmp_path}/n; n=$(wc -l < {tmp_path}/n); echo bad >&2; exit $((n / 3 + 1))"
    made = Hook(command, worker, failures.append)
    running = asyncio.create_task(made.run())
    try:
        for _ in range(4):
            made.put(b"{}")
        async with asyncio.timeout(20):
            for _ in range(4):
                await worker.ended.acquire()
            await asyncio.sleep(0)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert failures == ["on_slow failed: exit status 1: bad", "on_slow failed: exit status 2: bad"]


ENDS = """
import asyncio, sys
from pathlib import Path
from kvtop.cli.ending import leave_if_busy
from kvtop.live.hook import Hook
from kvtop.worker import Worker

async def main():
    made = Hook(sys.argv[2], Worker("on_slow"), print)
    running = asyncio.create_task(made.run())
    made.put(b"{}")
    while not Path(sys.argv[1], "begun").exists():
        await asyncio.sleep(0.01)
    running.cancel()  # and once more by the end of the loop

asyncio.run(main())
leave_if_busy(0)
"""


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("trap 'touch {0}/told; exit' TERM; touch {0}/begun; while :; do sleep 0.05; done", {"begun", "told"}),
        ("trap '' TERM; touch {0}/begun; while :; do sleep 0.05; done", {"begun"}),
        ("touch {0}/begun; sleep 0.4; touch {0}/finished", {"begun", "finished"}),
    ],
    ids=["term", "kill", "grace"],
)
def test_one_that_runs_when_the_dashboard_ends_does_not_outlive_it(
    tmp_path: Path, command: str, left: set[str]
) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    try:
        command = f"exec 9>{held}; {command.format(tmp_path)}"
        subprocess.run([sys.executable, "-c", ENDS, str(tmp_path), command], check=True, timeout=20)
        assert os.read(reader, 1) == b"", "nobody holds it open any more"
    finally:
        os.close(reader)
    assert {file.name for file in tmp_path.iterdir()} == left | {"held"}


async def test_without_a_command_nothing_is_kept() -> None:
    made = Hook("", Worker("on_slow"), lambda words: None)
    made.put(b"{}")
    assert not made._waiting
    assert hook.LASTS_S == 30.0


def test_a_flood_of_complaints_fills_neither_the_disk_nor_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(*args: object, **more: object) -> None:
        raise AssertionError("a file was made")

    monkeypatch.setattr(tempfile, "TemporaryFile", no_file)
    kept: list[int] = []
    read = hook.os.read

    def counted(handle: int, size: int) -> bytes:
        part = read(handle, size)
        kept.append(len(part))
        return part

    monkeypatch.setattr(hook.os, "read", counted)
    flood = "head -c 20000000 /dev/zero | tr '\\0' 'x' >&2; echo >&2; echo 'the end' >&2; exit 3"
    assert ran(flood, b"{}") == "failed: exit status 3: the end"
    assert sum(kept) == 20_000_000 + len("\nthe end\n") and max(kept) <= hook.PIPE_BYTES


def test_who_outlives_the_command_and_holds_its_standard_error_holds_nothing_up(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    command = f"setsid sh -c 'echo $$ > {told}; exec sleep 60' & while ! test -s {told}; do sleep 0.01; done; "
    command += "echo no >&2; exit 5"
    began = time.monotonic()
    assert ran(command, b"{}") == "failed: exit status 5: no"
    assert time.monotonic() - began < 10
    os.kill(int(told.read_text()), signal.SIGKILL)
