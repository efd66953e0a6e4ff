"""The palette: everything of the key table that makes sense by name, with windows and themes."""

from __future__ import annotations

from typing import ClassVar

import pytest
from rich.style import Style
from textual.command import CommandList, CommandPalette
from textual.events import Click
from textual.fuzzy import Matcher
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, OptionList

from kvtop.model.view import WINDOWS, BoxView, Sentence
from kvtop.ui import keys, palette
from kvtop.ui.app import KvtopApp
from kvtop.ui.keys import Keymap
from kvtop.ui.palette_screen import PaletteScreen
from kvtop.ui.screens.help import HelpScreen
from kvtop.ui.themes import Themes, load

from . import boxes
from .page_app import NOON, PageApp
from .screen import Held, until


class PaletteApp(PageApp):
    """The page app with the palette."""

    COMMANDS: ClassVar = {palette.Palette}

    def __init__(self) -> None:
        super().__init__(HelpScreen(Keymap(), now=lambda: NOON))
        self.themes: Themes = self.found
        self.windows: list[str] = []

    def set_window(self, key: str) -> None:
        self.windows.append(key)


def test_every_action_of_the_dashboard_is_there() -> None:
    made = palette.commands(Keymap(), load(), keys.DASHBOARD)
    values = {c.value for c in made}
    moves = {"palette", "up", "down", "page-up", "page-down", "first", "last", "back", "next-server", "other-url"}
    assert {a.id for a in Keymap().on(keys.DASHBOARD)} - moves <= values
    assert {key for key, _, _ in WINDOWS} <= values
    assert "kvtop-light" in values
    assert len({c.name for c in made}) == len(made)


def test_the_real_app_is_what_the_palette_asks_for() -> None:
    assert isinstance(KvtopApp(Held(BoxView(NOON, Sentence("OK", "ok", "fine")))), palette.Host)


def test_other_screens_have_no_windows() -> None:
    made = palette.commands(Keymap(), load(), keys.NO_SERVER)
    assert {"give-url", "demo", "quit", "kvtop-16"} <= {c.value for c in made}
    assert not [c for c in made if c.kind == "window"]


async def run(query: str) -> PaletteApp:
    app = PaletteApp()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await pilot.pause()
        assert isinstance(app.screen, CommandPalette)
        await pilot.press(*query)
        for _ in range(50):
            await pilot.pause(0.02)
            if app.screen.query_one(OptionList).option_count:
                break
        await pilot.press("down", "enter")
        await pilot.pause()
        await pilot.pause()
        return app


async def test_a_theme_by_name() -> None:
    assert (await run("kvtop-light-c")).theme == "kvtop-light-colorblind"


async def test_an_action_by_name() -> None:
    assert (await run("write")).done == ["export"]


def first(query: str, screen: str = keys.DASHBOARD) -> str:
    matcher = Matcher(query)
    return max(palette.commands(Keymap(), load(), screen), key=lambda c: palette.score(matcher, c)).name


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("freeze", "freeze"), ("fre", "freeze"), ("hist", "history"), ("quit", "quit"), ("exp", "export"),
        ("filt", "filter"), ("window", "window"), ("5 min", "window: 5 min"), ("window: 1", "window: 10 s"),
        ("since", "window: since start"), ("light", "theme: kvtop-light"), ("theme", "theme"),
        ("cache", "panel: Cache"), ("gpu", "panel: GPU"), ("turn", "turn"), ("help", "help"),
    ],
)  # fmt: skip
def test_what_is_typed_finds_the_right_one_first(query: str, name: str) -> None:
    assert first(query) == name


def test_words_of_the_help_find_too_and_nonsense_nothing() -> None:
    assert first("numbers as JSON") == "export"
    made = palette.commands(Keymap(), load(), keys.DASHBOARD)
    assert not [c for c in made if palette.score(Matcher("xyzzy"), c)]


@pytest.mark.parametrize("screen", keys.SCREENS)
def test_every_name_finds_itself_first(screen: str) -> None:
    for command in palette.commands(Keymap(), load(), screen):
        assert first(command.name, screen) == command.name
        assert len(command.name.split()) <= 3


def test_the_help_says_what_it_does_and_by_which_key() -> None:
    made = {c.value: c for c in palette.commands(Keymap(), load(), keys.DASHBOARD)}
    help = "hold the numbers still; reading goes on; another window, server or engine ends it  (space)"
    assert (made["freeze"].name, made["freeze"].help) == ("freeze", help)
    assert made["panel-cache"].name == "panel: Cache"
    assert made["5m"].help == "the figures cover the last 5 min"
    assert made["start"].help == "the figures cover all since start"


async def listed(pilot: Pilot[str]) -> None:
    """Until the palette has its list."""
    await until(pilot, lambda: any(found.option_count for found in pilot.app.screen.query(CommandList)))
    await pilot.pause()


async def fast(*names: str) -> Screen[object]:
    """The screen after these keys, which are there before the app has looked at the first of them."""
    app = KvtopApp(Held(boxes.box()), now=lambda: NOON)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        for name in names:
            app.simulate_key(name)
        await listed(pilot)
        assert app._exception is None
        return app.screen


@pytest.mark.parametrize("key", ["pagedown", "pageup", "ctrl+home", "ctrl+end", "up", "down", "home", "end"])
async def test_keys_before_the_list_is_there(key: str) -> None:
    assert isinstance(await fast("ctrl+p", key, key), PaletteScreen)


async def test_a_page_of_a_list_that_was_not_painted() -> None:
    """Its options are there, its lines are not: what Textual does not expect."""
    app = KvtopApp(Held(boxes.box()), now=lambda: NOON)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await listed(pilot)
        app.screen.query_one(CommandList).clear_options().add_options(["one", "two"])
        await pilot.press("pagedown", "pageup")
        assert isinstance(app.screen, PaletteScreen)


async def test_escape_twice_closes_the_palette_alone() -> None:
    app = KvtopApp(Held(boxes.box()), now=lambda: NOON)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        palette_screen = app.screen
        assert isinstance(palette_screen, PaletteScreen)
        palette_screen._action_escape()
        palette_screen._action_escape()
        await pilot.pause()
        assert app.screen is app.dashboard


async def test_it_opens_anew_while_the_old_one_is_not_gone_yet() -> None:
    app = KvtopApp(Held(boxes.box()), now=lambda: NOON)
    async with app.run_test(size=(80, 24)) as pilot:
        for _ in range(3):
            app.action_command_palette()
            assert isinstance(app.screen, PaletteScreen)
            app.screen._action_escape()
        await until(pilot, lambda: app.screen is app.dashboard)


async def test_a_click_outside_of_the_screen() -> None:
    app = KvtopApp(Held(boxes.box()), now=lambda: NOON)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await listed(pilot)
        app.screen.post_message(Click(app.screen, 90, 40, 0, 0, 1, False, False, False, 90, 40))
        await pilot.pause()
        assert isinstance(app.screen, PaletteScreen)
        app.screen.post_message(Click(app.screen, 1, 1, 0, 0, 1, False, False, False, 1, 1))
        await until(pilot, lambda: app.screen is app.dashboard)  # as Textual has it for a click beside the list
        await pilot.pause()  # the click goes on to the app, which has to be there still


async def test_its_timers_and_keys_while_it_closes() -> None:
    """The parts of a screen are gone a moment before the screen is; its timers and its messages are not."""
    app = KvtopApp(Held(boxes.box()), now=lambda: NOON)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await listed(pilot)
        palette_screen = app.screen
        assert isinstance(palette_screen, PaletteScreen)
        fired: list[str] = []
        for name in ("_NO_MATCHES_COUNTDOWN", "_BUSY_COUNTDOWN"):
            setattr(palette_screen, name, 0.05)
        palette_screen._list_visible = True
        await palette_screen.query("*").remove()
        palette_screen._start_no_matches_countdown("nothing of this name")
        palette_screen._start_busy_countdown()
        palette_screen.set_timer(0.1, lambda: fired.append("after them"))
        await until(pilot, lambda: bool(fired))
        palette_screen._list_visible = False
        palette_screen._show_busy = True
        palette_screen._action_cursor_down()
        palette_screen._action_command_list("page_down")
        palette_screen.post_message(Input.Submitted(Input(), ""))
        palette_screen._list_visible = True
        palette_screen.post_message(Input.Submitted(Input(), ""))
        await pilot.pause()
        assert app._exception is None
        palette_screen._action_escape()
        await until(pilot, lambda: app.screen is app.dashboard)


async def test_a_click_on_a_row_that_is_gone() -> None:
    app = KvtopApp(Held(boxes.box()), now=lambda: NOON)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await listed(pilot)
        rows = app.screen.query_one(CommandList)
        style = Style.from_meta({"option": rows.option_count - 1})
        rows.clear_options()
        x, y = rows.region.offset
        rows.post_message(Click(rows, 1, 1, 0, 0, 1, False, False, False, x + 1, y + 1, style))
        await pilot.pause()
        assert app._exception is None
        assert isinstance(app.screen, PaletteScreen)


async def test_keys_of_a_page_before_it_has_its_parts() -> None:
    app = KvtopApp(Held(boxes.box()), now=lambda: NOON)
    async with app.run_test(size=(80, 24)) as pilot:
        page = HelpScreen(Keymap(), now=lambda: NOON)
        app.push_screen(page)
        assert not page.query("*")
        page.tick()
        page.scroll_lines(1)
        await until(pilot, lambda: app.screen is page)
        await page.query("*").remove()
        page.tick()
        page.scroll_lines(1)
        await pilot.pause()
        assert app._exception is None
