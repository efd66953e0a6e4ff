"""The recorder as a child of the tap: started, started again when it dies, ended."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
from collections.abc import Callable, Sequence
from time import monotonic

from kvtop.capture.tap.progress import Progress, page
from kvtop.capture.tap.reactor import IN, Reactor

Command = Callable[[int, int | None], Sequence[str]]
"""The program and its arguments, for the numbers of two descriptors: it reads frames from the first, and says in the
`Progress` of the second, where there is one, how far it has come."""
Start = Callable[[socket.socket, Progress | None], None]

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 10.0
_STEADY_S = 30.0
"""A recorder that lived this long counts as well: the next is started without much delay."""
_NICE = 10
_SEND_BUFFER = 256 * 1024
_LOOK_S = 0.02
_SAYS = b"kvtop recorder: "
"""How a line of its own begins. What else comes, a library's words, may hold what was said: they go nowhere."""
_LINE_BYTES = 4096
_LOST = re.compile(rb"(\d{1,12}) turns? lost: the store could not be written$")
"""Of a recorder that ends: `capture.recorder.ledger.lost_line`."""
_UNWRITTEN = re.compile(rb"the store cannot be written: (.{1,1000}); turns wait for it$")
_WRITTEN = b"the store is written again"
"""Of one that runs on: `capture.recorder.ledger`."""


class _Words:
    """What one recorder says on stderr, line by line into the tap's log: a detached tap has no other place for it."""

    def __init__(
        self, reactor: Reactor, fd: int, note: Callable[[str], None], store: Callable[[str | None], None]
    ) -> None:
        os.set_blocking(fd, False)
        self._reactor = reactor
        self._fd: int | None = fd
        self._note = note
        self._store = store
        self._rest = b""
        self.lost = 0
        """Turns that it could not write, by its last word."""
        reactor.add(fd, self, IN)

    def ready(self, _events: int) -> None:
        """It said something, or will say no more."""
        while self._fd is not None:
            try:
                data = os.read(self._fd, _LINE_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.give_up()
                return
            *lines, rest = (self._rest + data).split(b"\n")
            self._rest = rest[:_LINE_BYTES]
            for line in lines:
                if line.startswith(_SAYS):
                    if told := _LOST.match(line, len(_SAYS)):
                        self.lost = int(told[1])
                    elif told := _UNWRITTEN.match(line, len(_SAYS)):
                        self._store(told[1].decode(errors="replace"))
                    elif line.startswith(_WRITTEN, len(_SAYS)):
                        self._store(None)
                    self._note(f"recorder: {line[len(_SAYS) :].decode(errors='replace')}")

    def give_up(self) -> None:
        if self._fd is not None:
            self._reactor.remove(self._fd)
            os.close(self._fd)
            self._fd = None


class Child:
    """Keeps a recorder running."""

    def __init__(self, reactor: Reactor, command: Command, note: Callable[[str], None]) -> None:
        self.on_start: Start = lambda sock, _: sock.close()
        """Gets a new non-blocking socket to each recorder, and how far that one has come."""
        self.on_store: Callable[[str | None], None] = lambda _: None
        """Gets why a recorder cannot write its store, and None when it can again."""
        self._reactor = reactor
        self._command = command
        self._note = note
        self._process: subprocess.Popen[bytes] | None = None
        self._words: _Words | None = None
        self._started = 0.0
        self._delay_s = FIRST_DELAY_S
        self._running = False
        self._ending = False
        self.lost_turns = 0
        """That recorders which have ended could not write, as far as they said so."""

    def start(self) -> None:
        """If none runs. Raises nothing: a program that cannot be started is tried again later."""
        if self._running or self._ending:
            return
        if self._process is not None and self._process.poll() is None:
            self._reactor.call_later(_LOOK_S, self.start)  # killed, and not yet gone
            return
        self._reap()
        try:
            ours, hears, progress = self._spawn()
        except OSError as error:
            self._note(f"the recorder cannot be started: {error.strerror or error}")
            self._later()
            return
        self.on_store(None)  # it has not said anything yet
        self._words = _Words(self._reactor, hears, self._note, self.on_store)
        self._running = True
        self.on_start(ours, progress)

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

    def _spawn(self) -> tuple[socket.socket, int, Progress | None]:
        """Our end of the new process's socket, and of its stderr, and how far it has come. Raises OSError, and then
        leaves nothing open."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as unused, contextlib.ExitStack() as passed:
            unused.callback(ours.close)
            hears, says = os.pipe()
            unused.callback(os.close, hears)
            try:
                ours.setblocking(False)
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
                self._started = monotonic()
                done, progress = page(), None
                if done is not None:
                    passed.callback(os.close, done)
                    progress = Progress(done)
                # A group of its own: ctrl-c at the terminal is for the tap, which drains and then ends its recorder.
                self._process = subprocess.Popen(
                    list(self._command(theirs.fileno(), done)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=says,
                    pass_fds=(theirs.fileno(),) if done is None else (theirs.fileno(), done),
                    process_group=0,
                )
            finally:
                os.close(says)
            unused.pop_all()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICE)
        return ours, hears, progress

    def _later(self) -> None:
        self._reactor.call_later(self._delay_s, self.start)
        self._delay_s = min(self._delay_s * 2, LONGEST_DELAY_S)

    def _reap(self) -> None:
        process, self._process = self._process, None
        words, self._words = self._words, None
        if words is not None:
            words.ready(IN)  # the last of them
            self.lost_turns += words.lost
        if process is not None and process.returncode:
            how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit status {process.returncode}"
            self._note(f"the recorder ended ({how})" + ("" if self._ending else "; it is started again"))
