"""The runner systemd: the server is a unit; its own manager starts, stops and logs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvtop.errors import printable
from kvtop.profiles.running import family, logs, tools
from kvtop.profiles.running.family import End, Pause
from kvtop.profiles.running.order import Order
from kvtop.profiles.running.record import Who
from kvtop.profiles.running.runners.base import Runner
from kvtop.profiles.running.tools import Failed

STOP_S = 120.0
"""A unit's own TimeoutStopSec is 90 s unless it says otherwise."""
_SHOWN = "LoadState,ActiveState,SubState,Result,MainPID,ExecMainCode,ExecMainStatus"
_NO_SYSTEMD = "System has not been booted with systemd"
_KILLED = "2"
"""ExecMainCode of a process that a signal ended, as in waitid(2): its ExecMainStatus is the signal."""


class Systemd(Runner):
    """One unit."""

    end_more_s = Runner.end_more_s + STOP_S
    _refused = False
    """The start of the unit: nothing of it is there, unless systemd says so."""

    def start(self, order: Order, env: Mapping[str, str], *, log: int | None, pause: Pause, timeout_s: float) -> None:
        self.record.server = None
        self.record.family = []
        done = tools.run(order.launch.argv, env=env, timeout_s=timeout_s, pause=pause, known=self._as_step())
        if done.code:
            self._refused = True
            raise Failed(f"systemd did not start {self.record.unit}: {done.why or f'exit code {done.code}'}")
        self.look()

    def shown(self) -> dict[str, str]:
        """`systemctl show`; empty where it cannot be asked."""
        try:
            done = tools.run([*self._systemctl, "show", self.record.unit, f"--property={_SHOWN}"], pause=self.pause)
        except Failed:
            return {}
        if _NO_SYSTEMD in done.err:  # no unit runs there
            return {"ActiveState": "inactive"}
        rows = (line.partition("=") for line in done.out.splitlines() if done.code == 0)
        return {name: value for name, _, value in rows}

    def look(self) -> None:
        main = self.shown().get("MainPID", "0")
        if main.isdecimal() and int(main) > 0:
            who = Who.of(int(main))
            if who is not None and who != self.record.server:
                self.record.server, self.record.family = who, []
        super().look()

    def lives(self) -> bool:
        # one that cannot be asked now may well live
        unknown = "inactive" if self._refused else "active"
        return self.shown().get("ActiveState", unknown) in ("active", "activating", "reloading", "deactivating")

    def code(self) -> int | None:
        shown = self.shown()
        status = shown.get("ExecMainStatus", "")
        if not status.isdecimal() or shown.get("ActiveState") == "active":
            return None
        return 128 + int(status) if shown.get("ExecMainCode") in (_KILLED, "3") else int(status)

    def end(self, wait_s: float, pause: Pause, clock: Callable[[], float], *, gently: bool = True) -> End:
        began = clock()
        if self._refused and not self.lives():
            return End()
        self.look()
        if not gently:
            tools.run([*self._systemctl, "kill", "--signal=SIGKILL", self.record.unit], pause=pause)
        try:
            done = tools.run([*self._systemctl, "stop", self.record.unit], timeout_s=wait_s + STOP_S, pause=pause)
        except Failed as error:
            raise Failed(f"{error}; see systemctl status {printable(self.record.unit, 80)}") from None
        if done.code:
            raise Failed(f"systemctl stop failed: {done.why or f'exit code {done.code}'}")
        left = [who.pid for who in self.record.family if who.lives]
        until = clock() + family.KILL_S
        while left and clock() < until:
            pause(family.POLL_S)
            left = [who.pid for who in self.record.family if who.lives]
        late = gently and self.shown().get("Result") == "timeout"
        return End("in the time that its unit gives it" if late else "", took_s=clock() - began, left=left)

    def tail(self) -> logs.Tail:
        return logs.CommandTail([*self._journalctl(), "-n", "all", f"--since=@{int(self.record.started_at)}", "-f"])

    def log_command(self, lines: int, follow: bool) -> list[str]:
        return [*self._journalctl(), "-n", str(lines), *(["-f"] if follow else [])]

    def log_text(self, limit: int) -> bytes:
        words = [*self._journalctl(), f"--since=@{int(self.record.started_at)}"]
        try:
            return tools.log(words, limit)
        except Failed:
            return b""

    @property
    def _systemctl(self) -> list[str]:
        return ["systemctl", *(["--user"] if self.record.user_unit else [])]

    def _journalctl(self) -> list[str]:
        return [
            "journalctl",
            *(["--user"] if self.record.user_unit else []),
            "-u",
            self.record.unit,
            "-o",
            "cat",
            "--no-pager",
        ]
