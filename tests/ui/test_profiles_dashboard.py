"""What the dashboard and the page without a server say of profiles, and the one question at the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtop.live.profile_view import ProfilesView
from kvtop.model.downs import Around
from kvtop.model.sentence import make
from kvtop.model.view import BoxView, Sentence, ServerView
from kvtop.profiles.running.stages import starting as start_of
from kvtop.readings import Discovery, State
from kvtop.ui.app import KvtopApp
from kvtop.ui.screens.profiles import ProfilesScreen

from . import boxes
from .profile_box import BROKEN, CHOSEN, NOW, running, starting, stopped, view
from .profile_box import Held as HeldProfiles
from .screen import Held, text, until

SIZES = [(80, 24), (200, 50)]


class Box(Held):
    """A box with profiles."""

    def __init__(self, now: BoxView, profiles: ProfilesView) -> None:
        super().__init__(now)
        self.profiles = HeldProfiles(profiles)
        self.watched: list[str] = []

    def watch_profile(self, name: str) -> None:
        self.watched.append(name)


def loading() -> BoxView:
    row = starting()
    assert row.seen is not None
    start = start_of(row.seen, row.starts, NOW)
    one = ServerView("http://127.0.0.1:8002", "127.0.0.1:8002", State.LOADING, profile=row.name, start=start)
    return BoxView(NOW, make((one,), 0, Around(NOW), None), (one,), gpu=boxes.box().gpu, host=boxes.HOST)


@pytest.mark.parametrize("size", SIZES)
async def test_a_start_stands_in_place_of_turns(size: tuple[int, int]) -> None:
    app = KvtopApp(Box(loading(), view()), now=lambda: NOW)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "LOADING" in text(app))
        shown = text(app)
        head = " ".join(" ".join(shown.split("\n")[:2]).split())
        assert head.startswith("LOADING weights, 9 of 14 shards, stage 3 of 7, 2 m 41 s so far, about ")
        assert "profile coder-30b-lmcache · pid 51877" in head
        assert "⁶Start ─" in shown and "turns appear here when requests come" in shown
        assert "▸ weights, 9 of 14 shards" in shown and "3 m 50 s  ━" in shown and "compile" in shown


async def test_the_head_names_the_profile() -> None:
    box = boxes.box(servers=(boxes.server(profile="qwen27-2x3090"),))
    app = KvtopApp(Box(box, view(running())), now=lambda: boxes.NOW)
    async with app.run_test(size=(200, 50)) as pilot:
        await until(pilot, lambda: "Qwen3.8-27B" in text(app))
        assert "· profile qwen27-2x3090" in text(app).split("\n")[1]


@pytest.mark.parametrize("size", SIZES)
async def test_p_opens_the_page_and_esc_goes_back(size: tuple[int, int]) -> None:
    box = Box(boxes.healthy(), view(stopped(), CHOSEN))
    app = KvtopApp(box, now=lambda: NOW)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "p profiles" in text(app))
        await pilot.press("p")
        await until(pilot, lambda: "▸○ qwen27-2x3090" in text(app))
        assert isinstance(app.screen, ProfilesScreen)
        await pilot.press("down", "enter")
        await until(pilot, lambda: box.profiles.done)
        assert box.watched == ["qwen27-dflash2"]
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard)
        assert box.profiles.chosen[-1] is None, "nobody looks at it any more"


async def test_where_no_server_is_found_a_profile_is_offered() -> None:
    nobody = BoxView(NOW, Sentence("NO SERVER", "dim", "No vLLM server found."), (), discovery=Discovery(at=NOW))
    box = Box(nobody, view(stopped(), CHOSEN))
    app = KvtopApp(box, now=lambda: NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "start a profile" in text(app))
        said = " ".join(text(app).split())
        assert "p start a profile 2 profiles; the last one used is qwen27-2x3090, 10 h ago" in said
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, ProfilesScreen))
        await pilot.press("escape")
        await until(pilot, lambda: "NO SERVER" in text(app))


async def test_files_that_cannot_be_used_are_no_profiles_to_start() -> None:
    nobody = BoxView(NOW, Sentence("NO SERVER", "dim", "No vLLM server found."), (), discovery=Discovery(at=NOW))
    app = KvtopApp(Box(nobody, view(CHOSEN, BROKEN)), now=lambda: NOW)
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: "start a profile" in text(app))
        said = " ".join(text(app).split())
        assert "1 profile and 1 file that cannot be used; none was started yet" in said


async def test_while_a_server_starts_q_asks_once() -> None:
    app = KvtopApp(Box(boxes.healthy(), view(starting(), CHOSEN)), now=lambda: NOW)
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: "p profiles" in text(app))
        await pilot.press("q")
        said = "coder-30b-lmcache is starting and goes on without kvtop: q again leaves"
        await until(pilot, lambda: [note.message for note in app._notifications] == [said])
        assert app.is_running
        await pilot.press("q")
        await until(pilot, lambda: app._exit)


async def test_without_profiles_there_is_no_key() -> None:
    app = KvtopApp(Held(boxes.healthy()), now=lambda: NOW)
    async with app.run_test(size=(200, 50)) as pilot:
        await until(pilot, lambda: "q quit" in text(app))
        assert "p profiles" not in text(app)
        await pilot.press("p")
        await pilot.pause()
        assert app.screen is app.dashboard


def test_a_server_that_was_ended_on_purpose_is_no_fault_of_the_box() -> None:
    up = boxes.server()
    gone = replace(up, url="http://127.0.0.1:8001", label="127.0.0.1:8001", state=State.REFUSED, last_good_at=NOW - 60,
                   failed_tries=5)  # fmt: skip
    around = Around(boxes.NOW)
    assert make((up, gone), 0, around, None).chip == "DOWN"
    ended = replace(gone, ended_by="a switch to b", profile="a")
    assert make((up, ended), 0, around, None).chip != "DOWN"
    said = make((ended,), 0, around, None)
    assert (said.chip, said.first.startswith("a was stopped"), said.rest) == ("DOWN", True, "by a switch to b")
