"""The turns that taps captured, read from the store beside the loop, as the dashboard shows them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from kvtop.capture.api.answers import tells_cached
from kvtop.capture.slow import RATED, usual_rate
from kvtop.capture.turn import Captured, Record, Route, Source, TurnState
from kvtop.errors import KvtopError
from kvtop.live.endpoint import Sleep
from kvtop.live.factories import StoreLike
from kvtop.live.judging import KEPT, Judging, Moment
from kvtop.live.queued import Queued
from kvtop.live.shown import phases
from kvtop.model.finding import Finding
from kvtop.model.here import same_port_here
from kvtop.model.shown_turn import Turn
from kvtop.worker import Caller, Hangs

LOOK_S = 0.5
"""Between two looks whether the store has changed; a look costs a tenth of a millisecond."""
ABSENT_S = 5.0
"""The same while there is no store."""
READ_S = 5.0
PAGE = 500
"""Turns that are read at once, so that the screen can be drawn between two pages."""
AT_ONCE = 200
"""Turns that are worked out at once, on the loop: about 30 ms, were all of them slow."""
AGAIN = 32
"""So many of the newest turns are read anew with every change: the counters complete some after their end."""
ANEW_S = 5.0
"""All turns are read anew, because some were forgotten, at most so often."""
LOST_S = 60.0
"""A turn in flight that began so long ago while no tap runs: nobody will see its end."""
DETAILS_OF = 3
"""Turns in a row whose usage tells no cached tokens, from which on the server is said to tell none."""
USAGE_OF = 50
"""Of so many of the last turns those are counted that are streams without usage."""
ASKED = frozenset({Route.CHAT, Route.COMPLETIONS})
"""Routes on which a stream has usage only where its client asks for it."""


@dataclass(frozen=True, slots=True)
class _News:
    rows: list[Captured]
    """New or changed."""
    all: bool = False
    """They are all that there is."""
    queued: frozenset[int] = frozenset()
    """Of `rows` those that waited in the server's queue, as far as their samples tell."""


@dataclass
class _Kept:
    """The turns of one server."""

    flying: dict[int, Captured] = field(default_factory=dict)
    ended: dict[int, Captured] = field(default_factory=dict)
    shown: dict[int, Turn] = field(default_factory=dict)
    """Those of `ended` that were worked out."""
    todo: list[int] = field(default_factory=list)
    """Those that are to be worked out (anew), the newest last."""
    rows: tuple[Turn, ...] | None = None
    """Newest end first; None: to be made."""
    rated: bool = False
    """A prefill rate was known when they were worked out."""
    lost: tuple[int, ...] = ()
    """Of `flying` those that nobody records any more: they are in `rows`."""
    now: Moment | None = None
    """What they were judged by last."""


def untold(turn: Captured) -> bool:
    """A stream that ended well and told no usage, on a route where that is for its client to ask for."""
    whole = turn.state is TurnState.DONE and turn.source is Source.TAP and turn.record is Record.COMPLETE
    return whole and bool(turn.stream) and turn.route in ASKED and not turn.usage


class Captures:
    """`run` until cancelled. `in_flight(url)` and `ended(url)` are what it knows of one server."""

    def __init__(self, opened: Callable[[], StoreLike | None], worker: Caller, sleep: Sleep) -> None:
        """`opened` returns None where there is no store yet. Raises KvtopError where there is one that is unfit."""
        self.version = 0
        """Grows with every change."""
        self.problem = ""
        """Why the store cannot be read, in words; empty where it can, or where there is none."""
        self._opened, self._worker, self._sleep = opened, worker, sleep
        self._store: StoreLike | None = None
        self._revision: int | None = None
        self._count = 0
        """Turns in the store at the last look."""
        self._below: int | None = None
        """Turns with a smaller number are still to be read; None: all are."""
        self._forgotten = False
        """Some of those that are kept are not in the store any more."""
        self._anew_in_s = 0.0
        self._unheard = False
        """What a read found came too late to be taken."""
        self._places: dict[int, str] = {}
        """Turn -> its server, of all that are kept."""
        self._ids: list[int] | None = None
        """The same in order; None: to be made."""
        self._kept: dict[str, _Kept] = {}
        self._samples = Queued()
        """Asked in the worker's thread."""
        self._judging = Judging()
        self._awaits: Callable[[Captured, Turn], bool] = lambda turn, row: False

    async def run(self, changed: Callable[[], None]) -> None:
        while True:
            before = self.problem
            try:
                news = await self._worker.call(self._look, READ_S)
                if self._store is not None:
                    self.problem = ""
            except (TimeoutError, Hangs):
                news, self.problem = None, "the store of captured turns does not answer"
                self._unheard = True
            except Exception as error:  # noqa: BLE001  a store that is unfit is a line on the screen, never its end
                news, self.problem = None, _words(error)
            if news is not None:
                self._take(news)
            if news is not None or self.problem != before:
                changed()
            pause = ABSENT_S if self._store is None else 0.0 if self._below is not None else LOOK_S
            self._anew_in_s -= pause
            await self._sleep(pause)

    # -- reading, in the worker's thread

    def _look(self) -> _News | None:
        """None where nothing has changed."""
        try:
            news = self._read()
            if news is None or self._store is None:
                return news
            return replace(news, queued=self._samples.among(self._store, news.rows))
        except Exception as error:
            if self._store is not None:
                self._store.close()
            self._store, self._revision, self._below = None, None, None
            if _is_absent(error):
                return _News([], all=True)
            raise

    def _read(self) -> _News | None:
        if self._store is None:
            self._store = self._opened()
            if self._store is None:
                return _News([], all=True) if self._places else None
        store = self._store
        if self._unheard:
            self._unheard, self._revision, self._below = False, None, None
        if self._below is not None:
            return self._page(store, self._below)
        revision = store.revision()
        anew = self._forgotten and self._anew_in_s <= 0
        if revision == self._revision and not anew:
            return None
        first, self._revision = self._revision is None, revision
        count, known = store.count(), self._count
        self._count = count
        if not self._places:
            return self._page(store, None)
        if first or anew:
            self._anew_in_s, self._forgotten = ANEW_S, False
            return _News(store.turns(last=KEPT), all=True)
        newest = max(self._places)
        rows = store.turns(last=KEPT, since_id=max(0, newest - AGAIN))
        self._forgotten = self._forgotten or count != known + sum(row.id > newest for row in rows)
        seen = {row.id for row in rows}
        old = [id for kept in self._kept.values() for id in kept.flying if id not in seen]
        return _News([*rows, *(turn for id in old for turn in store.turns(last=1, since_id=id - 1, before_id=id + 1))])

    def _page(self, store: StoreLike, below: int | None) -> _News:
        rows = store.turns(last=PAGE, before_id=below)
        whole = len(rows) < PAGE or len(self._places) + len(rows) >= KEPT
        self._below = None if whole else rows[-1].id
        return _News(rows)

    # -- keeping

    def _take(self, news: _News) -> None:
        self._ids = None
        if news.all:
            self._places, self._kept = {}, {}
            self._judging.forget()
        for turn in sorted(news.rows, key=lambda turn: turn.id):
            if (talk := self._judging.learn(turn)) is not None:
                self._anew(talk)
            place = self._places[turn.id] = same_port_here(turn.upstream)
            kept = self._kept.setdefault(place, _Kept())
            if turn.state is TurnState.IN_FLIGHT:
                kept.flying[turn.id] = turn
                continue
            kept.flying.pop(turn.id, None)
            if self._judging.queued(turn.id, turn.id in news.queued) or kept.ended.get(turn.id) != turn:
                kept.ended[turn.id] = turn
                kept.todo.append(turn.id)
        self._older(news.rows)
        if len(self._places) > KEPT:
            for id in sorted(self._places)[:-KEPT]:
                kept = self._kept[self._places.pop(id)]
                kept.flying.pop(id, None)
                kept.shown.pop(id, None)
                self._judging.drop(id)
                if kept.ended.pop(id, None) is not None:
                    kept.rows = None
        self.version += 1

    def _anew(self, conversation: str) -> None:
        """How it began is known now. Pages come newest first: later turns of it may be worked out already."""
        for kept in self._kept.values():
            kept.todo += sorted(id for id in kept.shown if kept.ended[id].conversation == conversation)

    def _older(self, rows: list[Captured]) -> None:
        """Pages come newest first: turns that were worked out may be judged by what stands in the next one."""
        last = max((row.id for row in rows), default=0)
        for kept in self._kept.values():
            kept.todo += sorted(id for id in kept.shown if last < id <= last + RATED)

    # -- what is found out about them

    def captured(self, id: int) -> Captured | None:
        """One that is kept at hand and has ended, as it was captured."""
        kept = self._kept.get(self._places.get(id, ""))
        return kept.ended.get(id) if kept is not None else None

    def row(self, id: int) -> Turn | None:
        """The same as it is shown, or was before it changed last; None: it was not shown yet."""
        kept = self._kept.get(self._places.get(id, ""))
        return kept.shown.get(id) if kept is not None else None

    @property
    def mark(self) -> object:
        """Another one where `newest` may say something else."""
        kept = self._kept.values()
        return self.version, sum(one.now is not None for one in kept), sum(one.rated for one in kept)

    def told(self, url: str) -> Moment | None:
        """What the turns of this server were judged by last; None: they were not shown yet."""
        kept = self._kept.get(same_port_here(url))
        return kept.now if kept is not None else None

    def newest(self, since: float) -> list[Turn]:
        """Of all servers, as far as they are watched: those that ended since then (Unix time), newest first."""
        rows: list[Turn] = []
        for place, kept in self._kept.items():
            if kept.now is not None:
                rows += itertools.takewhile(lambda turn: _end(turn) >= since, self.ended(place, kept.now))
        return sorted(rows, key=_end, reverse=True)

    def found(self, turn: Captured, finding: Finding) -> None:
        """Why it took its time: stands in its row from now on."""
        self._judging.found(turn, finding)
        self.anew(turn)

    def judged_by(self, awaits: Callable[[Captured, Turn], bool]) -> None:
        """`awaits` tells of a row that ended whether a verdict on it is on its way."""
        self._awaits = awaits

    def anew(self, turn: Captured) -> None:
        """What `awaits` says of it has changed."""
        kept = self._kept.get(same_port_here(turn.upstream))
        if kept is not None and turn.id in kept.ended:
            kept.todo.append(turn.id)
            self.version += 1

    # -- showing

    def count(self, url: str) -> int:
        """Turns of this server that are kept at hand."""
        kept = self._kept.get(same_port_here(url))
        return len(kept.flying) + len(kept.ended) if kept is not None else 0

    def begun(self, url: str) -> int:
        """The newest turn of this server that is in flight; 0 where none is."""
        kept = self._kept.get(same_port_here(url))
        return max(kept.flying, default=0) if kept is not None else 0

    def in_hand(self, url: str, since: float) -> bool:
        """One of this server that began since then (Unix time) is in flight."""
        kept = self._kept.get(same_port_here(url))
        return kept is not None and any(turn.started_at >= since for turn in kept.flying.values())

    def no_details(self, url: str) -> bool:
        """The last few turns that told their tokens said nothing about cached ones. As of the last `ended`."""
        told = list(itertools.islice((turn for turn in self._newest(url) if turn.usage), DETAILS_OF))
        return len(told) == DETAILS_OF and not any(
            turn.cached_source == "usage" or tells_cached(turn.usage) for turn in told
        )

    def no_usage(self, url: str) -> tuple[int, int]:
        """Of the last turns, streams that told no tokens: those whose client did not ask, and the others. As of the
        last `ended`."""
        last = [turn for turn in itertools.islice(self._newest(url), USAGE_OF) if untold(turn)]
        unasked = sum(turn.usage_asked is False for turn in last)
        return unasked, len(last) - unasked

    def _newest(self, url: str) -> Iterator[Captured]:
        """Those that ended, newest first, as they were captured."""
        kept = self._kept.get(same_port_here(url))
        if kept is not None:
            yield from (kept.ended[turn.id] for turn in kept.rows or () if turn.id in kept.ended)

    def ended(self, url: str, now: Moment) -> tuple[Turn, ...]:
        """Of the server with this base URL those that ended, newest first. The same tuple as long as nothing changed:
        there may be thousands, and of many new ones the older ones are there a little later."""
        kept = self._kept.get(same_port_here(url))
        if kept is None:
            return ()
        kept.now = now
        if now.rate and not kept.rated:
            kept.rated, kept.todo = True, sorted(kept.ended)  # they can be judged better now
        made = kept.shown
        for id in kept.todo[: -AT_ONCE - 1 : -1]:
            kept.rows = None
            if (turn := kept.ended.get(id)) is not None:
                row = self._judging.ended(turn, self._parent(turn), now, self._rate)
                waits = row.finding is None and self._awaits(turn, row)
                made[id] = replace(row, judging=True, verdict=None) if waits else row
        del kept.todo[-AT_ONCE:]
        lost = _lost(kept, now)
        if kept.rows is None or lost != kept.lost:
            kept.lost = lost
            unseen = [self._judging.unseen(kept.flying[id]) for id in lost]
            kept.rows = tuple(sorted([*made.values(), *unseen], key=_end, reverse=True))
        return kept.rows

    def in_flight(self, url: str, now: Moment) -> tuple[Turn, ...]:
        """Of the same server those in flight, newest first."""
        kept = self._kept.get(same_port_here(url))
        if kept is None or not kept.flying:
            return ()
        lost = _lost(kept, now)
        flying = [kept.flying[id] for id in sorted(kept.flying, reverse=True) if id not in lost]
        doing = phases(flying, now.waiting or 0, now.running or 0)
        return tuple(self._judging.in_flight(turn, self._parent(turn), doing[turn.id], now) for turn in flying)

    def _rate(self, turn: Captured) -> float | None:
        """Of its server when it came."""
        if self._ids is None:
            self._ids = sorted(self._places)
        end = bisect.bisect_left(self._ids, turn.id)
        near = ((id, self._kept[self._places[id]]) for id in self._ids[max(0, end - RATED) : end])
        return usual_rate(turn, (kept.ended[id] for id, kept in near if id in kept.ended))

    def _parent(self, turn: Captured) -> Captured | None:
        """The turn that it continues, where that has ended and is at hand."""
        kept = self._kept.get(same_port_here(turn.upstream))
        return kept.ended.get(turn.parent or 0) if kept is not None else None


def _end(turn: Turn) -> float:
    return turn.ended_at or turn.started_at or 0.0


def _lost(kept: _Kept, now: Moment) -> tuple[int, ...]:
    """Turns in flight that no tap records: their tap ended suddenly, and none has put that right since."""
    if now.recorded:
        return ()
    return tuple(id for id, turn in kept.flying.items() if now.at - turn.started_at > LOST_S)


def _is_absent(error: Exception) -> bool:
    """There is no store any more: no problem of it."""
    from kvtop.capture.store.schema import NoStore  # SQLite was imported when the store was opened

    return isinstance(error, NoStore)


def _words(error: Exception) -> str:
    return error.what if isinstance(error, KvtopError) else f"the captured turns cannot be read: {error}"
