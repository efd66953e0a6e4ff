"""A server's log file: opened for it, rotated behind its back, read from its end and as it grows.

The server writes into the file itself, with O_APPEND: nobody stands between whose death would end its output. So the
file cannot be moved aside; it is copied and emptied, and what is written between the last read and the cut is lost.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import re
import select
import stat
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvtop import paths
from kvtop.files import identity, reading
from kvtop.profiles.running.text import MAX_LINE, clean, is_poll, whole_lines
from kvtop.sources.births import outlived

_BLOCK = 1 << 16
_COPY = 1 << 20
_OURS = "kvtop"
"""kvtop.log is what --debug writes."""
_MOST_CHARACTERS = 100
POLLED_BYTES = 4_000_000
"""Of a log that is looked through for what is no poll: hours of them."""


def default(name: str, sidecar: str = "") -> Path:
    """Where a profile's log is, unless it says otherwise; or that of one of its sidecars. Each has one of its own: no
    name of a profile holds a +. Raises UsageError as `paths.state_dir`."""
    called = f"{_plain(name)}+{_plain(sidecar)}" if sidecar or name == _OURS else _plain(name)
    return paths.state_dir() / f"{called}.log"


def of_sidecars(name: str) -> set[str]:
    """The `identity` of the logs of all sidecars that a profile has or had."""
    first = default(name, "x")
    found = map(identity, first.parent.glob(f"{glob.escape(first.name.removesuffix('x.log'))}*.log"))
    return {one for one in found if one is not None}


def _plain(name: str) -> str:
    """As a file may be called; two names never become one."""
    made = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_MOST_CHARACTERS]
    if made == name:
        return made
    return f"{made}+{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def older(path: Path) -> Path:
    """Where the last rotation put what was there before."""
    return path.parent / f"{path.name}.1"


def open_log(path: Path, max_bytes: int) -> int:
    """A descriptor that appends; a log that is too large is rotated first. Raises OSError."""
    paths.make_private(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        os.set_blocking(fd, True)
        _tidy(path)
        with contextlib.suppress(OSError):  # nothing that is not rotated keeps a server from starting
            rotate(path, fd, max_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _tidy(path: Path) -> None:
    """Remove what keepers that were killed while they rotated left half written."""
    for file in path.parent.glob(f"{glob.escape(_fresh(path, ''))}*"):
        if outlived(file.name):
            with contextlib.suppress(OSError):
                file.unlink()


def _fresh(path: Path, pid: object) -> str:
    return f".{path.name}.1.{pid}"


def rotate(path: Path, fd: int, max_bytes: int) -> bool:
    """Where it has grown past `max_bytes`: copied to `older`, then emptied. Raises OSError, the log as it was."""
    size = os.fstat(fd).st_size
    if size <= max_bytes:
        return False
    fresh = path.with_name(_fresh(path, os.getpid()))
    fresh.unlink(missing_ok=True)
    try:
        copy = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            at = 0
            # No more than as much again: one that grows faster than it is copied would fill the disk.
            while at < 2 * size and (data := os.pread(fd, _COPY, at)):
                at += os.write(copy, data)
        finally:
            os.close(copy)
        fresh.replace(older(path))
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    os.ftruncate(fd, 0)
    return True


class FileTail:
    """What was written to a file since the last look."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._at = max(0, offset)
        self._inode = 0

    def read(self, limit: int = _COPY) -> bytes:
        """More of it; nothing where there is nothing new, or it cannot be read."""
        try:
            with reading(self._path) as file:
                facts = os.fstat(file.fileno())
                if facts.st_size < self._at or (self._inode and facts.st_ino != self._inode):
                    self._at = 0  # emptied, or another file
                self._inode = facts.st_ino
                file.seek(self._at)
                data = file.read(limit)
        except (OSError, ValueError):
            return b""
        self._at += len(data)
        return data

    @property
    def at(self) -> int:
        """Where in the file the next look begins."""
        return self._at

    def close(self) -> None:
        """Nothing is held open."""


class CommandTail:
    """What a command that follows a log has said since the last look. Raises OSError where it cannot be started."""

    def __init__(self, words: Sequence[str]) -> None:
        self.child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self.child.stdout is not None
        os.set_blocking(self.child.stdout.fileno(), False)

    def read(self, limit: int = _COPY) -> bytes:
        assert self.child.stdout is not None
        try:
            return os.read(self.child.stdout.fileno(), limit)
        except OSError:  # nothing there now
            return b""

    def wait(self, timeout_s: float | None = None) -> bytes | None:
        """What it says next, as soon as it does; nothing: that was all. None: it said nothing within that time."""
        assert self.child.stdout is not None
        ready, _, _ = select.select((self.child.stdout,), (), (), timeout_s)
        return self.read() if ready else None

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()


Tail = FileTail | CommandTail


def since(path: Path, offset: int, limit: int) -> bytes:
    """What stands in the log from `offset` on, of more than `limit` bytes their whole last lines; nothing if it cannot
    be read."""
    try:
        with reading(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = offset if offset <= size else 0
            begin = max(start, size - limit)
            file.seek(begin)
            return file.read(limit) if begin == start else whole_lines(file.read(limit))
    except (OSError, ValueError):
        return b""


def last_told(path: Path, count: int, upto: int | None = None, most: int = POLLED_BYTES) -> tuple[list[str], int]:
    """(the last lines up to the byte `upto`, or to the end, less those that only tell of polls; how many of these stood
    among them). No more than about `most` bytes are looked through, those of the older file too.

    Raises OSError where the log cannot be read.
    """
    found: deque[str] = deque()
    polls = seen = 0
    for text in _from_end(path, upto):
        seen += len(text) + 1
        if len(found) >= count or seen > most:
            break
        if is_poll(text):
            polls += 1
        else:
            found.appendleft(text)
    return list(found), polls


def last_lines(path: Path, count: int, holds: str = "", upto: int | None = None) -> list[str]:
    """The last lines up to the byte `upto`, or to the end; of those with the text `holds` in them whatever its case,
    and from the older file too where the new one has too few. Read backwards: a large log is not read whole, unless
    what is looked for is rare.

    Raises OSError where the log cannot be read.
    """
    found: deque[str] = deque()
    want = holds.casefold()
    for text in _from_end(path, upto):
        if len(found) >= count:
            break
        if not want or want in text.casefold():
            found.appendleft(text)
    return list(found)


def _from_end(path: Path, upto: int | None) -> Iterator[str]:
    """The lines of the log, then those of the older file, each last one first. Raises OSError."""
    for part in (path, older(path)):
        try:
            yield from map(clean, backwards(part, upto if part == path else None))
        except FileNotFoundError:
            if part == path:
                raise


def backwards(path: Path, upto: int | None = None) -> Iterator[bytes]:
    """The lines of a file up to the byte `upto`, or to the end, last one first; those longer than MAX_LINE in pieces.
    Raises OSError."""
    with reading(path) as file:
        at = os.fstat(file.fileno()).st_size
        if upto is not None:
            at = min(at, upto)
        size_of_all = at
        rest = b""
        first = True
        while at > 0:
            size = min(_BLOCK, at)
            at -= size
            file.seek(at)
            pieces = re.split(rb"\r\n|[\r\n]", file.read(size) + rest)
            rest = pieces[0]
            for piece in reversed(pieces[1:]):
                if first and not piece:
                    first = False
                    continue  # behind the last end of line there is nothing
                first = False
                yield piece
            while len(rest) > MAX_LINE:
                yield rest[-MAX_LINE:]
                rest = rest[:-MAX_LINE]
        if size_of_all:
            yield rest
