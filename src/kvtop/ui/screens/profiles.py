"""The profiles: each with its server, what check says of the chosen one, how a start goes, and the end of its log."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import BindingType
from textual.widgets import Input

from kvtop.live.profile_asks import logged
from kvtop.live.profile_view import Tail
from kvtop.live.profiles import Profiles
from kvtop.model.view import Sentence
from kvtop.profiles.standing import Standing
from kvtop.ui import keys
from kvtop.ui.draw import Line, safe, shortened
from kvtop.ui.headline import headline
from kvtop.ui.keys import Keymap
from kvtop.ui.profiles import findings, log, start, table, words
from kvtop.ui.profiles.asking import Asking
from kvtop.ui.profiles.deeds import Deeds, Question
from kvtop.ui.profiles.editor import edit, editor
from kvtop.ui.profiles.layout import plan, roomy, starts
from kvtop.ui.screens.page import Body, Page
from kvtop.ui.widgets.foot import Foot
from kvtop.ui.widgets.line_input import LineInput

READ_S, NEWS_S = 4.0, 60.0
"""What came of a key stands at least so long; what is no error is no news any more after so long."""
NARROW = 76
"""On fewer cells the head has three rows."""


class ProfilesScreen(Page):
    """What it shows comes from `profiles.view`; it looks at nothing itself."""

    ON = keys.PROFILES
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings(keys.PROFILES)]

    def __init__(
        self,
        keymap: Keymap,
        profiles: Profiles,
        now: Callable[[], float],
        *,
        begun: Callable[[Standing], None] = lambda row: None,
        requests: Callable[[Standing], int | None] = lambda row: None,
        seen: Callable[[], None] = lambda: None,
    ) -> None:
        """`begun` is told whose server is about to start; `requests`: how many a server has under way; `seen` is called
        each time that it comes to the front."""
        super().__init__(keymap, now)
        self._seen = seen
        self.profiles = profiles
        self.cursor = ""
        """The name of the chosen profile."""
        self._at = 0
        """Its row, as of the last look."""
        self.first = 0
        """The row of the list that stands on top."""
        self.said: tuple[str, str] = ("", "t")
        """What came of the last key, and its tone."""
        self._said_of: tuple[object, float] = (None, 0.0)
        """How the servers stood then, and when."""
        self.asking = Asking(self._say, self.set_foot)
        self.deeds = Deeds(profiles, self._say, self.asking.ask, begun=begun, requests=requests, key=keymap.shown)
        self._path = ""
        self._editing = False
        """What was typed to be imported, where that did not work."""
        self._drawn_of: object = None

    def compose(self) -> ComposeResult:
        yield Body(id="body")
        yield LineInput(placeholder="a script, compose file, unit, docker inspect or YAML file", id="path")
        yield Foot(self.keymap, self.ON, id="foot")

    def on_mount(self) -> None:
        self._settle()
        super().on_mount()
        self.profiles.failures.opened()
        self.set_interval(0.25, self._look_again)

    def on_unmount(self) -> None:
        self.profiles.choose(None)

    def on_screen_resume(self) -> None:
        self._seen()
        self._settle()
        self.profiles.look_soon()
        self.redraw()

    def tick(self) -> None:
        super().tick()
        if self.is_current:
            self.redraw()

    def _look_again(self) -> None:
        """What is new is drawn at once; what only counts seconds waits for the tick."""
        made_of = (self.profiles.view, self.profiles.checked)
        if self.is_current and made_of != self._drawn_of:
            self._drawn_of = made_of
            self.redraw()
        self.asking.withdraw()
        if self.is_current and self.question is None and not self.typing:
            self.deeds.offer()  # of a switch that failed while this page was not there, or not seen

    # ---- choosing
    @property
    def row(self) -> Standing | None:
        """The chosen profile."""
        return self.profiles.view.row(self.cursor)

    def _settle(self) -> None:
        """The cursor on a profile: the one that it is on, else what runs, else the one that was used last."""
        view = self.profiles.view
        if self.row is None and view.listed:
            best = next(iter(view.live), None) or view.last_used or view.listed[0]
            if self.cursor.startswith("process "):  # that server has ended: the cursor does not run away from there
                best = view.listed[min(self._at, len(view.listed) - 1)]
            self.cursor = best.name
        self._at = next((i for i, row in enumerate(view.listed) if row.name == self.cursor), 0)
        if self.is_current:
            self.profiles.choose(self.cursor or "")

    def _step(self, n: int) -> None:
        names = [row.name for row in self.profiles.view.listed]
        if not names:
            return
        at = names.index(self.cursor) if self.cursor in names else 0
        chosen = names[max(0, min(at + n, len(names) - 1))]
        if chosen != self.cursor and self.said[1] != "t":
            self.said = "", "t"  # it was of another one
        self.cursor = chosen
        self._settle()
        self.redraw()

    def action_up(self) -> None:
        self._step(-1)

    def action_down(self) -> None:
        self._step(1)

    def action_page_up(self) -> None:
        self._step(-max(1, self._room - 1))

    def action_page_down(self) -> None:
        self._step(max(1, self._room - 1))

    def action_first(self) -> None:
        self._step(-100_000)

    def action_last(self) -> None:
        self._step(100_000)

    def scroll_lines(self, lines: int) -> None:
        self._step(1 if lines > 0 else -1)

    def clicked(self, x: int, y: int) -> None:
        at = y - self._head_rows - 2 + self.first
        rows = self.profiles.view.listed
        if 0 <= y - self._head_rows - 2 < self._room and at < len(rows):
            self.cursor = rows[at].name
            self._step(0)

    @property
    def _head_rows(self) -> int:
        return 2 if self.size.width >= NARROW else 3

    @property
    def _room(self) -> int:
        """Profiles that fit into the list."""
        return max(1, plan(self.size.height - 1 - self._head_rows, len(self.profiles.view.listed)).list - 2)

    # ---- keys
    def _deed(self, deed: Callable[[Standing], Coroutine[Any, Any, None]]) -> None:
        row = self.row
        if row is not None and not self.question:
            self.run_worker(deed(row), name="profile", exit_on_error=False)

    def action_start_profile(self) -> None:
        self._deed(self.deeds.start)

    def action_switch_profile(self) -> None:
        self._deed(self.deeds.switch)

    def action_stop_profile(self) -> None:
        self._deed(self.deeds.stop)

    def action_restart_profile(self) -> None:
        self._deed(self.deeds.restart)

    def _with_file(self) -> Standing | None:
        """The chosen one, where it is a profile; of a server of none that is said."""
        row = self.row
        if row is None or not row.stranger:
            return row
        self._say(
            f"{words.name_of(row)} is of no profile: {self.keymap.shown('import-profile')} makes one of it", "warn"
        )
        return None

    def action_check_profile(self) -> None:
        row = self._with_file()
        if row is None:
            return
        from kvtop.ui.screens.check import CheckScreen

        self.app.push_screen(CheckScreen(self.keymap, self.profiles, row.name, self.now))

    def action_show_command(self) -> None:
        row = self._with_file()
        if row is None:
            return
        if row.known.launch is None:
            self._say(f"{words.name_of(row)} cannot be used: {safe(row.known.problem)}", "warn")
            return
        from kvtop.ui.screens.command import CommandScreen

        self.app.push_screen(CommandScreen(self.keymap, row, self.now))

    def action_log(self) -> None:
        row = self.row
        state = logged(row) if row is not None else None
        if state is None and (row is None or row.state != "foreign"):
            row = self.profiles.view.starting
            state = logged(row) if row is not None else None
        if state is None:
            foreign = row is not None and row.state == "foreign"
            why = "its output goes to no file that can be read" if foreign else "there is no log"
            self._say(f"kvtop has not started it: {why}", "warn")
            return
        from kvtop.ui.screens.log import LogScreen

        self.app.push_screen(LogScreen(self.keymap, state, self.now))

    def action_edit_profile(self) -> None:
        row = self._with_file()
        if row is None:
            return
        if self._editing:
            return  # keys that were typed before it had the terminal
        command = editor()
        if command is None:
            self._say("there is no editor: set EDITOR to one", "warn")
            return
        self._editing = True
        self.run_worker(self._edit(command, row.known.file), name="editor", exit_on_error=False)

    async def _edit(self, command: list[str], file: Path) -> None:
        try:
            await edit(self.app, command, file)
            self._say("", "t")
        except SuspendNotSupported:
            self._say("this terminal cannot be given to an editor", "warn")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            self._say(f"{safe(command[0])} cannot be run: {safe(why)}", "bad")
        finally:
            self._editing = False
        self.profiles.look_soon()

    def action_import_profile(self) -> None:
        for box in self.query(LineInput):
            row = self.row
            box.open_line(self._path or (f"--pid {row.pid}" if row is not None and row.stranger else ""))
        self._say("the file to make a profile of, and behind it --name NAME, --service S, --format F or --force", "t")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        path = self._path = event.value
        for box in self.query(LineInput):
            box.close_line()
        if path.strip():
            self.run_worker(self._take_in(path), name="import", exit_on_error=False)
        else:
            self._say("", "t")

    async def _take_in(self, path: str) -> None:
        if name := await self.deeds.take_in(path):
            self.cursor, self._path = name, ""
            self._settle()

    def on_line_input_closed(self) -> None:
        self._say("", "t")

    @property
    def typing(self) -> bool:
        """The line for a path is open."""
        return any(box.is_open for box in self.query(LineInput))

    # ---- questions
    @property
    def question(self) -> Question | None:
        return self.asking.question

    def on_key(self, event: events.Key) -> None:
        """While something is asked, y and n answer, and other keys do nothing but lead out. A path that is typed is
        typed to its end first."""
        if self.question is None and event.key in self.keymap.action("import-profile").keys and not self.typing:
            # at once: what is typed right behind it would come before its action
            event.stop()
            self.action_import_profile()
        elif self.typing and event.is_printable and event.character:
            event.stop()  # it was on its way before the line had the focus
            for box in self.query(LineInput):
                box.insert_text_at_cursor(event.character)
        if self.question is None or self.typing or event.key in ("ctrl+c", "ctrl+q", "ctrl+z"):
            return
        event.stop()
        event.prevent_default()
        if (question := self.asking.answer(event.key)) is not None:
            self.run_worker(_done(question), name="profile", exit_on_error=False)

    def prompt(self) -> list[Line]:
        """The question; what the keys do while a path is typed."""
        if self.typing:
            return [[("enter", "t bold"), (" import it", "d"), ("  esc", "t bold"), (" close", "d")]]
        return self.asking.prompt(self.size.width)

    def _say(self, text: str, tone: str) -> None:
        self.said = text, tone
        self._said_of = self._servers(), self.now()
        self.redraw()

    def _servers(self) -> object:
        view = self.profiles.view
        rows = view.rows if self.said[1] == "bad" else view.listed  # an error stands though a stranger comes or goes
        return tuple((row.name, row.state, row.pid) for row in rows)

    def _is_past(self) -> bool:
        """What came of a key is told until something else happens to a server, but long enough to be read."""
        (servers, at), tone = self._said_of, self.said[1]
        if tone == "t":
            return False
        over = self.now() - at
        return (servers != self._servers() and over >= READ_S) or (tone != "bad" and over >= NEWS_S)

    # ---- painting
    def head(self, w: int) -> list[Line]:
        view = self.profiles.view
        now = self.now()
        if self.said[0] and self._is_past():
            self.said = "", "t"
        tone, first, rest = words.sentence(view, now, self.profiles.reports)
        if self.said[0] and not (self.said[1] == "t" and view.starting is not None):
            tone, first, rest = {"t": "dim"}.get(self.said[1], self.said[1]), self.said[0], ""
        n = len(view.rows)
        files = f"{n} file{'' if n == 1 else 's'}"
        contexts = [f"{safe(view.where)}, {files}", files] if view.at is not None else []
        rows = headline(Sentence("PROFILES", tone, first, rest), contexts, w)
        most = self._head_rows
        return [*shortened(rows, most, w), *([[]] * (most - len(rows)))]

    def lines(self, w: int, h: int) -> list[Line]:
        self._settle()
        view, now, row = self.profiles.view, self.now(), self.row
        rooms = plan(h, len(view.listed))
        names = [one.name for one in view.listed]
        at, fits = (names.index(self.cursor) if self.cursor in names else 0), max(1, rooms.list - 2)
        self.first = max(0, min(self.first, len(names) - fits, at))
        self.first = max(self.first, at - fits + 1)
        shown = table.Shown(view, self.profiles.reports, now, self.cursor, self.keymap.shown("import-profile"))
        key = self.keymap.shown("check-profile")
        subject = view.starting or row
        why = start.why_rows(row, w) if row is not None and row is not subject and words.failed_unchanged(row) else []
        if subject is not None and subject.state == "starting":
            rooms = starts(rooms)
        elif subject is None or subject.state != "stopping":
            wanted = start.wanted(subject, now, w, failed=not rooms.start)
            rooms = roomy(rooms, wanted, lambda n: len(start.rows(subject, now, w, n)), logs=bool(view.tail.of))
        # That of the one that was chosen before stands nowhere under the name of this one.
        tail = view.tail if subject is not None and view.tail.of == subject.name else Tail()
        parts = (
            (table.rows(shown, self.first, w, rooms.list), rooms.list),
            (findings.rows(row, self.profiles.checked, w, rooms.check, key, why=why), rooms.check),
            (start.rows(subject, now, w, rooms.start, self.keymap.shown("stop-profile")), rooms.start),
            (log.rows(tail, w, rooms.log, follows=subject is not None and subject.state == "starting"), rooms.log),
        )
        out: list[Line] = []
        for rows, room in parts:
            out += [*rows, *([[]] * room)][:room]
        return out


async def _done(question: Question) -> None:
    await question.yes()
