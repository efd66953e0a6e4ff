"""The runners docker and compose: the server is a container, known by its id. podman answers to the same words."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from kvtop.clock import iso
from kvtop.profiles.running import family, logs, ready, tools
from kvtop.profiles.running.asking import listens
from kvtop.profiles.running.family import End, Pause
from kvtop.profiles.running.order import Order
from kvtop.profiles.running.record import Who
from kvtop.profiles.running.runners.base import Runner
from kvtop.profiles.running.tools import Failed
from kvtop.profiles.secret import shown

_KILLED = 137
"""Exit code of one that SIGKILL ended."""
_ID = re.compile(r"^[0-9a-f]{12,64}$")
STOP_MORE_S = 20.0
"""What docker itself may take on top of the wait that it is told."""


class _State(msgspec.Struct, rename="pascal"):
    running: bool = False
    pid: int = 0
    exit_code: int = 0
    started_at: str = ""


class _Binding(msgspec.Struct, rename="pascal"):
    host_port: str = ""


class _Network(msgspec.Struct, rename="pascal"):
    ports: dict[str, list[_Binding] | None] | None = None


class _Host(msgspec.Struct, rename="pascal"):
    network_mode: str = ""


class Inspected(msgspec.Struct, rename="pascal"):
    """What `docker inspect` says of a container, as far as it is read."""

    created: str = ""
    state: _State = msgspec.field(default_factory=_State)
    network_settings: _Network = msgspec.field(default_factory=_Network)
    host_config: _Host = msgspec.field(default_factory=_Host)

    def begun_since(self, at: float) -> bool:
        """Whether it was made or started after this Unix time."""
        for text in (self.created, self.state.started_at):
            with contextlib.suppress(ValueError, OverflowError):
                if datetime.fromisoformat(text).timestamp() >= int(at):
                    return True
        return False

    def process(self, container: str) -> Who | None:
        """The one that its number means here; None: another one has it, as where docker runs in another namespace."""
        who = Who.of(self.state.pid) if self.state.pid > 0 else None
        return who if who is not None and _is_in(container, who.pid) else None

    def publishes(self, port: int) -> bool:
        rows = (self.network_settings.ports or {}).values()
        return any(binding.host_port == str(port) for row in rows for binding in row or ())


class Container(Runner):
    """One container."""

    @property
    def _docker(self) -> list[str]:
        """What asks about containers: the program without compose and its options."""
        first = self.record.program[0] if self.record.program else "docker"
        return [first.removesuffix("-compose")]

    def start(self, order: Order, env: Mapping[str, str], *, log: int | None, pause: Pause, timeout_s: float) -> None:
        launch = order.launch
        self._remove_last()
        try:
            done = tools.run(
                launch.argv, env=env, cwd=launch.cwd, timeout_s=timeout_s, pause=pause, known=self._as_step()
            )
        except BaseException:
            # The tool was killed; what it had asked for may have been made, and is to be ended as well.
            self._take_half_made(launch.argv)
            raise
        lines = done.out.split()
        if self.record.runner == "docker":
            made = lines[-1] if lines and _ID.match(lines[-1]) else ""
            if done.code:
                # docker makes the container before it starts it: it would be in the way the next time
                if made:
                    self._ask("rm", made)
                raise Failed(_docker_error(done))
            self.record.container = made or self._named(launch.argv)
        else:
            if done.code:
                raise Failed(f"{' '.join(launch.argv[:2])} failed: {done.why or f'exit code {done.code}'}")
            self.record.container = self._of_service()
        if not self.record.container:
            raise Failed("the container's id is not known: its tool said none")
        self.look()

    def look(self) -> None:
        found = self._found()
        who = found.process(self.record.container) if found is not None else None
        if who is not None and who != self.record.server:  # docker may have started it again
            self.record.server, self.record.family = who, []
        super().look()

    def lives(self) -> bool:
        try:
            found = self.inspect() if self.record.container else None
            begun = self.record.state in ("starting", "stopping") and self.record.ready_at is None
            if begun and self.record.server is None and not self._is_of_this_start(found):
                if self._save is not None:
                    return False  # its keeper knows what it has made: this is the last start's, or somebody's
                self._take_half_made(self.record.argv)  # its keeper was killed in the middle of the start
                found = self.inspect() if self.record.container else None
        except Failed:
            return True  # it cannot be asked now; that says nothing of the container
        if found is not None and found.state.running:
            return True
        # Whoever asks another docker is told that there is no such container: its process knows better.
        return self.record.server is not None and self.record.server.lives

    def code(self) -> int | None:
        found = self._found()
        return None if found is None or found.state.running else found.state.exit_code

    def answers(self, health_url: str = "") -> ready.Answer:
        record = self.record
        if record.server is not None and not listens(record.host, record.port):
            return ready.Answer(False)
        try:
            found = self.inspect()
        except Failed as error:
            return ready.Answer(False, str(error))
        if found is None or not found.state.running:
            return ready.Answer(False)
        if not found.publishes(record.port) and found.host_config.network_mode == "host":
            return super().answers(health_url)
        if not found.publishes(record.port) and found.network_settings.ports is not None:
            return ready.Answer(
                False, f"the container {record.container[:12]} does not publish port {record.port}", True
            )
        return self._asked(health_url, None)

    def end(self, wait_s: float, pause: Pause, clock: Callable[[], float], *, gently: bool = True) -> End:
        began, wait = clock(), max(1, round(wait_s)) if gently else 0
        if not self.lives():
            killed, left = self._left_behind(pause, clock)
            return End(killed=killed, took_s=clock() - began, left=left)
        self.look()
        words = [*self._docker, "stop", "-t", str(wait), self.record.container]
        if self.record.runner == "compose":
            words = [*self.record.program, "stop", "-t", str(wait), self.record.service]
        asked = clock()
        done = tools.run(words, timeout_s=wait_s + STOP_MORE_S, pause=pause)
        if self._is_unknown() and self.lives():
            return self._end_itself(wait, pause, clock, gently)
        if done.code:
            raise Failed(f"{' '.join(words[:2])} failed: {done.why or f'exit code {done.code}'}")
        took, code = clock() - asked, self.code()
        # One that is removed at its end (docker run --rm) takes its exit code with it.
        too_long = gently and (took >= wait if code is None else code == _KILLED)
        killed, left = self._left_behind(pause, clock)
        return End(f"within {wait} s of its stop signal" if too_long else "", clock() - began, killed, left)

    def _is_unknown(self) -> bool:
        """docker says that there is no such container: it is another docker, or has lost its state."""
        try:
            return self.inspect() is None
        except Failed:
            return False

    def _end_itself(self, wait_s: float, pause: Pause, clock: Callable[[], float], gently: bool) -> End:
        """A container that docker does not know: its processes end as those of a server without one."""
        server, container = self.record.server, self.record.container
        knows = f"{self._docker[0]} knows no container {container[:12]}"
        if server is None or not _is_in(container, server.pid):
            number = server.pid if server is not None else None
            raise Failed(f"{knows}, and process {number}, which lives, does not say that it is in it")
        known = [who for who in self.record.family if _is_in(container, who.pid)]
        try:
            return family.end(server, known, wait_s, pause, clock, gently=gently, session=False)
        except PermissionError:
            raise Failed(f"{knows}, and its process {server.pid} is another user's") from None

    def _left_behind(self, pause: Pause, clock: Callable[[], float]) -> tuple[int, list[int]]:
        """What lives on in the container though docker says that it is over, is killed: (how many were, the numbers of
        those that live still)."""
        killed, left = 0, [who for who in self.record.family if who.lives]
        for wait_s, kills in ((family.WORKERS_S, False), (family.KILL_S, True)):
            for who in left if kills else ():
                with contextlib.suppress(PermissionError):
                    killed += _is_in(self.record.container, who.pid) and family.send(who, signal.SIGKILL)
            until = clock() + wait_s
            while left and clock() < until:
                pause(family.POLL_S)
                left = [who for who in left if who.lives]
        return killed, [who.pid for who in left]

    def tail(self) -> logs.Tail:
        return logs.CommandTail([*self._logs(), "--since", iso(self.record.started_at) or "0", "-f", *self._which()])

    def log_command(self, lines: int, follow: bool) -> list[str]:
        return [*self._logs(), "-n", str(lines), *(["-f"] if follow else []), *self._which()]

    @property
    def no_log(self) -> str:
        if self.record.runner == "docker" and not self.record.container:
            return shown(self.record.why, 400) or "it has no container"
        return ""

    def log_text(self, limit: int) -> bytes:
        words = [*self._logs(), "--since", iso(self.record.started_at) or "0", *self._which()]
        try:
            return tools.log(words, limit)
        except Failed:
            return b""

    def inspect(self) -> Inspected | None:
        """None where there is no such container. Raises Failed where it cannot be asked."""
        if not self.record.container:
            return None
        words = [*self._docker, "inspect", "--type", "container", self.record.container]
        done = tools.run(words, pause=self.pause)
        if done.code:
            if re.search(r"no such (container|object)", done.err, re.IGNORECASE):
                return None
            raise Failed(f"{self._docker[0]} inspect failed: {done.why or f'exit code {done.code}'}")
        try:
            rows = msgspec.json.decode(done.out, type=list[Inspected])
        except (msgspec.MsgspecError, ValueError):
            raise Failed(f"{self._docker[0]} inspect said something that cannot be read") from None
        return rows[0] if rows else None

    def _found(self) -> Inspected | None:
        """`inspect`; None also where it cannot be asked."""
        try:
            return self.inspect()
        except Failed:
            return None

    def _remove_last(self) -> None:
        """The container of the last start, where it is over: its name would be taken."""
        found = self._found() if self.record.runner == "docker" else None
        if found is not None and not found.state.running:
            tools.run([*self._docker, "rm", self.record.container], pause=self.pause)
        self.record.container = ""
        self.record.server = None
        self.record.family = []

    def _named(self, argv: Sequence[str]) -> str:
        if "--name" not in argv[:-1]:
            return ""
        done = self._ask("inspect", "--type", "container", "--format", "{{.Id}}", argv[argv.index("--name") + 1])
        found = done.out.strip()
        return found if done.code == 0 and _ID.match(found) else ""

    def _of_service(self) -> str:
        ids = self._run([*self.record.program, "ps", "-a", "-q", self.record.service]).out.split()
        return ids[0] if ids and _ID.match(ids[0]) else ""

    def _is_of_this_start(self, found: Inspected | None) -> bool:
        return found is not None and found.begun_since(self.record.started_at)

    def _take_half_made(self, argv: Sequence[str]) -> None:
        """A container that this start made, though its tool could not say so."""
        with contextlib.suppress(Failed):
            self.record.container = self._of_service() if self.record.runner == "compose" else self._named(argv)
        if not self._is_of_this_start(self._found()):
            self.record.container = ""  # somebody else's, which was there before

    def _logs(self) -> list[str]:
        if self.record.runner == "compose":
            return [*self.record.program, "logs", "--no-color", "--no-log-prefix"]
        return [*self._docker, "logs"]

    def _which(self) -> list[str]:
        return [self.record.service if self.record.runner == "compose" else self.record.container]

    def _ask(self, *words: str) -> tools.Done:
        return self._run([*self._docker, *words])

    def _run(self, words: Sequence[str]) -> tools.Done:
        return tools.run(words, pause=time.sleep)


def _is_in(container: str, pid: int) -> bool:
    """Whether the process is that container's, by the name of its control group; where docker runs without those, by
    the host name that it gives a container that has no other one."""
    if not _ID.match(container):
        return False
    try:
        if container in Path(f"/proc/{pid}/cgroup").read_text("utf-8", "replace"):
            return True
        return f"HOSTNAME={container[:12]}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _docker_error(done: tools.Done) -> str:
    """`docker: Error response from daemon: Conflict. The container name ...`"""
    lines = [line for line in done.err.splitlines() if line.startswith(("docker: ", "Error"))]
    first = lines[0] if lines else done.why
    said = first.removeprefix("docker: ").removeprefix("Error response from daemon: ")
    return shown(f"docker did not start it: {said or f'exit code {done.code}'}", tools.MOST_SAID)
