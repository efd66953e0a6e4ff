"""The notes that replays leave of what they asked: when, of which server, how many tokens; nothing of a prompt.

The counters of a server count a replay as they count an agent. Whoever reads them, in this process or another, finds
here which requests were kvtop's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvtop import paths
from kvtop.errors import printable
from kvtop.files import add_line, lock, opened, read_start
from kvtop.model.own import OwnRequest

MAX_BYTES = 200_000
"""Of the file: about a thousand requests. Beyond it the older half goes."""
_LATEST = 1e11
"""Unix time, far from now."""


def write(note: OwnRequest, path: Path | None = None, *, patience_s: float | None = None) -> None:
    """Append a note; a later one of the same id takes the place of the one before. `patience_s`: for another program
    that keeps the file locked. Raises OSError, also for what is no regular file."""
    path = path or paths.replays_file()
    paths.make_private(path.parent)
    handle = opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        lock(handle, path, patience_s)
        size = os.fstat(handle).st_size
        if size > MAX_BYTES:
            kept = os.pread(handle, MAX_BYTES // 2, size - MAX_BYTES // 2).partition(b"\n")[2]
            os.ftruncate(handle, 0)
            os.write(handle, kept)
        add_line(handle, msgspec.json.encode(note))
    finally:
        os.close(handle)


class Notes:
    """Leaves them; that it cannot is told once, in one line, and is no reason to stop."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told, self._failed = told, False

    def write(self, note: OwnRequest) -> None:
        """Never raises. What was waited for in vain once is not waited for again."""
        try:
            write(note, patience_s=0.0 if self._failed else None)
        except OSError as error:
            if not self._failed:
                why = f"{error.filename or paths.replays_file()}: {error.strerror or error}"
                self._told(f"{printable(why, 200)}: the dashboard cannot tell this replay from others' requests")
            self._failed = True


def read(path: Path | None = None) -> tuple[OwnRequest, ...]:
    """All that are noted, in the order in which they began; none where there is no file, or one that is not kvtop's.
    Raises OSError."""
    try:
        data, _ = read_start(path or paths.replays_file(), 2 * MAX_BYTES)
    except FileNotFoundError:
        return ()
    found: dict[str, OwnRequest] = {}
    for line in data.splitlines():
        try:
            note = msgspec.json.decode(line, type=OwnRequest)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if _possible(note):
            found[note.id] = note
    return tuple(sorted(found.values(), key=lambda one: one.began_at))


def _possible(note: OwnRequest) -> bool:
    """Its times are some that a calendar has, and no number is below nothing."""
    times = (note.began_at, note.ended_at or 0.0)
    tokens = (note.prompt_tokens or 0, note.cached_tokens or 0)
    return all(0 <= at < _LATEST for at in times) and min(tokens) >= 0
