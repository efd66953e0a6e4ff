"""Nothing is asked of a server that has something to do, but nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from triage_server import WordServer, sent

from kvtop.live import patience
from kvtop.live.patience import PATIENCE_S, QUIET_S, TICK_S, Gate, Patient
from kvtop.triage.prompt import Prompt


class Slept:
    """Time passes when somebody sleeps; what is to happen by then happens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.s = 0.0
        self.then: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(patience, "asyncio", self)

    async def sleep(self, seconds: float) -> None:
        self.s += seconds
        for at, happens in list(self.then):
            if at <= self.s:
                self.then.remove((at, happens))
                happens()
        await asyncio.sleep(0)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Slept:
    return Slept(monkeypatch)


SENT = sent(Prompt())


def ids(server: WordServer) -> bytes:
    return server.encode("one two three")


async def test_an_idle_server_is_asked_after_a_moment_and_then_at_once(slept: Slept) -> None:
    words = WordServer()
    server = Patient(words, Gate())
    assert (await server.text(ids(words), 0, 1))[0]
    assert slept.s == pytest.approx(QUIET_S, abs=TICK_S)
    assert await server.pieces(SENT, ids(words))
    assert slept.s == pytest.approx(QUIET_S, abs=TICK_S)


async def test_a_busy_one_is_waited_for(slept: Slept) -> None:
    words, gate = WordServer(), Gate(busy=True)
    slept.then = [(3.0, lambda: setattr(gate, "busy", False))]
    await Patient(words, gate).pieces(SENT, ids(words))
    assert slept.s == pytest.approx(3.0 + QUIET_S, abs=2 * TICK_S)


async def test_one_that_is_always_busy_is_asked_all_the_same(slept: Slept) -> None:
    words = WordServer()
    server = Patient(words, Gate(busy=True))
    for _ in range(5):
        await server.pieces(SENT, ids(words))
    assert slept.s == pytest.approx(PATIENCE_S, abs=2 * TICK_S), "all calls together"


async def test_between_two_calls_it_may_have_become_busy(slept: Slept) -> None:
    words, gate = WordServer(), Gate()
    server = Patient(words, gate)
    await server.pieces(SENT, ids(words))
    gate.busy = True
    slept.then = [(2.0, lambda: setattr(gate, "busy", False))]
    await server.pieces(SENT, ids(words))
    assert slept.s == pytest.approx(2.0 + QUIET_S, abs=3 * TICK_S)


async def test_who_looks_at_the_page_does_not_wait(slept: Slept) -> None:
    words, gate = WordServer(), Gate(busy=True, hurry=True)
    await Patient(words, gate).pieces(SENT, ids(words))
    assert slept.s == 0.0
    gate.hurry = False
    slept.then = [(1.0, lambda: setattr(gate, "hurry", True))]
    await Patient(words, gate).pieces(SENT, ids(words))
    assert slept.s == pytest.approx(1.0, abs=2 * TICK_S)
