"""The command palette: every action of the screen, every theme and every window, by a short name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.fuzzy import Matcher
from textual.markup import escape

from kvtop.model.view import WINDOWS
from kvtop.ui import keys
from kvtop.ui.keys import Action, Keymap, key_display
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
    """A word or two: what is typed to find it."""
    help: str
    """What it does, and its keys."""
    kind: str
    """'action', 'window' or 'theme'."""
    value: str
    """The id of the action, the key of the window or the name of the theme."""


_MOVES = (
    "palette", "up", "down", "page-up", "page-down", "first", "last", "back", "next-server", "other-url", *keys.CAUSES,
)  # fmt: skip
"""What nobody looks for by name."""


def commands(keymap: Keymap, themes: Themes, screen: str) -> list[Command]:
    """Every command of that screen, in the order shown."""
    out = [
        Command(_name(a), f"{a.help}  ({' '.join(key_display(k) for k in a.keys)})", "action", a.id)
        for a in keymap.on(screen)
        if a.id not in _MOVES
    ]
    if screen == keys.DASHBOARD:
        out += [Command(f"window: {words}", _covers(words), "window", key) for key, _, words in WINDOWS]
    out += [Command(f"theme: {name}", "the colours of this theme", "theme", name) for name in themes.names]
    return out


def _name(action: Action) -> str:
    return f"panel: {action.label}" if action.id in keys.PANELS else action.label


def _covers(words: str) -> str:
    return f"the figures cover {'all ' if words.startswith('since') else 'the last '}{words}"


def score(matcher: Matcher, command: Command) -> float:
    """How well a command fits what was typed, 0 for not at all: by its name, and far behind by words of its help.

    Of two names that fit alike the shorter one comes first.
    """
    by_name = matcher.match(command.name)
    if by_name:
        return by_name + 0.1 / len(command.name)
    return 0.1 if matcher.query.strip().lower() in command.help.lower() else 0.0


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
            yield DiscoveryHit(escape(command.name), do, text=command.name, help=escape(command.help))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command, do in self._commands():
            fits = score(matcher, command)
            if fits > 0:
                shown = matcher.highlight(escape(command.name))
                yield Hit(fits, shown, do, text=command.name, help=escape(command.help))
