"""Taps that run, and a server's view with what they captured: through the real Watch, among fakes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from live_fakes import Bench, Inline, Time
from msgspec.structs import replace as changed

from kvtop.capture.control.running import Mapped, Running
from kvtop.capture.store.store import Store
from kvtop.capture.tap.ended import Missed
from kvtop.capture.turn import Captured, Route, TurnState
from kvtop.config import Server
from kvtop.live.joined import Joined
from kvtop.live.judging import Moment
from kvtop.live.replays import Replays
from kvtop.live.taps import LOOK_S, Taps
from kvtop.model.judge import Thresholds
from kvtop.model.own import OwnRequest
from kvtop.model.shown_turn import Turn
from kvtop.model.view import ServerView
from kvtop.readings import State

URL = "http://127.0.0.1:8000"
NO_REPLAYS = Replays(tuple, Inline("replays"), Time().sleep)


class Box:
    """A Watch of one server with a store and taps."""

    def __init__(self, store: Store, url: str = URL) -> None:
        self.store = store
        self.bench = Bench(url)
        self.bench.captures = lambda: Store.open(store.path)
        self.counters = self.bench.server(url).box
        self.counters.started = self.at - 1_000

    @property
    def at(self) -> float:
        return self.bench.clock.wall()

    def tap(self, listen: str = "127.0.0.1:8001", upstream: str = URL, ago: float = 0.0) -> None:
        since = datetime.fromtimestamp(self.at - ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        mapped = [Mapped(listen, upstream)]
        self.bench.taps = [
            Running(name=listen, pid=1, birth="x", since=since, mappings=mapped, drain_s=30.0, store="/turns.db")
        ]

    def asks(self, prompt: int, cached: int = 0, *, tapped: bool = True) -> None:
        """A request that comes, is answered and ends now."""
        self.counters.turn(prompt, cached)
        if not tapped:
            return
        at = self.at
        one = Captured(
            upstream=URL, route=Route.CHAT, stream=True, started_at=at - 2, sent_at=at - 2, first_token_at=at - 1,
            ended_at=at, agent="pi", request_bytes=prompt * 4, state=TurnState.DONE, status=200, prompt_tokens=prompt,
            cached_tokens=cached, cached_source="usage", completion_tokens=10,
        )  # fmt: skip
        id = self.store.begin(one, b"{}")
        self.store.finish(changed(one, id=id, conversation=f"c{id}"), b"{}")

    def tells_tokens(self) -> None:
        """Each request that has ended wrote one token, and its prompt is told with its end."""
        counters, labels = self.counters, (("engine", "0"), ("model_name", "m"))
        sums = {"prompt": counters.prompt, "generation": float(counters.first_tokens)}
        for name, total in sums.items():
            counters.extra[f"vllm:request_{name}_tokens_sum", labels] = total
            counters.extra[f"vllm:request_{name}_tokens_count", labels] = counters.first_tokens

    def view(self, window: str = "1m") -> ServerView:
        server = self.bench.watch.view(window).server
        assert server is not None
        return server


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Store.open(tmp_path / "turns.db", write=True) as store:
        yield Box(store)


async def test_without_taps_and_captured_turns_nothing_is_said_of_them(box: Box) -> None:
    async with box.bench.running() as time:
        await time.go(5)
        assert box.view().tap is None


@pytest.mark.parametrize("tapped", [True, False])
async def test_a_replay_is_named_with_a_tap_and_without_one(box: Box, tapped: bool) -> None:
    """Another process sent it: what it noted is all that is known of it."""
    if tapped:
        box.tap(ago=300)
    async with box.bench.running() as time:
        box.tells_tokens()
        await time.go(70)
        box.asks(900, 640, tapped=False)
        box.tells_tokens()
        box.bench.replays = [OwnRequest("a", URL, box.at - 2, box.at, 900, 640)]
        await time.go(2)
        box.asks(5_000, tapped=False)
        box.tells_tokens()
        for _ in range(6):
            await time.go(1)
            view = box.view()
        assert [(turn.agent, turn.prompt_tokens, turn.past_tap) for turn in view.turns] == [
            (None, 5_000, tapped),
            ("kvtop replay", 900, False),
        ]
        assert (view.tap is not None) is tapped
        if view.tap is not None:
            assert view.tap.passed_by_tokens == 5_000, "the replay's own are none of them"


async def test_a_tap_that_runs_is_named_and_one_that_ended_is_not(box: Box) -> None:
    box.tap()
    async with box.bench.running() as time:
        await time.go(3)
        tap = box.view().tap
        assert tap is not None
        assert (tap.listens, tap.captured, tap.share) == (("127.0.0.1:8001",), 0, None)
        box.bench.taps = []
        await time.go(LOOK_S + 1)
        assert box.view().tap is None


async def test_a_tap_to_another_server_is_none_of_this_one(box: Box) -> None:
    box.tap(upstream="http://127.0.0.1:9999")
    async with box.bench.running() as time:
        await time.go(3)
        assert box.view().tap is None


async def test_a_tap_named_otherwise_is_one_of_this_server(box: Box) -> None:
    box.tap(upstream="http://localhost:8000")
    async with box.bench.running() as time:
        await time.go(3)
        tap = box.view().tap
        assert tap is not None and tap.listens == ("127.0.0.1:8001",)


TAP = "http://127.0.0.1:8001"


async def test_who_names_the_tap_watches_the_server_behind_it(tmp_path: Path) -> None:
    with Store.open(tmp_path / "turns.db", write=True) as store:
        box = Box(store, TAP)
        box.tap()
        box.asks(1_000)
        server = box.bench.server(URL)
        server.box = box.counters
        async with box.bench.running() as time:
            await time.go(3)
            view = box.view()
            assert (view.url, view.label) == (URL, "127.0.0.1:8000")
            assert view.tap is not None and view.tap.listens == ("127.0.0.1:8001",)
            assert [turn.agent for turn in view.turns if turn.captured] == ["pi"]
            first = box.bench.server(TAP)
            assert first.closed and len(first.scrapes) == 1, "no more polls stand among the tap's connections"
            assert server.scrapes and server.asked_facts == 1
            assert view.window.window_s == pytest.approx(3), "what the first answer told is not lost"
            box.bench.taps = []
            first.down()
            await time.go(LOOK_S + 3)
            view = box.view()
            assert view.state.good and view.failed_tries == 0, "it outlives the tap"
            assert [turn.agent for turn in view.turns if turn.captured] == ["pi"]


async def test_a_tap_beside_its_own_server_is_the_same_server_once(box: Box) -> None:
    box.tap()
    async with box.bench.running() as time:
        await time.go(3)
        box.bench.watch.add_url(TAP)
        assert box.bench.urls == [URL, TAP]
        await time.go(1)
        assert box.bench.urls == [URL]


async def test_user_password_key_and_name_go_along_to_the_server_behind_a_tap(tmp_path: Path) -> None:
    configured = Server("http://me:s%40t@127.0.0.1:8001", name="box", api_key_env="BOX_KEY")
    bench = Bench(servers=[configured])
    bench.taps = [
        Running(name="a", pid=1, birth="x", since="2026-01-01T00:00:00Z", drain_s=1.0, mappings=[
            Mapped("127.0.0.1:8001", "http://127.0.0.1:8002"), Mapped("127.0.0.1:8002", "http://[::1]:9000"),
        ])
    ]  # fmt: skip
    async with bench.running() as time:
        await time.go(3)
        assert bench.made[-1] == ("http://me:s%40t@[::1]:9000", configured)
        server = bench.watch.view("1m").server
        assert server is not None and (server.url, server.label) == ("http://[::1]:9000", "box")


async def test_taps_that_lead_to_each_other_end_nothing(tmp_path: Path) -> None:
    bench = Bench("http://127.0.0.1:8001")
    bench.taps = [
        Running(name="a", pid=1, birth="x", since="2026-01-01T00:00:00Z", drain_s=1.0, mappings=[
            Mapped("127.0.0.1:8001", "http://127.0.0.1:8002"), Mapped("127.0.0.1:8002", "http://127.0.0.1:8001"),
        ])
    ]  # fmt: skip
    async with bench.running() as time:
        await time.go(3)
        assert len(bench.urls) == 1


async def test_the_share_is_told_once_a_tap_ran_for_the_whole_window(box: Box) -> None:
    async with box.bench.running() as time:
        await time.go(10)
        box.tap()
        for _ in range(5):
            await time.go(5)
            box.asks(1_000)
            box.asks(250, tapped=False)
        await time.go(5)
        tap = box.view("1m").tap
        assert tap is not None and tap.share is None, "the window is older than the tap"
        await time.go(1)
        tap = box.view("10s").tap
        assert tap is not None and tap.share is None, "it may be on its way to the store"
        for _ in range(3):
            box.view("10s")
            await time.go(1)
        tap = box.view("10s").tap
        assert tap is not None and tap.share == pytest.approx(0.8)
        assert tap.passed_by_tokens == 250
        await time.go(20)
        box.asks(250, tapped=False)
        await time.go(2)
        tap = box.view("10s").tap
        assert tap is not None and tap.share is None, "nobody has looked for a while: it may have begun just now"


async def test_all_of_it_through_the_tap_is_all_of_it(box: Box) -> None:
    box.tap(ago=600)
    async with box.bench.running() as time:
        await time.go(5)
        for _ in range(4):
            box.asks(1_000, 800)
            await time.go(4)
        tap = box.view("1m").tap
        assert tap is not None and (tap.share, tap.passed_by_tokens) == (1.0, 0)
        assert (tap.captured, tap.no_details) == (4, False)


async def test_a_turn_that_begins_at_the_tap_has_its_server_asked_at_once(box: Box) -> None:
    box.tap(ago=600)
    async with box.bench.running() as time:
        await time.go(45)
        asked = box.bench.server(URL).scrapes
        assert asked[-1] - asked[-2] == 2.0, "nothing has run for a while"
        await time.go(2.1 - (box.at - asked[-1]) % 2.0)
        before = len(asked)
        box.store.begin(Captured(upstream=URL, started_at=box.at, stream=True, request_bytes=4_000), b"{}")
        await time.go(0.6)
        assert len(asked) == before + 1, "it is asked as soon as the turn is seen"
        await time.go(1.3)
        assert len(asked) == before + 1, "once"


async def test_a_store_that_cannot_be_read_is_told(box: Box) -> None:
    box.store.db.execute("pragma user_version = 99")
    async with box.bench.running() as time:
        await time.go(3)
        tap = box.view().tap
        assert tap is not None and "newer kvtop" in tap.problem


async def test_what_did_not_change_is_not_joined_again(box: Box) -> None:
    """Five thousand turns are not gone through once a second."""
    box.tap(ago=600)
    for _ in range(20):
        box.asks(1_000)
    async with box.bench.running() as time:
        await time.go(3)
        first = box.view()
        assert box.view() is first
        await time.go(1)
        second = box.view()
        assert [id(turn) for turn in second.turns] == [id(turn) for turn in first.turns], "the same rows"
        box.store.begin(Captured(upstream=URL, started_at=box.at, stream=True, request_bytes=4_000), b"{}")
        await time.go(1)
        third = box.view()
        assert third.turns[0].state == "in_flight"
        assert [id(turn) for turn in third.turns[1:]] == [id(turn) for turn in first.turns]


async def test_a_chosen_engine_has_only_its_counters(box: Box) -> None:
    box.counters.engines = ("0", "1")
    box.asks(1_000)
    box.tap()
    async with box.bench.running() as time:
        await time.go(3)
        server = box.bench.watch.view("1m", 0, "1").server
        assert server is not None and server.tap is not None
        assert server.tap.captured == 0 and not any(turn.captured for turn in server.turns)


class Told:
    """What was captured, as a test says."""

    version, problem = 1, ""

    def __init__(self, *flying: Turn) -> None:
        self.flying = flying

    def count(self, url: str) -> int:
        return 5

    def no_details(self, url: str) -> bool:
        return False

    def no_usage(self, url: str) -> tuple[int, int]:
        return 0, 0

    def ended(self, url: str, now: Moment) -> tuple[Turn, ...]:
        return ()

    def in_flight(self, url: str, now: Moment) -> tuple[Turn, ...]:
        return self.flying


@pytest.mark.parametrize(("later", "rows"), [(0.4, ["captured"]), (2.0, ["captured", "counted"])])
async def test_an_end_that_was_counted_first_is_not_said_to_go_past_the_tap(later: float, rows: list[str]) -> None:
    """The store is looked at twice a second, the counters five times."""
    flying = Turn(9, None, state="in_flight", source="tap", started_at=100.0)
    counted = Turn(3, 110.0, started_at=100.0, prompt_tokens=1_000, duration_s=10.0)
    view = ServerView(URL, URL, State.UP, turns=(counted,), last_good_at=110.0)
    taps = Taps(list, Inline("taps"), Time().sleep)
    joined = Joined(Told(flying), taps, NO_REPLAYS, Thresholds(), lambda: 50.0)  # type: ignore[arg-type]
    made = joined.view(view, 110.0 + later)
    assert [turn.key[0] for turn in made.turns] == rows
    alone = Joined(Told(), taps, NO_REPLAYS, Thresholds(), lambda: 50.0).view(view, 110.4)  # type: ignore[arg-type]
    assert [turn.past_tap for turn in alone.turns] == [True], "nothing that is captured could be it"


def test_keys_tell_captured_and_counted_turns_apart() -> None:
    counted, flying = Turn(7, 1.0), Turn(7, None, state="in_flight")
    captured = replace(counted, source="tap")
    assert len({counted.key, flying.key, captured.key}) == 3
    assert replace(flying, source="tap").key == captured.key, "a captured one keeps its key when it ends"


async def test_a_box_that_fills_the_store_itself_is_captured_from_its_own_begin_on() -> None:
    """A tap that somebody puts in front of it later changes nothing of that."""
    taps = Taps(list, Inline("taps"), Time().sleep)
    record = Running(
        name="t", pid=1, birth="x", since="2026-11-29T12:00:00Z", drain_s=1.0, store="/t",
        mappings=[Mapped("127.0.0.1:8001", URL)],
    )  # fmt: skip
    taps.here = (record,)
    counted = Turn(3, 110.0, started_at=100.0, prompt_tokens=1_000, duration_s=10.0)
    view = ServerView(URL, URL, State.UP, turns=(counted,), last_good_at=110.0)
    by_itself = Joined(Told(), taps, NO_REPLAYS, Thresholds(), lambda: 50.0).view(view, 110.4)  # type: ignore[arg-type]
    assert [turn.past_tap for turn in by_itself.turns] == [True]
    tapped = Joined(Told(), taps, NO_REPLAYS, Thresholds(), lambda: None).view(view, 110.4)  # type: ignore[arg-type]
    assert [turn.past_tap for turn in tapped.turns] == [False]


async def test_a_store_that_cannot_be_written_is_told_and_its_turns_never_went_past_the_tap() -> None:
    taps = Taps(list, Inline("taps"), Time().sleep)
    full = Missed(unwritten="disk is full", unwritten_since=1_764_400_000.0)
    record = Running(
        name="t", pid=1, birth="x", since="2025-11-29T00:00:00Z", drain_s=1.0, store="/t", missed=full,
        mappings=[Mapped("127.0.0.1:8001", URL)],
    )  # fmt: skip
    at = 1_764_400_100.0
    counted = Turn(3, at, started_at=at - 10.0, prompt_tokens=1_000, duration_s=10.0)
    view = ServerView(URL, URL, State.UP, turns=(counted,), last_good_at=at)
    joined = Joined(Told(), taps, NO_REPLAYS, Thresholds(), lambda: None)  # type: ignore[arg-type]

    def seen(missed: Missed, now: float) -> tuple[str | None, bool]:
        taps.here, taps.version = (changed(record, missed=missed),), taps.version + 1
        made = joined.view(view, now)
        return made.tap and made.tap.unwritten, made.turns[0].past_tap

    assert seen(full, at + 1) == ("disk is full", False)
    assert seen(Missed(), at + 5) == ("", False), "it may have been among those that waited"
    later = replace(counted, id=4, ended_at=at + 30, started_at=at + 20)
    view = replace(view, turns=(later,))
    assert seen(Missed(), at + 40) == ("", True)
    assert seen(Missed(connections=1, bytes=9, first_at=at + 10, last_at=at + 25), at + 40) == ("", False)
