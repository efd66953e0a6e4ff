"""What is done once, when the user asks for it: a captured turn in full, and starting and stopping taps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kvtop import paths
from kvtop.capture.turn import Captured
from kvtop.errors import KvtopError, printable
from kvtop.live.factories import StoreLike
from kvtop.live.replaying import Replaying
from kvtop.live.taps import Taps
from kvtop.live.verdicts import Verdicts
from kvtop.live.work import called
from kvtop.worker import Caller

if TYPE_CHECKING:
    from kvtop.capture.api.answer_text import Piece
    from kvtop.capture.control.plan import Leg
    from kvtop.capture.control.running import Running
    from kvtop.triage.result import Why
    from kvtop.triage.sheet import Sheet

T = TypeVar("T")

READ_S = 10.0
"""Reading a turn and its bodies."""
START_S = 30.0
STOP_S = 90.0
PARSED_BYTES = 4_000_000
"""Of a longer answer only the end is read for its words."""
SIBLINGS = 200
"""Turns of a conversation that are looked at."""


@dataclass(frozen=True, slots=True)
class Detail:
    """A captured turn in full."""

    turn: Captured
    answer: tuple[Piece, ...] = ()
    """Its words, thoughts and calls, in order; of a very long answer those of its end."""
    siblings: tuple[Captured, ...] = ()
    """The last turns of its conversation, newest first, itself among them."""


@dataclass(frozen=True, slots=True)
class TapRow:
    """A tap that runs."""

    record: Running
    connections: int | None = None
    """Open ones of clients; None where that cannot be told."""


class Desk:
    """All of it beside the loop. Raises KvtopError, one line, where something cannot be done."""

    def __init__(
        self,
        opened: Callable[[], StoreLike | None],
        taps: Taps,
        worker: Callable[[str], Caller],
        verdicts: Verdicts | None = None,
        replaying: Replaying | None = None,
    ) -> None:
        """`verdicts`, `replaying`: None where nothing is worked out, or sent."""
        self._opened, self._taps, self._verdicts = opened, taps, verdicts
        self.replaying = replaying
        self._reader, self._bodies = worker("turn"), worker("bodies")
        self._looker, self._starter, self._stopper = worker("tap-look"), worker("tap-start"), worker("tap-stop")

    # -- turns

    async def detail(self, id: int) -> Detail | None:
        """A captured turn; None where it is not kept any more."""

        def read(store: StoreLike) -> Detail | None:
            from kvtop.capture.api import answer_text

            turn = store.turn(id)
            if turn is None:
                return None
            body = store.response_body(id) or b""
            if len(body) > PARSED_BYTES:
                body = body[-PARSED_BYTES:].partition(b"\n")[2]
            siblings = store.turns(last=SIBLINGS, conversation=turn.conversation) if turn.conversation else []
            return Detail(turn, tuple(answer_text.pieces(turn.route, body)), tuple(siblings))

        return await self._from_store(self._reader, read)

    async def bodies(self, id: int) -> tuple[bytes | None, bytes | None]:
        """(The request's body as it was sent, the answer's, unpacked); None for what is not there."""
        found = await self._from_store(self._bodies, lambda store: (store.request_body(id), store.response_body(id)))
        return found or (None, None)

    async def why(self, id: int) -> Why:
        """Why it took its time: worked out now, before all others, where it was not yet."""
        return await self._triage.why(id)

    async def sheet(self, turn_id: int) -> Sheet:
        """Its prompt beside the one of the turn that it should have been continued from."""
        return await self._triage.sheet(turn_id)

    @property
    def _triage(self) -> Verdicts:
        if self._verdicts is None:
            raise KvtopError("nothing is worked out here")
        return self._verdicts

    async def _from_store(self, worker: Caller, read: Callable[[StoreLike], T]) -> T | None:
        def look() -> T | None:
            store = self._opened()
            if store is None:
                return None
            try:
                return read(store)
            finally:
                store.close()

        return await called(worker, look, READ_S, "the store of captured turns does not answer")

    # -- taps

    @property
    def taps(self) -> tuple[Running, ...]:
        """Those that run, as of the last look."""
        return self._taps.here

    def listens(self, url: str) -> tuple[str, ...]:
        """host:port of the taps to the server with this base URL."""
        return self._taps.listens(self._taps.behind(url))

    async def rows(self) -> tuple[TapRow, ...]:
        """Those that run, with how many connections each one holds."""

        def look() -> tuple[TapRow, ...]:
            from kvtop.sources.listeners import open_connections
            from kvtop.sources.url import listen_address

            return tuple(
                TapRow(record, open_connections(record.pid, [listen_address(m.listen)[1] for m in record.mappings]))
                for record in self._taps.here
            )

        return await called(self._looker, look, READ_S, "the list of connections does not come")

    async def planned(self, url: str) -> Leg:
        """The way that `start` would open: a free port of this machine, to the server with this base URL."""
        return await self._free(self._starter, url, START_S)

    async def would(self, url: str) -> Leg:
        """As `planned`, to be told beforehand: it keeps nobody from starting one meanwhile."""
        return await self._free(self._looker, url, READ_S)

    async def _free(self, worker: Caller, url: str, timeout_s: float) -> Leg:
        here = self._taps.here

        def plan() -> Leg:
            from kvtop.capture.control.plan import free_leg

            return free_leg(url, here)

        return await called(worker, plan, timeout_s, "looking for a free port takes too long")

    async def start(self, way: Leg) -> str:
        """Start a detached tap. What is said of it."""

        def begin() -> str:
            from kvtop.capture.control import detached
            from kvtop.capture.control.plan import DRAIN_S

            made = detached.start(way.listen, [way], store=paths.turns_file(), drain_s=DRAIN_S)
            threading.Thread(target=made.child.wait, name="kvtop-tap-end", daemon=True).start()  # no zombie is left
            told = f"it listens on http://{made.mappings[0].listen} (process {made.pid})"
            return f"{told}; {made.problem}" if made.problem else told

        said = await called(self._starter, begin, START_S, "the tap did not start in time")
        self._taps.look_soon()
        return said

    async def stop(self, record: Running) -> str:
        """End a tap: it waits for open streams as long as it was told to. What is said of it."""

        def end() -> str:
            from kvtop.capture.control import running

            name = printable(record.name, 80)
            try:
                gone, ending = running.stop(record, record.drain_s + running.STOP_GRACE_S)
            except PermissionError:
                raise KvtopError(f"the tap {name} is another user's (process {record.pid})") from None
            if not gone:
                raise KvtopError(f"the tap {name} does not end (process {record.pid})")
            if ending is None:
                return f"{name} ended"
            return f"{name} ended: {ending.cut or 'no'} open connection{'' if ending.cut == 1 else 's'} cut"

        said = await called(self._stopper, end, STOP_S, "the tap has not ended yet")
        self._taps.look_soon()
        return said
