"""The recorder as a child of the tap: started, started again when it dies, ended."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from time import monotonic

from kvtop.capture.tap.reactor import Reactor

Command = Callable[[int], Sequence[str]]
"""The program and its arguments, for the number of the descriptor that it reads frames from."""

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 10.0
_STEADY_S = 30.0
"""A recorder that lived this long counts as well: the next is started without much delay."""
_NICE = 10
_SEND_BUFFER = 256 * 1024
_LOOK_S = 0.02


class Child:
    """Keeps a recorder running."""

    def __init__(self, reactor: Reactor, command: Command, note: Callable[[str], None]) -> None:
        self.on_start: Callable[[socket.socket], None] = socket.socket.close
        """Gets a new non-blocking socket to each recorder."""
        self._reactor = reactor
        self._command = command
        self._note = note
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._delay_s = FIRST_DELAY_S
        self._running = False
        self._ending = False

    def start(self) -> None:
        """If none runs. Raises nothing: a program that cannot be started is tried again later."""
        if self._running or self._ending:
            return
        if self._process is not None and self._process.poll() is None:
            self._reactor.call_later(_LOOK_S, self.start)  # killed, and not yet gone
            return
        self._reap()
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            self._started = monotonic()
            # A group of its own: ctrl-c at the terminal is for the tap, which drains and then ends its recorder.
            self._process = subprocess.Popen(
                list(self._command(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        except OSError as error:
            ours.close()
            self._note(f"the recorder cannot be started: {error.strerror or error}")
            self._later()
            return
        finally:
            theirs.close()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICE)
        self._running = True
        self.on_start(ours)

    def lost(self) -> None:
        """It hangs up, or takes nothing: end it for good, and start another."""
        self._running = False
        if self._process is not None:
            self._process.kill()
        if monotonic() - self._started > _STEADY_S:
            self._delay_s = FIRST_DELAY_S
        self._later()

    def end(self, within_s: float, then: Callable[[], None]) -> None:
        """Its socket was closed: wait for its end, kill it when that takes longer, and call `then`."""
        self._ending = True
        deadline = monotonic() + within_s

        def look() -> None:
            process = self._process
            if process is None or process.poll() is not None:
                self._reap()
                then()
                return
            if monotonic() > deadline:
                process.kill()
            self._reactor.call_later(_LOOK_S, look)

        look()

    def _later(self) -> None:
        self._reactor.call_later(self._delay_s, self.start)
        self._delay_s = min(self._delay_s * 2, LONGEST_DELAY_S)

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode:
            how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit status {process.returncode}"
            self._note(f"the recorder ended ({how})" + ("" if self._ending else "; it is started again"))
