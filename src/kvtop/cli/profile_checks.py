"""Profiles in `kvtop doctor`: the folder, files that cannot be used, servers that lack something, what they left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvtop.errors import KvtopError, printable
from kvtop.model.words import gib
from kvtop.profiles import folder
from kvtop.profiles.folder import Entry
from kvtop.profiles.running import beside, record
from kvtop.profiles.running.record import Record
from kvtop.profiles.running.unkept import KEEPER_GONE, missed, offer
from kvtop.profiles.shell import quoted
from kvtop.readings import HostReading


@dataclass(frozen=True)
class Profiles:
    """What there is of them. Only read: no record is brought up to date."""

    where: str
    """The folder."""
    entries: tuple[Entry, ...] = ()
    records: tuple[Record, ...] = ()
    unreadable: tuple[Path, ...] = ()
    """Files that should be records."""
    error: str = ""
    """Why the folder cannot be read."""


def look() -> Profiles:
    """Look at the folder of profiles and at the records of their servers."""
    try:
        where = folder.folder()
    except KvtopError as wrong:
        return Profiles("", error=wrong.what)
    try:
        entries = tuple(folder.read_all(where))
    except OSError as wrong:
        return Profiles(str(where), error=f"{where}: {wrong.strerror or wrong}")
    try:
        records, unreadable = tuple(record.every()), tuple(record.unreadable())
    except KvtopError:
        records = unreadable = ()
    return Profiles(str(where), entries, records, unreadable)


def startable(names: Sequence[str]) -> str:
    """Where no server runs: `kvtop profile start qwen27 (or coder, dense) starts one`."""
    shown = [printable(name, 60) for name in names]
    more = f" (or {', '.join(shown[1:5])}{', …' if len(shown) > 5 else ''})" if len(shown) > 1 else ""
    return f"kvtop profile start {shown[0]}{more} starts one"


@dataclass(frozen=True)
class Row:
    """What `doctor` makes a check of."""

    what: str
    ok: bool
    because: str
    fix: str = ""


def rows(seen: Profiles, host: HostReading) -> Iterator[Row]:
    """One row for the folder, one for each thing that is not as it should be."""
    if seen.error:
        yield Row("profiles", False, seen.error, "make it readable for you")
        return
    good = [entry.name for entry in seen.entries if entry.problem is None]
    if seen.entries:
        yield Row("profiles", True, f"{seen.where}, {len(good)} of {len(seen.entries)} can be used")
    else:
        fix = "kvtop profile import makes one of what runs your server"
        yield Row("profiles", True, f"none in {seen.where}", fix)
    for entry in seen.entries:
        if entry.problem is not None:
            yield Row("profile", False, str(entry.problem), entry.problem.fix)
    names = {entry.name for entry in seen.entries}
    for state in seen.records:
        yield from _of_record(state, names)
    for file in seen.unreadable:
        because = (
            f"{printable(str(file), 300)} cannot be read: if its server runs, kvtop takes it for one of somebody else"
        )
        fix = f"rm {'-r ' if file.is_dir() else ''}{quoted(str(file))}; a keeper that lives writes it anew"
        yield Row("profile's record", False, because, fix)
    yield from _left(seen.records, host)


def _of_record(state: Record, names: set[str]) -> Iterator[Row]:
    name = printable(state.name, 60)
    kept = state.keeper is not None and state.keeper.lives
    lives = state.server is not None and state.server.lives
    if state.state in ("starting", "running", "stopping") and not kept:
        if lives:
            because = f"{name} is {state.state} and {KEEPER_GONE}{missed(state)}"
            yield Row("profile's keeper", False, because, f"kvtop profile stop {name} ends it; start it then")
        elif state.step is not None and state.step.lives:
            because = f"{name} is {state.state} and {KEEPER_GONE}: nobody goes on with what it is at"
            yield Row("profile's keeper", False, because, f"kvtop profile stop {name} ends it")
        elif state.server is not None and not state.container and not state.unit:
            because = f"{name} is {state.state} by its record, and neither keeper nor server is there"
            yield Row("profile's record", False, because, "kvtop profile list finds out how it ended")
    elif left := [who.pid for who in (*state.family, *state.sidecars) if who.lives and not kept]:
        shown = f"{', '.join(map(str, left[:5]))}{', …' if len(left) > 5 else ''}"
        because = f"of {name}, which is {state.state}: {len(left)} outlived its server and its keeper: {shown}"
        yield Row("profile's processes", False, because, f"kvtop profile stop {name} ends them")
    if state.after_owed and not state.after_runs:
        because = f"after_stop of {name} was not run to its end: its keeper was gone"
        yield Row("profile's after_stop", False, because, offer(name))
    if state.state in ("starting", "running") and (kept or lives) and (ended := beside.ended(state)):
        because = f"{name} is {state.state} and {beside.words(ended, len(state.sidecars))}"
        yield Row("profile's sidecars", False, because, f"kvtop profile switch {name} --restart starts it afresh")
    if not lives and not kept and name not in names and not _there(state.file):
        because = f"of {name}, whose profile is not there any more"
        yield Row("profile's record", False, because, f"rm {quoted(str(record.path_of(state.name)))}")


def _there(file: str) -> bool:
    try:
        return bool(file) and Path(file).exists()
    except (OSError, ValueError):
        return False


def _left(records: tuple[Record, ...], host: HostReading) -> Iterator[Row]:
    """Tier files that a profile's server made and nobody maps. The row of all left-over files has the command."""
    stale = {file.path: file for file in host.offload_files if file.stale}
    for state in records:
        mine = [stale[one.path] for one in state.tier_files if one.path in stale]
        if mine and not (state.server is not None and state.server.lives):
            size = gib(sum(file.bytes for file in mine))
            because = f"{printable(state.name, 60)} left {len(mine)} in /dev/shm, {size}: {mine[0].path}"
            own = [file.shell_path for file in mine if file.shell_path]
            yield Row("profile's tier files", False, because, f"rm {' '.join(own)}" if own else "root may remove them")
