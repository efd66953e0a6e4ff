"""A profile's state, as anybody can work it out: by its record, its keeper, the process table, and its log."""

from __future__ import annotations

import copy
import re
import time
from dataclasses import dataclass

import msgspec

from kvtop.errors import printable
from kvtop.profiles.running import failure, lock, record
from kvtop.profiles.running.helpers import left_of_sidecars
from kvtop.profiles.running.record import Record
from kvtop.profiles.running.runners import runner_of
from kvtop.profiles.running.unkept import OWED, offer

_LOG_BYTES = 4_000_000
_STARTED = b"Application startup complete"
"""vLLM's web server; it may have answered though nobody looked."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What runs under a profile's name."""

    name: str
    state: record.State
    """`stopped` also for one that was never started."""
    record: Record | None = None
    """Of its last start."""
    ended: bool = False
    """While it is `stopping`: its server is gone, and what comes after that goes on."""

    @property
    def pid(self) -> int | None:
        """The server's, while it lives."""
        server = self.record.server if self.record is not None else None
        there = self.state in ("starting", "running") or (self.state == "stopping" and not self.ended)
        return server.pid if server is not None and there else None

    @property
    def since(self) -> float | None:
        """Unix time at which this state began; None where it is not known."""
        if self.record is None:
            return None
        match self.state:
            case "starting":
                return self.record.started_at
            case "running":
                return self.record.ready_at
            case "stopping":
                return self.record.ask.at if self.record.ask is not None else None
            case _:
                return self.record.ended_at

    @property
    def where(self) -> str:
        """` (process 123, port 8000)`."""
        if self.record is None:
            return ""
        who = f"process {self.pid}, " if self.pid is not None else ""
        return f" ({who}port {self.record.port})"


def look(name: str) -> Seen:
    """One profile. A start whose keeper is gone is finished here, in the record, when its server is gone as well."""
    state = record.read(name)
    if state is None:
        return Seen(name, "stopped")
    if state.keeper is not None and state.keeper.lives:
        return _seen(state)
    if state.state in ("stopped", "failed"):
        if state.why != (why := less_left(state.why)) and not state.left():
            fresh = msgspec.structs.replace(state, why=why)  # what lived on has ended by itself since
            _saved(state, fresh)
            state = fresh
        return Seen(name, "stopping" if state.after_runs else state.state, state, ended=state.after_runs)
    before = copy.deepcopy(state)
    if not runner_of(state).lives():
        if state.step is None or not state.step.lives:
            _finish(state)
    elif state.state == "stopping" and not lock.held():  # whoever stopped it was killed
        state.state, state.ask = "running" if state.ready_at is not None else "starting", None
    elif state.state == "starting" and runner_of(state).answers().ready:
        state.state, state.ready_at = "running", time.time()
    news = (state.state, state.container) != (before.state, before.container)
    if news and not _saved(before, state):
        return look(name)
    return _seen(state)


def _seen(state: Record) -> Seen:
    ended = state.state == "stopping" and state.server is not None and not state.server.lives
    return Seen(state.name, state.state, state, ended)


def _finish(state: Record) -> None:
    """Neither keeper nor server: how it ended is worked out once."""
    record.tidy()
    ran = state.ready_at is not None
    runner = runner_of(state)
    text = runner.log_text(_LOG_BYTES) if state.runner == "venv" else b""
    if state.runner == "venv":
        ran = ran or _STARTED in text
        runner.look()  # what it has begun since its keeper looked lives on
    state.family += left_of_sidecars(state)
    if state.ask is not None:
        state.state, state.why = "stopped", record.cut_short(state)
    elif state.state == "stopping" and state.why:  # by its keeper, which had found out how it failed
        state.state, state.why = "failed", f"{state.why}; its keeper was gone"
    elif state.server is None and not state.container and not state.unit:
        state.state, state.why = "failed", "its keeper ended before the server was started"
    else:
        state.state = "failed"
        state.exit_code = runner.code()
        cause = "" if state.secrets else failure.root_cause(text or runner.log_text(_LOG_BYTES), ran=ran)
        state.why = failure.ended(cause, state.exit_code, ran=ran, read=not state.secrets) + "; its keeper was gone"
    if left := sum(who.lives for who in (*state.family, *state.sidecars)):
        ends = f"kvtop profile stop {printable(state.name, 80)} ends them"
        many = "1 of its processes lives" if left == 1 else f"{left} of its processes live"
        state.why = "; ".join(filter(None, (state.why, f"{many} still: {ends}")))
    state.ended_at = time.time()
    owe(state)


def less_left(why: str) -> str:
    """The same once what lived on was ended."""
    return re.sub(r"(?:; )?\d+ of its processes lives? still: .*$", "", why, flags=re.DOTALL)


def owe(state: Record) -> None:
    """Server and keeper are gone: what the keeper would have run is left to a person."""
    if state.after_stop and not state.after_owed:
        state.after_owed = True
        state.notes.append(f"{OWED}; {offer(printable(state.name, 80))}")


def _saved(before: Record, state: Record) -> bool:
    """False: another kvtop stopped or started it meanwhile, so that this is no news any more."""
    try:
        return record.write_over(before, state)
    except OSError:  # a full disk: the next look works it out once more
        return True


def every() -> list[Seen]:
    """All profiles that were ever started, by name."""
    return [look(state.name) for state in record.every()]
