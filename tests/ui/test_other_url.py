"""A URL that was given and never answers: the way back to give another one."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from kvtop.model.view import BoxView, Sentence, ServerView
from kvtop.readings import Discovery, State
from kvtop.ui.app import KvtopApp
from kvtop.ui.screens.noserver import NoServerScreen

from . import boxes
from .screen import Held, lines, text, until

NOBODY = replace(boxes.STATES["nobody"](), discovery=Discovery(looked=(("processes", "0 are vLLM"),), at=boxes.NOW))
WRONG = "http://127.0.0.1:8009"
KEY = "u other URL"


def one(state: State, **changes: object) -> BoxView:
    server = replace(ServerView(WRONG, "127.0.0.1:8009", state, cause="nothing listens"), **changes)
    return BoxView(boxes.NOW, Sentence("DOWN", "bad", "refused"), servers=(server,))


@asynccontextmanager
async def given(size: tuple[int, int] = (80, 24)) -> AsyncIterator[tuple[KvtopApp, Pilot[str], Held]]:
    """The dashboard right after WRONG was given on the no-server screen."""
    held = Held(NOBODY)
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        held.say(NOBODY)
        await until(pilot, lambda: isinstance(app.screen, NoServerScreen))
        await pilot.press("u", *"8009", "enter")
        held.say(one(State.UP))
        await until(pilot, lambda: app.screen is app.dashboard)
        yield app, pilot, held


async def test_a_wrong_url_can_be_mended() -> None:
    async with given() as (app, pilot, held):
        assert held.urls == [WRONG]
        assert KEY not in text(app), "nobody has asked it yet"
        held.say(one(State.REFUSED, failed_tries=1))
        await until(pilot, lambda: KEY in text(app))
        held.now = NOBODY
        await pilot.press("u")
        await until(pilot, lambda: isinstance(app.screen, NoServerScreen))
        assert held.dropped == [WRONG]
        assert app.screen.query_one(Input).value == WRONG
        await pilot.press("backspace", "0", "enter")
        assert held.urls == [WRONG, "http://127.0.0.1:8000"]
        held.say(boxes.healthy())
        await until(pilot, lambda: app.screen is app.dashboard)
        assert KEY not in text(app)


@pytest.mark.parametrize(
    ("pressed", "left"),
    [
        (["8", "0"], "80"),
        (["h", "t", "left", "x"], "hxt"),
        (["backspace", "0"], "http://127.0.0.1:8000"),
        (["end", "0"], f"{WRONG}0"),
        (["right", "0"], f"{WRONG}0"),
        (["left", "0"], "http://127.0.0.1:80009"),
        (["home", "x"], f"x{WRONG}"),
        (["ctrl+u"], ""),
        (["left", "left", "ctrl+u", "8"], "8"),
    ],
)
async def test_what_is_typed_takes_the_place_of_the_url_that_is_offered(pressed: list[str], left: str) -> None:
    held = Held(NOBODY)
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app._no_server(WRONG)
        await until(pilot, lambda: isinstance(app.screen, NoServerScreen) and WRONG in text(app))
        assert "ctrl+u clear" in lines(app)[-1]
        await pilot.press(*pressed)
        assert app.screen.query_one(Input).value == left


async def test_a_pasted_url_takes_the_place_of_the_one_that_is_offered() -> None:
    held = Held(NOBODY)
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app._no_server(WRONG)
        await until(pilot, lambda: isinstance(app.screen, NoServerScreen) and WRONG in text(app))
        app.post_message(events.Paste("http://gpubox:8000\n"))
        await until(pilot, lambda: app.screen.query_one(Input).value == "http://gpubox:8000")


async def test_escape_leaves_the_line_and_the_search_goes_on() -> None:
    async with given() as (app, pilot, held):
        held.say(one(State.DNS_ERROR, failed_tries=3))
        await until(pilot, lambda: KEY in text(app))
        held.now = NOBODY
        await pilot.press("u")
        await until(pilot, lambda: isinstance(app.screen, NoServerScreen))
        await pilot.press("escape")
        await pilot.pause()
        assert "give a URL" in text(app) and WRONG not in text(app)


async def test_a_server_that_answered_once_stays() -> None:
    async with given() as (app, pilot, held):
        held.say(one(State.REFUSED, failed_tries=5, last_good_at=boxes.NOW - 60))
        await until(pilot, lambda: app.dashboard.made.server.failed_tries == 5)
        await pilot.press("u")
        await pilot.pause()
        assert app.screen is app.dashboard
        assert held.dropped == []
        assert KEY not in text(app)


async def test_a_server_that_nobody_typed_stays() -> None:
    """Of config.toml, or found on this box."""
    held = Held(one(State.REFUSED, failed_tries=5))
    app = KvtopApp(held, now=lambda: boxes.NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("u")
        await pilot.pause()
        assert app.screen is app.dashboard
        assert KEY not in text(app)


@asynccontextmanager
async def typed(view: BoxView, *urls: str) -> AsyncIterator[tuple[KvtopApp, Pilot[str], Held]]:
    """The dashboard of `kvtop URL ...`."""
    held = Held(view)
    app = KvtopApp(held, typed=urls, now=lambda: boxes.NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.dashboard.made is not None)
        yield app, pilot, held


async def test_a_url_of_the_command_line_can_be_mended() -> None:
    async with typed(one(State.REFUSED, failed_tries=5), "127.0.0.1:8009") as (app, pilot, held):
        await until(pilot, lambda: KEY in text(app))
        await pilot.press("u")
        await until(pilot, lambda: isinstance(app.screen, NoServerScreen))
        assert app.screen.query_one(Input).value == WRONG and held.dropped == []
        assert "never answered" in text(app)
        held.say(one(State.REFUSED, failed_tries=6))
        await until(pilot, lambda: app.dashboard.made.server.failed_tries == 6)
        await pilot.pause()
        assert isinstance(app.screen, NoServerScreen), "the next key would be a command"
        await pilot.press("backspace", "0", "enter")
        assert (held.urls, held.dropped) == (["http://127.0.0.1:8000"], [WRONG])
        held.say(boxes.healthy())
        await until(pilot, lambda: app.screen is app.dashboard and "95 % cached" in text(app))
        assert KEY not in text(app)
        held.say(BoxView(boxes.NOW, Sentence("DOWN", "bad", "x"), (replace(boxes.server(), state=State.REFUSED,
                 last_good_at=None, failed_tries=1),)))  # fmt: skip
        await until(pilot, lambda: KEY in text(app))


@pytest.mark.parametrize("keys", [("escape",), ("enter",)])
async def test_without_another_url_all_is_as_it_was(keys: tuple[str, ...]) -> None:
    several = boxes.several(2)
    bad = replace(several.servers[1], url=WRONG, last_good_at=None, failed_tries=3)
    view = replace(several, servers=(several.servers[0], bad))
    async with typed(view, "8000", "8009") as (app, pilot, held):
        assert KEY not in text(app), "the first one answers"
        await pilot.press("tab")
        await until(pilot, lambda: KEY in text(app))
        await pilot.press("u")
        await until(pilot, lambda: isinstance(app.screen, NoServerScreen))
        await pilot.press(*keys)
        await until(pilot, lambda: app.screen is app.dashboard)
        assert held.dropped == [] and app.dashboard.selected == 1


async def test_the_way_back_is_seen_on_a_small_screen() -> None:
    async with given((40, 15)) as (app, pilot, held):
        held.say(one(State.REFUSED, failed_tries=1))
        await until(pilot, lambda: KEY in text(app))


async def test_keys_never_empty_the_clipboard(monkeypatch: pytest.MonkeyPatch) -> None:
    async with given() as (app, pilot, held):
        held.say(one(State.REFUSED, failed_tries=1))
        await until(pilot, lambda: KEY in text(app))
        held.now = NOBODY
        await pilot.press("u")
        await until(pilot, lambda: isinstance(app.screen, NoServerScreen))
        sent: list[str] = []
        monkeypatch.setattr(app._driver, "write", sent.append)
        box = app.screen.query_one(Input)
        await pilot.press("home", "ctrl+x", "super+c")
        assert not any("\x1b]52" in data for data in sent)
        assert box.value == WRONG
        box.select_all()
        await pilot.press("ctrl+x")
        assert [data for data in sent if "\x1b]52" in data] == [f"\x1b]52;c;{b64encode(WRONG.encode()).decode()}\a"]
        await pilot.press("ctrl+v")
        assert box.value == WRONG
