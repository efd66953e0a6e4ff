"""The recorder as a child of the tap: whatever hinders its start, it is tried again."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path

import pytest

from kvtop.capture.tap.child import Child
from kvtop.capture.tap.reactor import Reactor


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("what", ["socket.socketpair", "os.pipe", "subprocess.Popen"])
def test_one_that_finds_no_descriptor_is_started_later(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    reactor, notes, started = Reactor(), list[str](), list[socket.socket]()
    child = Child(reactor, lambda fd: [sys.executable, "-c", "import sys; sys.stdin.read()"], notes.append)

    def connected(sock: socket.socket) -> None:
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
