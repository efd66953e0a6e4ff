"""Why captured turns took their time, worked out beside the loop, one turn at a time: those that are worth it, and the
one whose page is open."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kvtop.capture.slow import LOST_TOKENS
from kvtop.capture.turn import Captured
from kvtop.clock import Clock
from kvtop.errors import KvtopError, printable
from kvtop.live.captures import Captures
from kvtop.live.casebooks import ALL_S, Place
from kvtop.live.endpoint import Sleep, rest
from kvtop.live.patience import Gate
from kvtop.model.shown_turn import Turn
from kvtop.worker import Caller, Hangs

if TYPE_CHECKING:
    from kvtop.triage.result import Why
    from kvtop.triage.sheet import Sheet

LOG = logging.getLogger("kvtop.live")

LOOK_S = 1.0
TICK_S = 0.2
"""Between two looks whether the server is busy, while one turn is worked out."""
SETTLED_S = 2.0
"""The counters tell of a turn up to so long after its end: before that it is not worked out unasked."""
PAST_S = 3_600.0
"""Turns that ended longer before kvtop's start are left alone, until their page is opened."""
PAST_TURNS = 50
"""Neither are more than these of the newest."""
TRIES = 2
"""A turn is worked out anew where its row has changed since, but no more often than that."""
DONE = 2_000
KEPT = 64
"""Verdicts that are kept whole."""
WORK_S = ALL_S + 30.0
"""A thread that takes longer is left alone."""
NEWS = 8
LATE = "working it out takes too long"
ANOTHER = "another diff is still being worked out"

Key = tuple[int, float]
"""Turn, by number and begin: of another store the numbers begin anew."""


class Judge(Protocol):
    """`kvtop.live.casebooks.Casebooks`. May block."""

    def why(self, id: int, place: Place | None, gate: Gate) -> Why: ...

    def sheet(self, id: int, place: Place | None, gate: Gate) -> Sheet: ...


class Upstreams(Protocol):
    """What is known of the servers that turns went to."""

    def place(self, upstream: str) -> Place | None:
        """None: it may not be asked for tokens."""
        ...

    def busy(self, upstream: str) -> bool:
        """Something runs there, as far as is known."""
        ...


@dataclass(frozen=True, slots=True)
class News:
    """What is to be said once, in a line."""

    text: str
    bad: bool = False
    of_profiles: bool = False
    """The page of profiles tells more of it."""
    told_there: bool = False
    """That page tells it by itself."""


@dataclass(slots=True)
class _Done:
    turn: Captured
    """As it was when it was worked out."""
    tries: int
    asked: bool
    """A server was there to be asked."""


class Verdicts:
    """`run` until cancelled. What it finds stands in the rows of `captures`."""

    def __init__(
        self,
        captures: Captures,
        judge: Judge,
        upstreams: Upstreams,
        *,
        worker: Callable[[str], Caller],
        clock: Clock,
        sleep: Sleep,
        on_slow: Callable[[bytes], None] = lambda document: None,
    ) -> None:
        """`on_slow` gets the JSON document of each slow turn that ended since now, once, and must not block."""
        self._captures, self._judge, self._upstreams = captures, judge, upstreams
        self._clock, self._sleep, self._on_slow = clock, sleep, on_slow
        self._worker, self._beside = worker("why"), worker("diff")
        self._began = clock.wall()
        self._done: OrderedDict[Key, _Done] = OrderedDict()
        self._whys: OrderedDict[Key, Why] = OrderedDict()
        self._asked: OrderedDict[Key, asyncio.Future[Why]] = OrderedDict()
        """Those that somebody waits for."""
        self._soon = asyncio.Event()
        self._seen: object = None
        """Mark of the captures in which nothing was left to do."""
        self._gate = Gate()
        self._left: OrderedDict[Key, None] = OrderedDict()
        """Those that no verdict is promised on."""
        self._told: OrderedDict[Key, None] = OrderedDict()
        self._news: deque[News] = deque(maxlen=NEWS)
        captures.judged_by(self._awaits)

    async def run(self, changed: Callable[[], None]) -> None:
        while True:
            turn = self._next()
            if turn is None:
                await rest(self._sleep, LOOK_S, self._soon)
                self._soon.clear()
            elif await self._work_out(turn):
                changed()
            else:
                self._let_be(self._worth_it())
                await self._sleep(LOOK_S)  # the thread before it still hangs

    def say(self, news: News) -> None:
        """Have this said."""
        self._news.append(news)

    def news(self) -> tuple[News, ...]:
        """What there is to say since the last call."""
        told = tuple(self._news)
        self._news.clear()
        return told

    # -- asked for

    async def why(self, id: int) -> Why:
        """The verdict on a turn, before all others. Raises KvtopError where it cannot be worked out."""
        turn = self._captures.captured(id)
        if turn is None:
            raise KvtopError("it has not ended, or is not kept at hand any more")
        key = id, turn.started_at
        done, known = self._done.get(key), self._whys.get(key)
        if known is not None and done is not None and done.turn == turn and not self._better(done):
            return known
        if key not in self._asked:
            waits: asyncio.Future[Why] = asyncio.get_running_loop().create_future()
            waits.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to hear it
            self._asked[key] = waits
            self._captures.anew(turn)
        self._gate.hurry = True
        self._soon.set()
        return await asyncio.shield(self._asked[key])

    def _better(self, done: _Done) -> bool:
        """Its server answers now, and did not then."""
        return not done.asked and self._upstreams.place(done.turn.upstream) is not None

    async def sheet(self, id: int) -> Sheet:
        """The prompt of a turn beside the one that it is compared with. Raises KvtopError where there is none."""
        turn = self._captures.captured(id)
        place = self._upstreams.place(turn.upstream) if turn is not None else None
        gate = Gate(hurry=True)
        work = partial(self._judge.sheet, id, place, gate)
        return await gate.work.beside(self._beside, work, WORK_S, busy=ANOTHER, late=LATE, sleep=self._sleep)

    # -- which one

    def _next(self) -> Captured | None:
        while self._asked:
            id, _ = key = next(iter(self._asked))
            turn = self._captures.captured(id)
            if turn is not None and (id, turn.started_at) == key:
                return turn
            self._fail(key, "it is not kept any more")
        self._gate.hurry = False
        mark = self._captures.mark
        if mark == self._seen:
            return None
        now, waits = self._clock.wall(), False
        worth = self._worth_it()
        self._let_be(worth[PAST_TURNS:])
        for row in worth[:PAST_TURNS]:
            turn = self._captures.captured(row.id)
            if turn is None or not self._is_new(turn):
                continue
            if turn.ended_at is not None and 0 <= now - turn.ended_at < SETTLED_S:
                waits = True
                continue
            return turn
        self._seen = None if waits else mark
        return None

    def _worth_it(self) -> list[Turn]:
        """The newest first."""
        since = max(self._began, self._clock.wall()) - PAST_S
        return [row for row in self._captures.newest(since) if _worth(row)]

    def _awaits(self, turn: Captured, row: Turn) -> bool:
        """A verdict on it is on its way."""
        key = turn.id, turn.started_at
        if key in self._asked:
            return True
        late = (turn.ended_at or turn.started_at) < max(self._began, self._clock.wall()) - PAST_S
        return not late and key not in self._left and _worth(row) and self._is_new(turn)

    def _let_be(self, rows: list[Turn]) -> None:
        """They promise no verdict any more."""
        for row in rows:
            turn = self._captures.captured(row.id) if row.judging else None
            if turn is not None:
                self._left[turn.id, turn.started_at] = None
                self._captures.anew(turn)
        _bound(self._left, DONE)

    def _is_new(self, turn: Captured) -> bool:
        done = self._done.get((turn.id, turn.started_at))
        return done is None or (done.turn != turn and done.tries < TRIES)

    # -- working it out

    async def _work_out(self, turn: Captured) -> bool:
        """False: it could not be tried."""
        key, place = (turn.id, turn.started_at), self._upstreams.place(turn.upstream)
        self._gate = Gate(self._upstreams.busy(turn.upstream), bool(self._asked))
        ticking = asyncio.create_task(self._tick(turn.upstream, self._gate))
        why: Why | None = None
        wrong = ""
        try:
            why = await self._worker.call(partial(self._judge.why, turn.id, place, self._gate), WORK_S)
        except Hangs:
            return False
        except TimeoutError:
            wrong = LATE
        except KvtopError as error:
            wrong = error.what
        except Exception as error:
            LOG.exception("the verdict on turn %d failed", turn.id)
            wrong = f"kvtop's own triage failed ({type(error).__name__})"
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
        before = self._done.pop(key, None)
        self._done[key] = _Done(turn, 1 if before is None else before.tries + 1, place is not None)
        _bound(self._done, DONE)
        if why is None:
            self._fail(key, wrong)
            self._captures.anew(turn)
        else:
            self._keep(key, turn, why)
        return True

    async def _tick(self, upstream: str, gate: Gate) -> None:
        while True:
            await self._sleep(TICK_S)
            gate.busy = self._upstreams.busy(upstream)

    def _keep(self, key: Key, turn: Captured, why: Why) -> None:
        from kvtop.triage.in_a_row import finding

        self._whys.pop(key, None)
        self._whys[key] = why
        _bound(self._whys, KEPT)
        self._captures.found(turn, finding(why, turn))
        if (waits := self._asked.pop(key, None)) is not None and not waits.done():
            waits.set_result(why)
        self._tell(key, turn, why)

    def _fail(self, key: Key, wrong: str) -> None:
        if (waits := self._asked.pop(key, None)) is not None and not waits.done():
            waits.set_exception(KvtopError(printable(wrong)))

    def _tell(self, key: Key, turn: Captured, why: Why) -> None:
        """The user's command is told once of a slow turn that ended while kvtop ran; the screen has the sentence."""
        row = self._captures.row(turn.id)
        if row is None or not row.waited or key in self._told or (turn.ended_at or 0.0) < self._began:
            return
        self._told[key] = None
        _bound(self._told, DONE)
        from kvtop.triage import document

        self._on_slow(json.dumps(document.why(why), allow_nan=False).encode())


def _worth(row: Turn) -> bool:
    """It took long, read again what was read before, or failed; or it began a conversation with much to read, some of
    which an earlier one may have left."""
    begun = row.relation == "first" and (row.new_tokens or 0) >= LOST_TOKENS
    return row.waited or row.reread or bool(row.lost) or begun or row.state in ("failed", "cut")


def _bound(known: OrderedDict[Key, Any], most: int) -> None:
    while len(known) > most:
        known.popitem(last=False)
