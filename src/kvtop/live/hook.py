"""The user's own command for a slow turn (`on_slow`): it gets the verdict as JSON on its standard input."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import selectors
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from kvtop.errors import printable
from kvtop.worker import Caller, Hangs

LOG = logging.getLogger("kvtop.live")

LASTS_S = 30.0
"""A command that takes longer is ended, with what it started."""
GRACE_S = 1.0
"""A command that runs when the dashboard ends has so long to end by itself; then it is ended, with what it started."""
KILLED_S = 0.3
"""After which what ignores SIGTERM is killed. Less than a signal waits for the end of kvtop (`kvtop.ui.terminal`)."""
WAITING = 8
"""Documents that wait for the one before; of more the oldest go."""
TAIL_BYTES = 2_000
"""Of what it wrote to its standard error: the end."""
PIPE_BYTES = 65_536
LOOK_S = 0.1
LEFT_S = 1.0
"""Reading what a command left in the pipe takes no longer."""


class Hook:
    """`run` until cancelled, which also ends the command that runs; `put` whenever there is something. One command at
    a time."""

    def __init__(self, command: str | Sequence[str], worker: Caller, failed: Callable[[str], None]) -> None:
        """`command`: words, or one text for the shell; empty: none. `failed` is told in one line, whenever it
        is another one than the last."""
        self._command = command
        self._worker, self._failed = worker, failed
        self._waiting: deque[bytes] = deque(maxlen=WAITING)
        self._there = asyncio.Event()
        self._told = ""
        self._child: subprocess.Popen[bytes] | None = None
        """The one that runs."""
        self._over = False

    def put(self, document: bytes) -> None:
        """Never blocks."""
        if self._command:
            self._waiting.append(document)
            self._there.set()

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self._over = True
            if (child := self._child) is not None:
                _let_end_beside(child)

    async def _run(self) -> None:
        while True:
            await self._there.wait()
            while self._waiting:
                document = self._waiting.popleft()
                try:
                    run = partial(ran, self._command, document, begun=self._begun)
                    wrong = await self._worker.call(run, 2 * LASTS_S)
                except (TimeoutError, Hangs):
                    wrong = "cannot be ended"
                except Exception as error:  # noqa: BLE001  the user's own command is no reason to end the dashboard
                    wrong = f"could not be started ({type(error).__name__})"
                if wrong:
                    self._say(f"on_slow {wrong}")
            self._there.clear()

    def _say(self, words: str) -> None:
        LOG.warning("%s", words)
        if words != self._told:
            self._told = words
            self._failed(words)

    def _begun(self, child: subprocess.Popen[bytes] | None) -> None:
        self._child = child
        if child is not None and self._over:
            _let_end_beside(child)


def ran(
    command: str | Sequence[str],
    document: bytes,
    lasts_s: float = LASTS_S,
    begun: Callable[[subprocess.Popen[bytes] | None], None] = lambda child: None,
) -> str:
    """Run it, and wait for it: in a session of its own, so that no key or signal of the terminal reaches it, and what
    it prints goes nowhere. What went wrong, in one line; empty: nothing. `begun` is told of its process, and at its end
    None."""
    try:
        child = subprocess.Popen(
            command if isinstance(command, str) else [str(Path(command[0]).expanduser()), *command[1:]],
            shell=isinstance(command, str),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        name = getattr(error, "filename", None)
        why = str(getattr(error, "strerror", None) or error)
        return f"could not be started: {printable(f'{name}: {why}' if isinstance(name, str) else why)}"
    assert child.stderr is not None
    tail = _Tail(child.stderr)
    child.stderr = None  # `communicate` would keep all of it
    begun(child)
    try:
        child.communicate(document, lasts_s)
    except subprocess.TimeoutExpired:
        _end(child)
        return f"took longer than {lasts_s:g} s and was ended"
    finally:
        begun(None)
        tail.close()
    if child.returncode == 0:
        return ""
    how = f"exit status {child.returncode}" if child.returncode > 0 else f"signal {-child.returncode}"
    said = tail.last_line()
    return f"failed: {how}{f': {said}' if said else ''}"


class _Tail:
    """The end of what a command writes to its standard error, read in a thread for as long as the command runs."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._kept = pipe, b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="kvtop-on_slow-said", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """What is in the pipe is read; who still holds its other end, which is none of the command, is not read on."""
        self._over.set()
        self._thread.join(LEFT_S)

    def last_line(self) -> str:
        """Cleaned."""
        return printable(self._kept.decode("utf-8", "replace").strip().rpartition("\n")[2])

    def _read(self) -> None:
        handle = self._pipe.fileno()
        os.set_blocking(handle, False)
        with self._pipe, selectors.DefaultSelector() as ready:
            ready.register(handle, selectors.EVENT_READ)
            left = 2 * PIPE_BYTES
            while left > 0 and (ready.select(LOOK_S) or not self._over.is_set()):
                try:
                    part = os.read(handle, PIPE_BYTES)
                except BlockingIOError:
                    continue
                if not part:
                    return
                self._kept = (self._kept + part)[-TAIL_BYTES:]
                left -= len(part) if self._over.is_set() else 0


def _let_end_beside(child: subprocess.Popen[bytes]) -> None:
    """In no daemon: the interpreter waits for it, however often whoever asked is cancelled meanwhile."""
    threading.Thread(target=_let_end, args=(child,), name="kvtop-on_slow-end").start()


def _let_end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    if child.returncode is None:
        _end(child, KILLED_S)


def _end(child: subprocess.Popen[bytes], patience_s: float = 1.0) -> None:
    """With all that is still in its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience_s)
    if child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.close()
