"""A program on a pseudo-terminal whose other end the test holds: what it writes, how it leaves, what happens after."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

WAIT_S = 30.0


class PtyScreen:
    """`with PtyScreen([...]) as screen`: the program is the leader of a session on a terminal of 100x30."""

    def __init__(self, command: Sequence[str], *, ignore_hangup: bool = False, **environment: str) -> None:
        self._command = list(command)
        self._ignore_hangup = ignore_hangup
        self._environment = os.environ | {"TERM": "xterm-256color"} | environment
        self.written = b""

    def __enter__(self) -> Self:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.attributes = termios.tcgetattr(self.slave)
        ends = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        self.process = subprocess.Popen(self._command, env=self._environment, preexec_fn=self._lead, **ends)  # noqa: PLW1509
        return self

    def _lead(self) -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if self._ignore_hangup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.hang_up()

    def hang_up(self) -> None:
        """The terminal goes away, as when its window is closed."""
        for end in (self.slave, self.master):
            with contextlib.suppress(OSError):
                os.close(end)

    def read(self, seconds: float) -> None:
        """Take what the program writes, for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                self.written += os.read(self.master, 65_536)

    def press(self, keys: str) -> None:
        """Type these characters."""
        os.write(self.master, keys.encode())

    def wait_for(self, wanted: str) -> None:
        """Until the program has written this, sequences between the words aside."""
        end = time.monotonic() + WAIT_S
        while wanted.encode() not in self.written:
            assert time.monotonic() < end, f"no {wanted!r}: {self.written[-2000:]!r}"
            ended = self.process.poll() is not None  # asked first: its last words may still lie in the terminal
            self.read(0.05)
            assert not ended or wanted.encode() in self.written, f"ended before {wanted!r}: {self.written[-2000:]!r}"

    def wait_full(self) -> None:
        """Until the terminal takes no more of what the program writes, for as long as nobody reads."""
        end = time.monotonic() + WAIT_S
        refused = 0
        while refused < 30:  # a moment's refusal may be a write that goes on
            assert time.monotonic() < end, "the terminal still takes what is written"
            assert self.process.poll() is None, "ended before the terminal was full"
            refused = 0 if select.select([], [self.slave], [], 0)[1] else refused + 1
            time.sleep(0.01)

    def wait_end(self, within_s: float, *, reading: bool = True) -> int:
        """The exit status; the program has to end in that time. Not `reading`: nobody takes what it writes."""
        end = time.monotonic() + within_s
        while self.process.poll() is None:
            assert time.monotonic() < end, f"still running after {within_s} s"
            if reading:
                self.read(0.05)
            else:
                time.sleep(0.05)
        if reading:
            self.read(0.1)
        return self.process.returncode
