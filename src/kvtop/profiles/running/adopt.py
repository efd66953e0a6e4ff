"""Servers on this machine that kvtop did not start: found, named by the profile that they run, and ended."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from kvtop.errors import KvtopError
from kvtop.profiles.launch import Launch
from kvtop.profiles.match import servers
from kvtop.profiles.running import aftermath, family, record
from kvtop.profiles.running.family import End, Pause
from kvtop.profiles.running.record import Record, Who
from kvtop.readings import VllmProcess
from kvtop.sources.processes import ProcessTable


@dataclass(frozen=True, slots=True)
class Foreign:
    """One server."""

    process: VllmProcess
    who: Who
    profiles: tuple[str, ...] = ()
    """Whose command line it has: several may have the same."""

    @property
    def profile(self) -> str:
        """Their names: `coder or coder-2`; empty: no profile's."""
        return " or ".join(self.profiles)

    @property
    def port(self) -> int | None:
        return self.process.ports[0] if self.process.ports else self.process.port

    @property
    def words(self) -> str:
        """`process 123 on port 8000`."""
        return f"process {self.who.pid}" + (f" on port {self.port}" if self.port is not None else "")


def foreign(launches: Mapping[str, Launch]) -> list[Foreign]:
    """The servers outside of containers that no record knows. `launches`: what each profile runs."""
    ours = {who.pid for state in record.every() for who in (*state.family, *filter(None, (state.server,))) if who.lives}
    found: list[Foreign] = []
    for process, names in servers(ProcessTable().read().vllm, launches):
        if process.pid in ours or process.parent in ours or process.contained:
            continue
        who = Who.of(process.pid)
        if who is not None:
            found.append(Foreign(process, who, names))
    return found


def output_of(pid: int) -> Path | None:
    """The file that its output goes to; None: there is none that may be read."""
    try:
        end = Path(f"/proc/{pid}/fd/1")
        out = end.readlink()
        here, there = out.stat(), end.stat()
    except OSError:
        return None
    same = (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
    return out if same and stat.S_ISREG(here.st_mode) and os.access(out, os.R_OK) else None


def log_of(name: str, pid: int, run: Launch | None, started_at: float | None = None) -> Record | None:
    """Where its log is, as of a start: the file that its output goes to, else the journal of the unit that its profile
    runs (`run`), where it is a process of that. None: neither is there."""
    if (out := output_of(pid)) is not None:
        return Record(name=name, state="running", log=str(out))
    if run is None or run.argv[:1] != ("systemctl",) or not _is_in(run.argv[-1], pid):
        return None
    user = "--user" in run.argv[1:-2]
    since = started_at or 0.0
    return Record(name=name, state="running", runner="systemd", unit=run.argv[-1], user_unit=user, started_at=since)


def _is_in(unit: str, pid: int) -> bool:
    """Another process may have the flags of the unit as well: what the journal says is not told of that."""
    try:
        groups = Path(psutil.PROCFS_PATH, str(pid), "cgroup").read_text("utf-8", "replace")
    except OSError:
        return False
    names = {unit, f"{unit}.service"}
    return any(not names.isdisjoint(line.split("/")) for line in groups.splitlines())


def family_of(one: Foreign) -> list[Who]:
    """Its living processes: it and what descends from it; its session may be that of somebody's terminal."""
    return family.look(one.who, session=False)


def end(one: Foreign, wait_s: float, pause: Pause = time.sleep) -> End:
    """End it as kvtop ends its own: one SIGINT, then SIGKILL to it and what it had. Only `family_of` it.

    Raises KvtopError where it is another user's, or what this kvtop itself runs under.
    """
    if one.who.lives and one.who not in family_of(one):
        raise KvtopError(f"this kvtop runs under {one.words}", "stop it from elsewhere")
    try:
        return family.end(one.who, (), wait_s, pause, time.monotonic, session=False)
    except PermissionError:
        raise KvtopError(f"{one.words} is another user's", "stop it as that user") from None


def told(done: End) -> list[str]:
    """How it ended, in words."""
    return aftermath.told(done)
