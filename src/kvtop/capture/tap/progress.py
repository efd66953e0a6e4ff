"""How far a recorder has come, told to its tap through a page of memory: neither is woken for it."""

from __future__ import annotations

import contextlib
import mmap
import os

_BYTES = 8


class Progress:
    """Bytes that the recorder has read from its tap and worked through, since it was started."""

    def __init__(self, fd: int) -> None:
        """`fd` is of such a page, and stays the caller's. Raises OSError, ValueError where it is none."""
        self._count = memoryview(mmap.mmap(fd, _BYTES)).cast("Q")

    @property
    def bytes(self) -> int:
        return self._count[0]

    def add(self, size: int) -> None:
        self._count[0] += size


def page() -> int | None:
    """A descriptor for a new Progress, which is at 0; None where the system has none."""
    if not hasattr(os, "memfd_create"):
        return None
    fd = None
    try:
        fd = os.memfd_create("kvtop-progress")
        os.truncate(fd, _BYTES)
    except OSError:
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)
        return None
    return fd
