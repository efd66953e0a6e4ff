"""Work in a thread that is given up from outside."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kvtop.errors import KvtopError
from kvtop.live.work import Work


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
