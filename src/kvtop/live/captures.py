"""The turns that taps captured, read from the store beside the loop, as the dashboard shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from kvtop.capture.estimate import Guess, Sizes
from kvtop.capture.slow import expected_s, lost, reread
from kvtop.capture.turn import Captured, Record, Route, Source, TurnState
from kvtop.errors import KvtopError
from kvtop.live.endpoint import Sleep
from kvtop.live.factories import StoreLike
from kvtop.live.queued import Queued
from kvtop.live.shown import phases, shown
from kvtop.model.here import same_port_here
from kvtop.model.judge import Thresholds
from kvtop.model.timing import waited_s
from kvtop.model.view import Estimate, Turn
from kvtop.worker import Caller, Hangs

LOOK_S = 0.5
"""Between two looks whether the store has changed; a look costs a tenth of a millisecond."""
ABSENT_S = 5.0
"""The same while there is no store."""
READ_S = 5.0
KEPT = 5_000
"""Turns that are kept at hand; older ones are in the store."""
PAGE = 500
"""Turns that are read at once, so that the screen can be drawn between two pages."""
AT_ONCE = 1_000
"""Turns that are worked out at once, on the loop: about 30 ms."""
AGAIN = 32
"""So many of the newest turns are read anew with every change: the counters complete some after their end."""
ANEW_S = 5.0
"""All turns are read anew, because some were forgotten, at most so often."""
LOST_S = 60.0
"""A turn in flight that began so long ago while no tap runs: nobody will see its end."""
BESIDE = ("side", "subagent")
"""Relations of a first turn whose conversation is another's."""
BROKEN_OFF = ("abort", "error")
"""What a server calls an answer that it did not bring to its end, in a stream that it ended in order."""
DETAILS_OF = 3
"""Turns in a row whose usage tells no cached tokens, from which on the server is said to tell none."""
USAGE_OF = 50
"""Of so many of the last turns those are counted that are streams without usage."""
ASKED = frozenset({Route.CHAT, Route.COMPLETIONS})
"""Routes on which a stream has usage only where its client asks for it."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What is known of the server now, for what its captured turns are judged by."""

    at: float
    """Unix time."""
    rate: float | None
    """Its prefill rate, tokens a second."""
    limits: Thresholds
    running: int | None = None
    waiting: int | None = None
    began: float | None = None
    """Unix time of its start: its cache holds nothing that is older."""
    unit: int | None = None
    """Cached tokens are a multiple of it; None: the server does not tell."""
    recorded: bool = True
    """A tap to it runs, as far as is known."""


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


def unasked(turn: Captured) -> bool:
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
        self._kept: dict[str, _Kept] = {}
        self._sizes = Sizes()
        self._samples = Queued()
        """Asked in the worker's thread."""
        self._queued: set[int] = set()
        """Turns that waited in the server's queue."""
        self._began: dict[str, str] = {}
        """Conversation -> how it began, of those that began as another's: `BESIDE`."""
        self._guessed: dict[tuple[int, float], int | None] = {}
        """Turn, by number and begin -> prompt tokens by its size as of its end, for those that told none: what others
        teach later changes nothing that is over."""

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
        if news.all:
            self._places, self._kept, self._sizes = {}, {}, Sizes()  # of another store the ids begin anew
            self._queued = set()
        for turn in sorted(news.rows, key=lambda turn: turn.id):
            self._sizes.learn(turn)
            self._learn(turn)
            place = self._places[turn.id] = same_port_here(turn.upstream)
            kept = self._kept.setdefault(place, _Kept())
            if turn.state is TurnState.IN_FLIGHT:
                kept.flying[turn.id] = turn
                continue
            kept.flying.pop(turn.id, None)
            stood = turn.id in news.queued
            if kept.ended.get(turn.id) != turn or stood != (turn.id in self._queued):
                (self._queued.add if stood else self._queued.discard)(turn.id)
                kept.ended[turn.id] = turn
                kept.todo.append(turn.id)
        if len(self._places) > KEPT:
            for id in sorted(self._places)[:-KEPT]:
                kept = self._kept[self._places.pop(id)]
                kept.flying.pop(id, None)
                kept.shown.pop(id, None)
                self._queued.discard(id)
                if kept.ended.pop(id, None) is not None:
                    kept.rows = None
        self.version += 1

    def _learn(self, turn: Captured) -> None:
        """How its conversation began. Pages come newest first: later turns of it may be worked out already."""
        talk = turn.conversation
        if turn.relation not in BESIDE or talk is None or self._began.get(talk) == turn.relation:
            return
        self._began[talk] = turn.relation
        if len(self._began) > KEPT:
            del self._began[next(iter(self._began))]
        for kept in self._kept.values():
            kept.todo += sorted(id for id in kept.shown if kept.ended[id].conversation == talk)

    # -- showing

    def count(self, url: str) -> int:
        """Turns of this server that are kept at hand."""
        kept = self._kept.get(same_port_here(url))
        return len(kept.flying) + len(kept.ended) if kept is not None else 0

    def begun(self, url: str) -> int:
        """The newest turn of this server that is in flight; 0 where none is."""
        kept = self._kept.get(same_port_here(url))
        return max(kept.flying, default=0) if kept is not None else 0

    def no_details(self, url: str) -> bool:
        """The last few turns that told their tokens said nothing about cached ones. As of the last `ended`."""
        told = list(islice((turn for turn in self._newest(url) if turn.usage), DETAILS_OF))
        return len(told) == DETAILS_OF and all(turn.cached_source != "usage" for turn in told)

    def no_usage(self, url: str) -> int:
        """Of the last turns, streams that told no tokens since their client did not ask. As of the last `ended`."""
        last = islice(self._newest(url), USAGE_OF)
        return sum(unasked(turn) for turn in last)

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
        if now.rate and not kept.rated:
            kept.rated, kept.todo = True, sorted(kept.ended)  # they can be judged better now
        made = kept.shown
        for id in kept.todo[: -AT_ONCE - 1 : -1]:
            kept.rows = None
            if (turn := kept.ended.get(id)) is not None:
                made[id] = self._ended(turn, now)
        del kept.todo[-AT_ONCE:]
        lost = _lost(kept, now)
        if kept.rows is None or lost != kept.lost:
            kept.lost = lost
            unseen = [replace(self._shown(kept.flying[id]), state=None) for id in lost]
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
        return tuple(self._flying(turn, doing[turn.id], now) for turn in flying)

    def _flying(self, turn: Captured, phase: str | None, now: Moment) -> Turn:
        guess = self._sizes.guess(turn) if turn.prompt_tokens is None else None
        estimate = None
        if guess is not None:
            estimate = self._expected(turn, guess, phase, now)
        return self._shown(turn, phase=phase, estimate=estimate)

    def _expected(self, turn: Captured, guess: Guess, phase: str | None, now: Moment) -> Estimate:
        if guess.cached_tokens is None or self._parent_before(turn, now.began):
            return Estimate(guess.prompt_tokens)
        new = guess.prompt_tokens - guess.cached_tokens
        if phase != "reads" or not now.rate:
            return Estimate(guess.prompt_tokens, guess.cached_tokens, new)
        read_s, so_far_s = new / now.rate, now.at - (turn.sent_at or turn.started_at)
        if now.limits.slow(so_far_s, read_s):
            return Estimate(guess.prompt_tokens)  # it reads more than it should have to
        return Estimate(guess.prompt_tokens, guess.cached_tokens, new, read_s - so_far_s if so_far_s < read_s else None)

    def _parent(self, turn: Captured) -> Captured | None:
        """The turn that it continues, where that has ended and is at hand."""
        kept = self._kept.get(same_port_here(turn.upstream))
        return kept.ended.get(turn.parent or 0) if kept is not None else None

    def _parent_before(self, turn: Captured, at: float | None) -> bool:
        """The turn that it continues ended before this time."""
        parent = self._parent(turn)
        return parent is not None and parent.ended_at is not None and at is not None and parent.ended_at < at

    def _ended(self, turn: Captured, now: Moment) -> Turn:
        estimate = None
        if turn.prompt_tokens is None and (tokens := self._guess_at_end(turn)) is not None:
            estimate = Estimate(tokens)
        before, waited = self._sizes.before(turn), waited_s(turn)
        gone = lost(turn, before, now.unit)
        again = gone is not False and reread(turn, self._parent(turn))
        if waited is None:
            return self._shown(turn, estimate=estimate, again=again)
        known: dict[str, Any] = {"lost": gone, "queue_seen": turn.id in self._queued}
        if now.rate and turn.new_tokens is not None:
            known["read_s"] = max(0, turn.new_tokens) / now.rate
        expected = expected_s(turn, before, now.rate)
        slow = now.limits.slow(waited, expected)
        long = waited >= now.limits.no_rate_s
        fine = waited <= (now.limits.no_rate_s if expected is None else now.limits.extra_s)
        if before is not None and expected is not None and not slow and not long:
            fine = True  # as long as what it had to read anew takes
        ok = fine and turn.state is TurnState.DONE and not again and turn.finish_reason not in BROKEN_OFF
        verdict = "no_fault" if ok else None
        known |= {"estimate": estimate, "slow": slow, "waited": slow or long, "again": again}
        made = self._shown(turn, **known, verdict=verdict)
        if made.waited and made.lost is False and not made.accused and made.read_ruled and not made.queue_ruled:
            return replace(made, verdict="new_tokens")
        return made

    def _shown(self, turn: Captured, **known: Any) -> Turn:
        return shown(turn, began_as=self._began.get(turn.conversation or ""), **known)

    def _guess_at_end(self, turn: Captured) -> int | None:
        key = turn.id, turn.started_at
        if key not in self._guessed:
            guess = self._sizes.guess(turn)
            self._guessed[key] = guess.prompt_tokens if guess is not None else None
            if len(self._guessed) > KEPT:
                del self._guessed[next(iter(self._guessed))]
        return self._guessed[key]


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
