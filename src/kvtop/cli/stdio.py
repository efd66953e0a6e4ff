"""The three standard streams, whatever the shell gave: closed ones, full ones, broken ones, ones of another charset."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sys
from collections.abc import Iterator

from kvtop.cli.table import cut
from kvtop.errors import UsageError

PIPE_STATUS = 128 + signal.SIGPIPE
"""What a shell reports of a program whose reader has gone."""
NO_TERMINAL = "the dashboard needs a terminal"


def prepare() -> None:
    """Give closed streams a place, so that no socket gets their number, and make output fit for any text."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # `–` in a charset without it, a file's name that is no text


def tell(text: str, end: str = "\n") -> None:
    """A line on stderr, if it can be written."""
    with contextlib.suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)


def draw(text: str) -> None:
    """In place of what was drawn before, on a terminal, as far as one line holds it. Empty: take it away."""
    tell(f"\r\x1b[K{cut(text, shutil.get_terminal_size().columns - 1)}", end="")


@contextlib.contextmanager
def meanwhile(text: str) -> Iterator[None]:
    """What goes on, for whoever waits at a terminal; it is gone afterwards."""
    if not sys.stderr.isatty():
        yield
        return
    draw(text)
    try:
        yield
    finally:
        draw("")


def outlive_terminal() -> None:
    """From now on the end of the terminal ends nothing: what was begun goes on, with nothing to read and nowhere to
    write. Not where that signal is ignored already."""
    theirs = [fd for fd in (0, 1, 2) if os.isatty(fd)]

    def alone(*_: object) -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in theirs:
            os.dup2(nowhere, fd)
        os.close(nowhere)

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, alone)


def agreed(question: str, nobody: str, fix: str) -> bool:
    """Whether a person at the terminal says yes. Raises UsageError, `nobody` and `fix`, where there is none to ask."""
    if not sys.stdin.isatty():
        raise UsageError(nobody, fix)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    # A loop that runs takes ctrl-c for itself, and tells nobody who reads a line.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except OSError:  # the terminal is gone
        return False
    finally:
        signal.signal(signal.SIGINT, before)


def finish() -> None:
    """Write out what stdout holds. Raises OSError where it cannot be."""
    sys.stdout.flush()


def give_up() -> None:
    """Forget what stdout holds: the end of the program would try, and complain, once more."""
    if sys.stdout is not sys.__stdout__:
        return  # the caller's own stream
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def need_terminal(instead: str) -> None:
    """Raises UsageError where the screen could not be drawn or its keys not be read. `instead`: what works there."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(NO_TERMINAL, instead)
    if not sys.stderr.isatty():
        what = f"{NO_TERMINAL} on stderr too: it draws there"
        print(f"kvtop: {what}")  # the error itself goes where nobody looks
        raise UsageError(what, instead)
    if os.environ.get("TERM") == "dumb":
        raise UsageError(f"{NO_TERMINAL} that can move its cursor, and TERM is dumb", instead)
