"""Lines of a log by Textual's line API: whatever their number, only those that are seen are made."""

from __future__ import annotations

import re

from rich.segment import Segment
from textual.filter import ANSIToTruecolor
from textual.strip import Strip
from textual.widget import Widget

from kvtop.live.logbook import LogBook
from kvtop.profiles.running.text import told
from kvtop.ui.draw import Line, cells, clip, fit, safe
from kvtop.ui.profiles.log import LEVELS
from kvtop.ui.widgets.panel import ink_of

SIDE_STEP = 20
"""Cells by which a key moves sideways."""
HEAD_CELLS = 16
"""Time and level."""


class LogLines(Widget):
    """`show` gives it a book."""

    DEFAULT_CSS = "LogLines { width: 1fr; height: 1fr; }"
    can_focus = False
    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.book = LogBook()
        self.top = 0
        """The first line that is seen."""
        self.follows = True
        """It stays at the end as the book grows."""
        self.side = 0
        """Cells of the text that are left of the screen."""
        self.found = ""
        """Text that is marked."""
        self.at: int | None = None
        """The line of the chosen match."""

    def show(self, book: LogBook, before: int = 0) -> None:
        """This book; `before`: lines that it has in front of those of the last one."""
        top = self.top
        self.book = book
        if self.at is not None:
            self.at += before
        self.go(self.end if self.follows else top + before)

    @property
    def end(self) -> int:
        return max(0, len(self.book) - self.size.height)

    def go(self, line: int) -> None:
        """Put that line on top, as far as there is one."""
        self.top = max(0, min(line, self.end))
        self.refresh()

    def reveal(self, line: int) -> None:
        """Show that line, in the middle where it was not seen."""
        self.at = line
        self._reveal_sideways(line)
        if not self.top <= line < self.top + self.size.height:
            self.go(line - self.size.height // 2)
        self.refresh()

    def _reveal_sideways(self, line: int) -> None:
        """So that what was found is seen, from the beginning of the line where that does."""
        room = self.size.width - HEAD_CELLS
        hit = self._hit(self._said(line))
        if hit is None or hit.end() < room:
            self.side = 0
        elif not self.side <= hit.start() <= hit.end() < self.side + room:
            self.side = max(0, hit.start() - room // 3)

    def _hit(self, text: str) -> re.Match[str] | None:
        return re.search(re.escape(self.found), text, re.IGNORECASE) if self.found else None

    def _told(self, line: int) -> tuple[str, str, str]:
        """As `text.told`; where only what that leaves out has the text that is looked for, the whole line."""
        whole = self.book.line(line)
        at, level, said = told(whole)
        if self.found and not any(map(self._hit, (at, LEVELS.get(level, ("",))[0], said))) and self._hit(whole):
            said = whole
        return at, level, said

    def _said(self, line: int) -> str:
        return safe.__wrapped__(self._told(line)[2])

    def on_resize(self) -> None:
        self.go(self.end if self.follows else self.top)

    def render_line(self, y: int) -> Strip:
        w = self.size.width
        i = self.top + y
        ink = ink_of(self.app.current_theme)
        line = self._line(i, w) if i < len(self.book) else fit([], w)
        strip = Strip([Segment(text, ink.style(key)) for text, key in line], w)
        for line_filter in self.get_line_filters():
            if not isinstance(line_filter, ANSIToTruecolor):
                strip = strip.apply_filter(line_filter, self.background_colors[1])
        return strip

    def _line(self, i: int, w: int) -> Line:
        at, level, said = self._told(i)
        word, style, text = LEVELS.get(level, ("", "d", "d"))
        here = i == self.at
        sign = "▸" if here else " "
        # cut before it is marked: behind the marks its end would be lost without a sign
        body = clip(safe.__wrapped__(said)[self.side :], max(0, w - HEAD_CELLS))
        line: Line = [(sign, "bright" if here else "d"), *self._marked(f"{at:<8} ", "bright" if here else "d")]
        return fit([*line, *self._marked(f"{word:<5} ", style), *self._marked(body, text)], w)

    def _marked(self, text: str, style: str) -> Line:
        if not self.found:
            return [(text, style)]
        out: Line = []
        done = 0
        for hit in re.finditer(re.escape(self.found), text, re.IGNORECASE):
            out += [(text[done : hit.start()], style), (hit[0], "bright bold ul @cursor")]
            done = hit.end()
        return [*out, (text[done:], style)]

    def widest(self) -> int:
        """Cells of the longest line that is seen."""
        seen = range(self.top, min(self.top + self.size.height, len(self.book)))
        return max((cells(self._said(i)) for i in seen), default=0)
