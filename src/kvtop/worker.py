"""Blocking reads in a thread that can never hold the program up.

A read of NVML or of /proc may hang in the kernel. asyncio.to_thread would start another one each second until the pool
is full, and then wait for all of them at the exit. Here a hanging read blocks only its own source, and nothing waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Hangs(Exception):
    """The read before this one has not come back."""


class Caller(Protocol):
    """Runs a blocking function beside the event loop."""

    async def call(self, read: Callable[[], T], timeout_s: float) -> T: ...


class Worker:
    """One blocking call at a time, each in a daemon thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy = False

    async def call(self, read: Callable[[], T], timeout_s: float) -> T:
        """The result of `read`. Raises what it raised, TimeoutError after `timeout_s`, Hangs while one still runs."""
        if self._busy:
            raise Hangs(self._name)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: Exception | None) -> None:
            self._busy = False
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, error = None, None
            try:
                result = read()
            except Exception as raised:  # noqa: BLE001  handed to the caller, who is in another thread
                error = raised
            # a closed loop has nobody left who waits
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, error)

        self._busy = True
        threading.Thread(target=work, name=f"kvtop-{self._name}", daemon=True).start()
        async with asyncio.timeout(timeout_s):
            return await done
