"""Work in a thread that is given up from outside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from kvtop.errors import KvtopError
from kvtop.live.work import LEAVES_TICKS, Work, called
from kvtop.worker import Hangs

T = TypeVar("T")


async def three() -> int:
    return 3


def test_what_it_finds_is_handed_on() -> None:
    assert Work().run(three()) == 3


def test_what_it_waits_for_ends_when_it_is_given_up() -> None:
    work, waits, ended = Work(), threading.Event(), threading.Event()
    said: list[str] = []

    async def long() -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def run() -> None:
        try:
            work.run(long())
        except KvtopError as error:
            said.append(error.what)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert waits.wait(5)
    work.give_up()
    assert ended.wait(5)
    thread.join(5)
    assert said == ["it was given up"]


def test_what_is_begun_later_does_not_begin() -> None:
    work = Work()
    work.give_up()
    with pytest.raises(KvtopError, match="given up"):
        work.run(asyncio.sleep(60))
    work.give_up()


class Calls:
    """A worker that does as a test says, one call after the other."""

    def __init__(self, *does: object) -> None:
        self.does = list(does)

    async def call(self, read: Callable[[], T], timeout_s: float) -> T:
        now = self.does.pop(0)
        if isinstance(now, BaseException):
            raise now
        return read()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Hangs("x"), "another one runs"),
        (TimeoutError(), "too late"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(13, "Permission denied", "/p/\x1ba"), "/p/\\x1ba: Permission denied"),
        (KvtopError("as it is"), "as it is"),
    ],
)
async def test_what_goes_wrong_is_one_line(error: Exception, says: str) -> None:
    with pytest.raises(KvtopError) as raised:
        await called(Calls(error), lambda: 3, 1.0, "too late", "another one runs")
    assert raised.value.what == says
    assert await called(Calls(None), lambda: 3, 1.0, "too late") == 3


async def test_what_was_given_up_before_is_waited_for_but_not_for_ever() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def beside(work: Work, *does: object) -> int:
        return await work.beside(Calls(*does), lambda: 3, 1.0, busy="busy", late="late", sleep=sleep)

    assert await beside(Work(), Hangs("x"), Hangs("x"), None) == 3 and len(slept) == 2
    with pytest.raises(KvtopError, match="busy"):
        await beside(Work(), *[Hangs("x")] * LEAVES_TICKS)
    late = Work()
    with pytest.raises(KvtopError, match="late"):
        await beside(late, TimeoutError())
    with pytest.raises(KvtopError, match="given up"):
        await asyncio.to_thread(late.run, asyncio.sleep(60))
