"""Two turns once more, asked for on the screen: what a replay would cost, and the replay itself, beside the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from kvtop.errors import KvtopError
from kvtop.live.captures import Captures
from kvtop.live.casebooks import Place
from kvtop.live.patience import Gate
from kvtop.live.work import Work
from kvtop.worker import Caller

if TYPE_CHECKING:
    from kvtop.triage.kinds import Kind
    from kvtop.triage.replay import Replay
    from kvtop.triage.replay_pair import Pair
    from kvtop.triage.replayed import Plan, Replayed, Run

LOG = logging.getLogger("kvtop.live")
T = TypeVar("T")

PLAN_S = 120.0
"""Working out what would be sent."""
SEND_S = 4 * 3_600.0
"""All of its requests together: a slow card reads a long prompt for many minutes."""
BUSY, LATE = "another replay is still at work", "it takes too long"


class Pairs(Protocol):
    """`kvtop.live.casebooks.Casebooks`. May block."""

    def pair(self, id: int, place: Place, gate: Gate, kinds: Sequence[Kind]) -> Pair: ...


class Places(Protocol):
    """`kvtop.live.upstreams.Upstreams`."""

    def place(self, upstream: str) -> Place | None: ...


@dataclass(frozen=True, slots=True)
class Offer:
    """What a replay would send, and what that would cost. Nothing was sent yet."""

    pair: Pair
    plan: Plan
    place: Place = field(repr=False)


class Replaying:
    """One replay at a time. Raises KvtopError, one line, where it cannot be done; cancelling ends the work."""

    def __init__(self, captures: Captures, pairs: Pairs, places: Places, worker: Callable[[str], Caller]) -> None:
        self._captures, self._pairs, self._places = captures, pairs, places
        self._worker = worker("replay")
        self._replay: Replay | None = None

    async def offer(self, id: int, kinds: Sequence[Kind] = ()) -> Offer:
        """For this turn and the one that it is compared with; `kinds`: also without those kinds of causes."""
        from kvtop.triage.replay_server import allowed

        turn = self._captures.captured(id)
        if turn is None:
            raise KvtopError("it has not ended, or is not kept at hand any more")
        place = self._places.place(turn.upstream)
        if place is None:
            raise KvtopError("the server that it went to does not answer, or is not one that may be asked")
        allowed(place.url)
        work = Work()

        def look() -> Offer:
            pair = self._pairs.pair(id, place, Gate(hurry=True, work=work), kinds)
            return Offer(pair, work.run(self._planned(pair, place)), place)

        return await self._call(look, work, PLAN_S)

    async def send(self, offer: Offer, told: Callable[[Run], None]) -> Replayed:
        """Refuses a server that is not idle. `told` is called on this loop with each request as it is answered."""
        loop, work = asyncio.get_running_loop(), Work()

        def tell(run: Run) -> None:
            loop.call_soon_threadsafe(told, run)

        return await self._call(lambda: work.run(self._sent(offer, tell)), work, SEND_S)

    def so_far(self) -> Replayed | None:
        """What the last one has sent, also where it was given up; None: there was none."""
        return self._replay.so_far() if self._replay is not None else None

    async def _call(self, work: Callable[[], T], held: Work, timeout_s: float) -> T:
        return await held.beside(self._worker, work, timeout_s, busy=BUSY, late=LATE, sleep=asyncio.sleep)

    async def _planned(self, pair: Pair, place: Place) -> Plan:
        from kvtop.triage.replay import Replay
        from kvtop.triage.replay_server import ReplayServer

        server = ReplayServer(place.url, key=place.key)
        try:
            return await Replay(server, pair.sent, repaired=pair.repaired, live=pair.live, rate=place.rate).plan()
        finally:
            await server.aclose()

    async def _sent(self, offer: Offer, told: Callable[[Run], None]) -> Replayed:
        from kvtop.triage.replay import Replay
        from kvtop.triage.replay_notes import Notes
        from kvtop.triage.replay_server import ReplayServer

        pair, place = offer.pair, offer.place
        notes = Notes(lambda why: LOG.warning("a replay is not noted: %s", why))
        server = ReplayServer(place.url, key=place.key)
        try:
            self._replay = Replay(
                server, pair.sent, repaired=pair.repaired, live=pair.live, rate=place.rate, noted=notes.write
            )
            return await self._replay.run(told=told)
        finally:
            await server.aclose()
