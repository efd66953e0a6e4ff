"""Run a program in a terminal of a given size and measure it from outside: time to a text on screen, CPU, memory."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import psutil

ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])")
"""Control sequences: what is left of the output when they are taken out is the text that was drawn."""


class Terminal:
    """A program in a pseudo-terminal that takes everything it writes, and nothing else."""

    def __init__(self, command: Sequence[str], width: int, height: int) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TMUX", "NO_COLOR", "COLUMNS", "LINES"))}
        env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.written = 0
        self._tail = b""
        self._wanted: bytes | None = None
        self._seen = threading.Event()
        self.seen_at: float | None = None
        self.started_at = time.perf_counter()
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            # The child has its size before the program runs: nothing is drawn twice.
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
            os.execvpe(command[0], list(command), env)
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            os.kill(self.pid, sign)
            end = time.monotonic() + 3
            while time.monotonic() < end:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    os.close(self._master)
                    return
                time.sleep(0.02)

    def expect(self, text: str) -> None:
        """Note when this text was first drawn. Call before entering."""
        self._wanted = text.encode()

    def _read(self) -> None:
        while True:
            select.select([self._master], [], [])
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:
                return
            now = time.perf_counter()
            if not data:
                return
            self.written += len(data)
            if self._wanted is not None and self.seen_at is None:
                self._tail = self._tail[-(1 << 16) :] + data
                if self._wanted in ESCAPES.sub(b"", self._tail):
                    self.seen_at = now
                    self._seen.set()

    def wait(self, timeout_s: float) -> float:
        """Seconds from the start of the program to the expected text."""
        if not self._seen.wait(timeout_s):
            drawn = ESCAPES.sub(b"", self._tail).decode(errors="replace")[-2000:]
            raise TimeoutError(f"{self._wanted!r} did not appear in {timeout_s} s; drawn: {drawn}")
        assert self.seen_at is not None
        return self.seen_at - self.started_at

    def cpu_s(self) -> float:
        """User and system seconds of the program so far, with its children, those that ended included."""
        total = 0.0
        for process in self._tree():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system + times.children_user + times.children_system
        return total

    def rss_bytes(self) -> int:
        total = 0
        for process in self._tree():
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    def _tree(self) -> list[psutil.Process]:
        root = psutil.Process(self.pid)
        return [root, *root.children(recursive=True)]
