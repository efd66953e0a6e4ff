"""Work in a thread that has a loop of its own, which can be given up from outside: a thread cannot be cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from kvtop.errors import KvtopError

T = TypeVar("T")


class Work:
    """One at a time."""

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

    def give_up(self) -> None:
        """From anywhere: it ends at the next thing that it waits for, and so does what is begun later."""
        with self._lock:
            self._given_up = True
            if self._running is not None:
                loop, task = self._running
                loop.call_soon_threadsafe(task.cancel)
