"""A full screen of lines: a head that stays, text that scrolls where it is too long, and the footer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.worker import Worker

from kvtop.ui import faults
from kvtop.ui.draw import Line
from kvtop.ui.keys import Keymap
from kvtop.ui.widgets.foot import Foot
from kvtop.ui.widgets.panel import Panel

LEFT_S = 0.05
"""A page that is left again sooner has nothing worked out for it: of many quick keys only the last one's page has."""


class Body(Panel):
    """The lines of its page."""

    DEFAULT_CSS = "Body { position: relative; width: 1fr; height: 1fr; }"

    def all_lines(self, w: int, h: int) -> list[Line]:
        page = self.screen
        return page.rows_seen(w, h) if isinstance(page, Page) else []

    def on_click(self, event: events.Click) -> None:
        if isinstance(self.screen, Page):
            self.screen.clicked(event.x, event.y)

    def on_mouse_scroll_down(self) -> None:
        self._scroll(3)

    def on_mouse_scroll_up(self) -> None:
        self._scroll(-3)

    def _scroll(self, lines: int) -> None:
        if isinstance(self.screen, Page):
            self.screen.scroll_lines(lines)


class Page(Screen[None]):
    """Subclasses say `head` and `lines`, and which screen of the key table they are."""

    ON: ClassVar[str]
    """The screen of the key table."""
    DEFAULT_CSS = """
    Page { layout: vertical; background: $background; }
    Page Foot { position: relative; width: 1fr; height: 1; }
    """
    AUTO_FOCUS = ""

    def __init__(self, keymap: Keymap, now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.keymap, self.now = keymap, now
        self.offset_lines = 0
        """Lines of the scrolled part that are above the screen."""
        self._more = ""
        """At the last painting: that lines are above or below the screen."""
        self._rows = 0
        """Lines of the scrolled part that fitted at the last painting."""

    # ---- what subclasses say
    def head(self, w: int) -> list[Line]:
        """The rows that stay, w cells wide."""
        return []

    def lines(self, w: int, h: int) -> list[Line]:
        """The rows under the head; those beyond h are reached by scrolling."""
        return []

    def above(self, first: int, last: int, total: int, w: int) -> Line | None:
        """A row over the scrolled part that says what of it is seen; None: no such row."""
        return None

    def prompt(self) -> Sequence[Line]:
        """What stands in the place of the keys while something is typed, longest first; empty: the keys."""
        return ()

    def hidden_keys(self) -> frozenset[str]:
        """Actions that mean nothing here just now."""
        return frozenset()

    def clicked(self, x: int, y: int) -> None:
        """A click into a cell of the body, which begins with the head."""

    # ---- painting
    def compose(self) -> ComposeResult:
        yield Body(id="body")
        yield Foot(self.keymap, self.ON, id="foot", hide=self.hidden_keys())

    def on_mount(self) -> None:
        self.set_interval(1.0, self.tick)
        self.tick()

    def tick(self) -> None:
        """Once a second: the clock, and whatever the subclass adds."""
        if self.is_current:
            self.set_foot()

    def set_foot(self) -> None:
        """The clock, and the keys that mean something."""
        for foot in self.query(Foot):  # none before the page is composed, and while it goes
            foot.set(clock=self.now(), more=self._more, hide=self.hidden_keys(), prompt=self.prompt())

    def redraw(self) -> None:
        """Make the lines anew and paint those that changed."""
        for body in self.query(Body):
            body.redraw()
        self.call_after_refresh(self.set_foot)  # whether there is more is known when it is painted

    def rows_seen(self, w: int, h: int) -> list[Line]:
        """Head and the part of the lines that is scrolled to."""
        head = self.head(w)[:h]
        self._rows = max(0, h - len(head) - (1 if self.above(0, 0, 0, w) is not None else 0))
        lines = self.lines(w, self._rows)
        self.offset_lines = max(0, min(self.offset_lines, len(lines) - self._rows))
        part = lines[self.offset_lines : self.offset_lines + self._rows]
        up, down = self.offset_lines > 0, self.offset_lines + len(part) < len(lines)
        self._more = {(False, True): "↓ more", (True, False): "↑ more", (True, True): "↑↓ more"}.get((up, down), "")
        rule = self.above(self.offset_lines + 1, self.offset_lines + len(part), len(lines), w)
        if rule is not None:
            self._more = ""  # the rule says it
        return [*head, *([rule] if rule is not None and len(head) < h else []), *part]

    # ---- scrolling
    def scroll_lines(self, lines: int) -> None:
        """Down by that many lines; negative is up."""
        self.offset_lines = max(0, self.offset_lines + lines)
        self.redraw()

    def action_up(self) -> None:
        self.scroll_lines(-1)

    def action_down(self) -> None:
        self.scroll_lines(1)

    def action_page_up(self) -> None:
        self.scroll_lines(-max(1, self._rows - 1))

    def action_page_down(self) -> None:
        self.scroll_lines(max(1, self._rows - 1))

    def action_first(self) -> None:
        self.scroll_lines(-self.offset_lines)

    def action_last(self) -> None:
        self.scroll_lines(1_000_000)

    def on_resize(self, event: events.Resize) -> None:
        self.redraw()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        faults.say(self.app, event)
