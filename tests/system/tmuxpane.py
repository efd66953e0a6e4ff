"""A program in a real terminal: tmux with a server of its own, a fixed size, and waiting for what must appear."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pty
import shlex
import struct
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_SERIAL = itertools.count()

WAIT_S = 30.0
"""How long something may take to appear on a machine that runs other tests beside it."""


def _outside() -> dict[str, str]:
    """The environment without what belongs to the terminal of whoever runs the tests."""
    ours = ("TMUX", "TMUX_PANE", "COLUMNS", "LINES", "NO_COLOR", "COLORTERM")
    return {key: value for key, value in os.environ.items() if key not in ours}


class Pane:
    """`with Pane([...], 80, 24) as pane`: the command runs; leaving ends its tmux server and with it the command."""

    def __init__(self, command: Sequence[str | Path], width: int, height: int, **environment: str) -> None:
        self._socket = f"kvtop-{os.getpid()}-{next(_SERIAL)}"
        self._command = [str(word) for word in command]
        self._size = (width, height)
        self._environment = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | environment

    def __enter__(self) -> Self:
        width, height = self._size
        variables = [word for key, value in self._environment.items() for word in ("-e", f"{key}={value}")]
        self._folder = tempfile.TemporaryDirectory(prefix="kvtop-pane-")
        self._status = Path(self._folder.name) / "status"
        command = f"{shlex.join(self._command)}; echo $? > {shlex.quote(str(self._status))}"
        # The pane stays when the program ends, so that its last words can be read.
        self.tmux("start-server", ";", "set", "-g", "remain-on-exit", "on", ";", "set", "-g", "status", "off", ";",
                  "set", "-g", "default-terminal", "tmux-256color", ";", "set", "-g", "escape-time", "0", ";",
                  "new-session", "-d", "-x", str(width), "-y", str(height), *variables, command)  # fmt: skip
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.tmux("kill-server")
        self._folder.cleanup()

    def tmux(self, *arguments: str) -> str:
        """One tmux command to this pane's own server."""
        command = ["tmux", "-L", self._socket, "-f", os.devnull, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=_outside(), timeout=20).stdout

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def colours(self) -> str:
        """The screen with its escape sequences."""
        return self.tmux("capture-pane", "-p", "-e")

    def keys(self, *names: str) -> None:
        """Press keys, by tmux's names: 'q', 'Enter', 'C-c'."""
        self.tmux("send-keys", *names)

    def click(self, column: int, row: int) -> None:
        """A left click, as a terminal with SGR mouse reports sends it; the first cell is 1, 1."""
        self.tmux("send-keys", "-l", f"\x1b[<0;{column};{row}M\x1b[<0;{column};{row}m")

    def resize(self, width: int, height: int) -> None:
        self.tmux("resize-window", "-x", str(width), "-y", str(height))

    def dead(self) -> int | None:
        """The exit status of the program; None while it runs."""
        # tmux itself sometimes never learns the status of a program whose terminal closed first.
        try:
            return int(self._status.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def wait_for(self, *wanted: str, timeout_s: float = WAIT_S) -> str:
        """The first screen that shows all of these."""
        return self.wait_until(lambda screen: all(text in screen for text in wanted), repr(wanted), timeout_s)

    def wait_until(self, seen: Callable[[str], bool], what: str, timeout_s: float = WAIT_S) -> str:
        """The first screen for which `seen` holds; the last one is in the message of the failure."""
        end = time.monotonic() + timeout_s
        while True:
            screen = self.screen()
            if seen(screen):
                return screen
            status = self.dead()
            assert status is None, f"the program ended with {status} before {what}:\n{screen}"
            assert time.monotonic() < end, f"no {what} within {timeout_s:.0f} s:\n{screen}"
            time.sleep(0.05)

    def wait_dead(self, timeout_s: float = WAIT_S) -> int:
        """Wait for the end of the program; its exit status."""
        end = time.monotonic() + timeout_s
        while (status := self.dead()) is None:
            assert time.monotonic() < end, f"still running after {timeout_s:.0f} s:\n{self.screen()}"
            time.sleep(0.05)
        return status

    @contextlib.contextmanager
    def attached(self, width: int, height: int) -> Iterator[None]:
        """A person's terminal attached to the pane, which takes its size; detached at the end."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        command = ["tmux", "-L", self._socket, "attach"]
        client = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=_outside() | {"TERM": "xterm-256color"},
            close_fds=True,
        )
        os.close(slave)
        # A client whose terminal nobody reads cannot write its last words, and so it never ends.
        screen = threading.Thread(target=_drain, args=(master,), daemon=True)
        screen.start()
        try:
            end = time.monotonic() + WAIT_S
            while not self.tmux("list-clients").strip():
                assert client.poll() is None, "tmux attach ended"
                assert time.monotonic() < end, "no client attached"
                time.sleep(0.05)
            yield
            self.tmux("detach-client", "-s", self.tmux("display-message", "-p", "#{session_id}").strip())
            client.wait(timeout=20)
        finally:
            if client.poll() is None:
                client.kill()
                client.wait()
            screen.join(timeout=20)
            os.close(master)


def _drain(master: int) -> None:
    """Read a terminal until its last program has closed it."""
    with contextlib.suppress(OSError):
        while os.read(master, 65_536):
            pass
