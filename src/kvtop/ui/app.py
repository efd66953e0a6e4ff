"""The app: wires the collector to the screens. No logic of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.filter import Monochrome, NoColor
from textual.worker import Worker, WorkerError

from kvtop import config
from kvtop.config import Settings
from kvtop.errors import KvtopError, Problem, printable
from kvtop.model.view import BoxView
from kvtop.sources.url import normalise
from kvtop.ui import faults, keys
from kvtop.ui import themes as theme_files
from kvtop.ui.messages import Changed, OtherUrl
from kvtop.ui.screens.dashboard import Dashboard
from kvtop.ui.terminal import Terminal
from kvtop.ui.watching import Telling, Watching
from kvtop.worker import Hangs
from kvtop.worker import Worker as Beside

if TYPE_CHECKING:
    from kvtop.ui.palette import Palette

REDRAW_S = 1.0
"""Drawn at most so often while numbers move: nobody reads faster, and a view of the box is not free. What comes after
a quiet second is drawn at once, and so is what a key asks for."""
UNSEEN_S = 3.0
"""The same while the terminal says that it has no focus. Collecting goes on as before."""
PROBLEM_S = 8.0
"""How long a problem of the user's files is shown at start."""
PROBLEMS_AT_ONCE = 3
"""Of them, where the screen has room: on a low one it is one."""
LOW_ROWS = 24
NEWS_S, PROFILES_S = 10.0, 20.0
"""How long what is said once stays; a start that failed is told in more words."""
CHECK_S = 2.0
"""Problems are said after so long, whatever does not answer."""
EXPORT_S = 10.0
"""A folder that takes longer for an export is given up."""
STILL_WRITING = "the last export is still being written: nothing was exported now"
QUIT_S = 2.0
"""So long an export that is being written holds the end up."""
COLLECTOR = "collector"
DEMO = "demo"
"""What the app returns where its user wants the simulated box instead."""
LOG = logging.getLogger("kvtop.ui")


def _palette() -> type[Palette]:
    from kvtop.ui.palette import Palette

    return Palette


class KvtopApp(App[str]):
    """The screens of kvtop over one collector."""

    TITLE = "kvtop"
    # A line that is said lies over the footer, and over nothing that was opened to be read.
    # The rack's scrollbar, which nobody sees, would take cells that its height is worked out without: lines get lost.
    CSS = """
    Screen { background: $background; }
    Toast { width: auto; max-width: 90%; padding: 0 1; margin-top: 0; }
    ToastRack { overflow-y: hidden; margin-bottom: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *keys.bindings(None),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]
    COMMANDS = {_palette}  # noqa: RUF012  declared by Textual

    def __init__(
        self,
        watch: Watching,
        settings: Settings | None = None,
        *,
        problems: Sequence[Problem] = (),
        check: Callable[[], Sequence[Problem]] | None = None,
        typed: Sequence[str] = (),
        now: Callable[[], float] = time.time,
        tracebacks: bool = False,
    ) -> None:
        """`check` finds further problems; it may ask the disk. `typed`: the URLs of the command line."""
        self.tracebacks = tracebacks
        self.settings = settings or Settings()
        self.themes = theme_files.load()
        super().__init__(driver_class=Terminal)
        self.watch_box, self.now, self.check = watch, now, check
        self.keymap, refused = keys.resolve(self.settings.keys)
        refusals = keys.problems(refused, config.path()) if refused else ()
        wanted = self.settings.theme
        of_themes = theme_files.problems(self.themes, wanted, None if self.themes.get(wanted) else config.path())
        self.problems = (*problems, *refusals, *of_themes)
        self.dashboard = Dashboard(watch, self.settings, self.keymap, now)
        self.dashboard.typed = frozenset(map(normalise, typed))
        self._unseen = False
        self._drawn_at = 0.0
        self._wake: asyncio.TimerHandle | None = None
        self._writer = Beside("export")
        self._exporting: Worker[None] | None = None
        self._left_alone = ""
        """The profile whose start its user was told of when leaving."""

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme_files.variable_defaults(self.themes)

    def on_mount(self) -> None:
        wanted = self.settings.theme
        if wanted == theme_files.DEFAULT and self.console.color_system == "standard":
            wanted = "kvtop-16"
        self.theme = theme_files.register(self, self.themes, wanted)
        self.set_keymap(self.keymap.overrides())
        self.push_screen(self.dashboard)
        if self.check is None:
            self.call_after_refresh(self._say_problems)
        else:
            self.run_worker(self._check_and_say(self.check), name="look at files", exit_on_error=False)
        self.run_worker(self.watch_box.run(self._changed), name=COLLECTOR, exit_on_error=False)
        self.set_interval(1.0, self._second)

    async def _check_and_say(self, check: Callable[[], Sequence[Problem]]) -> None:
        """Beside the loop: what config.toml names may lie on a network that hangs."""
        try:
            self.problems += tuple(await Beside("check").call(check, CHECK_S))
        except TimeoutError:
            what = f"the files and folders that it names have not answered for {CHECK_S:g} s"
            self.problems += (Problem("config", what, "look at the disk or network that they are on", config.path()),)
        self._say_problems()

    def _say_problems(self) -> None:
        """What kvtop goes on without, for a few seconds: the header keeps its line, `doctor` keeps the list."""
        room = PROBLEMS_AT_ONCE if self.size.height >= LOW_ROWS else 1
        lines = [problem.short for problem in self.problems[:room]]
        if (more := len(self.problems) - len(lines)) > 0:
            lines.append(f"and {more} more: kvtop doctor lists them")
        for line in lines:
            self.notify(line, severity="warning", timeout=PROBLEM_S, markup=False)

    def watch_theme(self, name: str) -> None:
        """With NO_COLOR: greys on a theme's own background, nothing but the terminal's two colours on the terminal's.

        Textual chooses once, before there is a theme, and draws black on black where it chose the other one.
        """
        if self.no_color:
            kept = [f for f in self._filters if not isinstance(f, Monochrome | NoColor)]
            self._filters = [*kept, NoColor() if self.native_ansi_color else Monochrome()]

    # ---- new numbers
    def _changed(self) -> None:
        """Called by the collector, on this loop, whenever something is new: draw soon, once for all till then."""
        if isinstance(self.watch_box, Telling):
            for told in self.watch_box.news():
                text = self.dashboard.profile_page.pointed(told, self) if told.of_profiles else told.text
                if text:
                    seconds = PROFILES_S if told.of_profiles else NEWS_S
                    self.notify(text, severity="warning" if told.bad else "information", timeout=seconds, markup=False)
        if self._wake is None:
            wait = self._drawn_at + (UNSEEN_S if self._unseen else REDRAW_S) - time.monotonic()
            self._wake = asyncio.get_running_loop().call_later(max(0.0, wait), self.post_message, Changed())

    def on_changed(self, message: Changed) -> None:
        self._wake = None
        if self.screen is self.dashboard or getattr(self.screen, "ON", "") == keys.NO_SERVER:
            self._drawn_at = time.monotonic()
            self._draw()  # any other screen asks for itself, and the dashboard looks anew when it comes back

    def _draw(self) -> None:
        self.dashboard.look()
        from_noserver = self.screen is not self.dashboard
        view = self._view()
        if view is None:
            return
        if from_noserver and view.servers:
            if not getattr(self.screen, "typing", False):  # the next key would be a command
                self.pop_screen()
        elif not from_noserver and not view.servers and view.discovery is not None:
            self._no_server()

    def _view(self) -> BoxView | None:
        """What the dashboard shows, or would; None before its first look."""
        return self.dashboard.made.view if self.dashboard.made else None

    def _no_server(self, url: str = "") -> None:
        """The page on which a URL can be given; with this one to be mended, where there is one."""
        from kvtop.ui.screens.noserver import NoServerScreen

        page = NoServerScreen(
            self.keymap,
            self._view,
            partial(self._watch_url, instead_of=url if url in self.dashboard.typed else ""),
            lambda: self.exit(DEMO),
            now=self.now,
            url=url,
            profiles=self.dashboard.profile_page,
        )
        self.push_screen(page)

    def _watch_url(self, url: str, *, instead_of: str = "") -> None:
        """Watch one that was given; `instead_of`: the one of the command line whose place it takes."""
        try:
            self.watch_box.add_url(url)
        except KvtopError as error:
            self.notify(error.what, severity="error", markup=False)
            return
        if not instead_of:
            self.dashboard.given = url
        elif url != instead_of:
            self.watch_box.drop_url(instead_of)
            self.dashboard.typed |= {url}
            self.dashboard.choose_url(url)
        self._changed()

    def on_other_url(self, message: OtherUrl) -> None:
        """One of the command line stays till another takes its place; one that was given on the page goes."""
        if message.url not in self.dashboard.typed:
            self.watch_box.drop_url(message.url)
            self.dashboard.given = ""
            self.dashboard.look()
        self._no_server(message.url)

    def _second(self) -> None:
        if self.dashboard.moves_by_itself():
            self._changed()
        elif self.screen is self.dashboard and time.monotonic() - self._drawn_at >= REDRAW_S:
            self.dashboard.tick()  # a drawing has moved the clock already

    def on_app_blur(self, event: events.AppBlur) -> None:
        self._unseen = True

    def on_app_focus(self, event: events.AppFocus) -> None:
        self._unseen = False
        self._changed()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A collector that fails is a state on the screen; kvtop goes on with what it knows."""
        if event.worker.name != COLLECTOR:
            faults.say(self, event)
        elif wrong := faults.failed(event):
            self.dashboard.notice = f"{wrong}: what is shown is old; --debug tells more"
            self.dashboard.look()

    def _handle_exception(self, error: Exception) -> None:
        """A fault of kvtop's own: one line for its user, the traceback for --debug."""
        if self.is_headless or self.tracebacks:
            super()._handle_exception(error)
            return
        LOG.error("kvtop failed", exc_info=error)
        if self._exit:
            return  # it leaves already, with a status of its own: half of the screen may be gone
        what = f"kvtop: internal error ({type(error).__name__}); kvtop --debug shows where"
        self.exit(return_code=1, message=what)

    def copy_to_clipboard(self, text: str) -> None:
        """Nothing for an empty text: Textual sends it for ctrl+x without a selection, and terminals empty theirs."""
        if text:
            super().copy_to_clipboard(text)

    # ---- actions of every screen
    async def action_back(self) -> None:
        if self.screen is self.dashboard:
            self.dashboard.action_back()
        elif getattr(self.screen, "ON", "") != keys.NO_SERVER and len(self.screen_stack) > 2:
            self.pop_screen()
            self._changed()  # what lies under it may not have been drawn for long

    def action_help(self) -> None:
        from kvtop.ui.screens.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            came_from = getattr(self.screen, "ON", keys.DASHBOARD)
            self.push_screen(HelpScreen(self.keymap, came_from, self.now))

    def action_command_palette(self) -> None:
        from kvtop.ui.palette_screen import PaletteScreen

        if not isinstance(self.screen, PaletteScreen):
            self.push_screen(PaletteScreen())  # no id: the one closed last may not be gone yet

    def action_next_theme(self) -> None:
        self.theme = self.themes.after(self.theme)
        self.clear_notifications()
        self.notify(f"theme {self.theme}", timeout=2, markup=False)

    def set_window(self, key: str) -> None:
        """The palette: choose a window."""
        self.dashboard.set_window(key)

    def action_export(self) -> None:
        """The picture is taken here and now, and written beside the loop: the folder may be on a network that hangs."""
        if self._is_exporting:
            self.notify(STILL_WRITING, severity="error", markup=False)
            return
        work = partial(self._export, self.export_screenshot(), self._view(), self.now())
        self._exporting = self.run_worker(work, name="export", group="export", exit_on_error=False)

    @property
    def _is_exporting(self) -> bool:
        return self._exporting is not None and not self._exporting.is_finished

    async def _export(self, picture: str, view: BoxView | None, at: float) -> None:
        from kvtop.ui import export

        def written() -> tuple[Path, ...]:
            return export.write(export.folder_of(self.settings.export_dir), picture, view, at, self.problems)

        wrong = ""
        try:
            made = await self._writer.call(written, EXPORT_S)
        except Hangs:
            wrong = STILL_WRITING
        except TimeoutError:
            wrong = f"the folder of exports has not answered for {EXPORT_S:g} s: perhaps nothing was exported"
        except export.ExportError as error:
            wrong = error.what
        except Exception as error:  # a picture is not worth the dashboard
            LOG.exception("the export failed")
            wrong = f"kvtop's own export failed ({type(error).__name__}): nothing was exported; --debug tells more"
        if wrong:
            self.notify(wrong, severity="error", markup=False)
        else:
            self.notify(export.said(made), markup=False)

    def action_suspend_process(self) -> None:
        """Stop till the shell says `fg`, also while something is typed."""
        if isinstance(self._driver, Terminal):
            self._driver.stop_job()

    async def action_quit(self) -> None:
        """An export that was asked for is written first, unless its folder hangs. While a server starts, once more."""
        if (name := self.dashboard.profile_page.starting()) and name != self._left_alone:
            self._left_alone = name
            key = self.keymap.shown("quit")
            said = f"{printable(name, 60)} is starting and goes on without kvtop: {key} again leaves"
            self.notify(said, severity="warning", timeout=NEWS_S, markup=False)
            return
        if self._exporting is not None and self._is_exporting:
            with contextlib.suppress(TimeoutError, WorkerError):
                await asyncio.wait_for(self._exporting.wait(), QUIT_S)
        self.exit()


def run(
    watch: Watching,
    settings: Settings,
    *,
    problems: Sequence[Problem] = (),
    check: Callable[[], Sequence[Problem]] | None = None,
    typed: Sequence[str] = (),
    on_demo: Callable[[], int] | None = None,
    tracebacks: bool = False,
) -> int:
    """The dashboard until its user leaves; the exit code.

    `check` and `typed`: as for the app. `on_demo` runs where its user wants the simulated box instead.
    """
    app = KvtopApp(watch, settings, problems=problems, check=check, typed=typed, tracebacks=tracebacks)
    wish = app.run()
    if wish == DEMO and on_demo is not None:
        return on_demo()
    return app.return_code or 0
