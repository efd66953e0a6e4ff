"""This machine: memory, shared memory, the files of KV offload tiers in it, and the vLLM processes.

The tier's file is /dev/shm/vllm_offload_<engine>.mmap (vLLM 0.20.2 and later). Since 0.30 it is unlinked once mapped
and then stands only in the maps of vLLM's processes; a file that stays behind is the left-over of an older version.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from kvtop.clock import Clock, SystemClock
from kvtop.errors import printable
from kvtop.readings import HostReading, OffloadFile, VllmProcess
from kvtop.sources.processes import UNTOLD, ProcessTable

MAPS_YOUNG_S = 10.0
MAPS_S = 60.0
"""Seconds between two looks at the maps of a vLLM process younger and older than YOUNG_S: reading them takes a lock of
that process, and a tier is mapped once, at the start."""
YOUNG_S = 900.0

_PREFIX = "vllm_offload_"
_MAP = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+)\s+"
    rb"(\S*/vllm_offload_[^\n]*?)( \(deleted\))?$",
    re.MULTILINE,
)

_File = tuple[int, int]
"""Device and inode."""


@dataclass(slots=True)
class _Mapped:
    """A tier's file as one process maps it."""

    path: str
    bytes: int
    unlinked: bool


@dataclass(slots=True)
class _Visible:
    """A tier's file that has a name."""

    path: str
    """Fit to be shown."""
    bytes: int
    judged: bool
    """Whether this user may see who holds it."""
    shell_path: str
    """As a shell takes it; empty where it may not be removed: another user's."""


@dataclass(slots=True)
class _Maps:
    """What one process mapped at the last look; None: its maps may not be read."""

    at: float
    files: dict[_File, _Mapped] | None = field(default_factory=dict)


class HostSource:
    """Reads this machine, below `psutil.PROCFS_PATH`. `read` blocks for about a millisecond."""

    def __init__(self, clock: Clock | None = None, *, shm: Path = Path("/dev/shm")) -> None:
        self._clock = clock or SystemClock()
        self._shm = shm
        self._processes = ProcessTable()
        self._maps: dict[tuple[int, float | None], _Maps] = {}
        self._holders: tuple[float, set[_File]] | None = None
        self._listing: frozenset[_File] = frozenset()
        self._unmapped = False
        """At the last look a file had a name and no process: it may be about to be mapped."""
        # psutil warns of a field that this kernel does not tell; nobody can do anything about it, and a screen is up.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"psutil(\.|$)")

    def read(self) -> HostReading:
        """Everything now. What this machine does not tell is None."""
        total, available = self._memory()
        shm_total, shm_used = self._shm_room()
        table = self._processes.read()
        files, unreadable = self._offload(table.vllm)
        return HostReading(
            memory_total_bytes=total,
            memory_available_bytes=available,
            shm_total_bytes=shm_total,
            shm_used_bytes=shm_used,
            swap_used_bytes=self._swap(),
            pressure=self._pressure(),
            offload_files=files,
            processes=table.vllm,
            at=self._clock.wall(),
            processes_seen=table.seen,
            published_ports=table.published,
            taps=table.taps,
            unreadable_maps=unreadable,
        )

    def close(self) -> None:
        """Nothing is held open."""

    def _memory(self) -> tuple[int | None, int | None]:
        """Total, and what a program could still have without swapping."""
        try:
            memory = psutil.virtual_memory()
        except UNTOLD:
            return None, None
        return memory.total, memory.available

    def _swap(self) -> int | None:
        try:
            return psutil.swap_memory().used
        except UNTOLD:
            return None

    def _pressure(self) -> float | None:
        """Share of the last 10 s in which something waited for memory (PSI; not every kernel has it)."""
        try:
            text = Path(psutil.PROCFS_PATH, "pressure", "memory").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        match = re.search(r"^some avg10=([\d.]+)", text, re.MULTILINE)
        return float(match[1]) / 100 if match else None

    def _shm_room(self) -> tuple[int | None, int | None]:
        try:
            room = os.statvfs(self._shm)
        except OSError:
            return None, None
        return room.f_blocks * room.f_frsize, (room.f_blocks - room.f_bfree) * room.f_frsize

    def _offload(self, processes: Iterable[VllmProcess]) -> tuple[tuple[OffloadFile, ...], tuple[int, ...]]:
        on_disk = self._visible()
        listing = frozenset(on_disk)
        mapped, unreadable = self._mapped(processes, anew=self._unmapped or listing != self._listing)
        self._listing = listing
        self._unmapped = any(all(file not in files for files in mapped.values()) for file in on_disk)
        found: list[OffloadFile] = []
        for file, seen in on_disk.items():
            pids = tuple(sorted(pid for pid, files in mapped.items() if file in files))
            # A file of another user, or beside a vLLM that cannot be looked into, may well be in use.
            stale = not pids and seen.judged and not unreadable and file not in self._held_by_anybody()
            shell_path = seen.shell_path if stale else ""
            found.append(OffloadFile(seen.path, seen.bytes, mapped_by=pids, stale=stale, shell_path=shell_path))
        elsewhere: dict[_File, list[tuple[int, _Mapped]]] = {}
        for pid, files in mapped.items():
            for file, how in files.items():
                if file not in on_disk:
                    elsewhere.setdefault(file, []).append((pid, how))
        for users in elsewhere.values():
            first = users[0][1]
            size = max(how.bytes for _, how in users)
            pids = tuple(sorted(pid for pid, _ in users))
            found.append(OffloadFile(first.path, size, mapped_by=pids, unlinked=first.unlinked))
        return tuple(sorted(found, key=lambda tier: tier.path)), unreadable

    def _visible(self) -> dict[_File, _Visible]:
        """Tier files that have a name."""
        found: dict[_File, _Visible] = {}
        me = os.geteuid()
        try:
            with os.scandir(self._shm) as entries:
                for entry in entries:
                    if entry.name.startswith(_PREFIX):
                        status = entry.stat(follow_symlinks=False)
                        if not stat.S_ISREG(status.st_mode):
                            continue
                        found[(status.st_dev, status.st_ino)] = _Visible(
                            path=printable(entry.path, 300),
                            bytes=status.st_size,
                            judged=me in (0, status.st_uid),
                            shell_path=quoted(entry.path) if me in (0, status.st_uid) else "",
                        )
        except OSError:
            return found
        return found

    def _mapped(
        self, processes: Iterable[VllmProcess], anew: bool
    ) -> tuple[dict[int, dict[_File, _Mapped]], tuple[int, ...]]:
        """Tier files by the pid that maps them, and the pids whose maps may not be read."""
        now = self._clock.wall()
        known: dict[tuple[int, float | None], _Maps] = {}
        for process in processes:
            key = (process.pid, process.started_at)
            maps = self._maps.get(key)
            age = now - (process.started_at or now)
            if maps is None or anew or now - maps.at >= (MAPS_YOUNG_S if age < YOUNG_S else MAPS_S):
                maps = _Maps(now, self._read_maps(process.pid))
            known[key] = maps
        self._maps = known
        readable = {key[0]: maps.files for key, maps in known.items() if maps.files is not None}
        return readable, tuple(sorted(key[0] for key, maps in known.items() if maps.files is None))

    def _read_maps(self, pid: int) -> dict[_File, _Mapped] | None:
        try:
            text = Path(psutil.PROCFS_PATH, str(pid), "maps").read_bytes()
        except (ProcessLookupError, FileNotFoundError):  # it ends, or has ended since it was listed
            return {}
        except OSError:
            return None
        found: dict[_File, _Mapped] = {}
        for start, end, offset, major, minor, inode, path, deleted in _MAP.findall(text):
            file = (os.makedev(int(major, 16), int(minor, 16)), int(inode))
            reach = int(offset, 16) + int(end, 16) - int(start, 16)
            name = printable(path.decode("utf-8", "replace"), 300)
            size = max(reach, found[file].bytes) if file in found else reach
            found[file] = _Mapped(name, size, bool(deleted))
        return found

    def _held_by_anybody(self) -> set[_File]:
        """Tier files mapped by any process that may be looked at: vLLM may run inside a program of another name.

        Looked up at most once a minute, and only while a file seems left over: it costs a tenth of a millisecond a
        process.
        """
        now = self._clock.wall()
        if self._holders is None or now - self._holders[0] >= MAPS_S:
            held: set[_File] = set()
            try:
                pids = psutil.pids()
            except UNTOLD:
                pids = []
            for pid in pids:
                held.update(self._read_maps(pid) or {})
            self._holders = (now, held)
        return self._holders[1]


def quoted(path: str) -> str:
    """A path as a shell takes it. With odd characters every byte that is not plain is an octal escape in $'...', which
    bash, zsh and ksh read, and which shows nothing raw."""
    if path.isascii() and path.isprintable():
        return shlex.quote(path)
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in "'\\" else f"\\{b:03o}" for b in os.fsencode(path))
    return f"$'{''.join(plain)}'"
