"""What commands and the screen call: start a profile's server, follow it, end it. The keeper does the work."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvtop import interrupt, paths
from kvtop.errors import KvtopError, printable
from kvtop.files import opened
from kvtop.model.starting import LIVE
from kvtop.profiles.launch import Launch
from kvtop.profiles.profile import Profile
from kvtop.profiles.running import aftermath, family, look, progress, record, tools
from kvtop.profiles.running.helpers import AFTER_S, SIDECAR_STOP_S, after_stop, end_sidecars, end_step
from kvtop.profiles.running.lock import Lock
from kvtop.profiles.running.look import Seen
from kvtop.profiles.running.order import Order, Told, environment, packed
from kvtop.profiles.running.progress import Left
from kvtop.profiles.running.record import Ask, Record, Who
from kvtop.profiles.running.runners import runner_of
from kvtop.profiles.running.setup import setup
from kvtop.profiles.running.spare import Spare
from kvtop.profiles.running.spawn import as_step
from kvtop.profiles.running.tools import Failed
from kvtop.profiles.running.unkept import less_owed

BEGIN_S = 20.0
"""For the keeper to write its first word."""
LOOK_S = 0.2
_LOG_BYTES = 100_000
_SAID_BYTES = 4096
_keepers: list[subprocess.Popen[bytes]] = []
"""Of this process, so that it takes notice of their end."""


@dataclass(frozen=True)
class Chosen:
    """A profile, ready to be started."""

    name: str
    file: str
    profile: Profile
    launch: Launch
    names: list[str] = field(default_factory=list)
    """What the server will call its model, any of them."""


def start(chosen: Chosen, lock: Lock, env: Mapping[str, str] | None = None, *, former: str = "") -> Record:
    """Start the keeper, which starts the server; returns when its record stands. It goes on when this process ends.
    `former`: see `Record.former`.

    Raises KvtopError where it runs already, or the keeper does not come up.
    """
    startable(chosen)
    record.tidy()
    base = dict(os.environ if env is None else env)
    order = Order(
        chosen.name,
        chosen.file,
        chosen.profile,
        chosen.launch,
        base,
        chosen.names,
        setup(chosen.profile, chosen.launch),
        lock.fd,
        former,
    )
    with interrupt.held():  # it comes up all the same: whoever tells what goes on looks at its record
        child, said = _keeper(order, lock.fd)
        state = record.read(chosen.name)
        if state is None or state.keeper is None or state.keeper.pid != child.pid:
            child.kill()
            child.wait()
            record.tidy()
            why = f": {printable(said, 300)}" if said else ""
            raise KvtopError(f"the keeper of {chosen.name} did not come up{why}", f"its log: {_keeper_log()}")
    return state


def has_room(name: str) -> None:
    """Raises KvtopError where the state folder takes no record: a start of that profile would fail."""
    spare = Spare(name)
    spare.drop()
    if spare.why_not:
        raise KvtopError(
            f"{printable(name, 80)} cannot be started: {record.folder()} takes no file: {spare.why_not}",
            "nothing was stopped or started; make room there, or let it be written to",
        )


def startable(chosen: Chosen) -> None:
    """Raises KvtopError where it runs already, or is none that kvtop starts."""
    name = printable(chosen.name, 80)
    if chosen.profile.runner == "attach":
        raise KvtopError(f"{name} is only watched: its runner is attach", "start it where it runs")
    seen = look.look(chosen.name)
    if seen.state in ("starting", "running", "stopping"):
        again = f", kvtop profile switch --restart {name} starts it afresh" if seen.state == "running" else ""
        raise KvtopError(f"{name} is {seen.state} already{seen.where}", f"kvtop profile stop {name} ends it{again}")
    if seen.record is None:
        return
    # Sidecars that live on are ended by the new start itself.
    if left := [who.pid for who in seen.record.left() if who not in seen.record.sidecars]:
        what = f"{len(left)} process{'es' if len(left) > 1 else ''} of {name}'s last start live still"
        raise KvtopError(f"{what}: {', '.join(map(str, left[:5]))}", f"kvtop profile stop {name} ends them")


def _keeper_log() -> Path:
    return record.folder() / "keeper.log"


def _keeper(order: Order, lock_fd: int) -> tuple[subprocess.Popen[bytes], str]:
    """(the keeper, what it says where it cannot begin)."""
    told = packed(order)
    _keepers[:] = [child for child in _keepers if child.poll() is None]
    paths.make_private(record.folder())
    log = opened(_keeper_log(), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        if os.fstat(log).st_size > _LOG_BYTES:
            os.ftruncate(log, 0)
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "kvtop.profiles.running.keeper", order.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=(lock_fd,) if lock_fd >= 0 else (),
            cwd="/",
            env=paths.child_environment(),
            start_new_session=True,
        )
    finally:
        os.close(log)
    _keepers.append(child)
    assert child.stdin is not None and child.stdout is not None
    poll = select.poll()
    poll.register(child.stdout, select.POLLIN)
    said = b""
    try:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(told)
            child.stdin.close()
        if poll.poll(BEGIN_S * 1000):
            said = os.read(child.stdout.fileno(), _SAID_BYTES)
    finally:
        child.stdout.close()
    return child, said.decode("utf-8", "replace").strip()


@dataclass(frozen=True, slots=True)
class Step:
    """A start or a stop, as it stands."""

    seen: Seen
    left: Left | None
    """None: not known."""
    elapsed_s: float
    of_starts: int = 0
    """Good starts that are known."""


def follow(name: str, until: Callable[[Seen], bool], pause: family.Pause = time.sleep) -> Iterator[Step]:
    """Looks at it several times a second until `until`; the last step is the one for which that holds."""
    past = record.starts(name)
    while True:
        seen = look.look(name)
        state, now = seen.record, time.time()
        left = progress.left(state.stages, state.loaded, past, now) if state is not None else None
        yield Step(seen, left, max(0.0, now - state.started_at) if state is not None else 0.0, len(past))
        if until(seen):
            return
        pause(LOOK_S)


def stop(
    name: str, by: str, pause: family.Pause = time.sleep, *, locked: bool = False, meant: str | None = None
) -> Record:
    """End a profile's server and see it gone; the record as it is then. `by`: who wants it, for the record. `locked`:
    the caller holds the lock. `meant`: the `Record.mark` of the start that is to be ended, where it is to be no other.

    Raises KvtopError where nothing runs, it is another start, or it does not end.
    """
    seen = look.look(name)
    state = seen.record
    if state is None or not stoppable(seen):
        raise KvtopError(f"{printable(name, 80)} does not run", "kvtop profile list shows what runs")
    if meant not in (None, state.mark):
        raise _anew(name)
    if state.keeper is not None and state.keeper.lives:
        return _by_keeper(state, by, pause, locked)
    return _alone(state, by, pause, locked)


def stoppable(seen: Seen) -> bool:
    """Whether anything of it runs: its server, or workers and sidecars that outlived keeper and server."""
    if seen.record is None or seen.state in ("starting", "running", "stopping"):
        return seen.record is not None
    return bool(seen.record.left())


def _by_keeper(state: Record, by: str, pause: family.Pause, locked: bool) -> Record:
    assert state.keeper is not None
    asked_at = time.time()
    if state.state != "stopping":
        with contextlib.suppress(OSError):  # a full disk: then it does not know who asked
            record.ask(state.name, by, time.time())
        family.send(state.keeper, signal.SIGTERM)
    family.send(state.keeper, signal.SIGCONT)  # one that was halted would never read it
    until = time.monotonic() + _patience_s(state)
    while time.monotonic() < until:
        now = record.read(state.name)
        if now is not None and now.started_at != state.started_at:
            raise _anew(state.name)
        if now is not None and now.unended is not None and now.unended.at >= asked_at:
            raise KvtopError(f"{printable(state.name, 80)} does not end: {printable(now.unended.why, 300)}")
        if not state.keeper.lives:
            now = record.read(state.name)
            if now is not None and now.started_at == state.started_at and now.state in ("stopped", "failed"):
                return now
            return _alone(state, by, pause, locked)
        pause(family.POLL_S)
    raise KvtopError(
        f"{printable(state.name, 80)} does not end (its keeper: process {state.keeper.pid})",
        f"kill -9 {state.keeper.pid} ends its keeper alone; then kvtop profile stop {printable(state.name, 80)} again",
    )


def _anew(name: str) -> KvtopError:
    shown = printable(name, 80)
    return KvtopError(f"another kvtop started {shown} anew", f"kvtop profile stop {shown} ends that")


def _patience_s(state: Record) -> float:
    """How long its keeper may take over the end of it."""
    after = state.after_stop * AFTER_S + len(state.sidecars) * (SIDECAR_STOP_S + family.KILL_S)
    return state.stop_wait_s + runner_of(state).end_more_s + family.FREE_S + after


def _alone(state: Record, by: str, pause: family.Pause, locked: bool) -> Record:
    """Its keeper is gone: this process ends it and writes the record."""
    with contextlib.nullcontext() if locked else Lock(f"stops {state.name}"):
        record.tidy()
        now = record.read(state.name)
        if now is None or (now.started_at, now.keeper) != (state.started_at, state.keeper):
            raise _anew(state.name)
        return _ended_here(now, by, pause) if stoppable(Seen(now.name, now.state, now)) else now


def _ended_here(state: Record, by: str, pause: family.Pause) -> Record:
    runner = runner_of(state)
    record.asked(state.name)  # its keeper will not read it any more
    # One that its keeper was ending because it had failed is told as that.
    failed = look.less_left(state.why) if state.state == "failed" or state.ask is None else ""
    before = (state.state, state.ask)
    state.state, state.ask = "stopping", Ask(by, time.time())
    state.notes = []
    _written(state)
    runner.look()
    aftermath.Tiers(state).look((), anew=True)
    end_step(state, pause)
    try:
        done = runner.end(state.stop_wait_s, pause, time.monotonic)
    except (Failed, OSError) as error:
        state.state, state.ask = before
        _written(state)
        raise KvtopError(f"{printable(state.name, 80)} does not end: {printable(str(error), 300)}") from None
    state.notes += aftermath.told(done)
    end_sidecars(state, pause)
    state.notes += [*aftermath.strays(state), *aftermath.left_over(state, pause)]
    said = list(state.notes)
    look.owe(state)
    state.state, state.ended_at = "stopped", time.time()
    # Of one that had ended by itself, and left something behind, how it ended stays told.
    state.why = failed or record.cut_short(state)
    state.family = [who for who in state.family if who.lives]
    if unwritten := _written(state):
        state.notes = [*said, f"its record could not be written: {unwritten}"]
        if state.after_owed:
            state.notes.append("whether its after_stop has run is not known")
            state.after_owed = False  # nobody could take notice that it was run
    return state


def _written(state: Record) -> str:
    """Empty, or why it could not be: a full disk keeps nobody from ending a server."""
    try:
        record.write(state)
    except OSError as error:
        return printable(error.strerror or str(error), 200)
    return ""


def run_after_stop(
    chosen: Chosen,
    env: Mapping[str, str] | None = None,
    pause: family.Pause = time.sleep,
    *,
    locked: bool = False,
) -> list[str]:
    """Run what is owed (`Record.after_owed`), as the profile has it now; what went wrong with it, in words. `locked`:
    as for `stop`.

    Raises KvtopError where its environment cannot be made, it is owed still then; and where it is not owed: another
    kvtop ran it, or started the profile anew.
    """
    base = dict(os.environ if env is None else env)
    with contextlib.nullcontext() if locked else Lock(f"runs after_stop of {chosen.name}"):
        state = record.read(chosen.name)
        if state is None or not state.after_owed:
            raise KvtopError(f"after_stop of {printable(chosen.name, 80)} is not owed any more")
        try:
            made = environment(chosen.launch, base)
        except Failed as error:
            raise KvtopError(f"after_stop of {printable(chosen.name, 80)}: {error}") from None
        told = Told(chosen.launch, made)
        known, cwd = as_step(state, lambda: _written(state)), chosen.launch.cwd
        state.after_by = Who.of(os.getpid())
        said = after_stop(
            chosen.profile.start.after_stop,
            lambda command: tools.run(command, env=made, cwd=cwd, timeout_s=AFTER_S, pause=pause, known=known),
        )
        said = [told.masked(one) for one in said]
        state.after_stop, state.after_owed, state.after_by = 0, False, None
        state.notes = [*less_owed(state.notes), *said]
        record.write(state)
    return said


def running() -> list[Seen]:
    """The profiles whose server starts, runs or stops; not one whose server is gone, and which only owes something."""
    return [seen for seen in look.every() if seen.state in LIVE and not (seen.record and seen.record.after_runs)]
