"""The keeper: a small process beside a server, its parent. It starts it, follows it to ready, rotates its log, waits
for its end, cleans up behind it, and writes the record. `python -m kvtop.profiles.running.keeper` with an order on its
stdin.

The server has a session, an environment and a log of its own: it does not notice when the keeper dies.
SIGTERM asks the keeper for the server's end.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvtop.errors import printable
from kvtop.files import identity
from kvtop.profiles.running import aftermath, failure, lock, logs, orphans, progress, ready, record
from kvtop.profiles.running.begun import begun
from kvtop.profiles.running.helpers import Helpers, end_sidecars
from kvtop.profiles.running.order import Order, Told, environment, unpacked
from kvtop.profiles.running.progress import Progress
from kvtop.profiles.running.record import Ask, Start, State, Unended
from kvtop.profiles.running.runners import runner_of
from kvtop.profiles.running.spare import Spare
from kvtop.profiles.running.tools import Failed

_ENDING = (signal.SIGTERM, signal.SIGINT)
_WAKING = (signal.SIGHUP, signal.SIGCHLD)
_OTHER_S = 2.0
"""Between two looks at who listens on the port, while it is another one: all processes are looked at."""
_LOOK_S = 2.0
"""Between two looks at the processes and the tier files of a server that starts."""
_TOOL_S = 2.0
_READS = 8
"""Of a log in one go: one that grows faster than it is read keeps nobody from asking for the end."""
_RUNNING_S = 5.0
_FAMILY_S = 30.0
_CLOCK_S = 5.0
"""A start in which the clock was set by more is no measure of others."""
_WORD_S = 60.0
"""For so long a word that was left means the signal that comes."""
LOG_BYTES = 4_000_000
"""Of a failed start's log so much is read, from its end."""


class _Asked(Exception):
    """Somebody wants the server's end."""


class Keeper:
    """One server, from its start to what is left of it."""

    def __init__(self, order: Order, signals: int) -> None:
        """`signals`: where their numbers can be read."""
        self._order = order
        self._signals = signals
        self._profile = order.profile
        last = record.read(order.name)
        record.asked(order.name)  # of a keeper before this one
        self._record = begun(order, last)
        self._runner = runner_of(self._record, self.save)
        self._runner.pause = self.pause
        self._progress = Progress()
        self._helpers = Helpers(order, self._record, self.save)
        self._log: int | None = None
        self._began = time.monotonic()
        self._until = self._began + self._profile.start.timeout_s
        self._told = self._ending = self._unsaved = False
        self._written = b""
        self._spare = Spare(order.name, self._record)
        self._told_secrets = Told()

    def run(self) -> None:
        """To the end. Nothing is raised for what goes wrong with the server: the record tells."""
        try:
            self._begin()
        except OSError as error:
            self._never(_said(error))
            return
        go = self._whole
        while not self._over(go):
            go = self._on
        self._last_word()

    def _never(self, why: str) -> None:
        """Nothing was run, and nothing is."""
        state = self._record
        state.state, state.why, state.ended_at, state.after_stop = "failed", why, time.time(), 0
        self._let_go()
        self.save()
        self._last_word()
        self._tell_started(why if self._unsaved else "")

    def _last_word(self) -> None:
        if self._unsaved:
            self._unsaved = not self._spare.write(self._record)
        self._spare.drop()

    def _over(self, go: Callable[[], None]) -> bool:
        """Whether it is over then. False: its end was wanted and could not be had."""
        state = self._record
        try:
            go()
        except _Asked:
            return self._finish(_asked(state.name), "")
        except Failed as why:
            return self._finish(None, str(why))
        except OSError as error:
            return self._finish(None, _said(error))
        return True

    def _whole(self) -> None:
        self._start()
        self._on()

    def _on(self) -> None:
        if self._record.ready_at is None:
            self._follow()
        self._watch()

    def pause(self, seconds: float) -> None:
        """Wait, but not past a signal, unless it only tells of orphans that ended. Raises _Asked for one that asks for
        the end, once."""
        until, came = time.monotonic() + seconds, b""
        while True:
            select.select((self._signals,), (), (), max(0.0, until - time.monotonic()))
            with contextlib.suppress(BlockingIOError):
                came = os.read(self._signals, 1024)
            self._told |= any(number in _ENDING for number in came)
            if self._told and not self._ending:
                self._ending = True
                raise _Asked
            if {*came} != {signal.SIGCHLD} or not self._runner.reap() or time.monotonic() >= until:
                return
            came = b""

    def _pause_and_rotate(self, seconds: float) -> None:
        """While others than the server write."""
        self.pause(seconds)
        self._rotate()

    def save(self) -> None:
        """Write the record, where it has changed."""
        state = self._record
        state.stages = list(self._progress.stages)
        if self._progress.shards is not None:
            state.shards_done, state.shards = self._progress.shards
        state.kv_cache_tokens = self._progress.kv_cache_tokens
        text = msgspec.json.encode(state)
        if text != self._written:
            self._unsaved = True
            with contextlib.suppress(OSError):  # a full disk: the server is not to suffer from it
                record.write(state)
                self._written, self._unsaved = text, False

    def _begin(self) -> None:
        """Its log and its record are there, before anything runs. Raises OSError."""
        state = self._record
        if state.log:
            self._log = logs.open_log(Path(state.log), self._profile.log.max_bytes)
            state.log_offset = os.fstat(self._log).st_size
            state.log_file = identity(state.log) or ""
        record.write(state)
        self._tell_started()

    def _start(self) -> None:
        order, state = self._order, self._record
        env = environment(order.launch, order.base)
        self._told_secrets = Told(order.launch, env)
        # Of the last start, where they outlived its keeper: they hold their ports.
        end_sidecars(state, self.pause)
        if self._profile.start.before or self._profile.sidecar:
            self._progress.begin(progress.BEFORE, time.time())
            self.save()
        self._helpers.before(env, self._log, self._pause_and_rotate, self._left())
        self._progress.begin(progress.PROCESS, time.time())
        if state.runner == "venv":
            orphans.take()  # of pre-start commands they went their own ways
        self._runner.start(order, env, log=self._log, pause=self._pause_and_rotate, timeout_s=self._left())
        self.save()

    def _tell_started(self, why_not: str = "") -> None:
        """Whoever waits for its first word may go on; not for a second one."""
        with contextlib.suppress(OSError):
            os.write(1, f"{why_not}\n".encode())
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.close(nowhere)

    def _left(self) -> float:
        return max(0.1, self._until - time.monotonic())

    def _follow(self) -> None:
        """Until it answers. Raises Failed where it ends before that, or takes too long."""
        state = self._record
        tail = self._runner.tail()
        tiers = aftermath.Tiers(state)
        said = ready.Answer(False)
        ask_at = look_at = 0.0
        try:
            while True:
                self._read(tail)
                if not self._runner.lives():
                    raise Failed(self._why_ended())
                if time.monotonic() >= ask_at:
                    said = self._runner.answers(self._profile.start.health_url)
                    ask_at = time.monotonic() + (_OTHER_S if said.other else 0.0)
                if said.ready:
                    self._last_words(tail)
                    break
                if said.other and state.runner == "venv" and self._progress.now == progress.PORT:
                    raise Failed(said.why)
                if time.monotonic() >= look_at:
                    self._runner.look()
                    tiers.look(self._progress.tier_files)
                    look_at = time.monotonic() + _LOOK_S
                    self._rotate()
                self.save()
                if time.monotonic() > self._until:
                    raise Failed(self._too_late(said))
                self.pause(self._runner.look_s)
        finally:
            self._read(tail)  # what it said just before its end, or was asked for it
            if state.runner == "venv":
                self._runner.look()
            tiers.look(self._progress.tier_files, anew=True)
            tail.close()
        now, took_s = time.time(), time.monotonic() - self._began
        self._progress.ready(now)
        state.state, state.ready_at = "running", now
        state.why, state.unended = "", None
        state.block_tokens = ready.block_tokens(state.host, state.port)
        self._runner.look()
        self._let_go()  # before anybody can read that it is ready
        self.save()
        if abs(now - state.started_at - took_s) < _CLOCK_S:
            with contextlib.suppress(OSError):
                record.remember(state.name, self._went_well(now))

    def _went_well(self, now: float) -> Start:
        state, seen = self._record, self._progress
        return Start(
            at=state.started_at,
            took_s=max(0.0, now - state.started_at),
            stages=record.ended_stages(seen.stages),
            kv_cache_tokens=seen.kv_cache_tokens,
            block_tokens=state.block_tokens,
            kv_cache_rank_bytes=seen.kv_cache_rank_bytes,
            hybrid=seen.hybrid,
            model=state.model,
        )

    def _last_words(self, tail: logs.Tail) -> None:
        """What was logged before it answered; a tool that follows a log takes a moment to hand it on."""
        until = time.monotonic() + (_TOOL_S if isinstance(tail, logs.CommandTail) else 0.0)
        while True:
            self._read(tail)
            if self._progress.now == progress.PORT or time.monotonic() >= until:
                return
            self.pause(0.05)

    def _too_late(self, said: ready.Answer) -> str:
        stage = self._progress.now or progress.PROCESS
        at = "the wait for its port" if stage == progress.PORT else progress.WORDS[stage]
        why = f"it did not answer within {self._profile.start.timeout_s:g} s; it was at: {at}"
        return f"{why}; {said.why}" if said.why else why

    def _watch(self) -> None:
        """While it runs. Raises Failed when it ends though nobody asked for that."""
        looked = time.monotonic()
        while self._runner.lives():
            self.pause(_RUNNING_S)
            self._rotate()
            if time.monotonic() - looked > _FAMILY_S:
                looked = time.monotonic()
                self._runner.look()
                self.save()
        raise Failed(self._why_ended())

    def _read(self, tail: logs.Tail) -> None:
        for _ in range(_READS):
            if not (data := tail.read()):
                return
            self._progress.feed(data, time.time())

    def _rotate(self) -> None:
        if self._log is not None:
            with contextlib.suppress(OSError):
                if logs.rotate(Path(self._record.log), self._log, self._profile.log.max_bytes):
                    self._record.log_offset = 0
                    self._helpers.rotated(Path(self._record.log))
                    self.save()
        self._helpers.rotate()

    def _why_ended(self) -> str:
        state = self._record
        state.exit_code = self._runner.code()
        text = self._told_secrets.cleaned(self._runner.log_text(LOG_BYTES))
        cause = failure.root_cause(text, ran=state.ready_at is not None)
        return failure.ended(cause, state.exit_code, ran=state.ready_at is not None)

    def _finish(self, asked: Ask | None, why: str) -> bool:
        """End what is there, look at what it leaves, write how it came. False: it cannot be ended, and goes on."""
        state = self._record
        before = state.state, state.why
        self._ending = True
        state.ask, state.why, state.unended = asked, self._told_secrets.masked(why), None
        if asked is not None:
            state.why = record.cut_short(state)
        state.state = "stopping"
        self.save()
        try:
            # One that failed is not asked: it had its time, or is dying already.
            gently = asked is not None or state.ready_at is None
            done = self._runner.end(state.stop_wait_s, self._pause_and_rotate, time.monotonic, gently=gently)
            state.notes += aftermath.told(done)
        except (Failed, OSError) as error:
            said = self._told_secrets.masked(str(error))
            if self._runner.lives():
                self._goes_on(before, said)
                return False
            state.notes.append(said)
        if state.exit_code is None:
            state.exit_code = self._runner.code()
        self._helpers.after(self._log, self._pause_and_rotate)
        state.notes = [self._told_secrets.masked(note) for note in state.notes]
        if state.step is not None and state.step.lives:
            state.notes.append(f"a command does not end: process {state.step.pid}")
        state.notes += aftermath.left_over(state, self.pause)
        state.state = "stopped" if asked is not None else "failed"
        state.ended_at = time.time()
        record.asked(state.name)  # what came too late
        state.family = [who for who in state.family if who.lives]
        self._let_go()
        self.save()
        return True

    def _goes_on(self, before: tuple[State, str], why_not: str) -> None:
        """It cannot be ended, whoever wanted that: it is as it was, and no other start has to wait for it."""
        state = self._record
        if state.ask is None:  # it took too long, and now takes what time it takes
            state.why = f"{state.why}; it cannot be ended: {why_not}"
            self._until = math.inf
        else:
            state.why = before[1]
        state.state, state.ask = before[0], None
        state.unended = Unended(why_not, time.time())
        self._let_go()
        self._ending = self._told = False
        self.save()

    def _let_go(self) -> None:
        """Others may start and stop servers now."""
        if self._order.lock_fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._order.lock_fd)
            self._order = msgspec.structs.replace(self._order, lock_fd=-1)


def _said(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    said = printable(f"{where}{error.strerror or error}", 300)
    with contextlib.suppress(OSError):  # the disk may be full for this log too
        print(said, file=sys.stderr, flush=True)
    return said


def _asked(name: str) -> Ask:
    """Who wants the end, by the word that was left; one that is old is of somebody who was killed before he asked."""
    said, now = record.asked(name), time.time()
    return said if said is not None and now - said.at < _WORD_S else Ask("a signal to its keeper", now)


def _caught() -> int:
    """From now on signals only say that they came; unlike blocked or ignored ones that is nothing a child inherits."""
    receive, send = os.pipe()
    os.set_blocking(receive, False)
    os.set_blocking(send, False)
    signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    for number in (*_ENDING, *_WAKING):
        signal.signal(number, lambda *_: None)
    return receive


def main() -> int:
    """Read the order, keep its server."""
    signals = _caught()
    with os.fdopen(0, "rb") as told:
        order = unpacked(told.read())
    os.open(os.devnull, os.O_RDWR)  # takes the number 0
    if order.lock_fd >= 0:
        os.set_inheritable(order.lock_fd, False)
        lock.note(order.lock_fd, f"starts {order.name}", f"wait for it, or end it: kvtop profile stop {order.name}")
    Keeper(order, signals).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
