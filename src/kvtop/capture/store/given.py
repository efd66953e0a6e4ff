"""Verdicts that were given on captured turns, so that a list can name them without working each out again.

A file beside the store, 0600, a line for each: id, begin, kind. No word of a turn is in it. The last one on a turn
counts. A line ends with its turn when that is forgotten (`kvtop turns --forget`), and else when KEPT newer ones have
come. It is a convenience: what cannot be written or read is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from kvtop.files import add_line, lock, opened

KEPT = 2_000
"""Lines."""
_MOST_BYTES = 200_000
"""Beyond that the newest KEPT are left; no line is half as long as 100 bytes."""
_LINE = re.compile(r"(\d{1,15}) (\d{1,12}\.\d{1,9}) ([a-z_]{1,40})", re.ASCII)

Key = tuple[int, str]
"""Turn, by number and begin: in another store the numbers begin anew."""


def key(id: int, started_at: float) -> Key:
    """Under which the verdict on a turn is found; `started_at`: Unix time."""
    return id, f"{started_at:.6f}"


def file_of(store: Path) -> Path:
    """Where those of a store's turns are."""
    return store.with_name(f"{store.name}.verdicts")


def add(store: Path, id: int, started_at: float, verdict: str) -> None:
    """One was given. Raises OSError."""
    with _locked(file_of(store), os.O_RDWR | os.O_APPEND | os.O_CREAT) as fd:
        number, begin = key(id, started_at)
        add_line(fd, f"{number} {begin} {verdict}".encode("ascii", "replace"))
        if os.fstat(fd).st_size > _MOST_BYTES:
            _rewrite(fd, lambda lines: list(lines)[-KEPT:])


def read(store: Path) -> dict[Key, str]:
    """All of them. Never raises."""
    with suppress(OSError), _locked(file_of(store)) as fd:
        return {(int(found[1]), found[2]): found[3] for found in _lines(fd)}
    return {}


def forget(store: Path, ids: Sequence[int] | None) -> None:
    """Those on these turns; None: on all. Raises OSError."""
    file = file_of(store)
    if ids is None:
        file.unlink(missing_ok=True)
        return
    gone = set(ids)
    with suppress(FileNotFoundError), _locked(file, os.O_RDWR | os.O_APPEND) as fd:
        _rewrite(fd, lambda lines: [one for one in lines if int(one[1]) not in gone])


@contextmanager
def _locked(file: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Several processes write. Raises OSError, also for what is no regular file, and for one that another program keeps
    locked."""
    fd = opened(file, flags)
    try:
        lock(fd, file)
        yield fd
    finally:
        os.close(fd)


def _lines(fd: int) -> Iterator[re.Match[str]]:
    text = os.pread(fd, 2 * _MOST_BYTES, 0).decode("ascii", "replace")
    for line in text.split("\n"):
        if (found := _LINE.fullmatch(line)) is not None:
            yield found


def _rewrite(fd: int, chosen: Callable[[Iterable[re.Match[str]]], list[re.Match[str]]]) -> None:
    kept = "".join(f"{one[0]}\n" for one in chosen(_lines(fd)))
    os.ftruncate(fd, 0)
    os.write(fd, kept.encode())
