"""The first bytes of a store, read without SQLite: whose file it is. The tap, which opens no database, looks here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from kvtop.errors import KvtopError, printable
from kvtop.files import read_start
from kvtop.paths import turns_file

APPLICATION_ID = 0x6B767470
"""'kvtp' in the header of the file."""
VERSION = 1
"""Of the file: the newest that this kvtop knows."""

_BYTES = 100
_MAGIC = b"SQLite format 3\0"


class StoreError(KvtopError):
    """The captured turns cannot be read or written: which file, why, and what to do."""


class NoStore(StoreError):
    """There is none yet."""


class Header(NamedTuple):
    """Of a database, as its own file has it; what stands in its -wal file alone is not seen."""

    database: bool
    """Of SQLite."""
    application: int
    version: int
    changes: int
    """Of its tables; 0: it has none."""

    @property
    def ours(self) -> bool:
        return self.application == APPLICATION_ID


def foreign(path: Path) -> StoreError:
    return StoreError(
        f"{printable(str(path), 300)} is a database of another program", "move it away, or set KVTOP_HOME elsewhere"
    )


def newer(path: Path, version: int, known: int = VERSION) -> StoreError:
    return StoreError(
        f"{printable(str(path), 300)} was written by a newer kvtop (version {version} of the file; this kvtop "
        f"knows up to {known})",
        "update kvtop, or set KVTOP_HOME to another folder",
    )


def no_store(path: Path) -> StoreError:
    return StoreError(f"{printable(str(path), 300)} is no store of kvtop's", "name another file")


def may_move(path: Path, found: Header) -> bool:
    """It is kvtop's own, by its content or by its name: damaged, it is moved aside, and a new one is begun."""
    return found.ours or path.name == turns_file().name


def read(handle: int) -> Header:
    """Of an open file, from its beginning. Raises OSError."""
    return _parsed(os.pread(handle, _BYTES, 0))


def problem(path: Path) -> StoreError | None:
    """Why nothing can be recorded there, where the file's beginning tells; None says no more than that it does not."""
    try:
        start = read_start(path, _BYTES)[0]
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        name = printable(str(path), 300)
        return StoreError(f"{name}: {printable(reason)}", "make it a file, in a folder, that you may read and write")
    found = _parsed(start)
    if start and not found.database and not may_move(path, found):
        return no_store(path)
    if found.ours:
        return newer(path, found.version) if found.version > VERSION else None
    return foreign(path) if found.application or found.version or found.changes else None


def _parsed(data: bytes) -> Header:
    if len(data) < _BYTES or not data.startswith(_MAGIC):
        return Header(False, 0, 0, 0)
    changes, version, application = (int.from_bytes(data[at : at + 4], "big") for at in (40, 60, 68))
    return Header(True, application, version, changes)
