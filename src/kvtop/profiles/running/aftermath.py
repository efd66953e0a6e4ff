"""What a server leaves: memory of cards, files of its CPU tier in /dev/shm, workers that do not die."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from kvtop.model.words import gib
from kvtop.profiles.running import family, record
from kvtop.profiles.running.family import FREE_S, End, Pause
from kvtop.profiles.running.record import Record, TierFile
from kvtop.readings import OffloadFile

_SHM = Path("/dev/shm")
_PREFIX = "vllm_offload_"
_LOOK_S = 0.5
YOUNG_S = 60.0
"""A file of another server that is younger may be about to be mapped."""


class Tiers:
    """Remembers in the record which tier files are this server's, while they can be told."""

    def __init__(self, state: Record) -> None:
        self._state = state
        self._seen: set[str] = set()

    def look(self, named: Sequence[str], *, anew: bool = False) -> None:
        """`named`: those that its log says it made. Maps are read only when a file is new, or `anew`."""
        here = set(_files())
        for path in named:
            self._keep(path)
        if anew or here - self._seen:
            mine = {who.pid for who in self._state.family}
            for file in _offload_files():
                if mine & set(file.mapped_by):
                    self._keep(file.path)
        self._seen = here

    def _keep(self, path: str) -> None:
        try:
            inode = Path(path).stat(follow_symlinks=False).st_ino
        except (OSError, ValueError):  # unlinked once mapped, as since vLLM 0.30
            return
        one = TierFile(path, inode)
        if one not in self._state.tier_files:
            self._state.tier_files.append(one)


def told(end: End) -> list[str]:
    """How the processes ended, in words; nothing where all was as it should be."""
    said: list[str] = []
    if end.too_long:
        said.append(f"it did not end {end.too_long} and was killed")
    if end.killed and not end.too_long:
        said.append(f"{end.killed} process{' was' if end.killed == 1 else 'es were'} left behind and killed")
    if end.left:
        said.append(f"cannot be killed: {', '.join(f'process {pid}' for pid in end.left)}")
    return said


def left_over(state: Record, pause: Pause = time.sleep) -> list[str]:
    """Look at shared memory and cards, which may take FREE_S; stale files of this server are removed. In words what was
    found."""
    return [*_shared_memory(state), *_cards(state, pause)]


def strays(state: Record) -> list[str]:
    """Who writes into its log still, in words: where its keeper is gone, nobody knows of all that the server began. Not
    what any record knows, and so may be of another server with that log."""
    known = {
        who.pid
        for one in (state, *record.every())
        for who in (*one.family, *one.sidecars, *filter(None, (one.server, one.keeper, one.step)))
    }
    return [
        f"process {pid} writes into its log still, and is not known to be this server's"
        for pid in family.writers(state.outputs())
        if pid not in known
    ]


def _shared_memory(state: Record) -> list[str]:
    if not _files():
        return []
    mine = {file.path: file.inode for file in state.tier_files}
    said: list[str] = []
    for file in _offload_files():
        size = gib(file.bytes)
        if file.path in mine and file.stale and _unlinked(file.path, mine[file.path]):
            said.append(f"removed its tier file {file.path} ({size})")
        elif file.path in mine and file.mapped_by:
            said.append(f"its tier file {file.path} ({size}) is still mapped by process {file.mapped_by[0]}")
        elif file.stale and _age_s(file.path) > YOUNG_S:
            said.append(
                f"{file.path} ({size}) is mapped by nobody, and not known to be this server's: rm {file.shell_path}"
            )
    state.tier_files = [file for file in state.tier_files if Path(file.path).exists()]
    return said


def _age_s(path: str) -> float:
    try:
        return time.time() - Path(path).stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _unlinked(path: str, inode: int) -> bool:
    with contextlib.suppress(OSError):
        if Path(path).stat(follow_symlinks=False).st_ino == inode:
            Path(path).unlink()
            return True
    return False


def _cards(state: Record, pause: Pause) -> list[str]:
    """A driver takes a moment to give back the memory of a process that is gone: it is waited for."""
    from kvtop.sources.nvml import NvmlSource

    source = NvmlSource()
    mine = {who.pid for who in state.family}
    until = time.monotonic() + (FREE_S if mine else 0.0)
    try:
        while True:
            held = [
                f"process {one.pid} still holds {gib(one.memory_used_bytes)} of GPU {gpu.index}"
                for gpu in source.read(pcie=False).gpus
                for one in gpu.processes
                if one.pid in mine
            ]
            if not held or time.monotonic() >= until:
                return held
            pause(_LOOK_S)
    finally:
        source.close()


def _files() -> list[str]:
    try:
        return [file.name for file in _SHM.iterdir() if file.name.startswith(_PREFIX)]
    except OSError:
        return []


def _offload_files() -> tuple[OffloadFile, ...]:
    from kvtop.sources.host import HostSource

    return HostSource(shm=_SHM).read().offload_files
