"""The notes that replays leave of what they asked: when, of which server, how many tokens; nothing of a prompt.

The counters of a server count a replay as they count an agent. Whoever reads them, in this process or another, finds
here which requests were kvtop's own.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

from kvtop import paths
from kvtop.files import read_start
from kvtop.model.own import OwnRequest

MAX_BYTES = 200_000
"""Of the file: about a thousand requests. Beyond it the older half goes."""


def write(note: OwnRequest, path: Path | None = None) -> None:
    """Append a note; a later one of the same id takes the place of the one before. Raises OSError."""
    path = path or paths.replays_file()
    paths.make_private(path.parent)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        if size > MAX_BYTES:
            kept = os.pread(handle, MAX_BYTES // 2, size - MAX_BYTES // 2).partition(b"\n")[2]
            os.ftruncate(handle, 0)
            os.write(handle, kept)
        os.write(handle, msgspec.json.encode(note) + b"\n")
    finally:
        os.close(handle)


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
        found[note.id] = note
    return tuple(sorted(found.values(), key=lambda one: one.began_at))
