"""Starting a tap as a process of its own, with a log. Its parent learns over a pipe that it listens, or why not."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvtop import paths
from kvtop.capture.control import running
from kvtop.capture.control.plan import Leg
from kvtop.capture.control.running import Mapped
from kvtop.errors import KvtopError

READY_S = 20.0
LOG_BYTES = 256_000
"""A log of this size is moved aside as NAME.log.1; what was there is gone."""

PROGRAM: tuple[str, ...] = (sys.executable, "-P", "-m", "kvtop")
"""-P: the folder that a tap is started in is no place to import from."""


class Ready(msgspec.Struct, omit_defaults=True):
    """What the child says."""

    mappings: list[Mapped] = []
    problem: str = ""
    """It runs, but something is not as it should be."""
    what: str = ""
    """Why it does not run."""
    fix: str = ""


@dataclass(frozen=True)
class Started:
    """A tap that listens."""

    mappings: list[Mapped]
    pid: int
    log: Path
    problem: str
    """What is not as it should be, though it runs; empty where nothing is."""
    child: subprocess.Popen[bytes]


def start(name: str, ways: Sequence[Leg], *, store: Path | None, drain_s: float, allow_remote: bool = False) -> Started:
    """Start the child and wait until it listens. Raises KvtopError, with the child's reason, where it does not.

    It goes on when its parent ends. A parent that lives on is left to take notice of its end (`child.wait`).
    """
    log = running.log_path(name)
    command = [*PROGRAM, "tap", "--name", name, "--drain", str(drain_s)]
    command += ["--no-record"] if store is None else ["--store", str(store)]
    command += ["--allow-remote"] if allow_remote else []
    for way in ways:
        command += ["--map", way.as_map]
    receive, send = os.pipe()
    with os.fdopen(receive, "rb", buffering=0) as pipe:
        try:
            with _log_file(log) as output:
                child = subprocess.Popen(
                    [*command, "--ready-fd", str(send)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(send,),
                    cwd="/",
                    env=paths.child_environment(),
                    start_new_session=True,
                )
        finally:
            os.close(send)
        try:
            said = _heard(pipe.fileno())
        except BaseException:
            child.kill()
            child.wait()
            raise
    if not said.mappings:
        child.kill()
        child.wait()
        raise KvtopError(said.what or "the tap did not start", said.fix or f"its log: {log}")
    return Started(said.mappings, child.pid, log, said.problem, child)


def _heard(pipe: int) -> Ready:
    """What the child said; nothing where it died or is silent for too long."""
    text = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while poll.poll(READY_S * 1000):
        piece = os.read(pipe, 65536)
        text += piece
        if not piece or text.endswith(b"\n"):
            break
    else:
        return Ready(what=f"the tap did not listen within {READY_S:g} s")
    try:
        return msgspec.json.decode(text, type=Ready)
    except msgspec.MsgspecError:
        return Ready()


@contextlib.contextmanager
def _log_file(path: Path) -> Iterator[int]:
    """The log, open for what the child says before it has a logger. Raises KvtopError."""
    try:
        paths.make_private(path.parent)
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            if found.st_size > LOG_BYTES:
                path.replace(path.with_name(f"{path.name}.1"))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        what = f"{error.filename or path}: {error.strerror or error}"
        raise KvtopError(what, "a detached tap writes its log there; without --detach it needs none") from None
    try:
        yield handle
    finally:
        os.close(handle)
