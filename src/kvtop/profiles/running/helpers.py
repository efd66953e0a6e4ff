"""What runs around a server: pre-start commands, sidecars, and commands when it is gone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kvtop.errors import printable
from kvtop.profiles.profile import Sidecar
from kvtop.profiles.running import family, logs, tools
from kvtop.profiles.running.asking import get
from kvtop.profiles.running.family import Pause
from kvtop.profiles.running.order import Order
from kvtop.profiles.running.record import Record, Who
from kvtop.profiles.running.spawn import as_step, spawn
from kvtop.profiles.running.strangers import stranger
from kvtop.profiles.running.tools import Done, Failed
from kvtop.profiles.secret import shown

AFTER_S = 300.0
"""For each command after the stop."""
SIDECAR_STOP_S = 10.0
LOG_BYTES = 100_000
"""Of what a command said into the log, from its end."""
_POLL_S = 0.25
_OTHER_S = 1.0
"""While another process answers: who that is, all sockets of this machine tell."""


class _Said:
    """What is written into a log from now on, also where that is rotated meanwhile."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd = path, fd
        self._at = os.fstat(fd).st_size
        self._older: int | None = None
        """Where it begins in the older file; None: it was not rotated."""

    def rotated(self) -> None:
        self._older, self._at = self._at, 0

    def __str__(self) -> str:
        begin = max(self._at, os.fstat(self._fd).st_size - LOG_BYTES)
        said = os.pread(self._fd, LOG_BYTES, begin)  # by its name it may be another file by now, or none
        if self._older is not None and len(said) < LOG_BYTES:
            said = logs.since(logs.older(self.path), self._older, LOG_BYTES - len(said)) + said
        return said.decode("utf-8", "replace")


class Helpers:
    """Those of one profile."""

    def __init__(self, order: Order, state: Record, save: Callable[[], None]) -> None:
        """`save`: writes the record, where a sidecar stands before it runs: without its keeper it is known by that
        alone."""
        self._save = save
        self._name = order.name
        self._profile = order.profile
        self._state = state
        self._env: Mapping[str, str] = order.base
        self._cwd = order.launch.cwd
        self._running: list[tuple[subprocess.Popen[bytes], Path, int]] = []
        self._said: _Said | None = None
        """Of the command or the sidecar that it is at; None: it is at none, or that writes into no log."""

    def before(self, env: Mapping[str, str], log: int | None, pause: Pause, timeout_s: float) -> None:
        """Run the pre-start commands, then start the sidecars. `env`: theirs, and that of what runs after the stop.
        Raises Failed, and what `pause` raises."""
        self._env = env
        until = time.monotonic() + timeout_s
        commands = self._profile.start.before
        for number, command in enumerate(commands, 1):
            which = f"pre-start command {number} of {len(commands)}"
            self._does(which)
            left = max(0.1, until - time.monotonic())
            try:
                done = self._run(command, log, pause, left)
            except Failed as error:
                raise Failed(f"{which}: {error}") from None
            if done.code:
                raise Failed(f"{which} {_failed(done)}")
        for sidecar in self._profile.sidecar:
            asked = f", asked at {shown(sidecar.ready_url, 120)}" if sidecar.ready_url else ""
            self._does(f"sidecar {printable(sidecar.name, 40)}{asked}")
            self._start(sidecar)
            self._ready(sidecar, until, pause)
        self._state.doing, self._state.sidecar_log, self._said = "", "", None

    def _run(self, command: list[str] | str, log: int | None, pause: Pause, timeout_s: float) -> Done:
        """As `tools.run`; into the log, where there is one."""
        known = as_step(self._state, self._save)
        self._said = None if log is None else _Said(Path(self._state.log), log)
        done = tools.run(
            command, env=self._env, cwd=self._cwd, timeout_s=timeout_s, pause=pause, output=log, known=known
        )
        return Done(done.code, str(self._said), "") if done.code and self._said is not None else done

    def rotated(self, log: Path) -> None:
        """That log was."""
        if self._said is not None and self._said.path == log:
            self._said.rotated()

    def _does(self, words: str) -> None:
        self._state.doing = words
        self._save()

    def after(self, log: int | None, pause: Pause) -> None:
        """When the server is gone: its sidecars end, then the commands run. What fails is noted."""
        end_sidecars(self._state, pause)
        for child, _, fd in self._running:
            child.poll()
            os.close(fd)
        self._running = []
        commands = self._profile.start.after_stop
        self._state.notes += after_stop(commands, lambda command: self._run(command, log, pause, AFTER_S))
        self._state.after_stop = 0

    def rotate(self) -> None:
        """Keep the sidecars' logs small."""
        for _, path, fd in self._running:
            with contextlib.suppress(OSError):
                if logs.rotate(path, fd, self._profile.log.max_bytes):
                    self.rotated(path)
                    if str(path) == self._state.sidecar_log:
                        self._state.sidecar_log_offset = 0

    def _start(self, sidecar: Sidecar) -> None:
        name = printable(sidecar.name, 40)
        path = logs.default(self._name, sidecar.name)
        fd = logs.open_log(path, self._profile.log.max_bytes)
        self._state.sidecar_log, self._state.sidecar_log_offset = str(path), os.fstat(fd).st_size
        self._said = _Said(path, fd)
        try:
            child = spawn(
                sidecar.command,
                self._known,
                shell=isinstance(sidecar.command, str),
                stdout=fd,
                stderr=fd,
                env=dict(self._env),
                cwd=self._cwd,
            )
        except (OSError, ValueError) as error:
            os.close(fd)
            raise Failed(f"the sidecar {name} cannot be run: {getattr(error, 'strerror', None) or error}") from None
        self._running.append((child, path, fd))

    def _known(self, who: Who | None) -> None:
        if who is not None:
            self._state.sidecars.append(who)
            self._save()

    def _ready(self, sidecar: Sidecar, until: float, pause: Pause) -> None:
        name, (child, path, _) = printable(sidecar.name, 40), self._running[-1]
        asked, doing = shown(sidecar.ready_url, 120), self._state.doing
        while True:
            answers = not sidecar.ready_url or _answers(sidecar.ready_url)
            other: int | None = None
            if answers and sidecar.ready_url and self._state.keeper is not None:
                other = stranger(sidecar.ready_url, self._state.keeper)
            # Looked at when it was asked: it may end meanwhile, since another one has its port.
            if child.poll() is not None:
                code = tools.code_of(child.returncode)
                said = Done(code, str(self._said or ""), "").why
                why = f": {said}" if said else ""
                why += "" if code else " (one that goes into the background is not kept: it is to stay in front)"
                raise Failed(f"the sidecar {name} ended with exit code {code}{why}; its log: {path}")
            if answers and other is None:
                return
            if time.monotonic() > until:
                who = f": process {other}, which is not its own, does" if other is not None else ""
                raise Failed(f"the sidecar {name} does not answer at {asked}{who}; its log: {path}")
            self._does(doing if other is None else f"{doing}: process {other} answers, which is not its own")
            pause(_POLL_S if other is None else _OTHER_S)


def end_step(state: Record, pause: Pause) -> None:
    """End the command that a keeper was at which is gone now, with its session. One that does not end is noted."""
    if state.step is not None:
        try:
            outputs = state.outputs()
            left = family.end(state.step, (), SIDECAR_STOP_S, pause, time.monotonic, politely=True, logs=outputs).left
        except PermissionError:
            left = [state.step.pid]
        state.notes += [f"a command of its start or its end does not end: process {pid}" for pid in left]
        state.step = None


def left_of_sidecars(state: Record) -> list[Who]:
    """What lives on in the sessions of sidecars that have ended."""
    ended = [who for who in state.sidecars if not who.lives]
    outputs = logs.of_sidecars(state.name) if ended else set()
    return [one for who in ended for one in family.look(who, logs=outputs)]


def end_sidecars(state: Record, pause: Pause) -> None:
    """End them, the last one first, with what they left in their sessions. One that does not end is noted."""
    outputs = logs.of_sidecars(state.name)
    for who in reversed(state.sidecars):
        try:
            left = family.end(who, (), SIDECAR_STOP_S, pause, time.monotonic, politely=True, logs=outputs).left
        except PermissionError:
            left = [who.pid]
        state.notes += [f"a sidecar does not end: process {pid}" for pid in left]
    state.sidecars = [who for who in state.sidecars if who.lives]


def after_stop(commands: Sequence[list[str] | str], run: Callable[[list[str] | str], Done]) -> list[str]:
    """Run them one after the other; in words what went wrong. One that fails does not keep the next from running.
    `run`: runs one of them, to its end; raises Failed where it cannot."""
    said: list[str] = []
    for number, command in enumerate(commands, 1):
        which = f"after_stop command {number} of {len(commands)}"
        try:
            done = run(command)
        except Failed as error:
            said.append(f"{which}: {error}")
            continue
        if done.code:
            said.append(f"{which} {_failed(done)}")
    return said


def _failed(done: Done) -> str:
    """`failed with exit code 3: no such disk`."""
    return f"failed with exit code {done.code}" + (f": {done.why}" if done.why else "")


def _answers(url: str) -> bool:
    try:
        return get(url)[0] == 200
    except (OSError, ValueError):
        return False
