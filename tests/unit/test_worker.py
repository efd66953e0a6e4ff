"""Blocking reads: one at a time, never awaited for ever, never in the way of the exit."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kvtop.worker import Hangs, Worker


async def _free(worker: Worker) -> None:
    """Until the thread has handed its result to the loop."""
    async with asyncio.timeout(5):
        while worker._busy:  # noqa: ASYNC110  the worker owns no event: nobody in the product waits for this
            await asyncio.sleep(0)


async def test_a_read_comes_back_with_its_value_from_another_thread() -> None:
    assert await Worker("x").call(threading.get_ident, 5) != threading.get_ident()


async def test_what_a_read_raises_is_raised_here() -> None:
    def broken() -> int:
        raise KeyError("x")

    worker = Worker("x")
    with pytest.raises(KeyError):
        await worker.call(broken, 5)
    assert await worker.call(lambda: 7, 5) == 7


async def test_a_read_that_hangs_is_given_up_and_no_second_one_begins() -> None:
    worker, gate, ended = Worker("x"), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    calls = []

    def hangs() -> int:
        calls.append(1)
        gate.wait(30)
        loop.call_soon_threadsafe(ended.set)
        return 1

    with pytest.raises(TimeoutError):
        await worker.call(hangs, 0.01)
    with pytest.raises(Hangs):
        await worker.call(hangs, 0.01)
    assert len(calls) == 1
    assert all(t.daemon for t in threading.enumerate() if t.name == "kvtop-x")
    gate.set()
    await ended.wait()
    await _free(worker)
    assert await worker.call(lambda: 2, 5) == 2


async def test_a_cancelled_call_leaves_nothing_behind() -> None:
    worker, gate = Worker("x"), threading.Event()
    task = asyncio.create_task(worker.call(lambda: gate.wait(30), 30))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    await _free(worker)
    assert await worker.call(lambda: 2, 5) == 2
