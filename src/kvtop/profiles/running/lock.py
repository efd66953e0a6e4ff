"""One start, switch or stop at a time: a lock on a file that says who holds it and for what.

The keeper inherits the lock from the command that started it and holds it until the server answers or has failed, so
that ctrl-c of the command does not open the door in the middle.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from types import TracebackType

import msgspec

from kvtop import files, paths
from kvtop.clock import iso
from kvtop.errors import KvtopError, printable
from kvtop.profiles.running import record

_MAX_BYTES = 4096
_PATIENCE_S = 0.06
"""For those who only see whether anybody has it (`held`)."""


class _Holder(msgspec.Struct):
    pid: int
    what: str
    """`starts qwen27`."""
    at: float
    fix: str = ""


class Busy(KvtopError):
    """Somebody else starts, stops or switches."""


class Lock:
    """Held from its making until `close`."""

    def __init__(self, what: str, fix: str = "") -> None:
        """`what`: for others, `starts qwen27`; `fix`: what they can do about it. Raises Busy, OSError."""
        file = paths.make_private(record.folder()) / "lock"
        try:
            self.fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.ENOSPC):
                raise
            self.fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # a server can be ended all the same
        try:
            files.lock(self.fd, file, _PATIENCE_S)
        except OSError as error:
            said = _said(self.fd)
            os.close(self.fd)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise Busy(*said) from None
        note(self.fd, what, fix)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def held() -> bool:
    """Whether anybody starts, stops or switches."""
    try:
        fd = os.open(record.folder() / "lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def note(fd: int, what: str, fix: str = "") -> None:
    """Say who holds the lock from now on: this process."""
    text = msgspec.json.encode(_Holder(os.getpid(), what, time.time(), fix))
    with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)


def _said(fd: int) -> tuple[str, str]:
    try:
        holder = msgspec.json.decode(os.pread(fd, _MAX_BYTES, 0), type=_Holder)
    except (OSError, msgspec.MsgspecError, ValueError):
        return "another kvtop starts or stops a server", "wait for it"
    what = f"kvtop (process {holder.pid}) {printable(holder.what, 120)}, since {iso(holder.at)}"
    return what, printable(holder.fix, 200) or "wait for it"
