"""The servers that are watched, one loop each: added, moved behind their taps, and left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from kvtop.config import Settings
from kvtop.errors import UsageError
from kvtop.live.endpoint import Endpoint, Surroundings
from kvtop.live.factories import ServerLike
from kvtop.live.named import Named
from kvtop.live.taps import Taps
from kvtop.model.history import ServerHistory
from kvtop.model.turns import TurnTracker
from kvtop.sources.url import normalise, same_place

Begin = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Servers:
    """All from one event loop."""

    def __init__(
        self,
        settings: Settings,
        named: Named,
        taps: Taps,
        made: Callable[[str], ServerLike],
        around: Surroundings,
    ) -> None:
        """`made` makes what asks the server at a URL."""
        self.all: list[Endpoint] = []
        """In the order in which they came."""
        self._settings, self._named, self._taps, self._made, self._around = settings, named, taps, made, around
        self._begin: Begin | None = None
        """None while their loops do not run."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        """Loops of servers that were left; each closes its connection first."""

    def add(self, given: str, *, found: bool) -> None:
        """Watch one more, from now on. The same one twice is once. Raises UsageError for nonsense."""
        url = normalise(given)
        known = next((one for one in self.all if same_place(one.history.url) == same_place(url)), None)
        if known is not None:
            known.found = known.found and found
            return
        self._named.add(url, given)
        limits = self._settings.thresholds
        history = ServerHistory(
            url, self._named.label(url), pool_full=limits.kv_pool_full,
            tracker=lambda: TurnTracker(limits.slow_factor, limits.slow_extra_s, limits.slow_ttft_s),
        )  # fmt: skip
        endpoint = Endpoint(history, lambda: self._made(url), self._around, found=found)
        self.all.append(endpoint)
        if self._begin is not None:
            self._tasks[url] = self._begin(endpoint.run())
            asyncio.get_running_loop().call_soon(self.past_taps)

    def drop(self, url: str) -> None:
        """Leave the one with this shown URL. One that is not watched is no error."""
        for endpoint in [one for one in self.all if one.history.url == url]:
            self.forget(endpoint)

    def forget(self, endpoint: Endpoint) -> None:
        self.all.remove(endpoint)
        task = self._tasks.pop(endpoint.history.url, None)
        if task is not None:
            task.cancel()
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    def past_taps(self) -> None:
        """A server that was given by its tap's URL is asked itself: what is shown outlives the tap, and no poll stands
        among the connections that the tap holds for agents."""
        for endpoint in list(self.all):
            given = endpoint.history.url
            url = self._taps.behind(given)
            with contextlib.suppress(UsageError):
                url = normalise(url)
                if url != given:
                    self._move(endpoint, given, url)

    def _move(self, endpoint: Endpoint, given: str, url: str) -> None:
        if any(same_place(other.history.url) == same_place(url) for other in self.all if other is not endpoint):
            self.forget(endpoint)  # it is watched already
            return
        self._named.moved(given, url)
        endpoint.history.moved(url, self._named.label(url))
        endpoint.turn_to(lambda: self._made(url))
        if (task := self._tasks.pop(given, None)) is not None:
            self._tasks[url] = task

    def start(self, begin: Begin) -> None:
        """Their loops, and those of all that are added later; `begin` makes a task of one."""
        self._begin = begin
        for endpoint in self.all:
            self._tasks[endpoint.history.url] = begin(endpoint.run())

    def stop(self) -> list[asyncio.Task[None]]:
        """Loops that are to be cancelled and waited for."""
        self._begin = None
        tasks = [*self._tasks.values(), *self._leaving]
        self._tasks.clear()
        return tasks
