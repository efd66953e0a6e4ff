"""The runner venv: the server is a child, in a session of its own, and writes its log itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping

from kvtop.errors import printable
from kvtop.profiles.running import family, orphans
from kvtop.profiles.running.family import End, Pause
from kvtop.profiles.running.order import Order
from kvtop.profiles.running.record import Who
from kvtop.profiles.running.runners.base import Runner
from kvtop.profiles.running.spawn import spawn
from kvtop.profiles.running.tools import Failed, code_of
from kvtop.profiles.secret import shown

REAPED_S = 1.0


class Venv(Runner):
    """vLLM from a virtual environment, or any other program."""

    look_s = 0.25
    _child: subprocess.Popen[bytes] | None = None
    _heir = False
    """Orphans come to this process."""

    def start(self, order: Order, env: Mapping[str, str], *, log: int | None, pause: Pause, timeout_s: float) -> None:
        launch = order.launch
        name = shown(launch.argv[0], 200)
        try:
            self._heir = orphans.taken()
            self._child = spawn(launch.argv, self._known, stdout=log, stderr=log, cwd=launch.cwd, env=dict(env))
        except FileNotFoundError as error:
            if launch.cwd is not None and error.filename == launch.cwd:
                raise Failed(f"there is no folder {printable(launch.cwd, 200)}, which [venv] cwd names") from None
            raise Failed(f"there is no program {name}; [venv] command names it, with its path or from PATH") from None
        except (OSError, ValueError) as error:
            raise Failed(f"{name} cannot be run: {getattr(error, 'strerror', None) or error}") from None

    def _known(self, who: Who | None) -> None:
        self.record.server = who
        if self._save is not None:
            self._save()

    @property
    def _own(self) -> set[int] | None:
        """See `family.look`: what its keeper itself started, this server, its sidecars, and the command that runs."""
        if self._child is None or not self._heir:
            return None
        beside = (*self.record.sidecars, *filter(None, (self.record.step,)))
        return {self._child.pid, *(who.pid for who in beside)}

    def reap(self) -> bool:
        return (own := self._own) is not None and orphans.reap(own)

    def look(self) -> None:
        if self.record.server is not None:
            self.record.family = family.look(
                self.record.server, self.record.family, own=self._own, logs=self.record.outputs()
            )

    def lives(self) -> bool:
        if self._child is not None:
            return self._ended() is None
        return self.record.server is not None and self.record.server.lives

    def code(self) -> int | None:
        returncode = self._ended()
        return None if returncode is None else code_of(returncode)

    def _ended(self) -> int | None:
        """How the child ended, as Popen has it; None: it lives, or it is none of this process. It is not waited for
        while its session may have members: its number could become another's."""
        if self._child is None or self._child.returncode is not None:
            return None if self._child is None else self._child.returncode
        said = os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if said is None:
            return None
        return said.si_status if said.si_code == os.CLD_EXITED else -said.si_status

    def end(self, wait_s: float, pause: Pause, clock: Callable[[], float], *, gently: bool = True) -> End:
        server, known, logs = self.record.server, self.record.family, self.record.outputs()
        if server is None:
            return End()
        done = family.end(server, known, wait_s, pause, clock, gently=gently, own=self._own, logs=logs)
        self.look()
        # Those that are gone stay for a while: their cards may not be free yet.
        self.record.family = [*known, *(who for who in self.record.family if who not in known)]
        if self._child is not None:
            # The process table may call it gone a moment before its parent is told how it ended.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(REAPED_S)
        return done
