"""A small app around one page, and a way to read what it shows."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import App
from textual.screen import Screen

from kvtop.ui import keys, themes
from kvtop.ui.keys import resolve

NOON = 1_795_953_600.0


class PageApp(App[None]):
    """Shows a screen over an empty one, with the app's own keys."""

    BINDINGS = keys.bindings(None)

    def __init__(self, page: Screen[None], theme: str = "kvtop-dark", remap: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.page, self.wanted = page, theme
        self.keymap, _ = resolve(remap or {})
        self.found = themes.load()
        self.done: list[str] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.variable_defaults(self.found) if hasattr(self, "found") else {}

    def on_mount(self) -> None:
        self.theme = themes.register(self, self.found, self.wanted)
        self.set_keymap(self.keymap.overrides())
        self.push_screen(self.page)

    def action_back(self) -> None:
        self.done.append("back")
        if len(self.screen_stack) > 1:
            self.pop_screen()

    def action_next_theme(self) -> None:
        self.theme = self.found.after(self.theme)

    def action_export(self) -> None:
        self.done.append("export")

    def action_help(self) -> None:
        self.done.append("help")


def shown(app: App[None]) -> list[str]:
    """The rows of the screen as plain text."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip()[:width] for strip in strips[:height]]
