"""What the recorder was not given: counted, and told while it happens, in the tap's log and to whoever asks the tap."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time

from kvtop.capture.tap.ended import Missed
from kvtop.capture.tap.reactor import Reactor

LOOK_S = 1.0
STUCK_S = 10.0
"""A recorder that has not kept up for so long is told of before it does again."""
APART_S = 60.0
"""Between two lines on what was missed. Whatever comes sooner is told together."""


class Tally:
    """Costs nothing as long as nothing is missed."""

    def __init__(
        self, reactor: Reactor, behind: Callable[[], bool], note: Callable[[str], None], tell: Callable[[Missed], None]
    ) -> None:
        """`behind`: whether the recorder still lacks something. `note` takes lines for the log; `tell` gets the numbers
        when they changed, at most every LOOK_S."""
        self._reactor = reactor
        self._behind = behind
        self._note = note
        self._tell = tell
        self._connections = 0
        self._bytes = 0
        self._first: float | None = None
        self._last: float | None = None
        self._since: float | None = None
        """Unix time."""
        self._since_s = 0.0
        """The same, of the clock that nobody sets."""
        self._stuck = False
        """That it does not keep up was said."""
        self._noted = Missed()
        """As of the last line on it."""
        self._quiet_until = 0.0
        self._told = Missed()
        self._looking = False
        self._unwritten: str | None = None
        self._unwritten_since: float | None = None

    @property
    def missed(self) -> Missed:
        return Missed(
            connections=self._connections,
            bytes=self._bytes,
            first_at=self._first,
            last_at=self._last,
            behind_since=self._since,
            unwritten=self._unwritten,
            unwritten_since=self._unwritten_since,
        )

    def add(self, size: int, connections: int) -> None:
        """Bytes that were not kept, and connections of which nothing was missed before."""
        self._bytes += size
        self._connections += connections
        now = self._last = time()
        if self._first is None:
            self._first = now
        if self._since is None:
            self._since, self._since_s = now, monotonic()
        self._look_soon()

    def unwritten(self, why: str | None) -> None:
        """The recorder cannot write its store; None: it can again."""
        if why is not None and self._unwritten is None:
            self._unwritten_since = time()
        elif why is None:
            self._unwritten_since = None
        self._unwritten = why
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._reactor.call_later(LOOK_S, self._look)

    def close(self) -> None:
        """The tap ends: say what was not said yet."""
        self._since = None
        self._note_missed()

    def _look(self) -> None:
        now = monotonic()
        if not self._behind():
            self._since, self._stuck = None, False
        elif self._since is not None and not self._stuck and now - self._since_s >= STUCK_S:
            self._stuck = True
            self._note(f"the recorder has not kept up for {now - self._since_s:.0f} s; traffic goes on unrecorded")
        if self.missed != self._told:
            self._told = self.missed
            self._tell(self._told)
        if self._since is None and now >= self._quiet_until:
            self._note_missed()
            self._quiet_until = now + APART_S
            self._looking = False
        else:
            self._reactor.call_later(LOOK_S, self._look)

    def _note_missed(self) -> None:
        missed, before = self.missed, self._noted
        self._noted = missed
        if (missed.connections, missed.bytes) != (before.connections, before.bytes):
            fresh = Missed(connections=missed.connections - before.connections, bytes=missed.bytes - before.bytes)
            total = f"; {missed.bytes:,} bytes since the tap began" if before.bytes else ""
            self._note(f"the recorder did not keep up; {fresh.line}{total}")
