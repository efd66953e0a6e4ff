"""Reads an upstream's /metrics while a turn of it is in flight: just before, each second, just after.

'Just before' cannot be known in advance: a text is asked for when a request's head is there, and the last text of the
turn before counts instead where nothing has finished since. One request at a time goes to an upstream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from kvtop.capture.recorder.counters import finish, in_flight, learnt, sample_of, thinned
from kvtop.capture.turn import Captured, Sample, TurnState
from kvtop.errors import UsageError
from kvtop.model.shown_turn import Turn
from kvtop.readings import Scrape, SourceDown, State

PERIOD_S = 1.0
FRESH_S = 0.2
"""A text no older than this is as good as a new one, where several turns begin or end together."""
SETTLE_S = 1.0
"""How long the counters may take to show a finish."""
FIRST_LOOK_S = 0.02
"""Between the looks for a finish; each time twice as long."""
DEAF_S = 60.0
"""An upstream that has no /metrics of vLLM is not asked again for so long."""
MAX_FAILURES = 3
"""An upstream that does not answer so many times in a row is not asked either."""


Sleep = Callable[[float], Awaitable[None]]


class SourceLike(Protocol):
    """What is used of `sources.vllm.VllmSource`."""

    async def scrape(self) -> Scrape | SourceDown: ...

    async def aclose(self) -> None: ...


class Watch:
    """One turn's samples: an `exchange.Watched`."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.before: Scrape | None = None
        """The last text of the turn before, if nothing has finished since; else the first of its own."""
        self.first: Scrape | None = None
        """The first of its own."""
        self.samples: list[Sample] = []
        self.most = 0.0
        """Requests in flight on the upstream, at most."""
        self.crowded = False
        """Another turn was in flight too."""
        self.turn: Captured | None = None
        """As it ended."""
        self.ended_at = 0.0
        self._learnt: Callable[[Captured], None] | None = None

    def ended(self, turn: Captured, learnt: Callable[[Captured], None]) -> None:
        self.turn, self._learnt = turn, learnt
        self._upstream.ends(self)

    def take(self, scrape: Scrape, sample: Sample) -> None:
        if self.before is None:
            self.before = scrape
        self.samples = thinned([*self.samples, sample])
        self.most = max(self.most, in_flight(sample))

    def settle(self, row: Turn | None, *, alone: bool | None) -> None:
        """Tell what was learnt."""
        told, self._learnt = self._learnt, None
        if told is not None and self.turn is not None and self.samples:
            told(learnt(self.turn, self.samples, row, alone=alone))

    @property
    def in_time(self) -> bool:
        """The first text is older than the turn's end: its finish does not stand in it. Not so where the recorder was
        behind, and where an answer came faster than the text."""
        ended_at = self.turn.ended_at if self.turn is not None else None
        return bool(self.samples) and ended_at is not None and self.samples[0].at <= ended_at

    @property
    def may_be_alone(self) -> bool:
        done = self.turn is not None and self.turn.state is TurnState.DONE
        return done and self.in_time and not self.crowded and self.most <= 1


class Upstream:
    """One upstream and its turns in flight. `mono` is a clock in seconds; `sleep` waits."""

    def __init__(self, source: SourceLike, *, mono: Callable[[], float], sleep: Sleep = asyncio.sleep) -> None:
        self._source = source
        self._mono = mono
        self._sleep = sleep
        self._running: set[Watch] = set()
        self._ended: set[Watch] = set()
        self._last: tuple[float, Scrape, Sample] | None = None
        """When the last text was asked for, and it."""
        self._deaf_until = 0.0
        self._failures = 0
        self._look_s = FIRST_LOOK_S
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def begins(self) -> Watch:
        """A turn begins."""
        watch = Watch(self)
        if self._running:
            watch.crowded = True
            for other in self._running:
                other.crowded = True
        self._running.add(watch)
        if self._last is not None and self._mono() - self._last[0] <= FRESH_S:
            watch.take(self._last[1], self._last[2])
        self._start()
        return watch

    def ends(self, watch: Watch) -> None:
        watch.ended_at = self._mono()
        self._running.discard(watch)
        self._ended.add(watch)
        self._look_s = FIRST_LOOK_S
        self._start()

    async def drain(self, within_s: float) -> None:
        """Wait for the last looks; then tell what there is."""
        if self._task is not None and self._ended:
            await asyncio.wait([self._task], timeout=within_s)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._settle_all()
        await self._source.aclose()

    def _start(self) -> None:
        if self._mono() < self._deaf_until:
            self._settle_all()
            return
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._running or self._ended:
                self._wake.clear()
                asked_at = self._mono()
                answer = await self._source.scrape()
                if not self._heard(asked_at, answer):
                    return
                await self._pause(asked_at)
        except Exception:  # noqa: BLE001  a text that the model cannot take must not end the recording
            self._deaf_until = self._mono() + DEAF_S
            self._settle_all()

    def _heard(self, asked_at: float, answer: Scrape | SourceDown) -> bool:
        """Whether to go on asking."""
        sample = sample_of(answer) if isinstance(answer, Scrape) else None
        if isinstance(answer, Scrape) and sample is not None:
            self._failures = 0
            self._take(asked_at, answer, sample)
        elif self._gives_up(answer):
            self._settle_all()
            return False
        else:
            self._give_up_waiting()
        return True

    def _take(self, asked_at: float, scrape: Scrape, sample: Sample) -> None:
        last, self._last = self._last, (asked_at, scrape, sample)
        for watch in (*self._running, *self._ended):
            if watch.before is None and last is not None and _none_finished(last[2], sample):
                watch.take(last[1], last[2])
            watch.first = watch.first or scrape
            watch.take(scrape, sample)
        for watch in [watch for watch in self._ended if watch.ended_at <= asked_at]:
            self._look(watch, scrape)

    def _look(self, watch: Watch, after: Scrape) -> None:
        """Whether an ended turn's finish stands in this text."""
        row, alone = None, False if watch.in_time and (watch.crowded or watch.most > 1) else None
        if watch.may_be_alone and watch.before is not None:
            found = finish(watch.before, after)
            if not found.moved and self._mono() - watch.ended_at < SETTLE_S:
                return
            row = found.only
            if row is None and watch.first is not None:  # a prompt that was aborted since the turn before
                row = finish(watch.first, after).only
            alone = row is not None if found.moved else None
        self._ended.discard(watch)
        watch.settle(row, alone=alone)

    async def _pause(self, asked_at: float) -> None:
        """Until the next text is due."""
        if any(watch.may_be_alone for watch in self._ended):
            await self._sleep(self._look_s)
            self._look_s *= 2
            return
        if not self._running and not self._ended:
            return
        rest = (FRESH_S if self._ended else PERIOD_S) - (self._mono() - asked_at)
        if rest > 0 and not self._ended:
            sleeping = asyncio.ensure_future(self._sleep(rest))
            waking = asyncio.ensure_future(self._wake.wait())
            try:
                await asyncio.wait((sleeping, waking), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                waking.cancel()
            crowd = len(self._running) + len(self._ended) > 1
            rest = FRESH_S - (self._mono() - asked_at) if crowd else 0.0
        if rest > 0:
            await self._sleep(rest)

    def _gives_up(self, answer: Scrape | SourceDown) -> bool:
        """Whether this upstream is not worth asking for a while."""
        self._failures += 1
        busy = isinstance(answer, SourceDown) and answer.state in (State.TIMEOUT, State.REFUSED)
        if busy and self._failures < MAX_FAILURES:
            return False
        self._deaf_until = self._mono() + DEAF_S
        self._failures = 0
        self._last = None
        return True

    def _give_up_waiting(self) -> None:
        for watch in [watch for watch in self._ended if self._mono() - watch.ended_at >= SETTLE_S]:
            self._ended.discard(watch)
            watch.settle(None, alone=None)

    def _settle_all(self) -> None:
        for watch in self._ended:
            watch.settle(None, alone=None)
        self._ended.clear()


def _none_finished(last: Sample, now: Sample) -> bool:
    """From the one to the other: the earlier one is still 'just before'. The later one may hold the turn's first token
    already."""
    return (last.started_at, last.finished) == (now.started_at, now.finished)


class _Nowhere:
    """In place of an upstream whose URL is none."""

    async def scrape(self) -> Scrape | SourceDown:
        return SourceDown(State.NOT_VLLM, "not a URL", 0.0)

    async def aclose(self) -> None:
        return


class Sampler:
    """The upstreams by URL. `source` makes the one that reads a URL; it may raise UsageError."""

    def __init__(self, source: Callable[[str], SourceLike], *, mono: Callable[[], float]) -> None:
        self._source = source
        self._mono = mono
        self._upstreams: dict[str, Upstream] = {}

    def begins(self, url: str) -> Watch:
        upstream = self._upstreams.get(url)
        if upstream is None:
            upstream = self._upstreams[url] = Upstream(self._made(url), mono=self._mono)
        return upstream.begins()

    def _made(self, url: str) -> SourceLike:
        try:
            return self._source(url)
        except UsageError:
            return _Nowhere()

    async def drain(self, within_s: float) -> None:
        await asyncio.gather(*(upstream.drain(within_s) for upstream in self._upstreams.values()))
