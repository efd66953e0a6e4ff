"""What the page of the profiles asks before it ends a server: whose, its process and its requests, at every width."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvtop.live.errands import Done
from kvtop.live.profile_asks import InTheWay
from kvtop.live.profile_view import Foreign, ProfilesView
from kvtop.profiles.check.report import Finding, Report
from kvtop.profiles.running.record import Ask, Record
from kvtop.profiles.standing import Standing, stranger
from kvtop.readings import VllmProcess
from kvtop.ui.profiles import questions

from .page_app import shown
from .profile_box import CHOSEN, NOW, WARNING, Held, failed, known, only, report, running, starting, stopped, view
from .test_profiles_screen import SIZES, Page

SERVER = VllmProcess(13610, "api", ("vllm", "serve", "/m/other", "--port", "8002"), 8002, ports=(8002,))
STRANGER = stranger(SERVER, 8002)
OTHER = Foreign(13610, 8002)
TAKEN = Finding("error", "port_taken", "--port", "port 8002: process 13610 (vllm) listens there", "--port 8003")


def beside(*rows: Standing, **more: object) -> ProfilesView:
    return view(*rows, foreign=(OTHER,), strangers=(STRANGER,), **more)


@pytest.mark.parametrize("size", SIZES)
async def test_a_server_that_is_not_in_the_way_is_left_alone_and_said_to_be(size: tuple[int, int]) -> None:
    page = Page(Held(beside(stopped(), CHOSEN)), "qwen27-dflash2")
    async with page.app.run_test(size=size) as pilot:
        rows = await page.press(pilot, "s")
        assert rows[-1].startswith("start qwen27-dflash2 beside process 13610") and "stop" not in rows[-1]
        if size[0] >= 120:
            assert "which is not in its way and is left alone" in rows[-1]
        await page.press(pilot, "y")
    assert page.held.done == [["profile", "start", "qwen27-dflash2", "--yes", "--detach"]]


@pytest.mark.parametrize("size", SIZES)
async def test_the_server_in_the_way_is_asked_for_with_its_requests(size: tuple[int, int]) -> None:
    held = Held(beside(stopped(), CHOSEN))
    held.standing_in_the_way, held.counted = (InTheWay(OTHER, "port 8002"),), 1
    page = Page(held, "qwen27-dflash2")
    async with page.app.run_test(size=size) as pilot:
        rows = await page.press(pilot, "s")
        assert held.replacing == ["process 13610"]
        assert "process 13610" in rows[-1] and "(1 request" in rows[-1] and "start qwen27-df" in rows[-1]
        if size[0] == 200:
            asked = "process 13610 on port 8002, which kvtop did not start, holds port 8002 (1 request): stop it and"
            assert rows[-1].startswith(asked)
        await page.press(pilot, "y")
    assert held.done == [["profile", "switch", "qwen27-dflash2", "--yes", "--stop-foreign", "--only", "13610"]]


@pytest.mark.parametrize(("whose", "offered"), [("adopted", True), ("adopted or other", False)])
async def test_where_a_switch_fails_the_profile_of_a_server_that_kvtop_did_not_start_is_offered(
    whose: str, offered: bool
) -> None:
    other, former = replace(OTHER, profile=whose), "adopted" if offered else ""
    adopted = Standing(known("adopted"), "foreign", OTHER.pid, NOW - 60)
    held = Held(view(adopted, CHOSEN, foreign=(other,)))
    held.standing_in_the_way = (InTheWay(other, "port 8002"),)

    def fails(words: object) -> Done:
        held.view = view(replace(adopted, state="stopped", pid=None), failed(CHOSEN.name, "no such model", former))
        held.answer = lambda words: Done(0, "", ())
        return Done(1, "", (), "nothing runs now", "kvtop profile start adopted starts the former one")

    held.answer = fails
    page = Page(held, "qwen27-dflash2")
    async with page.app.run_test(size=(120, 36)) as pilot:
        rows = await page.press(pilot, "s", "y")
        assert "qwen27-dflash2 did not start: no such model" in rows[0]
        assert rows[-1].startswith("qwen27-dflash2 did not start: start adopted again?") is offered
        await page.press(pilot, "y")
    clear = ["profile", "switch", "qwen27-dflash2", "--yes", "--stop-foreign", "--only", "13610"]
    assert held.done == [clear, *([["profile", "start", "adopted", "--yes", "--detach"]] * offered)]


async def test_a_yes_is_to_that_server_and_no_other() -> None:
    held = Held(beside(stopped(), CHOSEN))
    held.standing_in_the_way = (InTheWay(OTHER, "port 8002"),)
    page = Page(held, "qwen27-dflash2")
    async with page.app.run_test(size=(120, 36)) as pilot:
        rows = await page.press(pilot, "s")
        assert "requests not known" in rows[-1]
        held.standing_in_the_way = (InTheWay(Foreign(99, 8002), "port 8002"),)
        rows = await page.press(pilot, "y")
    assert held.done == [] and "nothing was stopped: others are in the way of qwen27-dflash2 by now" in rows[0]


async def test_of_several_in_the_way_each_is_named_and_the_key() -> None:
    held = Held(beside(stopped(), CHOSEN))
    held.standing_in_the_way = (InTheWay(OTHER, "port 8002"), InTheWay(Foreign(14), "GPU 0"))
    page = Page(held, "qwen27-dflash2")
    async with page.app.run_test(size=(200, 50)) as pilot:
        rows = await page.press(pilot, "s")
    said = "process 13610 on port 8002 holds port 8002; process 14 holds GPU 0. x on its row stops one"
    assert f"2 servers that kvtop did not start are in its way: {said}" in rows[0] and held.done == []


@pytest.mark.parametrize("size", SIZES)
async def test_a_server_of_no_profile_has_a_row_and_can_be_stopped(size: tuple[int, int]) -> None:
    held = Held(beside(CHOSEN))
    held.counted = 1
    page = Page(held, "process 13610")
    async with page.app.run_test(size=size) as pilot:
        await pilot.pause()
        rows = shown(page.app)
        assert rows[0].startswith(" PROFILES  process 13610 on port 8002 runs, which kvtop did not start; 1 not")
        assert "1 file" in rows[0] + rows[1]
        row = next(row for row in rows if row.startswith("▸◆ process 13610"))
        assert "foreign" in row and "8002" in row
        assert "no profile runs it: import makes one of its command line" in " ".join(page.text().split())
        rows = await page.press(pilot, "x")
        asked = "stop process 13610 on port 8002 (1 request running), which kvtop did not start?"
        assert rows[-1].startswith(asked if size[0] > 80 else "stop process 13610 (1 request), which kvtop did not")
        await page.press(pilot, "y")
        assert held.done == [["profile", "stop", "13610", "--yes", "--only", "13610"]]
        for key, said in (("enter", "x stops it"), ("R", "x stops it"), ("v", "of no profile"), ("o", "of no profile"),
                          ("c", "of no profile"), ("s", "x stops it")):  # fmt: skip
            assert said in " ".join((await page.press(pilot, key))[:2])
        held.answer = lambda words: Done(0, '{"name": "other", "left_out": []}', ())
        await page.press(pilot, "i")
        rows = await page.press(pilot, "enter")
        assert held.done[-1] == ["profile", "import", "--pid", "13610", "--json"]
        assert "other was made of --pid 13610" in rows[0]


async def test_the_cursor_stays_where_a_server_of_no_profile_has_ended() -> None:
    held = Held(beside(running(), CHOSEN))
    page = Page(held, "process 13610")
    async with page.app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert any(row.startswith("▸◆ process 13610") for row in shown(page.app))
        held.view = view(running(), CHOSEN)
        page.screen.redraw()
        await pilot.pause()
        assert any(row.startswith("▸○ qwen27-dflash2") for row in shown(page.app))


async def test_requests_of_a_server_that_is_not_watched_are_asked_for() -> None:
    adopted = Standing(known("adopted"), "foreign", 24097, NOW - 60)
    held = Held(view(adopted))
    page = Page(held, "adopted")
    page.screen.deeds._requests = lambda row: None
    async with page.app.run_test(size=(120, 36)) as pilot:
        rows = await page.press(pilot, "x")
        assert rows[-1].startswith("stop adopted (pid 24097, requests not known), which kvtop did not start?")
        held.counted = 1
        rows = await page.press(pilot, "n", "x")
        assert rows[-1].startswith("stop adopted (pid 24097, 1 request running), which kvtop did not start?")


@pytest.mark.parametrize("key", ["R", "s"])
async def test_with_a_warning_and_80_cells_a_question_names_what_it_ends(key: str) -> None:
    long = "a-profile-with-a-long-name-2"
    old = replace(running(), known=known(long))
    page = Page(Held(view(old, CHOSEN), report(WARNING)), long if key == "R" else CHOSEN.name)
    async with page.app.run_test(size=(80, 24)) as pilot:
        rows = await page.press(pilot, key)
    assert "(pid 41233, 2 requests" in rows[-1] and "1 warning" in rows[-1] and "y" in rows[-1].split("?")[1]
    assert "a-profile" in rows[-1]


async def test_a_refusal_names_its_fix_and_the_key_that_leads_out() -> None:
    page = Page(Held(beside(stopped(), CHOSEN), report(TAKEN)), "qwen27-dflash2")
    async with page.app.run_test(size=(200, 50)) as pilot:
        rows = await page.press(pilot, "enter")
    assert "listens there. Fix: --port 8003; s stops that and starts qwen27-dflash2" in rows[0]


@pytest.mark.parametrize(("in_its_file", "runs_at", "named"), [(9000, 8002, True), (8002, 9000, False)])
async def test_the_key_that_leads_out_goes_by_the_port_at_which_a_server_runs(
    in_its_file: int, runs_at: int, named: bool
) -> None:
    ours = running()
    assert ours.record is not None
    record = msgspec.structs.replace(ours.record, port=runs_at)
    edited = replace(ours, known=replace(ours.known, port=in_its_file), record=record)
    page = Page(Held(view(edited, CHOSEN), report(TAKEN)), "qwen27-dflash2")
    async with page.app.run_test(size=(200, 50)) as pilot:
        rows = await page.press(pilot, "enter")
    assert "port_taken" in rows[0] and ("s stops that and starts qwen27-dflash2" in rows[0]) is named


@pytest.mark.parametrize(("state", "said"), [("starting", "which is starting"), ("stopping", "which is being stopped")])
def test_the_stop_of_one_that_is_not_ready_says_so(state: str, said: str) -> None:
    row = replace(starting("mine"), state=state)
    assert questions.stop(row, None)[0] == f"stop mine (pid 51877), {said}"


def test_a_question_for_one_that_has_just_failed_says_so() -> None:
    old, new = running("mine"), failed("badlen")
    asked = questions.switch(old, 0, new, report())
    assert asked[0] == "stop mine (pid 41233, 0 requests running) and start badlen, whose last start failed"
    assert "stop mine (pid 41233, 0 requests), start badlen" in asked
    asked = questions.switch(old, 0, new, report(WARNING))
    assert asked[0].endswith("start badlen, whose last start failed, in spite of 1 warning (exposed_without_key)")
    assert questions.start(new, report(WARNING))[2] == "start badlen, whose last start failed, 1 warning"
    assert "failed" not in " ".join(questions.switch(old, 0, stopped("badlen"), report()))


async def test_that_vllm_is_asked_for_its_flags_is_said_only_where_it_is() -> None:
    held, told = Held(view(stopped(), CHOSEN), report(WARNING)), []
    page = Page(held, CHOSEN.name)
    say = page.screen.deeds._say
    page.screen.deeds._say = lambda text, tone: (told.append(text), say(text, tone))[1]
    async with page.app.run_test(size=(120, 36)) as pilot:
        await page.press(pilot, "enter", "n")
        assert told == ["checks qwen27-dflash2 …", ""]
        held.asks_vllm = True
        await page.press(pilot, "enter", "n")
    asks = "checks qwen27-dflash2: vLLM is asked for its flags, which takes it a minute or two"
    assert told[2:] == ["checks qwen27-dflash2 …", asks, ""]


@pytest.mark.parametrize(("listens", "said"), [(True, "runs already"), (False, "is there already")])
async def test_a_server_of_others_that_may_load_still_is_not_said_to_run(listens: bool, said: str) -> None:
    held = Held(view(CHOSEN, foreign=(replace(OTHER, listens=listens),), strangers=(STRANGER,)))
    page = Page(held, "process 13610")
    async with page.app.run_test(size=(120, 36)) as pilot:
        assert f"process 13610 {said}, and is of no profile" in (await page.press(pilot, "enter"))[0]


async def test_a_start_that_was_ended_by_its_user_has_not_failed() -> None:
    held = Held(view(running("tiny")))
    page = Page(held, "tiny")
    state = Record(
        name="tiny", state="stopped", started_at=NOW - 90, ended_at=NOW - 21, why="it had not answered yet",
        ask=Ask("kvtop profile stop", NOW - 26), notes=["it did not end within 5 s of SIGINT and was killed"],
    )  # fmt: skip

    def ended(words: object) -> Done:
        held.view = view(Standing(known("tiny"), "stopped", None, NOW - 21, state))
        return Done(1, "", (), "tiny did not start: it had not answered yet", "the whole log: kvtop profile logs tiny")

    held.answer = ended
    async with page.app.run_test(size=(120, 36)) as pilot:
        rows = await page.press(pilot, "R", "y")
    head = " ".join(" ".join(rows[:2]).split())
    assert "tiny was stopped after 64 s, before it was ready; it did not end within 5 s" in head
    start = "\n".join(rows).split("Last start tiny")[1]
    assert "stopped after 64 s, 21 s ago" in start and "was killed" in start
    assert "×" not in start and "not answered" not in start


async def test_what_came_of_a_key_is_told_until_something_else_happens() -> None:
    held = Held(view(stopped(), CHOSEN), report(TAKEN))
    page = Page(held, "qwen27-dflash2")
    now = NOW
    page.screen.now = lambda: now
    async with page.app.run_test(size=(120, 36)) as pilot:
        assert "no start: port_taken" in (await page.press(pilot, "enter"))[0]
        now += 60
        page.screen.redraw()
        await pilot.pause()
        assert "no start: port_taken" in shown(page.app)[0]
        held.view = view(starting(), CHOSEN)
        page.screen.redraw()
        await pilot.pause()
        assert "coder-30b-lmcache starts" in shown(page.app)[0]
        held.view = view(stopped(), CHOSEN)
        assert "no start: port_taken" in (await page.press(pilot, "enter"))[0]
        assert "no start" not in (await page.press(pilot, "up"))[0], "it was of another one"
        assert "does not run" in (await page.press(pilot, "x"))[0]
        now += 61
        page.screen.redraw()
        await pilot.pause()
        assert "does not run" not in shown(page.app)[0]


async def test_an_import_takes_options_and_keeps_what_failed(tmp_path: Path) -> None:
    page = Page(Held(view(stopped(), CHOSEN)), "qwen27-dflash2")
    page.held.answer = lambda words: Done(2, "", (), "x.toml is there already", "--name NAME calls it otherwise")
    async with page.app.run_test(size=(120, 36)) as pilot:
        await page.press(pilot, "i", *"/x/my start.sh")
        await page.press(pilot, "enter", "i", *" --name y")
        page.held.answer = lambda words: Done(0, '{"name": "y", "left_out": ["a trap", "a loop"]}', ())
        rows = await page.press(pilot, "enter")
    assert page.held.done == [
        ["profile", "import", "/x/my start.sh", "--json"],
        ["profile", "import", "/x/my start.sh", "--name", "y", "--json"],
    ]
    assert "2 to look at: a trap; all of them stand on top of its file: o" in " ".join(rows[:2])


@pytest.mark.parametrize("key", ["y", ""])
async def test_the_former_one_is_not_asked_for_any_more_once_something_is_started(key: str) -> None:
    lost = failed(CHOSEN.name, "no such model", "qwen27-2x3090")
    held = Held(view(stopped(), lost, busy=True))
    page = Page(held, "qwen27-dflash2")
    async with page.app.run_test(size=(120, 36)) as pilot:
        page.screen.deeds.offer()
        assert page.screen.question is None, "whoever switches there may start it again himself"
        held.view = view(stopped(), lost)
        page.screen.deeds.offer()
        assert (await page.press(pilot))[-1].startswith("qwen27-dflash2 did not start: start qwen27-2x3090 again?")
        held.view = view(running(), lost)
        if not key:
            page.screen._look_again()
        rows = await page.press(pilot, *filter(None, [key]))
        assert "again?" not in rows[-1] and page.screen.question is None and held.done == []


@pytest.mark.parametrize(("key", "verb"), [("s", "start"), ("x", "stop"), ("R", "start it again")])
async def test_a_question_goes_when_what_it_speaks_of_is_not_so_any_more(key: str, verb: str) -> None:
    runs = running()
    held = Held(view(runs, CHOSEN))
    page = Page(held, "qwen27-dflash2" if key == "s" else runs.name)
    async with page.app.run_test(size=(120, 36)) as pilot:
        assert verb in (await page.press(pilot, key))[-1]
        held.view = beside(replace(runs, since=NOW, pid=None), CHOSEN)  # a server that is nobody's business here
        page.screen._look_again()
        assert page.screen.question is not None, "the same servers"
        held.view = view(stopped(), CHOSEN)
        rows = await page.press(pilot, "y")
        assert "what runs has changed meanwhile: press the key again" in rows[0]
        assert page.screen.question is None and held.done == []


@pytest.mark.parametrize("key", ["s", "R"])
async def test_what_came_while_check_was_at_work_is_not_asked_about(key: str) -> None:
    runs = running()
    held = Held(view(runs, CHOSEN))
    really = held.report

    async def report_late(*args: Any, **more: Any) -> Report:
        held.view = view(stopped(), running("other"), CHOSEN)
        return await really(*args, **more)

    held.report = report_late  # type: ignore[method-assign]
    page = Page(held, "qwen27-dflash2" if key == "s" else runs.name)
    async with page.app.run_test(size=(120, 36)) as pilot:
        rows = await page.press(pilot, key)
        assert "what runs has changed meanwhile: press the key again" in rows[0] and page.screen.question is None


@pytest.mark.parametrize(
    ("left", "owed", "asked"),
    [
        (2, False, "end 2 processes of qwen27-2x3090?"),
        (0, True, "run the after_stop of qwen27-2x3090?"),
        (1, True, "end 1 process of qwen27-2x3090 and run its after_stop?"),
    ],
)
async def test_what_a_server_has_left_is_ended_by_the_key_that_stops(left: int, owed: bool, asked: str) -> None:
    ended = stopped()
    assert ended.record is not None
    held = Held(view(replace(ended, left=left, record=msgspec.structs.replace(ended.record, after_owed=owed)), CHOSEN))
    page = Page(held, ended.name)
    async with page.app.run_test(size=(80, 24)) as pilot:
        assert (await page.press(pilot, "x"))[-1].startswith(asked)
        await page.press(pilot, "y")
    assert held.done == [["profile", "stop", ended.name, *(["--yes"] if owed else []), *only(ended)]]


async def test_what_a_server_has_left_is_not_asked_about_once_another_one_has_its_name() -> None:
    ended = replace(stopped(), left=1)
    held = Held(view(ended, CHOSEN))
    page = Page(held, ended.name)
    async with page.app.run_test(size=(80, 24)) as pilot:
        await page.press(pilot, "x")
        held.view = view(replace(ended, state="foreign", pid=14952, left=0), CHOSEN)
        await page.press(pilot, "y")
    assert held.done == []


@pytest.mark.parametrize("size", SIZES)
async def test_a_server_without_a_keeper_is_stopped_with_its_after_stop_named(size: tuple[int, int]) -> None:
    runs = running()
    assert runs.record is not None
    alone = replace(runs, unkept=True, record=msgspec.structs.replace(runs.record, after_stop=1))
    held = Held(view(alone, CHOSEN))
    page = Page(held, alone.name)
    async with page.app.run_test(size=size) as pilot:
        rows = await page.press(pilot, "x")
        assert "(pid 41233, 2 requests" in rows[-1] and "and run its after_stop?" in rows[-1]
        await page.press(pilot, "y")
    assert held.done == [["profile", "stop", alone.name, "--yes", *only(alone)]]
