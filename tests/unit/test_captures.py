"""Captured turns read from a real store, as the dashboard shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from sqlite3 import ProgrammingError
from typing import TypeVar

import pytest
from live_fakes import Inline
from msgspec.structs import replace as changed

from kvtop.capture.store.store import Store, StoreError
from kvtop.capture.turn import Captured, Route, Sample, TurnState
from kvtop.errors import KvtopError
from kvtop.live import captures as module
from kvtop.live.captures import Captures
from kvtop.live.factories import StoreLike
from kvtop.live.judging import Moment
from kvtop.model.judge import Thresholds
from kvtop.ui.filter import matches
from kvtop.worker import Caller, Worker

T = TypeVar("T")

URL = "http://127.0.0.1:8000"
AT = 1_795_957_461.0
NOW = Moment(AT, 1_000.0, Thresholds())


class Bench:
    """Captures over a store, one look at a time."""

    def __init__(self, path: Path, worker: Caller | None = None) -> None:
        self.path = path
        self.captures = Captures(self.opened, worker or Inline("captures"), self._sleep)
        self._go = asyncio.Event()
        self._slept = asyncio.Event()
        self.changes = 0
        self.slept: list[float] = []

    def opened(self) -> StoreLike | None:
        return Store.open(self.path) if self.path.exists() else None

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._slept.set()
        await self._go.wait()
        self._go.clear()

    def _changed(self) -> None:
        self.changes += 1

    async def look(self, times: int = 1) -> None:
        if not hasattr(self, "task"):
            self.task = asyncio.create_task(self.captures.run(self._changed))
            times -= 1
            await self._slept.wait()
        for _ in range(times):
            self._slept.clear()
            self._go.set()
            await self._slept.wait()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "turns.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path, write=True) as made:
        yield made


def turn(ago: float = 10.0, **more: object) -> Captured:
    made = Captured(
        upstream=URL, route=Route.CHAT, stream=True, model="m", started_at=AT - ago, sent_at=AT - ago,
        request_bytes=40_000, agent="opencode",
    )  # fmt: skip
    return changed(made, **more)


def done(
    ago: float, prompt: int | None = 10_000, cached: int | None = 8_000, ttft: float = 2.5, **more: object
) -> Captured:
    made = turn(ago, state=TurnState.DONE, first_token_at=AT - ago + ttft, ended_at=AT - ago + ttft + 5, status=200)
    source = None if cached is None else "usage"
    made = changed(made, usage={} if prompt is None else {"prompt_tokens": prompt})
    return changed(made, prompt_tokens=prompt, cached_tokens=cached, cached_source=source, completion_tokens=50, **more)


def add(store: Store, one: Captured) -> int:
    id = store.begin(one, b"{}")
    if one.state is not TurnState.IN_FLIGHT:
        kept = store.turn(id)
        assert kept is not None
        store.finish(changed(one, id=id, conversation=kept.conversation), b"{}")
    return id


async def test_without_a_store_nothing_is_known_and_nothing_is_said(path: Path) -> None:
    bench = Bench(path)
    await bench.look(2)
    assert (bench.captures.count(URL), bench.captures.problem, bench.changes) == (0, "", 0)
    assert bench.slept == [module.ABSENT_S, module.ABSENT_S]
    await bench.close()


async def test_turns_come_in_flight_and_end(path: Path, store: Store) -> None:
    bench = Bench(path)
    add(store, done(100))
    id = add(store, turn(3, state=TurnState.IN_FLIGHT))
    await bench.look()
    captures = bench.captures
    [flying], [ended] = captures.in_flight(URL, NOW), captures.ended(URL, NOW)
    assert (flying.key, flying.state, flying.phase, flying.agent) == (
        ("captured", id),
        "in_flight",
        "reads",
        "opencode",
    )
    assert (ended.ttft_s, ended.cached_tokens, ended.new_tokens, ended.decode_s) == (2.5, 8_000, 2_000, 5.0)
    assert captures.count(URL) == 2
    assert captures.ended(URL, NOW) is captures.ended(URL, replace(NOW, at=AT + 1)), "worked out once"
    store.finish(changed(done(3), id=id), b"{}")
    await bench.look()
    assert captures.in_flight(URL, NOW) == ()
    assert [t.id for t in captures.ended(URL, NOW)] == [id, 1]
    before = bench.changes
    await bench.look()
    assert bench.changes == before, "nothing new, nothing said"
    await bench.close()


async def test_what_the_counters_complete_after_the_end_is_read_again(path: Path, store: Store) -> None:
    bench = Bench(path)
    id = add(store, done(10, cached=None))
    add(store, done(8))
    await bench.look()
    kept = store.turn(id)
    assert kept is not None
    store.update(changed(kept, cached_tokens=9_000, cached_source="metrics"))
    await bench.look()
    assert {t.id: t.cached_tokens for t in bench.captures.ended(URL, NOW)}[id] == 9_000
    await bench.close()


async def test_an_old_turn_in_flight_is_followed_to_its_end(path: Path, store: Store) -> None:
    bench = Bench(path)
    id = add(store, turn(900, state=TurnState.IN_FLIGHT))
    for i in range(module.AGAIN + 5):
        add(store, done(800 - i))
    await bench.look()
    store.finish(changed(done(900), id=id), b"{}")
    await bench.look()
    assert bench.captures.in_flight(URL, NOW) == ()
    assert id in [t.id for t in bench.captures.ended(URL, NOW)]
    await bench.close()


async def test_pages_and_the_limit(path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 4)
    monkeypatch.setattr(module, "KEPT", 10)
    for i in range(15):
        add(store, done(1000 - i))
    bench = Bench(path)
    await bench.look()
    assert [t.id for t in bench.captures.ended(URL, NOW)] == [15, 14, 13, 12]
    await bench.look(3)
    assert [t.id for t in bench.captures.ended(URL, NOW)] == list(range(15, 5, -1))
    assert bench.slept[:2] == [0.0, 0.0] and bench.slept[-1] == module.LOOK_S
    add(store, done(1))
    await bench.look()
    assert [t.id for t in bench.captures.ended(URL, NOW)] == list(range(16, 6, -1))
    await bench.close()


@pytest.mark.parametrize("late", [0, 1, 2])
async def test_what_a_read_found_too_late_is_read_again(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    monkeypatch.setattr(module, "PAGE", 4)
    monkeypatch.setattr(module, "AGAIN", 0)

    class Late(Inline):
        """Gives up on one read, which goes on."""

        calls = 0

        async def call(self, read: Callable[[], T], timeout_s: float) -> T:
            found = await super().call(read, timeout_s)
            self.calls += 1
            if self.calls == late + 1:
                raise TimeoutError
            return found

    for i in range(6):
        add(store, done(1000 - i))
    bench = Bench(path, Late("captures"))
    await bench.look(2)
    add(store, done(1))
    await bench.look(3)
    assert [t.id for t in bench.captures.ended(URL, NOW)] == [7, 6, 5, 4, 3, 2, 1]
    assert bench.captures.problem == ""
    await bench.close()


async def test_what_was_forgotten_goes(path: Path, store: Store) -> None:
    for i in range(5):
        add(store, done(100 - i))
    bench = Bench(path)
    await bench.look()
    store.forget([2, 3])
    await bench.look(2)
    assert [t.id for t in bench.captures.ended(URL, NOW)] == [5, 4, 1]
    store.forget(None)
    await bench.look(int(module.ANEW_S / module.LOOK_S) + 2)
    assert bench.captures.count(URL) == 0
    await bench.close()


async def test_a_store_that_vanishes_is_no_problem(path: Path, store: Store) -> None:
    add(store, done(10))
    bench = Bench(path)
    await bench.look()
    for file in path.parent.iterdir():
        file.unlink()
    await bench.look()
    assert (bench.captures.count(URL), bench.captures.problem) == (0, "")
    await bench.close()


async def test_a_store_of_a_newer_kvtop_is_one_line(path: Path, store: Store) -> None:
    store.db.execute("pragma user_version = 99")
    bench = Bench(path)
    await bench.look()
    assert "written by a newer kvtop" in bench.captures.problem and "\n" not in bench.captures.problem
    assert bench.changes == 1
    await bench.look()
    assert bench.changes == 1, "said once"
    store.db.execute("pragma user_version = 1")
    await bench.look()
    assert bench.captures.problem == ""
    await bench.close()


async def test_a_store_that_cannot_be_opened_keeps_what_is_known(path: Path, store: Store) -> None:
    add(store, done(10))
    bench = Bench(path)
    await bench.look()

    def held() -> StoreLike:
        raise KvtopError("turns.db is held by another program")

    bench.captures._opened, bench.captures._store = held, None
    await bench.look()
    assert bench.captures.problem == "turns.db is held by another program"
    assert bench.captures.count(URL) == 1
    await bench.close()


async def test_a_store_that_cannot_be_read_any_more_is_closed(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, done(10))
    bench = Bench(path)
    await bench.look()
    failing = bench.captures._store
    assert isinstance(failing, Store)

    def broken() -> int:
        raise StoreError("turns.db cannot be read")

    monkeypatch.setattr(failing, "revision", broken)
    await bench.look()
    assert bench.captures.problem == "turns.db cannot be read"
    with pytest.raises(ProgrammingError, match="closed"):
        failing._db.execute("select 1")
    await bench.look()
    assert (bench.captures.problem, bench.captures.count(URL)) == ("", 1)
    await bench.close()


async def test_each_call_may_come_from_another_thread(path: Path, store: Store) -> None:
    """As the real worker does it."""
    add(store, done(10))
    worker = Worker("test")
    captures = Captures(lambda: Store.open(path), worker, asyncio.sleep)
    for _ in range(3):
        news = await worker.call(captures._look, 5)
        if news is not None:
            captures._take(news)
        add(store, done(5))
    assert captures.count(URL) == 3


async def test_servers_are_told_apart_and_loopback_is_one_place(path: Path, store: Store) -> None:
    add(store, done(10))
    add(store, done(5, upstream="http://127.0.0.1:9000"))
    bench = Bench(path)
    await bench.look()
    urls = (URL, "http://localhost:8000", "http://127.0.0.1:9000", "http://a")
    assert [bench.captures.count(url) for url in urls] == [1, 1, 1, 0]
    await bench.close()


async def test_every_turn_of_a_subagents_talk_knows_whose_it_is(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    main = add(store, done(90))
    sub = add(store, done(80, parent=main, relation="subagent"))
    title = add(store, done(75, parent=main, relation="side"))
    for ago in (70, 60, 50):
        add(store, done(ago, conversation=f"c{sub}", relation="next"))
        add(store, done(ago - 1, conversation=f"c{main}", relation="next"))
    add(store, turn(5, conversation=f"c{sub}", relation="next"))
    bench = Bench(path)
    for _ in range(6):
        await bench.look()
        bench.captures.ended(URL, NOW)
    found = (*bench.captures.ended(URL, NOW), *bench.captures.in_flight(URL, NOW))
    await bench.close()
    began = {(row.conversation, row.began_as) for row in found}
    assert began == {(f"c{main}", None), (f"c{sub}", "subagent"), (f"c{title}", "side")} and len(found) == 10
    assert sum(matches(row, "side") for row in found) == 6


async def test_in_flight_is_estimated_from_its_size_and_the_turn_before(path: Path, store: Store) -> None:
    first = add(store, done(100, prompt=10_000))
    kept = store.turn(first)
    assert kept is not None
    add(store, turn(1, request_bytes=48_000, conversation=kept.conversation, parent=first, relation="next"))
    add(store, turn(0.5, model="another"))
    bench = Bench(path)
    await bench.look()
    other, one = bench.captures.in_flight(URL, NOW)
    assert other.estimate is None
    assert one.estimate is not None
    assert (one.estimate.prompt_tokens, one.estimate.cached_tokens, one.estimate.new_tokens) == (12_000, 10_000, 2_000)
    assert one.estimate.left_s == pytest.approx(1.0)
    late = bench.captures.in_flight(URL, replace(NOW, at=AT + 5))[1].estimate
    assert late is not None and late.left_s is None, "longer than expected: nothing is said of the rest"
    assert late.new_tokens == 2_000
    unknown = bench.captures.in_flight(URL, replace(NOW, rate=None))[1].estimate
    assert unknown is not None and unknown.left_s is None
    disproved = bench.captures.in_flight(URL, replace(NOW, at=AT + 30))[1].estimate
    assert disproved is not None and disproved.prompt_tokens == 12_000
    assert (disproved.cached_tokens, disproved.new_tokens) == (None, None), "so long takes more than 2,000 tokens"
    for began, cached in ((AT - 101, 10_000), (AT - 50, None)):
        restarted = bench.captures.in_flight(URL, replace(NOW, began=began))[1].estimate
        assert restarted is not None and restarted.cached_tokens == cached, "a new process has an empty cache"
    await bench.close()


@pytest.mark.parametrize(
    ("running", "waiting", "phases"),
    [
        (3, 0, ["reads", "reads", "writes"]),
        (1, 2, ["waits", "waits", "writes"]),
        (2, 1, ["waits", "reads", "writes"]),
        (0, 3, ["waits", "waits", "writes"]),
        (4, 1, [None, None, "writes"]),
        (None, None, ["reads", "reads", "writes"]),
    ],
)
async def test_phases(path: Path, store: Store, running: int | None, waiting: int | None, phases: list[str]) -> None:
    add(store, turn(5, first_token_at=AT - 1))
    add(store, turn(4))
    add(store, turn(3))
    bench = Bench(path)
    await bench.look()
    now = replace(NOW, running=running, waiting=waiting)
    assert [t.phase for t in bench.captures.in_flight(URL, now)] == phases
    await bench.close()


async def test_an_answer_that_is_no_stream_has_no_phase(path: Path, store: Store) -> None:
    add(store, turn(5, stream=False))
    bench = Bench(path)
    await bench.look()
    assert bench.captures.in_flight(URL, NOW)[0].phase is None
    await bench.close()


async def test_a_turn_that_nobody_records_any_more_has_no_seen_end(path: Path, store: Store) -> None:
    add(store, turn(300))
    add(store, turn(5))
    bench = Bench(path)
    await bench.look()
    alone = replace(NOW, recorded=False)
    assert [t.id for t in bench.captures.in_flight(URL, alone)] == [2]
    assert [(t.id, t.state) for t in bench.captures.ended(URL, alone)] == [(1, None)]
    assert len(bench.captures.in_flight(URL, NOW)) == 2
    assert bench.captures.ended(URL, NOW) == ()
    await bench.close()


@pytest.mark.parametrize(
    ("cached", "ttft", "relation", "slow", "verdict"),
    [
        (10_000, 2.1, "next", False, "no_fault"),
        (10_000, 4.5, "next", False, "no_fault"),
        (0, 12.0, "next", True, None),
        (0, 12.0, "first", False, None),
        (None, 2.0, "side", False, "no_fault"),
    ],
)
async def test_slow_is_judged_by_what_should_have_been_reused(  # noqa: PLR0917
    path: Path, store: Store, cached: int | None, ttft: float, relation: str, slow: bool, verdict: str | None
) -> None:
    """At 1,000 tokens a second, 12,000 of which the turn before left 10,000 in the cache."""
    parent = add(store, done(100, prompt=10_000))
    id = add(store, done(50, prompt=12_000, cached=cached, ttft=ttft, parent=parent, relation=relation))
    bench = Bench(path)
    await bench.look()
    one = next(t for t in bench.captures.ended(URL, NOW) if t.id == id)
    assert (one.slow, one.verdict, one.waited) == (slow, verdict, ttft >= 10)
    await bench.close()


@pytest.mark.parametrize(
    ("parent_cached", "cached", "relation", "again"),
    [
        (8_100, 0, "next", True),
        (8_100, 4_000, "branch", True),
        (8_100, 4_100, "next", False),
        (8_100, 0, "side", False),
        (500, 0, "next", False),
        (0, 0, "next", False),
        (None, 0, "next", False),
    ],
)
async def test_far_less_from_the_cache_than_the_turn_before_is_no_fine_turn(  # noqa: PLR0917
    path: Path, store: Store, parent_cached: int | None, cached: int, relation: str, again: bool
) -> None:
    parent = add(store, done(100, prompt=10_000, cached=parent_cached))
    id = add(store, done(50, prompt=10_300, cached=cached, ttft=1.0, parent=parent, relation=relation))
    bench = Bench(path)
    await bench.look()
    one = next(t for t in bench.captures.ended(URL, NOW) if t.id == id)
    assert (one.reread, one.verdict) == (again, None if again else "no_fault")
    await bench.close()


async def test_a_turn_that_stood_in_the_queue_is_no_lost_cache(path: Path, store: Store) -> None:
    """768 of 948 tokens are all whole blocks of the 772 before: 180 read anew do not take 9 s."""
    parent = add(store, done(100, prompt=772, cached=640))
    known = {"parent": parent, "relation": "next"}
    id = add(store, done(50, prompt=948, cached=768, ttft=9.1, **known))
    bench = Bench(path)
    await bench.look()
    now = replace(NOW, unit=128)
    one = next(t for t in bench.captures.ended(URL, now) if t.id == id)
    assert (one.waited, one.lost, one.accused, one.read_s, one.queue_seen) == (True, False, False, 0.18, False)
    whole = store.turn(id)
    assert whole is not None
    stood = [Sample(at=AT - 50 + i, running=8, waiting=1) for i in range(9)]
    store.finish(changed(whole, samples=stood, alone=False), b"{}")  # they come a little after its end
    await bench.look(2)
    one = next(t for t in bench.captures.ended(URL, now) if t.id == id)
    assert one.queue_seen and one.verdict is None
    await bench.close()


async def test_a_long_input_that_continues_is_new_and_no_fault_of_the_cache(path: Path, store: Store) -> None:
    parent = add(store, done(100, prompt=10_000))
    id = add(store, done(50, prompt=24_000, cached=9_984, ttft=14.5, parent=parent, relation="next"))
    bench = Bench(path)
    await bench.look()
    one = next(t for t in bench.captures.ended(URL, NOW) if t.id == id)
    assert (one.waited, one.verdict, one.new_input) == (True, "new_tokens", True)
    await bench.close()


async def test_an_answer_in_one_piece_has_the_ttft_of_kvtop_turns(path: Path, store: Store) -> None:
    one = changed(done(100), first_token_at=None, queue_s=2.0, prefill_s=9.0)
    add(store, one)
    add(store, changed(one, prefill_s=None))
    bench = Bench(path)
    await bench.look()
    known = {t.id: (t.ttft_s, t.waited, t.worked_out) for t in bench.captures.ended(URL, NOW)}
    assert known == {1: (11.0, True, ("ttft_s",)), 2: (None, False, ())}
    await bench.close()


async def test_judged_again_once_a_rate_is_known(path: Path, store: Store) -> None:
    add(store, done(100, prompt=10_000, cached=9_000, ttft=8.0))
    bench = Bench(path)
    await bench.look()
    assert not bench.captures.ended(URL, replace(NOW, rate=None))[0].slow
    assert bench.captures.ended(URL, NOW)[0].slow
    await bench.close()


async def test_a_server_that_tells_no_cached_tokens(path: Path, store: Store) -> None:
    bench = Bench(path)
    add(store, done(100, cached=None))
    add(store, done(90, cached=None))

    async def told() -> bool:
        await bench.look()
        bench.captures.ended(URL, NOW)
        return bench.captures.no_details(URL)

    assert not await told(), "two are no proof"
    add(store, done(80, cached=None))
    assert await told()
    add(store, done(70))
    assert not await told()
    await bench.close()


@pytest.mark.parametrize(("finish", "verdict"), [("stop", "no_fault"), ("abort", None), ("error", None)])
async def test_what_the_server_broke_off_is_not_called_well(
    path: Path, store: Store, finish: str, verdict: str | None
) -> None:
    add(store, done(100, finish_reason=finish))
    bench = Bench(path)
    await bench.look()
    assert bench.captures.ended(URL, NOW)[0].verdict == verdict
    await bench.close()


async def test_streams_whose_client_asks_for_no_usage_blame_no_server(path: Path, store: Store) -> None:
    bench = Bench(path)
    untold = changed(done(100), usage={}, stream=True, route=Route.CHAT, cached_tokens=None, cached_source=None)

    untold = changed(untold, usage_asked=False)

    async def told() -> tuple[bool, tuple[int, int]]:
        await bench.look()
        bench.captures.ended(URL, NOW)
        return bench.captures.no_details(URL), bench.captures.no_usage(URL)

    for _ in range(3):  # their prompt tokens may be known all the same: from the counters
        add(store, untold)
    add(store, changed(untold, route=Route.RESPONSES))
    add(store, changed(untold, state=TurnState.ABORTED))
    add(store, changed(untold, stream=False))
    assert await told() == (False, (3, 0))
    add(store, changed(untold, usage_asked=True))
    add(store, changed(untold, usage_asked=None))
    assert await told() == (False, (3, 2)), "who asked is not to blame"
    for _ in range(3):
        add(store, changed(untold, usage={"prompt_tokens": 10_000}))
    assert await told() == (True, (3, 2))
    usage = {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 999_999}}
    add(store, changed(done(5), usage=usage, cached_tokens=None, cached_source=None))
    assert await told() == (False, (3, 2)), "it does tell them, if no true number"
    await bench.close()


async def test_without_usage_the_size_estimates_the_prompt(path: Path, store: Store) -> None:
    add(store, done(100, prompt=10_000))
    add(store, turn(50, state=TurnState.ABORTED, first_token_at=AT - 49, ended_at=AT - 48, request_bytes=20_000))
    bench = Bench(path)
    await bench.look()
    one = bench.captures.ended(URL, NOW)[0]
    assert (one.state, one.prompt_tokens) == ("aborted", None)
    assert one.estimate is not None and one.estimate.prompt_tokens == 5_000
    await bench.close()


async def test_another_store_in_place_of_the_old_one_teaches_sizes_anew(path: Path, store: Store) -> None:
    """Its turns have the numbers of others, and lower ones than those that taught before."""
    for ago in (102, 101, 100):
        add(store, done(ago, prompt=40_000))
    bench = Bench(path)
    await bench.look()
    for file in path.parent.iterdir():
        file.unlink()
    await bench.look()
    with Store.open(path, write=True) as fresh:
        add(fresh, done(50, prompt=10_000))
        add(fresh, turn(1, request_bytes=20_000))
        await bench.look()
    (one,) = bench.captures.in_flight(URL, NOW)
    assert one.estimate is not None and one.estimate.prompt_tokens == 5_000
    await bench.close()


async def test_what_is_over_is_not_estimated_anew(path: Path, store: Store) -> None:
    """Neither by what later turns teach, nor when all turns are read or judged anew."""
    add(store, done(100, prompt=10_000))
    untold = add(store, turn(50, state=TurnState.ABORTED, ended_at=AT - 48, request_bytes=20_000))
    bench = Bench(path)

    async def shown() -> int | None:
        await bench.look()
        (one,) = [row for row in bench.captures.ended(URL, NOW) if row.id == untold]
        return None if one.estimate is None else one.estimate.prompt_tokens

    assert await shown() == 5_000
    last = add(store, done(40, prompt=40_000))
    again = store.turn(untold)
    assert again is not None
    store.update(changed(again, queue_s=0.1))
    assert await shown() == 5_000
    store.forget([last])
    bench.captures.ended(URL, replace(NOW, rate=1_000.0))
    for _ in range(12):
        assert await shown() == 5_000
    await bench.close()
