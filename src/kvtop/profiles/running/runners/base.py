"""What all runners have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from kvtop.profiles.running import family, logs, ready
from kvtop.profiles.running.asking import listens
from kvtop.profiles.running.family import End, Pause
from kvtop.profiles.running.order import Order
from kvtop.profiles.running.record import Record
from kvtop.profiles.running.spawn import Known, as_step


class Runner(ABC):
    """A server of one record. What it learns of it, it writes into the record."""

    look_s = 1.0
    """Between two looks at one that starts: each runs the runner's own tool."""
    end_more_s = 60.0
    """What an end may take beyond the wait that it is told: killing, clean-up, the runner's own tool."""

    def __init__(self, record: Record, save: Callable[[], None] | None = None) -> None:
        """`save`: of a keeper, writes the record."""
        self.record = record
        self._save = save
        self.pause: Pause = time.sleep
        """While the runner's own tool is asked how its server is; a keeper's lets go when the end is wanted."""

    @abstractmethod
    def start(self, order: Order, env: Mapping[str, str], *, log: int | None, pause: Pause, timeout_s: float) -> None:
        """Start it. Raises `tools.Failed` where that does not work, and what `pause` raises."""

    def _as_step(self) -> Known | None:
        return None if self._save is None else as_step(self.record, self._save)

    @abstractmethod
    def lives(self) -> bool:
        """Whether it runs, as far as can be told."""

    @abstractmethod
    def code(self) -> int | None:
        """Of one that does not live: its exit code as a shell has it; None where nobody knows it."""

    @abstractmethod
    def end(self, wait_s: float, pause: Pause, clock: Callable[[], float], *, gently: bool = True) -> End:
        """End it, and what is left of it. Raises `tools.Failed`, PermissionError."""

    def tail(self) -> logs.Tail:
        """The log of this start, as it grows. Raises OSError."""
        return logs.FileTail(Path(self.record.log), self.record.log_offset)

    def log_command(self, lines: int, follow: bool) -> list[str] | None:
        """The runner's own tool that shows the log; None: it is a file."""
        return None

    @property
    def no_log(self) -> str:
        """Why there cannot be any; empty where there may be."""
        return ""

    def log_text(self, limit: int) -> bytes:
        """The log of this start, of a long one its end; nothing where it cannot be had."""
        return logs.since(Path(self.record.log), self.record.log_offset, limit)

    def answers(self, health_url: str = "") -> ready.Answer:
        """Whether it is ready, and it itself. `health_url`: of a keeper, who has the profile's own."""
        if not listens(self.record.host, self.record.port):
            return ready.Answer(False)  # without a look at all processes
        # All processes are read only where those that are known do not tell.
        said = self._asked(health_url, {who.pid for who in self.record.family} or None)
        if said.other or not self.record.family:
            self.look()
            said = self._asked(health_url, {who.pid for who in self.record.family} or None)
        return said

    def _asked(self, health_url: str, pids: Collection[int] | None) -> ready.Answer:
        """`pids`: as for `ready.ask`."""
        record, url = self.record, health_url or self.record.health_url
        return ready.ask(record.host, record.port, health_url=url, names=record.names, pids=pids)

    def reap(self) -> bool:
        """Take notice of the end of orphans that came to this process. False: something else may have ended too."""
        return False

    def look(self) -> None:
        """Bring the record's processes up to date."""
        if self.record.server is not None:
            self.record.family = family.look(self.record.server, self.record.family)
