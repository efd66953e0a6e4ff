"""The user's own small files, read without ever waiting for one and without trusting its size or its form."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from kvtop.errors import keyless

_MAX_DOTS = 50
"""In one line of TOML. tomllib takes quadratic time for a key of many parts; no line of ours comes near."""


class Unusable(ValueError):
    """Why a file cannot be used, in one line; `str()` is that reason."""

    def __init__(self, what: str, fix: str = "mend the file", line: int | None = None) -> None:
        super().__init__(what)
        self.fix = fix
        self.line = line
        """From 1; None where that cannot be told."""


PATIENCE_S = 0.5
"""A lock that another program keeps for longer is done without."""
_TICK_S = 0.02


def opened(file: Path, flags: int) -> int:
    """A descriptor of a regular file, 0600 where it is made. What is none is refused and never waited for. Raises
    OSError."""
    handle = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(file))
    return handle


def identity(file: Path | str) -> str | None:
    """Of a regular file, whatever it is called by now; None where there is none."""
    try:
        found = Path(file).stat()
    except (OSError, ValueError):
        return None
    return f"{found.st_dev}:{found.st_ino}" if stat.S_ISREG(found.st_mode) else None


def lock(handle: int, file: Path, patience_s: float | None = None) -> None:
    """Alone with an opened file, until it is closed. `patience_s`: None is PATIENCE_S. Raises OSError where another
    program keeps it for longer: whoever held it for ever would hold kvtop for ever."""
    until = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise OSError(errno.EAGAIN, "another program keeps it locked", str(file)) from None
            time.sleep(_TICK_S)


def add_line(handle: int, line: bytes) -> None:
    """At the end of a file that was opened to append and is locked; also where whoever wrote last was killed within a
    line. Raises OSError."""
    size = os.fstat(handle).st_size
    torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
    os.write(handle, b"%b%b\n" % (b"\n" if torn else b"", line))


def read_start(file: Path, limit: int) -> tuple[bytes, int]:
    """(at most `limit` bytes from its beginning, mode bits) of a regular file.

    A pipe or a device is refused and never waited for. Raises OSError, and ValueError for what is no name of a file.
    """
    with _regular(file) as (handle, there):
        return _read(handle, limit), there.st_mode


def read_end(file: Path, limit: int) -> bytes:
    """At most `limit` bytes of the end of a file; see `read_start`."""
    with _regular(file) as (handle, there):
        os.lseek(handle, max(0, there.st_size - limit), os.SEEK_SET)
        return _read(handle, limit)


@contextmanager
def reading(file: Path) -> Iterator[IO[bytes]]:
    """A file to be read here and there; see `read_start`."""
    with _regular(file) as (handle, _), os.fdopen(handle, "rb", closefd=False) as opened:
        yield opened


@contextmanager
def _regular(file: Path) -> Iterator[tuple[int, os.stat_result]]:
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        there = os.fstat(handle)
        if stat.S_ISDIR(there.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        if not stat.S_ISREG(there.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(file))
        yield handle, there
    finally:
        os.close(handle)


def _read(handle: int, limit: int) -> bytes:
    data = bytearray()
    while len(data) < limit and (part := os.read(handle, limit - len(data))):
        data += part
    return bytes(data)


def read_toml(file: Path, limit: int) -> tuple[str, dict[str, Any]]:
    """The text of a TOML file of at most `limit` bytes, and what stands in it.

    Raises Unusable, and FileNotFoundError where there is none.
    """
    try:
        data, _ = read_start(file, limit + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unusable(f"cannot be read: {error.strerror or error}", "make it a file that you may read") from None
    if len(data) > limit:
        raise Unusable(f"larger than {limit // 1000} kB", "make it smaller")
    try:
        text = data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise Unusable("not UTF-8", "save it as UTF-8") from None
    return text, parse_toml(text)


def parse_toml(text: str) -> dict[str, Any]:
    """What stands in a TOML text. Raises Unusable, and nothing else; takes no longer than its length tells."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _MAX_DOTS and not _is_comment(line):
            raise Unusable(f"more than {_MAX_DOTS} dots in a line", "mend that line", number)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise Unusable("not TOML: nested too deeply") from None
    except ValueError as error:  # tomllib's, and int()'s for a number of thousands of digits
        what, line_number = _syntax(str(error))
        fix = "mend that line" if line_number else "mend the file"
        raise Unusable(f"not TOML: {what}", fix, line_number) from None


_UNCLOSED = "a quote that is not closed"
_OPEN_QUOTE = re.compile(r"""(?:Illegal|Found invalid) character '\\n'|Unterminated string|Expected "'+\"""")
"""How tomllib words that."""


def _is_comment(line: str) -> bool:
    """Surely one: with a quote in it, it may be the end of a text of several lines, with keys behind."""
    return line.lstrip(" \t").startswith("#") and not ('"' in line or "'" in line)


def _syntax(message: str) -> tuple[str, int | None]:
    """tomllib's message without its place, and the line."""
    what, _, where = message.partition(" (at ")
    line = re.match(r"line (\d+)", where)
    what = _UNCLOSED if _OPEN_QUOTE.fullmatch(what) else keyless(what[:1].lower() + what[1:])  # may quote a name
    if line:
        return what, int(line[1])
    return f"{what} at the end" if where and what != _UNCLOSED else what, None
