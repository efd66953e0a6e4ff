"""The command palette: every action of the screen, every theme and every window, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from textual.command import DiscoveryHit, Hit, Hits, Provider

from kvtop.model.view import WINDOWS
from kvtop.ui import keys
from kvtop.ui.keys import Keymap, key_display
from kvtop.ui.themes import Themes


@runtime_checkable
class Host(Protocol):
    """What the palette asks of the app."""

    keymap: Keymap
    themes: Themes

    def set_window(self, key: str) -> None:
        """Choose the window with that key of WINDOWS."""
        ...


@dataclass(frozen=True)
class Command:
    """A line of the palette."""

    name: str
    help: str
    kind: str
    """'action', 'window' or 'theme'."""
    value: str
    """The id of the action, the key of the window or the name of the theme."""


_MOVES = ("palette", "up", "down", "page-up", "page-down", "first", "last", "back", "next-server", "other-url")
"""What nobody looks for by name."""


def commands(keymap: Keymap, themes: Themes, screen: str) -> list[Command]:
    """Every command of that screen, in the order shown."""
    out = [
        Command(_sentence(a.help), "  ".join(key_display(k) for k in a.keys), "action", a.id)
        for a in keymap.on(screen)
        if a.id not in _MOVES
    ]
    if screen == keys.DASHBOARD:
        out += [Command(f"Window: {words}", "what the figures cover", "window", key) for key, _, words in WINDOWS]
    out += [Command(f"Theme: {name}", "colours", "theme", name) for name in themes.names]
    return out


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


class Palette(Provider):
    """Textual's provider over `commands`. The app has to be a Host; a screen names itself by `ON`."""

    def _commands(self) -> Iterator[tuple[Command, partial[None]]]:
        app = self.app
        if not isinstance(app, Host):
            return
        on = getattr(self.screen, "ON", keys.DASHBOARD)
        for command in commands(app.keymap, app.themes, on):
            yield command, partial(self._do, command)

    def _do(self, command: Command) -> None:
        app = self.app
        assert isinstance(app, Host)
        if command.kind == "theme":
            app.theme = command.value
        elif command.kind == "window":
            app.set_window(command.value)
        else:
            app.simulate_key(app.keymap.action(command.value).keys[0])

    async def discover(self) -> Hits:
        for command, do in self._commands():
            yield DiscoveryHit(command.name, do, help=command.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command, do in self._commands():
            score = matcher.match(command.name)
            if score > 0:
                yield Hit(score, matcher.highlight(command.name), do, help=command.help)
