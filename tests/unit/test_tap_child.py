"""The recorder as a child of the tap: whatever hinders its start, it is tried again."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path

import pytest

from kvtop.capture.tap.child import Child
from kvtop.capture.tap.progress import Progress
from kvtop.capture.tap.reactor import Reactor


def test_what_a_recorder_says_of_its_store_is_told_and_taken_back() -> None:
    said = [
        "kvtop recorder: the store cannot be written: /d/turns.db cannot be written or read; turns wait for it",
        "kvtop recorder: the store is written again: 2 turns had waited",
        "the store cannot be written: of another one's words; turns wait for it",
        "kvtop recorder: the store cannot be written: locked; turns wait for it",
    ]
    script = f"import sys; print({chr(10).join(said)!r}, file=sys.stderr, flush=True); sys.stdin.read()"
    reactor, told = Reactor(), list[str | None]()
    child = Child(reactor, lambda fd, _: [sys.executable, "-c", script], lambda _: None)
    child.on_store = told.append
    started: list[socket.socket] = []
    child.on_start = lambda sock, _: started.append(sock)
    child.start()
    reactor.call_later(20.0, reactor.stop)

    def look() -> None:
        if told[-1:] == ["locked"]:
            reactor.stop()
        else:
            reactor.call_later(0.01, look)

    look()
    reactor.run()
    assert told == [None, "/d/turns.db cannot be written or read", None, "locked"]
    started[0].close()
    child.end(20.0, reactor.stop)
    reactor.run()
    reactor.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("what", ["socket.socketpair", "os.pipe", "subprocess.Popen"])
def test_one_that_finds_no_descriptor_is_started_later(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    reactor, notes, started = Reactor(), list[str](), list[socket.socket]()
    child = Child(reactor, lambda fd, _: [sys.executable, "-c", "import sys; sys.stdin.read()"], notes.append)

    def connected(sock: socket.socket, _: Progress | None) -> None:
        started.append(sock)
        reactor.stop()

    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    child.on_start = connected
    before = descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(what, none_left)
        child.start()
    assert (notes, descriptors()) == (["the recorder cannot be started: Too many open files"], before)
    reactor.call_later(20.0, reactor.stop)
    reactor.run()
    assert len(started) == 1
    started[0].close()
    child.end(20.0, reactor.stop)
    reactor.run()
    reactor.close()
