"""Work beside the dashboard's loop that somebody waits for: what goes wrong with it in a line, and giving it up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kvtop.errors import KvtopError, printable
from kvtop.live.endpoint import Sleep
from kvtop.worker import Caller, Hangs

T = TypeVar("T")

LEAVES_TICKS = 25
TICK_S = 0.2
"""So often, and so far apart, it is looked whether what was given up has ended."""


async def called(worker: Caller, work: Callable[[], T], timeout_s: float, late: str, busy: str = "") -> T:
    """Its result. Raises what it raised, and KvtopError for a file that cannot be used, for what takes longer (`late`)
    and where the one before it still runs (`busy`; empty: as `late`)."""
    try:
        return await worker.call(work, timeout_s)
    except Hangs:
        raise KvtopError(busy or late) from None
    except TimeoutError:
        raise KvtopError(late) from None
    except OSError as error:
        where = f"{printable(str(error.filename))}: " if error.filename else ""
        raise KvtopError(f"{where}{error.strerror or error}") from None


class Work:
    """In a thread with a loop of its own, which can be given up from outside: a thread cannot be cancelled. One at a
    time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given_up = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In the thread: its result. Raises what it raised, KvtopError where it was given up."""
        try:
            return asyncio.run(self._held(work))
        except asyncio.CancelledError:  # no error of anybody's: whoever gave it up does not wait for it
            raise KvtopError("it was given up") from None

    async def _held(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        with self._lock:
            self._running = asyncio.get_running_loop(), task
            if self._given_up:
                task.cancel()
        try:
            return await task
        finally:
            with self._lock:
                self._running = None

    async def beside(
        self, worker: Caller, work: Callable[[], T], timeout_s: float, *, busy: str, late: str, sleep: Sleep
    ) -> T:
        """On the dashboard's loop: the result of `work`, which calls `run` in the worker's thread. It is given up where
        nobody waits any more. One before it that was given up is waited for; raises KvtopError, `busy` where that
        goes on and `late` where this takes longer."""
        try:
            for _ in range(LEAVES_TICKS):
                try:
                    return await worker.call(work, timeout_s)
                except Hangs:
                    await sleep(TICK_S)
            raise KvtopError(busy, "look again in a moment")
        except TimeoutError:
            self.give_up()
            raise KvtopError(late) from None
        except asyncio.CancelledError:
            self.give_up()
            raise

    def give_up(self) -> None:
        """From anywhere: it ends at the next thing that it waits for, and so does what is begun later."""
        with self._lock:
            self._given_up = True
            if self._running is not None:
                loop, task = self._running
                loop.call_soon_threadsafe(task.cancel)
