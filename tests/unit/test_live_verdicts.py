"""Turns worked out beside the loop: which ones, in which order, how often, and what comes of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from live_fakes import Inline, Time
from msgspec.structs import replace as changed

from kvtop.capture.turn import Captured, Route, TurnState
from kvtop.errors import KvtopError
from kvtop.live.captures import Captures, _News
from kvtop.live.casebooks import Place
from kvtop.live.judging import Moment
from kvtop.live.patience import Gate
from kvtop.live.verdicts import LATE, PAST_S, PAST_TURNS, SETTLED_S, News, Verdicts
from kvtop.model.judge import Thresholds
from kvtop.triage.kinds import Verdict
from kvtop.triage.result import Why
from kvtop.triage.sheet import Sheet
from kvtop.worker import Hangs, Worker

URL = "http://127.0.0.1:8000"
Answer = Callable[[int], Why]


def broke(id: int) -> Why:
    return Why(str(id), Verdict.PROMPT_DIVERGED, f"Turn {id} waited 30 s: the prefix broke", fix="sort the keys")


class Judge:
    """Answers as a test says."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.places: list[Place | None] = []
        self.gates: list[Gate] = []
        self.hurried: list[bool] = []
        self.answer: Answer = broke

    def why(self, id: int, place: Place | None, gate: Gate) -> Why:
        self.asked.append(id)
        self.places.append(place)
        self.gates.append(gate)
        self.hurried.append(gate.hurry)
        return self.answer(id)

    def sheet(self, id: int, place: Place | None, gate: Gate) -> Sheet:
        raise KvtopError(f"no sheet of {id}")


class Upstreams:
    def __init__(self) -> None:
        self.is_busy = False
        self.here: Place | None = Place(URL)

    def place(self, upstream: str) -> Place | None:
        return self.here

    def busy(self, upstream: str) -> bool:
        return self.is_busy


class Held:
    """A thread that comes back when a test says so."""

    def __init__(self, name: str) -> None:
        self.go = asyncio.Event()
        self.began = asyncio.Event()

    async def call(self, read: Callable[[], object], timeout_s: float) -> object:
        self.began.set()
        await self.go.wait()
        return read()


class Bench:
    """Verdicts over captured turns that a test puts there."""

    def __init__(self, worker: Callable[[str], object] = Inline) -> None:
        self.time = Time()
        self.captures = Captures(lambda: None, Inline("captures"), self.time.sleep)
        self.judge, self.upstreams = Judge(), Upstreams()
        self.slow: list[dict[str, object]] = []
        self.workers: dict[str, object] = {}
        self.verdicts = Verdicts(
            self.captures, self.judge, self.upstreams,
            worker=lambda name: self.workers.setdefault(name, worker(name)),  # type: ignore[arg-type, return-value]
            clock=self.time.clock, sleep=self.time.sleep, on_slow=lambda text: self.slow.append(json.loads(text)),
        )  # fmt: skip
        self.changes = 0

    def turn(self, id: int, ago: float, ttft: float = 30.0, **more: object) -> Captured:
        end = self.time.clock.wall() - ago
        made = Captured(
            id=id, upstream=URL, route=Route.CHAT, stream=True, model="m", started_at=end - ttft - 1,
            sent_at=end - ttft - 1, first_token_at=end - 1, ended_at=end, state=TurnState.DONE, status=200,
            prompt_tokens=10_000, cached_tokens=9_600, cached_source="usage", conversation=f"c{id}", relation="first",
        )  # fmt: skip
        return changed(made, **more)

    def put(self, *turns: Captured, show: bool = True) -> None:
        self.captures._take(_News(list(turns)))
        if show:
            self.show()

    def show(self) -> None:
        """The dashboard is drawn."""
        self.captures.ended(URL, Moment(self.time.clock.wall(), 1_000.0, Thresholds()))

    def _changed(self) -> None:
        self.changes += 1

    async def idle(self) -> None:
        """Until nothing is left to be worked out."""
        before = -1
        while before != len(self.judge.asked):
            before = len(self.judge.asked)
            await self.time.go(2)

    async def __aenter__(self) -> Bench:
        self.task = asyncio.create_task(self.verdicts.run(self._changed))
        await self.time.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def row(self, id: int) -> object:
        self.show()
        row = self.captures.row(id)
        return row.finding.verdict if row is not None and row.finding is not None else None


async def test_only_what_is_worth_it_and_the_newest_first() -> None:
    async with Bench() as bench:
        fine = bench.turn(1, 50, ttft=0.5)
        failed = bench.turn(4, 20, ttft=0.5, state=TurnState.FAILED, status=400, first_token_at=None)
        bench.put(fine, bench.turn(2, 40), bench.turn(3, 30), failed)
        await bench.time.go(5)
        assert bench.judge.asked == [4, 3, 2]
        assert [bench.row(id) for id in (1, 2, 3, 4)] == [None, *["prompt_diverged"] * 3]
        assert bench.changes == 3


def promised(bench: Bench, *ids: int) -> list[bool]:
    bench.show()
    rows = [bench.captures.row(id) for id in ids]
    assert all(row is not None and not (row.judging and (row.finding or row.verdict)) for row in rows)
    return [bool(row and row.judging) for row in rows]


async def test_a_row_says_that_a_verdict_is_on_its_way_until_it_is_there() -> None:
    async with Bench(Held) as bench:
        bench.put(bench.turn(1, 0, ttft=0.5), bench.turn(2, 0), bench.turn(3, 0, ttft=0.5, relation="next"))
        old = bench.turn(4, PAST_S + 60)
        bench.put(old)
        assert promised(bench, 1, 2, 4) == [False, True, False], "before anything looked at them"
        await bench.time.go(SETTLED_S + 2)
        held = bench.workers["why"]
        assert isinstance(held, Held)
        await held.began.wait()
        assert promised(bench, 1, 2) == [False, True], "while tokens are asked for"
        held.go.set()
        await bench.time.go(5)
        assert promised(bench, 1, 2) == [False, False] and bench.row(2) == "prompt_diverged"


async def test_no_verdict_is_promised_where_none_can_come() -> None:
    async with Bench() as bench:
        bench.judge.answer = lambda id: (_ for _ in ()).throw(KvtopError("no tokens"))
        bench.put(bench.turn(1, 10))
        assert promised(bench, 1) == [True]
        await bench.time.go(5)
        row = bench.captures.row(1)
        assert promised(bench, 1) == [False] and row is not None
        assert row.waited and not row.judging, "as it was known before"


async def test_more_than_are_worked_out_are_promised_nothing() -> None:
    async with Bench(Held) as bench:
        bench.put(*(bench.turn(1 + i, 600 - i) for i in range(PAST_TURNS + 5)))
        await bench.time.go(2)
        assert promised(bench, *range(1, 7)) == [False] * 5 + [True]
        assert promised(bench, PAST_TURNS + 5) == [True]


async def test_while_a_thread_hangs_nothing_is_promised() -> None:
    class Hanging(Inline):
        async def call(self, read: Callable[[], object], timeout_s: float) -> object:  # type: ignore[override]
            raise Hangs(self.name)

    async with Bench(Hanging) as bench:
        bench.put(bench.turn(1, 10))
        assert promised(bench, 1) == [True]
        await bench.time.go(3)
        assert promised(bench, 1) == [False]


async def test_a_turn_whose_page_is_open_is_promised_one() -> None:
    async with Bench(Held) as bench:
        bench.put(bench.turn(1, 30, ttft=0.5))
        await bench.time.go(2)
        asked = asyncio.create_task(bench.verdicts.why(1))
        await bench.time.settle()
        assert promised(bench, 1) == [True]
        held = bench.workers["why"]
        assert isinstance(held, Held)
        held.go.set()
        await bench.time.go(2)
        assert (await asked).turn == "1" and promised(bench, 1) == [False]


async def test_a_turn_in_flight_is_left_alone_until_it_has_ended() -> None:
    async with Bench() as bench:
        flying = bench.turn(1, 0, state=TurnState.IN_FLIGHT, ended_at=None)
        bench.put(flying)
        await bench.time.go(5)
        assert bench.judge.asked == []
        bench.put(changed(flying, state=TurnState.DONE, ended_at=bench.time.clock.wall()))
        await bench.time.go(SETTLED_S - 1)
        assert bench.judge.asked == [], "the counters may have more to tell of it"
        await bench.time.go(3)
        assert bench.judge.asked == [1]


async def test_old_turns_and_too_many_are_left_alone() -> None:
    async with Bench() as bench:
        bench.put(bench.turn(1, PAST_S + 60), *(bench.turn(2 + i, 600 - i) for i in range(PAST_TURNS + 5)))
        await bench.idle()
        assert bench.judge.asked == list(range(PAST_TURNS + 6, 6, -1))


async def test_once_and_once_more_where_the_row_has_changed() -> None:
    async with Bench() as bench:
        turn = bench.turn(1, 10)
        bench.put(turn)
        await bench.time.go(30)
        assert bench.judge.asked == [1]
        for queue in (0.5, 0.6, 0.7):
            bench.put(changed(turn, queue_s=queue))
            await bench.time.go(30)
        assert bench.judge.asked == [1, 1]


async def test_what_fails_is_quiet_and_does_not_stop_the_others() -> None:
    async with Bench() as bench:
        errors = {3: KvtopError("no"), 2: RuntimeError("bug"), 1: TimeoutError()}

        def answer(id: int) -> Why:
            if id in errors:
                raise errors[id]
            return broke(id)

        bench.judge.answer = answer
        bench.put(*(bench.turn(id, 100 - id) for id in (1, 2, 3, 4)))
        await bench.time.go(60)
        assert bench.judge.asked == [4, 3, 2, 1], "each once"
        assert [bench.row(id) for id in (1, 2, 3, 4)] == [None, None, None, "prompt_diverged"]
        assert bench.verdicts.news() == ()
        for id, said in ((3, "no"), (2, "kvtop's own triage failed .RuntimeError."), (1, LATE)):
            asked = asyncio.create_task(bench.verdicts.why(id))
            await bench.time.settle()
            with pytest.raises(KvtopError, match=said):
                await asked


async def test_a_thread_that_hangs_is_waited_for() -> None:
    class Hanging(Inline):
        left = 3

        async def call(self, read: Callable[[], object], timeout_s: float) -> object:  # type: ignore[override]
            if self.name == "why" and Hanging.left:
                Hanging.left -= 1
                raise Hangs(self.name)
            return read()

    async with Bench(Hanging) as bench:
        bench.put(bench.turn(1, 10))
        await bench.time.go(2)
        assert bench.judge.asked == []
        await bench.time.go(10)
        assert bench.judge.asked == [1]


async def test_the_page_comes_first_and_hurries_what_waits() -> None:
    async with Bench(Held) as bench:
        bench.put(bench.turn(1, 30, ttft=0.5), bench.turn(2, 20), bench.turn(3, 10))
        held = bench.workers["why"]
        assert isinstance(held, Held)
        await bench.time.go(2)
        await held.began.wait()
        gate = bench.verdicts._gate
        assert not gate.hurry
        asked = asyncio.create_task(bench.verdicts.why(1))
        again = asyncio.create_task(bench.verdicts.why(1))
        await bench.time.settle()
        assert gate.hurry, "the one that waits for a quiet moment waits no longer"
        held.go.set()
        await bench.time.go(5)
        assert bench.judge.asked == [3, 1, 2]
        assert (await asked).turn == "1" and await again is await asked
        assert bench.judge.hurried == [True, True, False]
        assert (await bench.verdicts.why(3)).turn == "3"
        assert bench.judge.asked == [3, 1, 2], "known already"


async def test_a_turn_that_is_not_there_cannot_be_asked_for() -> None:
    async with Bench() as bench:
        with pytest.raises(KvtopError, match="not kept"):
            await bench.verdicts.why(77)
        with pytest.raises(KvtopError, match="no sheet"):
            await bench.verdicts.sheet(77)


async def test_by_text_while_the_server_is_down_and_anew_when_its_page_is_opened() -> None:
    async with Bench() as bench:
        bench.upstreams.here = None
        bench.put(bench.turn(1, 10))
        await bench.time.go(10)
        await bench.verdicts.why(1)
        assert bench.judge.places == [None]
        bench.upstreams.here = place = Place(URL)
        asked = asyncio.create_task(bench.verdicts.why(1))
        await bench.time.settle()
        await asked
        assert bench.judge.places == [None, place]


async def test_the_gate_knows_whether_the_server_is_busy() -> None:
    async with Bench(Held) as bench:
        bench.upstreams.is_busy = True
        bench.put(bench.turn(1, 10))
        held = bench.workers["why"]
        assert isinstance(held, Held)
        await bench.time.go(1)
        gate = bench.verdicts._gate
        assert gate.busy
        bench.upstreams.is_busy = False
        await bench.time.go(0.5)
        assert not gate.busy
        held.go.set()
        await bench.time.go(1)
        assert bench.judge.gates == [gate]
        bench.upstreams.is_busy = True
        await bench.time.go(5)
        assert not gate.busy, "nobody looks any more"


async def test_a_slow_turn_is_told_once_and_only_if_it_ended_since_the_start() -> None:
    async with Bench() as bench:
        bench.put(bench.turn(1, 10))
        await bench.time.go(20)
        new = bench.turn(2, 3)
        bench.put(new, bench.turn(3, 4, ttft=0.5))
        await bench.time.go(20)
        assert bench.verdicts.news() == (), "on the screen the sentence tells of it"
        assert [one["turn"] for one in bench.slow] == ["2"]
        assert bench.slow[0]["verdict"] == "prompt_diverged" and bench.slow[0]["fix"] == "sort the keys"
        bench.put(changed(new, queue_s=0.5))
        await bench.time.go(20)
        assert bench.judge.asked == [1, 2, 2]
        assert len(bench.slow) == 1


async def test_what_has_to_be_said_is_said_once() -> None:
    async with Bench() as bench:
        bench.verdicts.say(News("on_slow failed", bad=True))
        assert bench.verdicts.news() == (News("on_slow failed", bad=True),)
        assert bench.verdicts.news() == ()


async def test_the_command_hears_of_each_of_many_slow_turns() -> None:
    async with Bench() as bench:
        await bench.time.go(100)
        bench.put(*(bench.turn(id, 10 + id / 10) for id in range(1, 40)))
        await bench.idle()
        assert len(bench.judge.asked) == 39 and len(bench.slow) == 39


async def test_a_conversation_that_begins_with_much_to_read_is_judged() -> None:
    """However quick it was: an earlier one may have left its head, or lost it for a clock."""
    async with Bench() as bench:
        much = bench.turn(1, 10, ttft=0.5, cached_tokens=2_000)
        bench.put(much, bench.turn(2, 9, ttft=0.5), bench.turn(3, 8, ttft=0.5, cached_tokens=2_000, relation="side"))
        await bench.idle()
        assert bench.judge.asked == [1]


async def test_a_rate_that_comes_later_makes_more_turns_worth_it() -> None:
    async with Bench() as bench:
        bench.put(bench.turn(1, 10, ttft=8.0), show=False)
        bench.captures.ended(URL, Moment(bench.time.clock.wall(), None, Thresholds()))
        await bench.time.go(5)
        assert bench.judge.asked == []
        bench.show()
        await bench.time.go(5)
        assert bench.judge.asked == [1]


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtop.live import verdicts as module

    monkeypatch.setattr(module, "DONE", PAST_TURNS + 20)
    monkeypatch.setattr(module, "KEPT", 5)
    async with Bench() as bench:
        for n in range(4):
            bench.put(*(bench.turn(id, 10 - id / 100) for id in range(1 + 20 * n, 21 + 20 * n)))
            await bench.idle()
        made = bench.verdicts
        assert len(bench.judge.asked) == 80
        assert (len(made._done), len(made._whys), len(made._asked)) == (PAST_TURNS + 20, 5, 0)
        assert len(made._told) <= PAST_TURNS + 20


async def test_a_row_keeps_its_finding_when_it_is_worked_out_anew() -> None:
    async with Bench() as bench:
        turn = bench.turn(1, 10)
        bench.put(turn)
        await bench.time.go(5)
        bench.captures._take(replace(_News([turn]), all=True))
        assert bench.row(1) == "prompt_diverged"
        row = bench.captures.row(1)
        assert row is not None and row.verdict == "prompt_diverged"
        bench.captures._take(replace(_News([changed(turn, started_at=turn.started_at + 1)]), all=True))
        assert bench.row(1) is None, "another turn of that number"


async def test_an_unknown_verdict_leaves_the_rows_own() -> None:
    async with Bench() as bench:
        bench.judge.answer = lambda id: Why(str(id), Verdict.UNKNOWN, "Turn 1 waited 30 s: nobody knows")
        bench.put(bench.turn(1, 10))
        await bench.time.go(5)
        row = bench.captures.row(1)
        assert bench.row(1) == "unknown" and row is not None and row.verdict is None


class Waits(Judge):
    """Its sheets wait for ever, in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.ended, self.quick = threading.Event(), threading.Event(), False

    def sheet(self, id: int, place: Place | None, gate: Gate) -> Sheet:
        return gate.work.run(self._wait(id))

    async def _wait(self, id: int) -> Sheet:
        if self.quick:
            raise KvtopError(f"no sheet of {id}")
        self.waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        raise AssertionError


async def test_a_diff_that_nobody_looks_at_any_more_is_given_up() -> None:
    """What it asks of the server ends, and the next diff has its thread."""
    bench, judge = Bench(), Waits()
    verdicts = Verdicts(
        bench.captures, judge, bench.upstreams, worker=Worker, clock=bench.time.clock, sleep=asyncio.sleep
    )
    looking = asyncio.create_task(verdicts.sheet(77))
    assert await asyncio.to_thread(judge.waits.wait, 5)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    assert await asyncio.to_thread(judge.ended.wait, 5)
    judge.quick = True
    with pytest.raises(KvtopError, match="no sheet of 78"):
        await verdicts.sheet(78)
