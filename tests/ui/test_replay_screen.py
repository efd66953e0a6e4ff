"""The replay of a turn, as a person sees it: the cost first, then what is sent, then what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from diff_sheets import sheet
from kvtop.capture.turn import Route
from kvtop.errors import KvtopError
from kvtop.live.casebooks import Place
from kvtop.live.replaying import Offer
from kvtop.model.own import NAME
from kvtop.triage.fixes import Repaired
from kvtop.triage.kinds import Kind, Verdict
from kvtop.triage.replay import Sent
from kvtop.triage.replay_pair import Pair
from kvtop.triage.replayed import Name, Plan, Replayed, Run
from kvtop.triage.sheet import Sheet
from kvtop.ui.app import KvtopApp

from . import boxes
from .screen import Held, lines, text, until
from .test_captured import FakeDesk

URL = "http://127.0.0.1:8000"
PLAN = Plan(URL, True, "", 242_600, True, 500_000, 92.0)
SENT = Sent(Route.CHAT, b"{}", b"{}", 119_420, 123_180)
PAIR = Pair(SENT, None, old="turn 811", new="turn 812", kinds=(Kind.TOOL_KEY_ORDER, Kind.REMINDER_MOVED))
RUNS = (
    Run(Name.COLD, 119_420, 0, 88.0),
    Run(Name.WARM, 119_420, 118_992, 0.4),
    Run(Name.NEW, 123_180, 11_792, 91.0),
)
SAYS = (
    "right behind the old turn the new one gets 11,792 of 118,992 tokens that could be reused, and got 11,792 then: "
    "the prompts explain it, nothing was evicted"
)
EVIL = "\x1b[31m[bold]red\u202eevil"


class Sender:
    """Does one step each time that a test lets it."""

    def __init__(self) -> None:
        self.plan, self.pair = PLAN, PAIR
        self.fails: KvtopError | None = None
        self.asked: list[tuple[int, tuple[Kind, ...]]] = []
        self.step = asyncio.Semaphore(0)
        self.planned = asyncio.Event()
        self.planned.set()
        self.runs: list[Run] = []
        self.broken_off = False

    async def offer(self, id: int, kinds: Sequence[Kind] = ()) -> Offer:
        self.asked.append((id, tuple(kinds)))
        await self.planned.wait()
        if self.fails is not None:
            raise self.fails
        made = Repaired(Route.CHAT, {}, {}, "the keys of all schemas sorted in both turns") if kinds else None
        return Offer(replace(self.pair, repaired=made), self.plan, Place(URL))

    async def send(self, offer: Offer, told: Callable[[Run], None]) -> Replayed:
        self.runs.clear()
        try:
            for run in RUNS:
                await self.step.acquire()
                if self.fails is not None:
                    raise self.fails
                self.runs.append(run)
                told(run)
        except asyncio.CancelledError:
            self.broken_off = True
            raise
        return Replayed(URL, True, "kvtop-1", RUNS, Verdict.PROMPT_DIVERGED, SAYS)

    def so_far(self) -> Replayed:
        says = "stopped before warm: 119,420 tokens were written under a salt of their own, which nobody uses"
        return Replayed(URL, True, "kvtop-1", tuple(self.runs), Verdict.UNKNOWN, says)


class Desk(FakeDesk):
    def __init__(self) -> None:
        super().__init__()
        self.replaying = Sender()


class Box(Held):
    def __init__(self) -> None:
        super().__init__(boxes.captured())
        self.desk = Desk()


@asynccontextmanager
async def page(
    w: int = 80, h: int = 24, prepare: Callable[[Sender], None] = lambda sender: None
) -> AsyncIterator[tuple[KvtopApp, Pilot[str], Sender]]:
    """The replay of turn 812, opened from the dashboard."""
    held = Box()
    prepare(held.desk.replaying)
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=(w, h)) as pilot:
        await pilot.pause()
        app.dashboard.choose_turn(("captured", 812))
        await pilot.press("r")
        await until(pilot, lambda: "REPLAY" in text(app))
        yield app, pilot, held.desk.replaying


def row(app: KvtopApp, words: str) -> str:
    return next((line.rstrip() for line in lines(app) if words in line), "")


def told(app: KvtopApp) -> str:
    """What toasts say."""
    return " ".join(one.message for one in app._notifications)


@pytest.mark.parametrize(("w", "h"), [(80, 24), (200, 50)])
async def test_the_cost_comes_first_and_nothing_is_sent_unasked(w: int, h: int) -> None:
    async with page(w, h) as (app, pilot, sender):
        await until(pilot, lambda: "What it costs" in text(app))
        said = " ".join(text(app).split())
        assert "REPLAY Turn 811 and turn 812 once more: nothing was sent yet. y sends it, esc does not." in said
        assert "It writes up to 242,600 tokens into a KV cache of 500,000, in about 92 s." in said
        assert "A salt keeps hashes apart, not room" in said
        assert row(app, " cold ").endswith("119,420 tokens")
        assert row(app, " new ").endswith("123,180 tokens")
        assert "f sends both also as they would be without a cause: tool_key_order, reminder_moved" in said
        assert lines(app)[-1].startswith("y send  f fix")
        assert sender.asked == [(812, ())] and sender.runs == []
        assert all(len(line.rstrip()) <= w for line in lines(app)) and "…" not in text(app)
        await pilot.press("enter", "escape")
        await until(pilot, lambda: app.screen is app.dashboard)
        assert sender.runs == [] and not sender.broken_off


@pytest.mark.parametrize(("w", "h"), [(80, 24), (200, 50)])
@pytest.mark.parametrize("key", ["y", "f"])
async def test_a_key_that_comes_before_the_cost_is_known_is_answered_and_sends_nothing(
    key: str, w: int, h: int
) -> None:
    async with page(w, h, lambda sender: sender.planned.clear()) as (app, pilot, sender):
        await pilot.press(key)
        said = "still working out what it would cost: nothing is sent, press the key again then."
        await until(pilot, lambda: said in " ".join(text(app).split()))
        sender.planned.set()
        await until(pilot, lambda: "nothing was sent yet. y sends it" in " ".join(text(app).split()))
        assert sender.runs == [] and sender.asked == [(812, ())]


@pytest.mark.parametrize(("w", "h"), [(80, 24), (200, 50)])
async def test_it_tells_each_request_and_then_what_they_show(w: int, h: int) -> None:
    async with page(w, h) as (app, pilot, sender):
        await until(pilot, lambda: "What it costs" in text(app))
        await pilot.press("y")
        await until(pilot, lambda: "request 1 is sent; esc breaks it off." in text(app))
        assert "is sent, for 0" in row(app, " cold ")
        sender.step.release()
        await until(pilot, lambda: "0 of 119,420 cached" in row(app, " cold "))
        assert "request 2 is sent" in text(app) and "is sent, for" in row(app, " warm ")
        sender.step.release()
        sender.step.release()
        await until(pilot, lambda: "Result" in text(app))
        assert row(app, " new   ").replace("\u00a0", " ").split()[-6:] == ["123,180", "cached", "10", "%", "91", "s"]
        assert SAYS in " ".join(text(app).replace("×", "").split())
        assert "prompt diverged" in row(app, "Result")
        assert "done; y looks what another one would cost." in " ".join(text(app).split())
        await pilot.press("y")
        await until(pilot, lambda: "nothing was sent yet" in text(app))
        assert len(sender.asked) == 2 and "Result" not in text(app)


async def test_going_back_breaks_it_off_and_says_what_was_written() -> None:
    async with page() as (app, pilot, sender):
        await until(pilot, lambda: "What it costs" in text(app))
        await pilot.press("y")
        sender.step.release()
        await until(pilot, lambda: "request 2 is sent" in text(app))
        await pilot.press("escape")
        await until(pilot, lambda: sender.broken_off)
        await until(pilot, lambda: "119,420 tokens were written" in told(app))
        assert app.screen is app.dashboard


async def test_going_back_while_the_cost_is_worked_out_ends_that() -> None:
    async with page(prepare=lambda sender: sender.planned.clear()) as (app, pilot, sender):
        await until(pilot, lambda: "works out what it would cost" in text(app))
        assert not lines(app)[-1].startswith("y")
        await pilot.press("y", "f")
        workers = [worker for worker in app.workers if worker.name == "replay"]
        assert len(workers) == 1
        await pilot.press("escape")
        await until(pilot, lambda: workers[0].is_cancelled and workers[0].is_finished)
        assert app.screen is app.dashboard and len(sender.asked) == 1


async def test_a_busy_server_is_refused_in_the_words_of_the_command() -> None:
    def busy(sender: Sender) -> None:
        sender.plan = replace(PLAN, idle=False, busy="2 requests run and 1 wait")

    async with page(prepare=busy) as (app, pilot, sender):
        await until(pilot, lambda: "Why not" in text(app))
        said = " ".join(text(app).split())
        assert f"× {URL} is busy: 2 requests run and 1 wait" in said
        assert "try again when it is idle, or with --force" in said
        await pilot.press("y")
        await until(pilot, lambda: len(sender.asked) == 2)
        assert sender.runs == []
        sender.plan = PLAN
        await pilot.press("y")
        await until(pilot, lambda: "y sends it" in text(app))


async def test_one_that_evicts_everything_is_a_warning() -> None:
    def small(sender: Sender) -> None:
        sender.plan = replace(PLAN, pool_tokens=200_000, seconds=None, counted=False)

    async with page(prepare=small) as (app, pilot, _):
        await until(pilot, lambda: "What it costs" in text(app))
        said = " ".join(text(app).split())
        assert (
            "! It writes up to about 242,600 tokens into a KV cache of 200,000, which evicts all that is in it, in a "
            "time that is not known." in said
        )
        assert "tokens are guessed from bytes" in said


async def test_the_next_cause_to_be_repaired() -> None:
    async with page(120, 36) as (app, pilot, sender):
        await until(pilot, lambda: "What it costs" in text(app))
        await pilot.press("f")
        await until(pilot, lambda: "new fixed" in text(app))
        assert "turn 811 with the keys of all schemas sorted in both turns" in row(app, "old fixed")
        await pilot.press("f")
        await until(pilot, lambda: len(sender.asked) == 3)
        await until(pilot, lambda: "y sends it" in text(app))
        await pilot.press("f")
        await until(pilot, lambda: len(sender.asked) == 4)
        await until(pilot, lambda: "new fixed" not in text(app))
        assert [kinds for _, kinds in sender.asked] == [(), (Kind.TOOL_KEY_ORDER,), (Kind.REMINDER_MOVED,), ()]


async def test_what_cannot_be_replayed_is_one_line() -> None:
    def fails(sender: Sender) -> None:
        sender.fails = KvtopError(f"there is no earlier turn {EVIL}", "choose another turn")

    async with page(prepare=fails) as (app, pilot, _):
        await until(pilot, lambda: "Why not" in text(app))
        assert row(app, "there is no earlier turn").startswith(" × there is no earlier turn ␛[31m[bold]red")
        assert not set(EVIL) & {"\x1b", "\u202e"} & set(text(app))
        assert "cannot be done; y looks again." in " ".join(text(app).split())


async def test_an_error_in_the_middle_keeps_what_was_sent() -> None:
    async with page() as (app, pilot, sender):
        await until(pilot, lambda: "What it costs" in text(app))
        await pilot.press("y")
        sender.step.release()
        await until(pilot, lambda: "request 2 is sent" in text(app))
        sender.fails = KvtopError("http://127.0.0.1:8000: connection refused", "start the server")
        sender.step.release()
        await until(pilot, lambda: "connection refused" in text(app))
        assert "119,420 tokens were written" in " ".join(text(app).split())


async def test_the_key_on_a_page_on_a_diff_and_where_there_is_nothing_to_send() -> None:
    async with page() as (app, pilot, _):
        await pilot.press("escape", "enter")
        await until(pilot, lambda: app.screen.__class__.__name__ == "TurnScreen")
        assert "r replay" in lines(app)[-1]
        await pilot.press("r")
        await until(pilot, lambda: "REPLAY" in text(app))
        await pilot.press("escape", "escape")
        counted = next(turn for turn in app.dashboard.made.rows if turn.state == "in_flight")  # type: ignore[union-attr]
        app.dashboard.choose_turn(counted.key)
        await pilot.press("r")
        await until(pilot, lambda: "has not ended yet" in told(app))
    plain = KvtopApp(Held(boxes.captured()), now=lambda: boxes.NOW)
    async with plain.run_test(size=(200, 50)) as pilot:
        await pilot.pause()
        assert "r replay" not in lines(plain)[-1]


async def test_the_key_on_a_diff_and_the_way_back() -> None:
    held = Box()
    held.desk.sheet = made  # type: ignore[attr-defined]
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        app.dashboard.choose_turn(("captured", 812))
        await pilot.press("d")
        await until(pilot, lambda: "same up to token 795" in text(app))
        assert "r replay" in lines(app)[-1]
        await pilot.press("r")
        await until(pilot, lambda: "What it costs" in text(app))
        assert held.desk.replaying.asked == [(812, ())]
        await pilot.press("escape")
        await until(pilot, lambda: "same up to token 795" in text(app))


async def made(turn_id: int) -> Sheet:
    return sheet()


@pytest.mark.parametrize(("w", "h", "said"), [(80, 24, "replay"), (200, 50, NAME)])
async def test_a_row_of_a_replay_names_it(w: int, h: int, said: str) -> None:
    held = Box()
    server = held.now.servers[0]
    first = next(turn for turn in server.turns if turn.state != "in_flight")
    mine = replace(first, id=7, source="metrics", agent=NAME, own=1_796_000, finding=None, waited=True, beside=True)
    at = server.turns.index(first)
    turns = (*server.turns[:at], mine, *server.turns[at:])
    held.now = replace(held.now, servers=(replace(server, turns=turns),))
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=(w, h)) as pilot:
        await pilot.pause()
        assert said in row(app, " r7  ") and "past" not in row(app, " r7  ")
        app.dashboard.choose_turn(mine.key)
        await pilot.press("enter")
        await until(pilot, lambda: "kvtop sent it: a replay" in text(app))
        assert "kvtop replay" in lines(app)[0] + lines(app)[1]
