"""One watched server: asks it, feeds its history, and decides when to ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from kvtop.clock import Clock
from kvtop.config import Poll
from kvtop.live.factories import ServerLike
from kvtop.model.history import ServerHistory
from kvtop.readings import Scrape, ServerFacts, SourceDown, State

T = TypeVar("T")

Sleep = Callable[[float], Awaitable[None]]

IDLE_AFTER_S = 30.0
"""Nothing ran for this long: the server is asked less often."""

BACK_OFF = 4.0
"""A server that does not answer is asked this many intervals apart at most, so that its return is seen soon."""

SAID_AFTER_S = 2.5
"""A try that takes longer says what it waits for, until it is over."""
SAID_AGAIN_S = 0.5

GUARD = 4.0
"""A source has its own timeouts; one that overstays them by this factor is cancelled."""


@dataclass(frozen=True)
class Surroundings:
    """What an endpoint needs of the watch around it."""

    poll: Poll
    clock: Clock
    sleep: Sleep
    changed: Callable[[], None]
    explain: Callable[[SourceDown, str, int | None], SourceDown]


async def rest(sleep: Sleep, seconds: float, soon: asyncio.Event) -> None:
    """So long, or until that is set."""
    waits = [asyncio.ensure_future(sleep(seconds)), asyncio.ensure_future(soon.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class Endpoint:
    """`made` makes the source, at the first try. `found`: by discovery, so it may go."""

    def __init__(
        self,
        history: ServerHistory,
        made: Callable[[], ServerLike],
        around: Surroundings,
        *,
        found: bool = False,
    ) -> None:
        self.history = history
        self.found = found
        self.tried = asyncio.Event()
        """The first try is over."""
        self.bad_since: float | None = None
        """Monotonic time of the first try that failed, of those in a row; None where the last one was answered."""
        self._made = made
        self._next: Callable[[], ServerLike] | None = None
        """Makes the source that is asked from the next try on."""
        self._around = around
        self._source: ServerLike | None = None
        self._facts_at: float | None = None
        self._facts_task: asyncio.Task[None] | None = None
        self._was_down = False
        self._soon = asyncio.Event()

    @property
    def good(self) -> bool:
        return self.history.failed_tries == 0 and self.tried.is_set()

    def turn_to(self, made: Callable[[], ServerLike]) -> None:
        """Ask another source from the next try on."""
        self._next = made

    async def run(self) -> None:
        """Until cancelled. Nothing that the source or a text does ends it."""
        try:
            while True:
                began = self._around.clock.mono()
                await self._once()
                await self._rest(self.pause(self._around.clock.mono() - began))
        finally:
            await self._leave()

    def ask_soon(self) -> None:
        """Something has begun: do not wait for the next try."""
        self._soon.set()

    async def _rest(self, seconds: float) -> None:
        """So long, or until it is to be asked soon."""
        if seconds <= self._around.poll.metrics_busy_s:
            await self._around.sleep(seconds)
        else:
            await rest(self._around.sleep, seconds, self._soon)
        self._soon.clear()

    async def _leave(self) -> None:
        """Ask the source nothing more, and close its connection."""
        if self._facts_task is not None:
            self._facts_task.cancel()
            await asyncio.gather(self._facts_task, return_exceptions=True)
            self._facts_task = self._facts_at = None
        if self._source is not None:
            source, self._source = self._source, None
            await asyncio.shield(self._close(source))

    def pause(self, took_s: float) -> float:
        """Seconds until the next try: short while something is in flight, long when idle or down."""
        poll, history = self._around.poll, self.history
        if history.state is State.LOADING:
            return poll.metrics_s  # a refusal costs nothing, and its user waits for the end of it
        if history.failed_tries:
            return min(poll.metrics_s * 2.0 ** min(history.failed_tries - 1, 8), poll.metrics_s * BACK_OFF)
        if history.in_flight:
            interval = poll.metrics_busy_s
        elif history.idle_since is not None and self._around.clock.wall() - history.idle_since >= IDLE_AFTER_S:
            interval = max(poll.metrics_idle_s, poll.metrics_s)
        else:
            interval = poll.metrics_s
        # a server that answers slowly is not asked for more than half of the time
        return max(interval - took_s, took_s)

    async def _once(self) -> None:
        if self._next is not None:
            self._made, self._next = self._next, None
            await self._leave()
        with self._said_if_slow():
            answer = await self._guarded(self._scrape, "/metrics")
        if isinstance(answer, SourceDown):
            self.history.down(self._around.explain(answer, self.history.url, self.history.pid))
            self._was_down = True
        else:
            self._feed(answer)
        self.tried.set()
        if self.good:
            self.bad_since = None
        elif self.bad_since is None:
            self.bad_since = self._around.clock.mono()
        self._around.changed()

    @contextmanager
    def _said_if_slow(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def say() -> None:
            nonlocal timer
            self.history.waits(self._source.doing if self._source is not None else "")
            self._around.changed()
            timer = loop.call_later(SAID_AGAIN_S, say)

        timer = loop.call_later(SAID_AFTER_S, say)
        try:
            yield
        finally:
            timer.cancel()
            self.history.waits("")

    def _feed(self, scrape: Scrape) -> None:
        reset_before = self.history.reset_seen_at
        try:
            self.history.scrape(scrape)
        except Exception as error:  # noqa: BLE001  a text that the model cannot take must not end the watch
            self.history.down(self._ours(error, "reading /metrics"))
            return
        if self._was_down or self.history.reset_seen_at != reset_before:
            self._facts_at = None  # another process may serve another model
            self._was_down = False
        now = self._around.clock.mono()
        due = self._facts_at is None or now - self._facts_at >= self._around.poll.facts_s
        if due and (self._facts_task is None or self._facts_task.done()):
            self._facts_at = now
            self._facts_task = asyncio.create_task(self._ask_facts())

    async def _ask_facts(self) -> None:
        answer = await self._guarded(self._facts, "/version")
        if isinstance(answer, ServerFacts):
            self.history.facts(answer)
            self._around.changed()

    async def _scrape(self) -> Scrape | SourceDown:
        if self._source is None:
            self._source = self._made()
        return await self._source.scrape()

    async def _facts(self) -> ServerFacts | SourceDown:
        assert self._source is not None
        return await self._source.facts()

    async def _guarded(self, ask: Callable[[], Awaitable[T | SourceDown]], what: str) -> T | SourceDown:
        limit = GUARD * self._around.poll.metrics_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await ask()
        except TimeoutError:
            return SourceDown(State.TIMEOUT, f"no answer within {limit:g} s", self._around.clock.wall())
        except Exception as error:  # noqa: BLE001  one source's fault is its own state, never the end of the others
            return self._ours(error, f"asking for {what}")

    def _ours(self, error: Exception, doing: str) -> SourceDown:
        return SourceDown(
            State.HTTP_ERROR, f"kvtop itself failed while {doing}: {type(error).__name__}", self._around.clock.wall()
        )

    @staticmethod
    async def _close(source: ServerLike) -> None:
        try:
            await source.aclose()
        except Exception:  # noqa: BLE001  it is left for good: there is nobody to tell
            return
