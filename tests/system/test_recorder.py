"""The recorder as a process: frames in over its descriptor, turns out, whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvtop.capture.tap.wire import HEADER, Kind, Opened

ANSWERS = Path(__file__).parents[1] / "fixtures" / "answers"
SECRET = "SeCrEt0123456789abcdef"

# The recorder over a store that is a file of JSON lines, each turn once with its bodies' sizes, as it was last.
CHILD = """
import json, pathlib, sys, types
import msgspec

class Store:
    def __init__(self, path):
        self.path, self.rows, self.bodies, self.notes = path, {}, {}, []
    @classmethod
    def open(cls, path, *, write=False):
        return cls(path)
    def _put(self, turn):
        self.rows[turn.id] = turn
        lines = [msgspec.json.encode({"turn": t, "bodies": self.bodies.get(n)}).decode() for n, t in self.rows.items()]
        self.path.write_text("\\n".join(lines))
    def begin(self, turn, body):
        number = len(self.rows) + 1
        self.bodies[number] = [len(body), None]
        self._put(msgspec.structs.replace(turn, id=number))
        return number
    def update(self, turn):
        self._put(turn)
    def finish(self, turn, body):
        self.bodies[turn.id][1] = len(body)
        self._put(turn)
    def adopt(self, tap):
        return 0
    def recent(self, limit):
        return []
    def sweep(self, now, keep_s, max_bytes):
        return 0
    def close(self):
        self.path.with_suffix(".closed").touch()

class Linker:
    def __init__(self, recent=()):
        pass
    def place(self, turn):
        return types.SimpleNamespace(conversation=None, parent=None, relation="first")
    def add(self, turn):
        pass
    update = add

def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made

module("kvtop.capture.store.store", Store=Store)
module("kvtop.capture.conversations.linker", Linker=Linker)
module("kvtop.capture.conversations.agents", UNKNOWN="unknown", name_of=lambda headers, hints, program: ("agent", None))
from kvtop.capture.recorder import process as recorder
sys.exit(recorder.main(sys.argv[1:]))
"""


class Child:
    def __init__(self, folder: Path) -> None:
        self.store = folder / "turns.db"
        self.log = folder / "log"
        ours, theirs = socket.socketpair()
        self.sock = ours
        with theirs, self.log.open("wb") as log:
            fd = str(theirs.fileno())
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD, "--fd", fd, "--store", str(self.store), "--tap", "t"],
                pass_fds=(theirs.fileno(),),
                stderr=log,
            )

    def frame(self, kind: Kind, data: bytes = b"", conn: int = 1) -> None:
        self.sock.sendall(HEADER.pack(conn, kind, time.monotonic_ns(), len(data)) + data)

    def open(self, upstream: str = "http://127.0.0.1:1") -> None:
        opened = Opened(upstream=upstream, listen="127.0.0.1:2", peer="127.0.0.1:3")
        self.frame(Kind.OPEN, msgspec.json.encode(opened))

    def rows(self) -> list[dict[str, object]]:
        try:
            text = self.store.read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines()]

    def row(self, state: str | None) -> dict[str, object]:
        """The only row, once it has that state; None for one that is left out, which is in flight."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                rows = self.rows()
            except ValueError:  # being written
                rows = []
            if rows and rows[0]["turn"].get("state") == state:  # type: ignore[attr-defined]
                return rows[0]
            time.sleep(0.02)
        raise AssertionError(f"no such row: {rows}; {self.log.read_text()}")

    def end(self) -> int:
        self.sock.close()
        return self.process.wait(30)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    made = Child(tmp_path)
    yield made
    made.sock.close()
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def ask() -> bytes:
    body = b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"stream":true}'
    lines = [
        f"POST /v1/chat/completions?key={SECRET} HTTP/1.1",
        "Host: a",
        f"Authorization: Bearer {SECRET}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def test_a_turn(child: Child, tmp_path: Path) -> None:
    child.open()
    child.frame(Kind.CLIENT, ask())
    child.row(None)
    child.frame(Kind.SERVER, (ANSWERS / "chat-stream-usage.http").read_bytes())
    row = child.row("done")
    turn = row["turn"]
    assert isinstance(turn, dict)
    assert (turn["prompt_tokens"], turn["cached_tokens"], turn["agent"]) == (427, 0, "agent")
    assert abs(turn["started_at"] - time.time()) < 60
    assert child.end() == 0
    assert child.store.with_suffix(".closed").exists()
    for file in tmp_path.iterdir():
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file


def test_what_is_open_when_the_tap_ends_is_finished_without_a_state(child: Child) -> None:
    child.open()
    child.frame(Kind.CLIENT, ask())
    child.frame(Kind.SERVER, (ANSWERS / "chat-stream-usage.http").read_bytes()[:600])
    child.row(None)
    assert child.end() == 0
    (row,) = child.rows()
    turn = row["turn"]
    assert isinstance(turn, dict)
    assert turn["state"] is None
    assert row["bodies"] is not None


def test_signals_that_end_the_tap_do_not_end_it_first(child: Child) -> None:
    child.open()
    child.frame(Kind.CLIENT, ask())
    child.row(None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child.process.pid, number)
    child.frame(Kind.SERVER, (ANSWERS / "chat-stream-usage.http").read_bytes())
    child.row("done")
    assert child.end() == 0


def test_what_are_no_frames_ends_it_with_a_line(child: Child) -> None:
    child.frame(99, b"no kind")  # type: ignore[arg-type]
    assert child.process.wait(30) == 1
    assert child.log.read_text() == "kvtop recorder: what the tap sent are no frames\n"
