"""The page of the profiles: what it says of each at every size, what each key asks and does, and what it never does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from kvtop.errors import KvtopError
from kvtop.live.errands import Done
from kvtop.live.profile_view import Figures, ProfilesView
from kvtop.live.profiles import Checked
from kvtop.profiles.check.report import Report
from kvtop.profiles.standing import Standing
from kvtop.ui.keys import Keymap
from kvtop.ui.profiles.editor import editor
from kvtop.ui.profiles.layout import plan
from kvtop.ui.screens.profiles import ProfilesScreen
from kvtop.ui.widgets.line_input import LineInput

from .page_app import PageApp, shown
from .profile_box import (
    BROKEN,
    CHOSEN,
    ERROR,
    EVIL,
    NEVER,
    NOTE,
    NOW,
    WARNING,
    Held,
    failed,
    known,
    only,
    report,
    running,
    starting,
    stopped,
    view,
)

SIZES = [(80, 24), (120, 36), (200, 50)]


class Page:
    """The page over held profiles."""

    def __init__(self, held: Held, cursor: str = "") -> None:
        self.held = held
        self.begun: list[str] = []
        self.screen = ProfilesScreen(
            Keymap(),
            held,
            lambda: NOW,
            begun=lambda row: self.begun.append(row.name),
            requests=lambda row: 2 if row.state == "running" else None,
        )
        self.screen.cursor = cursor
        self.app = PageApp(self.screen)

    def text(self) -> str:
        return "\n".join(shown(self.app))

    async def press(self, pilot: Pilot[None], *keys: str) -> list[str]:
        for key in keys:
            await pilot.press(key)
        await self.app.workers.wait_for_complete()
        await pilot.pause()
        return shown(self.app)


def findings(held: Held) -> None:
    made = report(ERROR, WARNING, NOTE)
    held.checked = Checked("qwen27-dflash2", made)
    held.reports = {"qwen27-dflash2": made}


async def test_everything_has_its_place_at_80x24() -> None:
    held = Held(view())
    findings(held)
    page = Page(held, "qwen27-dflash2")
    async with page.app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        rows = shown(page.app)
    assert rows[0].startswith(" PROFILES  coder-30b-lmcache starts, about ")
    assert rows[1].endswith("~/.config/kvtop/profiles, 6 files")
    assert rows[2].startswith(" Profiles ─")
    assert rows[3].split() == ["name", "tier", "state", "since,", "or", "what", "stands", "in", "the", "way"]
    assert rows[4].startswith(" ◐ coder-30b-lmcache") and "starts" in rows[4] and "stage 3 of 7, ~" in rows[4]
    assert "3 m ago, by a switch; ran 10 h 37 m" in rows[5]
    assert rows[6].startswith("▸○ qwen27-dflash2") and rows[6].endswith("1 error, 1 warning, 1 note")
    assert rows[7].endswith("never started")
    assert "no answer" in rows[8] and rows[8].endswith("10.0.0.7:8000 timed out 12 s ago")
    assert rows[9].startswith(" × broken.toml") and rows[9].endswith("line 14: expected “=” after the key")
    assert rows[10].startswith(" Check qwen27-dflash2 ─")
    assert rows[10].endswith("1 error, 1 warning, 1 note; it would not start")
    assert rows[11] == " × shm_too_small  tier 64.0 GiB, /dev/shm has 62.8 GiB"
    assert rows[12] == "   fix tier 56 GiB, or mount /dev/shm with size=80G"
    assert rows[13] == " 2 more: c shows all"
    assert rows[15].startswith(" Start coder-30b-lmcache ─") and "2 m 41 s so far" in rows[15]
    assert set(rows[16].strip()) == {"━", "─"}
    assert rows[17] == " ▸ weights, 9 of 14 shards   then compile, KV cache, CUDA graphs"
    assert rows[18].startswith(" Log ─") and rows[18].endswith("coder-30b-lmcache.log, following")
    assert rows[20] == " 13:01:58 ERROR it broke"
    assert "\x1b" not in "".join(rows) and "␛[31mred" in rows[21]
    assert rows[22].strip().startswith("Loading safetensors")
    assert rows[23].startswith("enter start  s switch  x stop  c check  l log")


@pytest.mark.parametrize("size", SIZES[1:])
async def test_larger_screens_show_stages_and_memory(size: tuple[int, int]) -> None:
    held = Held(view())
    findings(held)
    page = Page(held, "qwen27-dflash2")
    async with page.app.run_test(size=size) as pilot:
        await pilot.pause()
        rows = shown(page.app)
    text = "\n".join(rows)
    assert "name" in rows[3] and "runner" in rows[3] and "model" in rows[3] and "GPU" in rows[3]
    assert "Qwen3-Coder-30B" in rows[4] and "2 m 41 s, stage 3 of 7, ~" in rows[4]
    assert "memory   tier 64.0   /dev/shm 62.8   host free 104.2   GPU free 6.0 + 6.0 of 24 + 24   all in GiB" in text
    at = next(i for i, row in enumerate(rows) if row.startswith("   stage"))
    assert rows[at].split() == ["stage", "took", "usual"]
    assert rows[at + 1].split() == ["·", "pre-start", "200", "ms", "200", "ms"]
    assert rows[at + 2].split() == ["·", "process", "up", "9.1", "s", "8.8", "s"]
    assert rows[at + 3].startswith(" ▸ weights, 9 of 14 shards") and "3 m 50 s  ━" in rows[at + 3]
    assert rows[at + 4].split() == ["compile", "71", "s"]
    assert rows[at + 7].split()[:3] == ["port", "8002", "answers"]
    assert "(last 3 starts: 5 m 52 s to 6 m 24 s)" in text
    assert "fix tier 56 GiB" in text
    if size[0] == 200:
        heads = rows[3]
        last, share, state = (heads.index(name) for name in ("good start", "share", "state"))
        assert heads[share:state].split() == ["share", "TTFT", "p50", "n"]
        assert rows[5][last : last + 10] == "  6 m 24 s" and rows[5][share:state].split() == [
            "96",
            "%",
            "~800",
            "ms",
            "31",
        ]
        assert rows[5][:state].endswith("   31  ") and rows[7][:state].endswith("    –  ")
        assert rows[5][state:].startswith("stopped ")


@pytest.mark.parametrize("size", [(20, 6), (40, 12), (61, 15), (75, 24), (80, 19), *SIZES, (300, 80)])
async def test_it_survives_every_size(size: tuple[int, int]) -> None:
    held = Held(view())
    findings(held)
    page = Page(held, "qwen27-dflash2")
    async with page.app.run_test(size=size) as pilot:
        await pilot.pause()
        rows = shown(page.app)
        assert len(rows) == size[1]
        assert "could not be drawn" not in "\n".join(rows)
        if size[1] > 8:
            assert any("▸" in row for row in rows)


def test_the_plan_fills_the_room_and_never_more() -> None:
    for h in range(1, 90):
        for n in (0, 1, 6, 40):
            made = plan(h, n)
            assert made.list + made.check + made.start + made.log == h or made.log == 0, (h, n)
            assert min(made.list, made.check, made.start, made.log) >= 0
            assert made.list + made.check + made.start <= max(h, 0), (h, n, made)


async def test_names_and_values_of_files_are_shown_harmless() -> None:
    bad = replace(known("x"), name=f"n{EVIL}", model=f"m{EVIL}", gpus=(EVIL,), problem=f"broken {EVIL}", runner="")
    rows = (replace(CHOSEN, known=bad, state="unreadable"), failed(why=f"why {EVIL}"))
    held = Held(view(*rows, where=EVIL, error=""))
    page = Page(held, bad.name)
    async with page.app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        text = page.text()
    assert not any(ord(char) < 32 and char != "\n" for char in text) and "\u202e" not in text
    assert "[bold]" in text


async def test_without_profiles_it_says_how_to_make_one() -> None:
    page = Page(Held(replace(view(CHOSEN), rows=())))
    async with page.app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "There are no profiles yet." in page.text()
        assert "i makes one of what starts your server today" in " ".join(page.text().split())
        await page.press(pilot, "enter", "s", "x", "R", "c", "v", "o", "up", "down")
        assert page.held.done == []


async def test_a_failed_start_tells_its_cause() -> None:
    page = Page(Held(view(failed())), "qwen27-2x3090")
    async with page.app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        text = page.text()
    assert "× OSError: no such model; it ended with exit code 1" in text
    assert "Last start qwen27-2x3090" in text and "ended after 30 s, 30 s ago" in text


async def test_enter_starts_what_check_lets() -> None:
    page = Page(Held(view(stopped(), CHOSEN)), "qwen27-dflash2")
    async with page.app.run_test(size=(80, 24)) as pilot:
        await page.press(pilot, "enter")
        assert page.held.done == [["profile", "start", "qwen27-dflash2", "--yes", "--detach"]]
        assert page.begun == ["qwen27-dflash2"]


async def test_an_error_of_check_refuses_with_its_reason_and_fix() -> None:
    page = Page(Held(view(stopped(), CHOSEN), report(ERROR, WARNING)), "qwen27-dflash2")
    async with page.app.run_test(size=(120, 36)) as pilot:
        rows = await page.press(pilot, "enter")
        assert "no start: shm_too_small: tier 64.0 GiB, /dev/shm has 62.8 GiB" in rows[0]
        assert "tier 56 GiB, or mount" in rows[0] + rows[1]
        assert page.held.done == [] and page.begun == []


async def test_a_warning_asks_and_no_is_no() -> None:
    page = Page(Held(view(stopped(), CHOSEN), report(WARNING)), "qwen27-dflash2")
    async with page.app.run_test(size=(120, 36)) as pilot:
        rows = await page.press(pilot, "enter")
        asked = "start qwen27-dflash2 in spite of 1 warning (exposed_without_key)?  y yes  n no"
        assert rows[-1].startswith(asked)
        assert (await page.press(pilot, "x", "down", "q"))[-1].startswith(asked), "other keys do nothing"
        await page.press(pilot, "n")
        assert page.held.done == []
        await page.press(pilot, "enter", "y")
        assert page.held.done == [["profile", "start", "qwen27-dflash2", "--yes", "--detach"]]


@pytest.mark.parametrize("size", SIZES)
async def test_a_switch_names_what_it_stops(size: tuple[int, int]) -> None:
    page = Page(Held(view(running(), CHOSEN)), "qwen27-dflash2")
    async with page.app.run_test(size=size) as pilot:
        rows = await page.press(pilot, "s")
        assert page.held.replacing == ["qwen27-2x3090"]
        assert rows[-1].startswith("stop qwen27-2x") and "start qwen27-dflash2?" in rows[-1]
        assert "(pid 41233, 2 requests" in rows[-1]
        await page.press(pilot, "escape")
        assert page.held.done == []
        await page.press(pilot, "s", "y")
        assert page.held.done == [["profile", "switch", "qwen27-dflash2", "--yes", *only(running())]]


async def test_a_switch_that_fails_offers_the_former_one() -> None:
    held = Held(view(running(), CHOSEN))
    page = Page(held, "qwen27-dflash2")

    def fails(words: object) -> Done:
        held.view = view(stopped(), failed(CHOSEN.name, "no such model", "qwen27-2x3090"))
        held.answer = lambda words: Done(0, "", ())
        return Done(1, "", (), "nothing runs now", "kvtop profile start qwen27-2x3090 starts the former one")

    held.answer = fails
    async with page.app.run_test(size=(120, 36)) as pilot:
        rows = await page.press(pilot, "s", "y")
        assert "qwen27-dflash2 did not start: no such model; l shows the whole log" in rows[0]
        assert rows[-1].startswith("qwen27-dflash2 did not start: start qwen27-2x3090 again?")
        await page.press(pilot, "y")
        assert held.done[-1] == ["profile", "start", "qwen27-2x3090", "--yes", "--detach"]


async def test_a_stop_says_whose_and_asks_once() -> None:
    page = Page(Held(view(running(), CHOSEN)), "qwen27-2x3090")
    page.held.answer = lambda words: Done(0, "qwen27-2x3090 stopped after 1.2 s\n", ("it was killed",))
    async with page.app.run_test(size=(80, 24)) as pilot:
        rows = await page.press(pilot, "x")
        assert rows[-1].startswith("stop qwen27-2x3090 (pid 41233, 2 requests running)?  y")
        assert page.held.done == []
        rows = await page.press(pilot, "y")
        assert page.held.done == [["profile", "stop", "qwen27-2x3090", "--yes", *only(running())]]
        assert rows[0] == " PROFILES  qwen27-2x3090 stopped after 1.2 s; it was killed"


async def test_a_restart_asks_and_is_one_errand() -> None:
    page = Page(Held(view(running(), CHOSEN)), "qwen27-2x3090")
    async with page.app.run_test(size=(120, 36)) as pilot:
        rows = await page.press(pilot, "R")
        assert rows[-1].startswith("stop qwen27-2x3090 (pid 41233, 2 requests running) and start it again?")
        await page.press(pilot, "y")
        assert page.held.done == [["profile", "switch", "qwen27-2x3090", "--restart", "--yes", *only(running())]]


@pytest.mark.parametrize(
    ("cursor", "key", "said"),
    [
        ("coder-30b-lmcache", "enter", "coder-30b-lmcache is starting already"),
        ("qwen27-dflash2", "s", "coder-30b-lmcache is starting: wait for that, or stop it first"),
        ("coder-30b-lmcache", "R", "is starting: x ends that, then enter starts it afresh"),
        ("qwen27-dflash2", "x", "qwen27-dflash2 does not run"),
        ("qwen27-dflash2", "R", "qwen27-dflash2 does not run: enter starts it"),
        ("office-h200", "enter", "office-h200 is only watched"),
        ("broken", "enter", "broken.toml cannot be used"),
        ("broken", "v", "broken.toml cannot be used"),
    ],
)
async def test_what_cannot_be_done_is_said(cursor: str, key: str, said: str) -> None:
    page = Page(Held(view()), cursor)
    async with page.app.run_test(size=(120, 36)) as pilot:
        rows = await page.press(pilot, key)
        assert said in rows[0]
        assert page.held.done == []


async def test_what_fails_is_one_line() -> None:
    page = Page(Held(view(stopped(), CHOSEN), KvtopError("check has not answered for 180 s")), "qwen27-dflash2")
    async with page.app.run_test(size=(80, 24)) as pilot:
        assert "check has not answered for 180 s" in (await page.press(pilot, "enter"))[0]
    page = Page(Held(view(stopped(), CHOSEN)), "qwen27-dflash2")
    page.held.answer = lambda words: Done(1, "", (), "kvtop (process 9) starts it, since 13:00", "wait for it")
    async with page.app.run_test(size=(80, 24)) as pilot:
        assert "kvtop (process 9) starts it" in (await page.press(pilot, "enter"))[0]


async def test_a_path_is_imported(tmp_path: Path) -> None:
    page = Page(Held(view(stopped(), CHOSEN)), "qwen27-dflash2")
    page.held.answer = lambda words: Done(0, '{"name": "gpt-oss-20b", "left_out": ["a trap"]}', ())
    async with page.app.run_test(size=(120, 36)) as pilot:
        await page.press(pilot, "i")
        assert shown(page.app)[-1].startswith("enter import it  esc close")
        await pilot.press(*"/x/start.sh")
        page.held.view = view(stopped(), CHOSEN, NEVER)
        rows = await page.press(pilot, "enter")
        assert page.held.done == [["profile", "import", "/x/start.sh", "--json"]]
        assert "gpt-oss-20b was made of /x/start.sh; 1 to look at: a trap" in rows[0]
        assert any(row.startswith("▸○ gpt-oss-20b") for row in rows)
        await page.press(pilot, "i", "q", "escape")
        assert page.screen.typing is False and len(page.held.done) == 1


def test_the_editor_is_that_of_its_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VISUAL", "code --wait")
    monkeypatch.setenv("EDITOR", "nano")
    assert editor() == ["code", "--wait"]
    monkeypatch.delenv("VISUAL")
    assert editor() == ["nano"]
    monkeypatch.setenv("EDITOR", "'unfinished")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert editor() is None
    (tmp_path / "nano").write_text("#!/bin/sh\n")
    (tmp_path / "nano").chmod(0o700)
    assert editor() == ["nano"]


async def test_a_command_is_shown_without_its_secrets() -> None:
    page = Page(Held(view(stopped(), CHOSEN)), "qwen27-dflash2")
    async with page.app.run_test(size=(80, 24)) as pilot:
        text = "\n".join(await page.press(pilot, "v"))
    assert "    --port 8002" in text and "--api-key" in text and "HF_HOME=/data/hf" in text
    assert "sk-secret" not in text and "hf_abc" not in text
    assert "VLLM_API_KEY is read from the first line of /home/me/key" in text and "LD_PRELOAD is unset" in text


async def test_the_command_that_runs_stands_beside_the_one_of_its_file() -> None:
    row = running("tier")
    assert row.record is not None
    row.record.argv = ["vllm", "serve", "old", "--port", "21001"]
    of_file = replace(row.known, fingerprint="1 as-started")
    held = Held(view(replace(row, known=of_file), CHOSEN))
    page = Page(held, "tier")
    async with page.app.run_test(size=(120, 36)) as pilot:
        said = "\n".join(await page.press(pilot, "v"))
        assert "Runs now" not in said and "--port 21001" not in said and "changed" not in said
        await page.press(pilot, "escape")
        held.view = view(replace(row, known=replace(of_file, fingerprint="1 now")), CHOSEN)
        said = "\n".join(await page.press(pilot, "v"))
    assert "was started before its profile was changed; a restart takes this over" in said
    ours, runs = said.split("Runs now")
    assert "as a restart runs it" in ours and "--port 8002" in ours and "--port 21001" in runs


@pytest.mark.parametrize(
    ("state", "said"), [("starting", "it starts"), ("stopping", "it stops"), ("running", "it runs")]
)
async def test_the_page_of_check_says_what_the_list_says_of_its_server(state: str, said: str) -> None:
    held = Held(view(replace(starting("tier"), state=state)))
    held.checked = Checked("tier", report(NOTE), restart=True)
    page = Page(held, "tier")
    async with page.app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert f"{said}; for a restart: 1 note" in page.text()
        rows = await page.press(pilot, "c")
        assert rows[0].startswith(f" CHECK  tier: {said}; for a restart: 1 note")
        held.checked = Checked("tier", report(NOTE), working=True, restart=True)
        page.app.screen.redraw()  # type: ignore[attr-defined]
        await pilot.pause()
        assert shown(page.app)[0].startswith(" CHECK  tier is being looked at") and "vLLM" not in shown(page.app)[0]
        held.checked = replace(held.checked, asks_vllm=True)
        page.app.screen.redraw()  # type: ignore[attr-defined]
        await pilot.pause()
        assert "being looked at; vLLM is asked for its flags, which takes it a minute or two" in shown(page.app)[0]


async def test_all_that_check_found_is_a_page() -> None:
    held = Held(view(stopped(), CHOSEN))
    findings(held)
    page = Page(held, "qwen27-dflash2")
    async with page.app.run_test(size=(80, 24)) as pilot:
        text = "\n".join(await page.press(pilot, "c"))
    for one in (ERROR, WARNING, NOTE):
        assert one.rule in text
    assert "qwen27-dflash2: 1 error, 1 warning, 1 note; it would not start" in text


async def test_the_list_scrolls_around_the_cursor() -> None:
    many = tuple(replace(CHOSEN, known=known(f"p{i:02}")) for i in range(40))
    page = Page(Held(view(*many)), "p00")
    async with page.app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "1–6 of 40" in shown(page.app)[2]
        rows = await page.press(pilot, "end")
        assert rows[9].startswith("▸○ p39") and "35–40 of 40" in rows[2]
        rows = await page.press(pilot, "home")
        assert rows[4].startswith("▸○ p00")


def test_a_view_knows_what_was_used_last() -> None:
    assert view(stopped(), starting(), BROKEN).last_used == starting()
    assert ProfilesView().last_used is None and view(CHOSEN).starting is None


async def test_a_question_that_comes_late_takes_no_place_of_another() -> None:
    held = Held(view(running(), CHOSEN), report(WARNING))
    gate = asyncio.Event()

    async def later(row: Standing, **_: object) -> Report:
        await gate.wait()
        return report(WARNING)

    held.report = later  # type: ignore[method-assign]
    page = Page(held, "qwen27-2x3090")
    async with page.app.run_test(size=(120, 36)) as pilot:
        await pilot.press("R", "x")
        await pilot.pause()
        asked = "stop qwen27-2x3090 (pid 41233, 2 requests running)?"
        assert shown(page.app)[-1].startswith(asked)
        gate.set()
        await page.app.workers.wait_for_complete()
        await pilot.pause()
        rows = shown(page.app)
        assert rows[-1].startswith(asked)
        assert "not asked, since another question stood here: stop qwen27-2x3090" in rows[0]
        await page.press(pilot, "y")
        assert held.done == [["profile", "stop", "qwen27-2x3090", "--yes", *only(running())]]


async def test_a_path_is_typed_to_its_end_before_a_question_is_answered() -> None:
    held = Held(view(stopped(), CHOSEN), report(WARNING))
    gate = asyncio.Event()

    async def later(row: Standing, **_: object) -> Report:
        await gate.wait()
        return report(WARNING)

    held.report = later  # type: ignore[method-assign]
    page = Page(held, "qwen27-dflash2")
    async with page.app.run_test(size=(120, 36)) as pilot:
        await pilot.press("enter", "i", "y")
        gate.set()
        await page.app.workers.wait_for_complete()
        await pilot.press("y")
        await pilot.pause()
        assert shown(page.app)[-1].startswith("enter import it") and held.done == []
        assert page.screen.query_one(LineInput).value == "yy"
        rows = await page.press(pilot, "escape")
        assert rows[-1].startswith("start qwen27-dflash2 in spite of 1 warning")
        await page.press(pilot, "y")
        assert held.done == [["profile", "start", "qwen27-dflash2", "--yes", "--detach"]]


async def test_a_key_whose_work_fails_is_told_and_the_page_goes_on() -> None:
    page = Page(Held(view(stopped(), CHOSEN)), "qwen27-dflash2")

    def fails(words: object) -> Done:
        raise RuntimeError

    page.held.answer = fails
    async with page.app.run_test(size=(120, 36)) as pilot:
        await pilot.press("enter")
        for _ in range(100):
            await pilot.pause(0.02)
            if page.app._notifications:
                break
        told = [note.message for note in page.app._notifications]
        assert told == ["kvtop's own profile failed (RuntimeError); kvtop --debug tells more"]
        assert "▸○ qwen27-dflash2" in page.text()


async def test_the_check_of_a_file_that_is_gone_says_so() -> None:
    held = Held(view(stopped(), CHOSEN))
    findings(held)
    page = Page(held, "qwen27-dflash2")
    async with page.app.run_test(size=(80, 24)) as pilot:
        await page.press(pilot, "c")
        held.view = view(stopped())
        for _ in range(100):
            await pilot.pause(0.02)
            if "gone" in page.text():
                break
        assert shown(page.app)[0] == " CHECK  qwen27-dflash2: its file is gone."


async def test_requests_that_nobody_counted_are_not_none() -> None:
    held = Held(view(stopped(), CHOSEN, figures={CHOSEN.name: Figures(NOW, 0.5, None, None)}))
    page = Page(held, CHOSEN.name)
    async with page.app.run_test(size=(200, 50)) as pilot:
        await pilot.pause()
        row = next(row for row in shown(page.app) if row.startswith("▸"))
        assert row.split("50 %")[1].split()[:2] == ["–", "–"]


async def test_a_path_that_is_typed_right_behind_its_key_is_no_row_of_keys() -> None:
    page = Page(Held(view(running(), CHOSEN)), "qwen27-dflash2")
    async with page.app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        for key, text in (("i", "i"), ("slash", "/"), ("s", "s"), ("x", "x")):
            page.app.post_message(events.Key(key, text))
        await pilot.pause()
        await page.press(pilot, "y")
        assert page.screen.query_one(LineInput).value == "/sxy"
        assert page.screen.question is None and page.held.done == []
