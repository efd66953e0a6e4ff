"""Saved /metrics texts, plain or gzipped: files, and what a shell's `<(command)` gives."""

from __future__ import annotations

import gzip
import io
import os
import select
import stat
import zlib
from pathlib import Path

from kvtop.errors import UsageError

MAX_BYTES = 64_000_000
"""Of one text, unpacked. A real one is below 1 MB."""

WRITER_S = 5.0
"""How long a named pipe may stay without a first byte: perhaps nobody writes to it. The pipe of a `<(command)` has a
writer, and may take as long as the command does."""

_CHUNK = 1 << 20


class Unreadable(UsageError):
    """A text that cannot be read; `why` is the reason alone."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"cannot read {name!r}: {why}")
        self.why = why


def read_text(name: str, *, files_only: bool = False) -> str:
    """The text of a file. Raises Unreadable where it cannot be read.

    It is opened once and read to its end once, so that a pipe will do. `files_only`: nothing but regular files.
    """
    try:
        raw = _read(name, files_only)
        if raw[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(raw)) as file:
                raw = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Unreadable(name, why) from None
    if len(raw) > MAX_BYTES:
        raise Unreadable(name, f"larger than {MAX_BYTES:,} bytes: no /metrics text is")
    return raw.decode("utf-8", "replace")


def _read(name: str, files_only: bool) -> bytes:
    """What the file holds, a byte over MAX_BYTES at most. Opening does not wait for a pipe's writer."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123  a descriptor has no path
        kind = os.fstat(descriptor).st_mode
        if files_only and not stat.S_ISREG(kind):
            raise ValueError("it is no regular file")
        if stat.S_ISFIFO(kind) and not _is_anonymous(descriptor):
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN | select.POLLHUP)
            if not waiting.poll(WRITER_S * 1000):
                raise ValueError(f"it is a pipe, and within {WRITER_S:g} s nobody wrote to it")
        os.set_blocking(descriptor, True)
        parts: list[bytes] = []
        size = 0
        while size <= MAX_BYTES and (part := file.read(_CHUNK)):
            parts.append(part)
            size += len(part)
    return b"".join(parts)


def _is_anonymous(descriptor: int) -> bool:
    """A pipe without a name, as a shell makes it."""
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("pipe:")
    except OSError:
        return False
