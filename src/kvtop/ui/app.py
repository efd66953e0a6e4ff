"""The app: wires the collector to the screens. No logic of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen
from textual.timer import Timer
from textual.worker import Worker, WorkerState

from kvtop.config import Settings
from kvtop.ui import keys, themes
from kvtop.ui.messages import Changed
from kvtop.ui.screens.dashboard import Dashboard
from kvtop.ui.watching import Watching

REDRAW_S = 0.2
"""Drawn at most so often, however often something changes."""
UNSEEN_S = 1.0
"""While the terminal says that it has no focus. Collecting goes on as before."""
LOG = logging.getLogger("kvtop.ui")


class KvtopApp(App[None]):
    """The screens of kvtop over one collector."""

    TITLE = "kvtop"
    CSS = "Screen { background: $background; }"
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings(None)]
    ENABLE_COMMAND_PALETTE = True

    def __init__(
        self,
        watch: Watching,
        settings: Settings | None = None,
        *,
        problems: Sequence[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings or Settings()
        self.loaded_themes = themes.load()
        super().__init__()
        self.watch_box, self.now = watch, now
        self.key_table, clashes = keys.resolve(self.settings.keys)
        self._said = [*problems, *clashes]
        self.dashboard = Dashboard(watch, self.settings, self.key_table, now)
        self._pace = REDRAW_S
        self._drawn_at = 0.0
        self._due: Timer | None = None
        self._dirty = False

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.variable_defaults(self.loaded_themes)

    def on_mount(self) -> None:
        wanted = self.settings.theme
        if wanted == themes.DEFAULT and self.console.color_system == "standard":
            wanted = "kvtop-16"
        self.theme, problems = themes.register(self, self.loaded_themes, wanted)
        self.set_keymap(self.key_table.overrides())
        self._said += problems
        if self._said:
            more = f" (and {len(self._said) - 1} more)" if len(self._said) > 1 else ""
            self.dashboard.notice = self._said[0] + more
        self.push_screen(self.dashboard)
        self.run_worker(self.watch_box.run(self._changed), name="collector", exit_on_error=False)
        self.set_interval(1.0, self._second)

    # ---- new numbers
    def _changed(self) -> None:
        """Called by the collector, from whatever thread."""
        self.post_message(Changed())

    def on_changed(self, message: Changed) -> None:
        self._dirty = True
        wait = self._drawn_at + self._pace - time.monotonic()
        if wait <= 0:
            self._draw()
        elif self._due is None:
            self._due = self.set_timer(wait, self._draw)

    def _draw(self) -> None:
        self._due = None
        if self._dirty and self.screen is self.dashboard:
            self._dirty = False
            self._drawn_at = time.monotonic()
            self.dashboard.look()

    def _second(self) -> None:
        if self.screen is not self.dashboard:
            return
        if self.dashboard.moves_by_itself():
            self.post_message(Changed())
        else:
            self.dashboard.tick()

    def on_app_blur(self, event: events.AppBlur) -> None:
        self._pace = UNSEEN_S

    def on_app_focus(self, event: events.AppFocus) -> None:
        self._pace = REDRAW_S
        self.post_message(Changed())

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A collector that fails is a state on the screen; kvtop goes on with what it knows."""
        if event.state is WorkerState.ERROR:
            error = event.worker.error
            LOG.error("%s failed", event.worker.name, exc_info=error)
            what = f"kvtop's own {event.worker.name} failed ({type(error).__name__})"
            self.dashboard.notice = f"{what}: what is shown is old; --debug tells more"
            self.dashboard.look()

    # ---- actions of every screen
    async def action_back(self) -> None:
        if self.screen is self.dashboard:
            self.dashboard.action_back()
        elif len(self.screen_stack) > 2:
            self.pop_screen()

    def action_help(self) -> None:
        from kvtop.ui.screens.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            came_from = getattr(self.screen, "ON", keys.DASHBOARD)
            self.push_screen(HelpScreen(self.key_table, came_from, self.now))

    def action_next_theme(self) -> None:
        self.theme = self.loaded_themes.after(self.theme)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: every action of this screen, and the themes by name."""
        on = getattr(screen, "ON", keys.DASHBOARD)
        for action in self.key_table.on(on):
            if action.id in ("palette", "up", "down"):
                continue
            name = f"{action.label}  ({self.key_table.shown(action.id)})"
            yield SystemCommand(name, action.help, self._doer(action.action, screen))
        for theme in self.loaded_themes.names:
            yield SystemCommand(
                f"theme {theme}", "change to this theme", lambda name=theme: setattr(self, "theme", name)
            )

    def _doer(self, action: str, screen: Screen[object]) -> Callable[[], object]:
        async def do() -> None:
            await self.run_action(action, default_namespace=screen)

        return lambda: self.call_later(do)


def run(urls: Sequence[str], settings: Settings, *, demo: bool = False, problems: Sequence[str] = ()) -> int:
    """The dashboard until its user leaves; the exit code."""
    from kvtop.live.watch import Watch

    app = KvtopApp(Watch(settings, urls, demo=demo), settings, problems=problems)
    app.run()
    return app.return_code or 0
