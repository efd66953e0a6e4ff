"""`kvtop tap` with nothing stood in: the command, its detached process, its recorder and its store."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from rawtalk import Talk, connect, upstream
from tapstandin import free_ports

from kvtop import paths
from kvtop.capture.control import running
from kvtop.capture.store.schema import NoStore
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured, Record, TurnState

BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
ASK = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nUser-Agent: aider/1.0\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def kvtop(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "kvtop", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


@pytest.fixture
def port(own_home: Path) -> int:
    (port,) = free_ports(1)
    return port


def stays(done: threading.Event) -> Callable[[Talk], None]:
    """A server that begins a stream and goes on with it until `done`."""

    def server(talk: Talk) -> None:
        talk.until(ASK)
        talk.send(STREAM)
        done.wait(30)

    return server


def test_stop_says_which_turns_were_cut(port: int) -> None:
    done = threading.Event()

    with upstream(stays(done)) as box:
        began = kvtop("tap", "--map", f"{port}=http://127.0.0.1:{box.port}", "--detach", "--drain", "0.2")
        assert began.returncode == 0, began.stderr
        with connect(port) as talk:
            talk.send(ASK)
            talk.count(len(STREAM))
            peer = "{}:{}".format(*talk.sock.getsockname())
            ended = kvtop("tap", "--stop")
            talk.rest()
            assert talk.end == "reset"
        done.set()
    first, line = ended.stdout.splitlines()
    assert first == f"127.0.0.1:{port} ended: 1 open connection cut"
    said = rf"  cut: {peer} -> http://127\.0\.0\.1:{box.port}, \d+\.\d s after it asked; turn 1, chat by aider"
    assert re.fullmatch(said, line), line
    with Store.open(paths.turns_file()) as store:
        assert store.turn(1) is not None


def the_turn(*, in_flight: bool) -> Captured:
    """The first one, once it is, or is no more, in flight."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with contextlib.suppress(NoStore), Store.open(paths.turns_file()) as store:
            turn = store.turn(1)
            if turn is not None and (turn.state is TurnState.IN_FLIGHT) is in_flight:
                return turn
        time.sleep(0.02)
    raise AssertionError("it does not come")


@pytest.mark.parametrize("drain", [(), ("--drain", "0.1")])
def test_a_stream_that_the_stop_cut_has_its_end_and_its_time(port: int, drain: tuple[str, ...]) -> None:
    """With --drain a second signal ends the tap, which waits for nobody then."""
    done = threading.Event()

    with upstream(stays(done)) as box:
        kvtop("tap", "--map", f"{port}=http://127.0.0.1:{box.port}", "--detach", "--drain", "20" if drain else "0.2")
        with connect(port) as talk:
            talk.send(ASK)
            talk.count(len(STREAM))
            the_turn(in_flight=True)
            assert kvtop("tap", "--stop", *drain).returncode == 0
        done.set()
    turn = the_turn(in_flight=False)
    assert turn.duration_s is not None
    assert (turn.state, turn.error, turn.record) == (TurnState.CUT, "cut when the tap stopped", Record.COMPLETE)
    assert 0 < turn.duration_s < 20
    assert "cut when the tap stopped" in kvtop("turns").stdout


def test_of_a_stream_that_went_on_when_the_tap_was_killed_the_record_is_cut(port: int) -> None:
    done = threading.Event()

    with upstream(stays(done)) as box:
        kvtop("tap", "--map", f"{port}=http://127.0.0.1:{box.port}", "--detach")
        with connect(port) as talk:
            talk.send(ASK)
            talk.count(len(STREAM))
            the_turn(in_flight=True)
            (tap,) = running.alive()
            os.kill(tap.pid, signal.SIGKILL)
            turn = the_turn(in_flight=False)
        done.set()
    assert (turn.state, turn.ended_at, turn.record) == (None, None, Record.TRUNCATED)


def test_a_store_that_cannot_be_used_is_told_at_the_start_in_the_status_and_in_the_log(
    port: int, own_home: Path
) -> None:
    path = paths.turns_file()
    Store.open(path, write=True).close()
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 99")
    db.close()
    turns = kvtop("turns").stderr
    why = turns.splitlines()[0].removeprefix("kvtop: ")
    assert "was written by a newer kvtop" in why
    words = ("tap", "--map", f"{port}=http://127.0.0.1:9", "--detach", "--name", "mine")
    began = kvtop(*words)
    assert began.returncode == 0 and f"kvtop: nothing is recorded: {why}; update kvtop" in began.stderr
    assert f"  nothing is recorded: {why}; update kvtop" in kvtop("tap", "--status").stdout
    assert kvtop("tap", "--stop").returncode == 0
    log = (own_home / "state" / "taps" / "mine.log").read_text()
    assert f"warning nothing is recorded: {why}" in log
    assert f"recorder: the store cannot be written: {why}" in log
    named = kvtop(*words, "--store", str(path))
    assert (named.returncode, named.stderr) == (1, turns), "a file that was named is not left unused"


def test_turns_that_could_not_be_written_are_counted_at_the_end(port: int, own_home: Path) -> None:
    path = paths.turns_file()
    path.parent.mkdir(parents=True)
    path.mkdir()

    def server(talk: Talk) -> None:
        for n in (1, 2, 3):
            talk.until(ASK, n)
            talk.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

    with upstream(server) as box:
        kvtop("tap", "--map", f"{port}=http://127.0.0.1:{box.port}", "--detach", "--name", "mine")
        with connect(port) as talk:
            for _ in range(3):
                talk.send(ASK)
                talk.until(b"{}")
        ended = kvtop("tap", "--stop")
    assert f"\n  3 turns are not recorded whole: {path} could not be written\n" in ended.stdout
    log = (own_home / "state" / "taps" / "mine.log").read_text()
    assert "3 turns are not recorded whole" in log


def test_what_the_recorder_says_is_in_the_log_of_a_detached_tap(port: int, own_home: Path) -> None:
    path = paths.turns_file()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no database at all, but longer than the head of one would be: " * 20)
    with upstream(lambda _: None) as box:
        assert (
            kvtop("tap", "--map", f"{port}=http://127.0.0.1:{box.port}", "--detach", "--name", "mine").returncode == 0
        )
        assert kvtop("tap", "--stop").returncode == 0
    said = (own_home / "state" / "taps" / "mine.log").read_text()
    assert re.search(r" warning recorder: .*turns\.db\.broken-", said), said


@pytest.mark.parametrize("dies", [True, False])
def test_turns_that_a_standing_recorder_held_are_counted(port: int, dies: bool) -> None:
    """It is killed, or still stands when the tap is stopped."""

    def server(talk: Talk) -> None:
        talk.until(ASK)
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

    def ask(box_port: int) -> None:
        with connect(box_port) as talk:
            talk.send(ASK)
            talk.until(b"{}")

    with upstream(server) as box:
        kvtop("tap", "--map", f"{port}=http://127.0.0.1:{box.port}", "--detach")
        (tap,) = running.alive()
        ask(port)
        the_turn(in_flight=False)
        time.sleep(0.3)  # its connection's end comes after it
        (recorder,) = psutil.Process(tap.pid).children()
        recorder.suspend()
        for _ in range(4):
            ask(port)
        time.sleep(0.3)
        if dies:
            recorder.kill()
            until = time.monotonic() + 20
            while not (missed := running.alive()[0].missed) or not missed.connections:
                assert time.monotonic() < until
                time.sleep(0.05)
        ended = kvtop("tap", "--stop")
    assert re.search(r"nothing was cut; not recorded: [\d,]+ bytes, of 4 connections", ended.stdout), ended.stdout


def test_a_store_that_has_no_place_is_told_at_the_start(port: int) -> None:
    began = kvtop("tap", "--map", f"{port}=http://127.0.0.1:9", "--detach", "--store", "/proc/x/y")
    assert kvtop("tap", "--stop").returncode == 0
    assert began.returncode == 0
    assert "kvtop: nothing is recorded: /proc/x/y: No such file or directory; make it a file" in began.stderr
