"""The log of a profile's server: from its end, searched, followed. Read and looked through beside the loop."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.worker import Worker

from kvtop.errors import KvtopError
from kvtop.live.logbook import FIRST, KEPT, LogBook, LogReader
from kvtop.profiles.running import tools
from kvtop.ui import faults, keys
from kvtop.ui.draw import Line, cells, clip, pick, safe
from kvtop.ui.keys import Keymap
from kvtop.ui.line_edit import edited, pasted
from kvtop.ui.numbers import exact, traffic
from kvtop.ui.widgets.foot import Foot
from kvtop.ui.widgets.log_lines import HEAD_CELLS, SIDE_STEP, LogLines
from kvtop.ui.widgets.panel import Panel, rule
from kvtop.worker import Hangs
from kvtop.worker import Worker as Beside

if TYPE_CHECKING:
    from kvtop.profiles.running.record import Record

MORE_S = 0.25
READ_S = 60.0


class Title(Panel):
    """The rule over the log."""

    DEFAULT_CSS = "Title { position: relative; width: 1fr; height: 1; }"

    def all_lines(self, w: int, h: int) -> list[Line]:
        page = self.screen
        return [page.title_line(w)] if isinstance(page, LogScreen) else []


class LogScreen(Screen[None]):
    """Of the last start of one profile."""

    ON = keys.LOG
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings(keys.LOG)]
    DEFAULT_CSS = """
    LogScreen { layout: vertical; background: $background; overflow: hidden; }
    LogScreen Foot { position: relative; width: 1fr; height: 1; }
    """
    AUTO_FOCUS = ""

    def __init__(self, keymap: Keymap, state: Record, now: Callable[[], float]) -> None:
        super().__init__()
        self.keymap, self.now = keymap, now
        self.reader = LogReader(state)
        self.name_of = state.name
        self.typing = False
        self.words = ""
        """What is searched, or being typed."""
        self.matches: Sequence[int] = ()
        self._wanted = ""
        """What is looked for just now, and gone to; empty: nothing."""
        self.said = "is read"
        """In place of what is known of the log; empty: it is there."""
        self.polls = False
        """Lines that only tell of answered polls are shown."""
        self._anew = False
        """It is to be read once more."""
        self._worker = Beside("log")

    def compose(self) -> ComposeResult:
        yield Title(id="title")
        yield LogLines(id="lines")
        yield Foot(self.keymap, self.ON, id="foot")

    def on_mount(self) -> None:
        self.set_interval(1.0, self._show_foot)
        self._show_foot()
        self.run_worker(self._follow(), name="log", exit_on_error=False)

    def on_unmount(self) -> None:
        self.reader.close()

    def on_resize(self) -> None:
        self.call_after_refresh(self._redraw)  # the title tells which lines are seen

    @property
    def log_lines(self) -> LogLines:
        return self.query_one(LogLines)

    # ---- reading
    async def _follow(self) -> None:
        """The end first, then as much as is held, then what comes."""
        import asyncio

        while True:
            await self._go_on()
            anew, self._anew = self._anew, False
            for most in (KEPT,) if anew else (FIRST, KEPT):
                book = await self._read(most)
                if book is None or self._anew:
                    break
                lines = self.log_lines
                if anew:
                    await self._show_anew(book)
                else:
                    lines.show(book, max(0, len(book) - len(lines.book)) if lines.book.size else 0)
                if lines.found:  # its lines have other numbers now
                    await self._search(lines.found, go=False)
                self._redraw()
                if not book.skipped:
                    break
            while not self.said and not self._anew:
                try:
                    data = await self._worker.call(self.reader.more, READ_S)
                except (TimeoutError, Hangs):
                    data = b""
                if data:
                    self._more(data)
                    if self.log_lines.book.size - self.log_lines.book.skipped > 2 * KEPT:
                        break  # read its end anew
                if await self._go_on():
                    break
                await asyncio.sleep(MORE_S)
            else:
                await asyncio.sleep(0.0 if self._anew else 1.0)

    async def _go_on(self) -> bool:
        """To the log that its start writes by now, for whoever follows it; True: it was another one."""
        state = None
        if self.log_lines.follows:
            with contextlib.suppress(TimeoutError, Hangs):
                state = await self._worker.call(self.reader.elsewhere, READ_S)
        if state is None:
            return False
        self.reader.close()
        self.reader, self.said = LogReader(state), "is read"
        self.matches, self.log_lines.at = (), None
        self.log_lines.show(LogBook())
        self._redraw()
        return True

    async def _read(self, most: int) -> LogBook | None:
        try:
            book = await self._worker.call(lambda: self.reader.read(most, polls=self.polls), READ_S)
        except (TimeoutError, Hangs):
            self.said = "takes too long to read"
        except (OSError, tools.Failed, KvtopError) as error:
            self.said = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        else:
            self.said = ""
            return book
        self._redraw()
        return None

    def _more(self, data: bytes) -> None:
        lines = self.log_lines
        lines.book.feed(data)
        lines.show(lines.book)
        self._redraw()

    async def _show_anew(self, book: LogBook) -> None:
        """At the line that was on top, as far as it is there still."""
        lines = self.log_lines
        there: Sequence[int] = ()
        if not lines.follows and lines.top < len(lines.book):
            with contextlib.suppress(TimeoutError, Hangs):
                there = await self._worker.call(partial(book.matches, lines.book.line(lines.top)), READ_S)
        lines.show(book)
        if there and not lines.follows:
            lines.go(there[min(bisect_left(there, lines.top), len(there) - 1)])

    # ---- moving
    def _go(self, line: int) -> None:
        lines = self.log_lines
        lines.follows = False
        lines.go(line)
        self._redraw()

    def action_up(self) -> None:
        self._go(self.log_lines.top - 1)

    def action_down(self) -> None:
        self._go(self.log_lines.top + 1)

    def action_page_up(self) -> None:
        self._go(self.log_lines.top - max(1, self.log_lines.size.height - 1))

    def action_page_down(self) -> None:
        self._go(self.log_lines.top + max(1, self.log_lines.size.height - 1))

    def action_first(self) -> None:
        self._go(0)

    def action_last(self) -> None:
        self._go(self.log_lines.end)

    def action_left(self) -> None:
        self._sideways(-SIDE_STEP)

    def action_right(self) -> None:
        self._sideways(SIDE_STEP)

    def _sideways(self, by: int) -> None:
        lines = self.log_lines
        most = max(0, lines.widest() + HEAD_CELLS - lines.size.width)
        lines.side = max(0, min(lines.side + by, most if by > 0 else lines.side))
        lines.refresh()
        self._redraw()

    def on_mouse_scroll_down(self) -> None:
        self._go(self.log_lines.top + 3)

    def on_mouse_scroll_up(self) -> None:
        self._go(self.log_lines.top - 3)

    def action_follow_log(self) -> None:
        lines = self.log_lines
        lines.follows = not lines.follows
        if lines.follows:
            lines.side = 0  # what comes is read from its beginning
            lines.go(lines.end)
        self._redraw()

    def action_all_lines(self) -> None:
        """With the polls, or without them again."""
        self.polls = not self.polls
        self._anew = True

    # ---- searching
    def action_search_log(self) -> None:
        self.typing, self.words = True, ""
        self._show_foot()

    def on_key(self, event: events.Key) -> None:
        if not self.typing and event.key in self.keymap.action("search-log").keys:
            # at once: what is typed right behind it would come before its action
            event.stop()
            self.action_search_log()
            return
        if not self.typing or event.key in ("ctrl+c", "ctrl+q", "ctrl+z"):
            return
        event.stop()
        event.prevent_default()
        if event.key == "enter":
            self.typing = False
            search = self._search(self.words)
            self.run_worker(search, name="search", group="search", exclusive=True, exit_on_error=False)
        elif event.key == "escape":
            self.workers.cancel_group(self, "search")
            self.typing, self.words, self._wanted = False, self.log_lines.found, ""  # what was found before stays
            self._redraw()
        else:
            self.words = edited(self.words, event)
        self._show_foot()

    def on_paste(self, event: events.Paste) -> None:
        if self.typing:
            event.stop()
            self.words = pasted(self.words, event)
            self._show_foot()

    async def _search(self, text: str, *, go: bool = True) -> None:
        """Find it, and `go` to where it stands."""
        if go:
            self._wanted = text
            self._redraw()
        lines = self.log_lines
        searched: LogBook | None = None
        while searched is not lines.book:  # more of the log may come meanwhile
            searched = lines.book
            try:
                found = await Beside("search").call(partial(searched.matches, text), READ_S)
            except TimeoutError:
                if go:
                    self._wanted, self.words = "", ""
                    self._mark("")
                    self.app.notify(f"The search took longer than {READ_S:g} s.", severity="warning", markup=False)
                self.matches = ()  # those of before have other numbers by now
                self._redraw()
                return
        if not go and (self._wanted or text != lines.found):
            return  # something else is looked for by now
        self._wanted, self.matches = "", found
        if go:
            self._mark(text)
        if found and go:
            # What stands on the screen or below it, else the last one above.
            at = bisect_left(found, lines.top)
            self._to(at if at < len(found) else len(found) - 1)
        self._redraw()

    def _mark(self, text: str) -> None:
        self.log_lines.found, self.log_lines.at = text, None
        self.log_lines.refresh()

    def _to(self, n: int) -> None:
        if self.matches:
            self.log_lines.follows = False
            self.log_lines.reveal(self.matches[n % len(self.matches)])
            self._redraw()

    def action_next_match(self) -> None:
        """From the last one to the first."""
        here = self.log_lines.at if self.log_lines.at is not None else self.log_lines.top - 1
        self._to(bisect_right(self.matches, here))

    def action_previous_match(self) -> None:
        here = self.log_lines.at if self.log_lines.at is not None else self.log_lines.top
        self._to(bisect_left(self.matches, here) - 1)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        faults.say(self.app, event)

    # ---- painting
    def title_line(self, w: int) -> Line:
        name = f"Log {safe(self.name_of)}"
        return rule(name, w, [(pick(self._notes(w), w - cells(name) - 6), "d")])

    def _notes(self, w: int) -> list[str]:
        where = safe(self.reader.where)
        if self.said:
            return [f"{where} {safe(self.said)}", safe(self.said)]
        lines, book = self.log_lines, self.log_lines.book
        n = len(book)
        last = min(lines.top + lines.size.height, n)
        seen = f"lines {exact(min(lines.top + 1, n))}–{exact(last)} of {exact(n)}"
        size = f"the last {traffic(book.size - book.skipped)} of {traffic(book.size)}" if book.skipped else ""
        found = self._found()
        side = f"from cell {lines.side}" if lines.side else ""
        follows = "following" if lines.follows else ""
        left_out = self.reader.left_out
        polls = f"{exact(left_out)} poll{'s' * (left_out != 1)} left out" if left_out else ""
        parts = [part for part in (found, seen, polls, size, side, follows) if part]
        short = [part for part in (found, seen, follows) if part]
        return [", ".join([where, *parts]), ", ".join(parts), ", ".join(short), clip(found or seen, w)]

    def _found(self) -> str:
        words = safe(clip(self.words, 24))
        if not self.words or self.typing:
            return ""
        if self._wanted:
            return f"looks for “{words}”"
        if not self.matches:
            return f"nothing has “{words}”"
        at = self.log_lines.at
        if at is None:
            return f"{exact(len(self.matches))} lines have “{words}”"
        return f"{exact(bisect_right(self.matches, at))} of {exact(len(self.matches))} with “{words}”"

    def _redraw(self) -> None:
        for title in self.query(Title):
            title.redraw()

    def _show_foot(self) -> None:
        for foot in self.query(Foot):
            foot.set(clock=self.now(), prompt=self._prompt() if self.typing else ())

    def _prompt(self) -> list[Line]:
        typed: Line = [("/", "t bold"), (safe(self.words), "t"), ("▏", "bright")]
        return [[*typed, ("  enter finds it  esc closes", "d")], typed]
