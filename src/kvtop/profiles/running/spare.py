"""Room on the disk for a keeper's last word.

A start may well be what fills the disk (weights, a compile cache); how it ended must be written all the same, or a
server that was ended in good order is told as one whose keeper was killed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from kvtop import paths
from kvtop.profiles.running import record
from kvtop.profiles.running.record import Record

ROOM_BYTES = 65_536
"""At least."""


class Spare:
    """A file as large as a record may become. Nothing is raised: without it a full disk takes the last word."""

    def __init__(self, name: str, begun: Record | None = None) -> None:
        """Keeps the room. `begun`: as it is at the beginning."""
        self._bytes = max(ROOM_BYTES, 2 * len(msgspec.json.encode(begun)))
        path = record.path_of(name)
        self._path: Path | None = path.with_name(f".{path.name}.last.{os.getpid()}")  # `record.tidy` knows such names
        self.why_not = ""
        """Why it could not be kept."""
        try:
            paths.make_private(path.parent)
            self._path.unlink(missing_ok=True)  # of a process that had this number before
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(handle, 0, self._bytes)
            finally:
                os.close(handle)
        except OSError as error:
            self.why_not = error.strerror or type(error).__name__
            self.drop()

    def write(self, state: Record) -> bool:
        """Make it the record. False: it could not be."""
        text = msgspec.json.encode(state)
        if self._path is None or len(text) > self._bytes:
            return False
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(handle, text, 0)  # before it is cut: over room that is there already
                os.ftruncate(handle, len(text))
            finally:
                os.close(handle)
            self._path.replace(record.path_of(state.name))
        except OSError:
            return False
        self._path = None
        return True

    def drop(self) -> None:
        """Give the room back."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        self._path = None
