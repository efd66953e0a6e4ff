"""The palette: everything of the key table that makes sense by name, with windows and themes."""

from __future__ import annotations

from typing import ClassVar

from textual.command import CommandPalette
from textual.widgets import OptionList

from kvtop.model.view import WINDOWS, BoxView, Sentence
from kvtop.ui import keys, palette
from kvtop.ui.app import KvtopApp
from kvtop.ui.keys import Keymap
from kvtop.ui.screens.help import HelpScreen
from kvtop.ui.themes import Themes, load

from .page_app import NOON, PageApp
from .screen import Held


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
    moves = {"palette", "up", "down", "page-up", "page-down", "first", "last", "back", "next-server"}
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
