"""Saved /metrics texts, plain or gzipped: files, and what a shell's `<(command)` gives."""

from __future__ import annotations

import gzip
import io
import os
import select
import stat
import time
import zlib
from pathlib import Path

from kvtop.errors import UsageError

MAX_BYTES = 64_000_000
"""Of one text, unpacked. A real one is below 1 MB."""

PATIENCE_S = 5.0
"""How long a named pipe may stay without a first byte, since perhaps nobody writes to it, and anything else (a device,
a file of the system that grows) without a next one. The pipe of a `<(command)` has a writer, and may take as long as
the command does."""

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
        is_pipe = stat.S_ISFIFO(kind)
        patient = is_pipe and _is_anonymous(descriptor)
        parts: list[bytes] = []
        size = 0
        waited_since = time.monotonic()
        while size <= MAX_BYTES:
            # a descriptor that claims to be ready and gives nothing must not be asked for ever either
            left_s = None if patient else max(0.0, waited_since + PATIENCE_S - time.monotonic())
            part = file.read(_CHUNK) if _is_ready(descriptor, left_s) else None
            if part is None and left_s == 0.0:
                raise ValueError(_silence(is_pipe))
            if part is None:
                continue
            if not part:
                break
            parts.append(part)
            size += len(part)
            patient = patient or is_pipe
            waited_since = time.monotonic()
    return b"".join(parts)


def _is_ready(descriptor: int, within_s: float | None) -> bool:
    """Whether reading it would give something, or its end, within that time; None waits without a limit."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(waiting.poll(None if within_s is None else within_s * 1000))


def _silence(is_pipe: bool) -> str:
    what = "it is a pipe, and" if is_pipe else "it has no end:"
    return f"{what} within {PATIENCE_S:g} s nobody wrote to it"


def _is_anonymous(descriptor: int) -> bool:
    """A pipe without a name, as a shell makes it."""
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("pipe:")
    except OSError:
        return False
