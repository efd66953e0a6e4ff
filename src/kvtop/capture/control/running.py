"""The taps that run on this machine: one small file for each, and how one is ended.

A file outlives its tap: only the process says whether a tap runs. A process is told by its number and the moment at
which it began, so that another one that got the same number is never taken for it, and never gets a signal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import msgspec

from kvtop import paths
from kvtop.capture.tap.ended import Ended, Missed
from kvtop.files import lock, read_start
from kvtop.sources.births import birth, lives

STOP_GRACE_S = 5.0
"""How long a tap may take over its own drain, and after it was told a second time."""
_POLL_S = 0.05
_MAX_BYTES = 1_000_000
"""Of a tap's file."""
_BLOCK = 4096
"""A file that holds anything has this much of the disk."""


class Mapped(msgspec.Struct, frozen=True):
    """One way through a tap."""

    listen: str
    """host:port."""
    upstream: str
    """Base URL."""

    @property
    def line(self) -> str:
        return f"http://{self.listen} -> {self.upstream}"


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A tap, as its file has it."""

    name: str
    pid: int
    birth: str
    """When the process began, as the kernel counts: see `birth`."""
    since: str
    """ISO 8601 UTC."""
    mappings: list[Mapped]
    drain_s: float
    store: str | None = None
    """None: it records nothing."""
    log: str | None = None
    """None: it runs in the foreground."""
    missed: Missed | None = None
    """What its recorder was not given so far. None: it records nothing."""
    ended: Ended | None = None


class Taken(Exception):
    """A tap of that name runs."""

    def __init__(self, record: Running) -> None:
        super().__init__(record.name)
        self.record = record


def folder() -> Path:
    """Where the files are. Raises UsageError as `paths.state_dir`."""
    return paths.state_dir() / "taps"


def state_path(name: str) -> Path:
    return folder() / f"{quote(name, safe='')}.json"


def log_path(name: str) -> Path:
    return folder() / f"{quote(name, safe='')}.log"


def myself(name: str, mappings: list[Mapped], *, drain_s: float, store: Path | None, log: Path | None) -> Running:
    """The record of this process as a tap."""
    return Running(
        name=name,
        pid=os.getpid(),
        birth=birth(os.getpid()) or "",
        since=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        mappings=mappings,
        drain_s=drain_s,
        store=str(store) if store else None,
        log=str(log) if log else None,
        missed=Missed() if store else None,
    )


def claim(record: Running) -> None:
    """Write the record. Raises Taken where a tap of that name runs, OSError where it cannot be written."""
    paths.make_private(folder())
    with _locked():
        other = _read(state_path(record.name))
        if other is not None and other.pid != record.pid and lives(other.pid, other.birth):
            raise Taken(other)
        _write(record)


def ended(record: Running, ending: Ended) -> None:
    """Note how this process's tap ended, for whoever stops it. Raises OSError."""
    _change(record, ended=ending)


def missed(record: Running, what: Missed) -> None:
    """Note what this process's recorder was not given so far. Raises OSError."""
    _change(record, missed=what)


def _change(record: Running, **fields: object) -> None:
    with _locked():
        mine = _read(state_path(record.name))
        if mine is not None and (mine.pid, mine.birth) == (record.pid, record.birth):
            _write(msgspec.structs.replace(mine, **fields))


def alive() -> list[Running]:
    """The taps that run, oldest first. Files of those that do not are removed. Raises UsageError as `folder`."""
    if not folder().is_dir():
        return []
    found: list[Running] = []
    with contextlib.suppress(OSError), _locked():
        for path in sorted(folder().glob("*.json")):
            record = _read(path)
            if record is not None and lives(record.pid, record.birth):
                found.append(record)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()
    return sorted(found, key=lambda record: record.since)


def stop(record: Running, drain_s: float) -> tuple[bool, Ended | None]:
    """End a tap: tell it to drain, and after `drain_s` to cut what is left.

    (it is gone, what it said; None where it was gone before, or said nothing). Raises PermissionError where it is
    another user's.
    """
    with _Handle(record) as process:
        if process.signal(signal.SIGTERM) and not process.wait(drain_s):
            process.signal(signal.SIGTERM)  # the second one ends it at once
            if not process.wait(STOP_GRACE_S):
                return False, None
    with _locked():
        path = state_path(record.name)
        last = _read(path)
        if last is None or (last.pid, last.birth) != (record.pid, record.birth):
            return True, None
        path.unlink()
    return True, last.ended


class _Handle:
    """A hold on a tap's process: it cannot become another one between the look and the signal."""

    def __init__(self, record: Running) -> None:
        self._record = record
        self._fd: int | None = None

    def __enter__(self) -> _Handle:
        with contextlib.suppress(OSError):  # gone, or a kernel before 5.3: then its birth alone must do
            self._fd = os.pidfd_open(self._record.pid)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def signal(self, number: signal.Signals) -> bool:
        """Whether it was there to get the signal."""
        if not lives(self._record.pid, self._record.birth):
            return False
        try:
            if self._fd is None:
                os.kill(self._record.pid, number)
            else:
                signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            return False
        return True

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        if self._fd is not None:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        until = time.monotonic() + seconds
        while lives(self._record.pid, self._record.birth):
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_S)
        return True


def _read(path: Path) -> Running | None:
    try:
        return msgspec.json.decode(read_start(path, _MAX_BYTES)[0], type=Running)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


def _write(record: Running) -> None:
    path = state_path(record.name)
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)  # a pipe of that name would be waited for
    try:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(msgspec.json.encode(record))
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.is_file():
            raise
        _write_over(path, record)


def _write_over(path: Path, record: Running) -> None:
    """On a full disk, where the old text stands: that room is the file's already, up to the end of its block."""
    handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.fstat(handle).st_size
        room = max(size, _BLOCK)
        text = msgspec.json.encode(record)
        while len(text) > room and record.ended is not None and record.ended.cuts:
            cuts = record.ended.cuts[: len(record.ended.cuts) // 2]
            record = msgspec.structs.replace(record, ended=msgspec.structs.replace(record.ended, cuts=cuts))
            text = msgspec.json.encode(record)
        if len(text) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.pwrite(handle, text.ljust(size), 0)  # in one piece, blanks over what was longer: never a torn one
    finally:
        os.close(handle)


LOCKED_S = 5.0
"""Other kvtops are done with the folder long before."""


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Alone with the folder: whoever removes a dead tap's file does not remove a new one's. Raises OSError."""
    handle = os.open(folder() / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        lock(handle, folder() / ".lock", LOCKED_S)
        yield
    finally:
        os.close(handle)
