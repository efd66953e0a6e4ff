"""The base of everything that is drawn: a title rule with its context at the right end, and lines under it.

A panel makes lines of (text, style key) in `body`. Only lines that differ from the last ones are repainted, and each
line's strip is kept until its line changes: a second in which nothing moved costs next to nothing.
"""

from __future__ import annotations

import logging

from rich.segment import Segment
from textual.filter import ANSIToTruecolor
from textual.geometry import Region
from textual.strip import Strip
from textual.theme import Theme
from textual.widget import Widget

from kvtop.ui.draw import SUPER, Line, cells, clip, fit, width
from kvtop.ui.ink import Ink

LOG = logging.getLogger("kvtop.ui")
_inks: dict[str, Ink] = {}


def ink_of(theme: Theme) -> Ink:
    """The styles of a theme, kept: every panel of a screen shares them."""
    ink = _inks.get(theme.name)
    if ink is None or ink.theme is not theme:
        ink = _inks[theme.name] = Ink(theme)
    return ink


def rule(title: str, w: int, note: Line | None = None, number: int = 0) -> Line:
    """A title rule of w cells: number, name, rule, context. The context is cut before the name is."""
    left: Line = [(SUPER[number] if number else " ", "d"), (title, "t bold"), (" ", "t")]
    room = w - width(left)
    right = note or []
    if right and width(right) + 3 > room:
        right = [(clip("".join(text for text, _ in right), max(0, room - 3)), right[0][1])]
    taken = width(right) + 1 if right and right[0][0] else 0
    return [*left, ("─" * max(0, room - taken), "f"), *([(" ", "t"), *right] if taken else [])]


class Panel(Widget):
    """A title rule and lines under it. Subclasses say what `body` is; they compute nothing but wording and placing."""

    DEFAULT_CSS = "Panel { position: absolute; }"
    ALLOW_SELECT = False
    can_focus = False

    NUMBER = 0
    """Its key, written small before its name; 0: none."""
    NAME = ""
    PAD = 1
    """Cells left of the body: it starts under the first letter of the name."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._strips: dict[int, Strip] = {}
        self._made_for: tuple[int, int, str] | None = None
        self._made_of: object = None
        self._grey = False

    # ---- what subclasses say
    def heading_name(self) -> str:
        """The name in the title rule."""
        return self.NAME

    def note(self, w: int) -> Line:
        """The context at the right end of the title rule; w cells are free for it."""
        return []

    def body(self, w: int, h: int) -> list[Line]:
        """The lines under the title, at most h of w cells."""
        return []

    def grey(self) -> bool:
        """What is shown is old: the body is drawn without colour."""
        return False

    def depends(self) -> object:
        """What the lines are made of; as long as it is equal, they are not made anew. None: always make them."""
        return None

    def all_lines(self, w: int, h: int) -> list[Line]:
        """Title and body. Panels without a title say everything here."""
        left = 2 + cells(self.heading_name())
        head = rule(self.heading_name(), w, self.note(max(0, w - left - 4)), self.NUMBER)
        pad: Line = [(" " * self.PAD, "t")] if self.PAD else []
        return [head] + [pad + line for line in self.body(w - self.PAD, h - 1)]

    # ---- painting
    def _made(self, w: int, h: int) -> list[Line]:
        try:
            return self.all_lines(w, h)
        except Exception as error:
            LOG.exception("%s could not be drawn", type(self).__name__)
            return [[(clip(f" {self.NAME} could not be drawn: {type(error).__name__}", w), "warn")]]

    def redraw(self) -> None:
        """Make the lines anew and repaint those that differ."""
        w, h = self.size
        if not w or not h:
            return
        made_for = (w, h, self.app.theme)
        made_of = self.depends()
        if made_for == self._made_for and made_of is not None and made_of == self._made_of:
            return
        grey = self.grey()
        fresh = made_for != self._made_for or grey != self._grey
        self._made_of, self._grey = made_of, grey
        old, new = self._lines, self._made(w, h)
        self._lines, self._made_for = new, made_for
        if fresh:
            self._strips.clear()
            self.refresh()
            return
        changed = [y for y in range(h) if (old[y] if y < len(old) else None) != (new[y] if y < len(new) else None)]
        for y in changed:
            self._strips.pop(y, None)
        if changed:
            self.refresh(*(Region(0, y, w, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        return self._strip(y, self._fitting())

    def _fitting(self) -> int:
        """Make the lines where there are none of this size and theme; the width."""
        w, h = self.size
        made_for = (w, h, self.app.theme)
        if made_for != self._made_for:
            self._made_for, self._made_of = made_for, self.depends()
            self._strips.clear()
            self._grey = self.grey()
            self._lines = self._made(w, h)
        return w

    def _strip(self, y: int, w: int) -> Strip:
        strip = self._strips.get(y)
        if strip is None:
            ink = ink_of(self.app.current_theme)
            line = fit(self._lines[y], w) if y < len(self._lines) else [(" " * w, "t")]
            grey = self._grey and y > 0
            strip = Strip([Segment(text, ink.style(key, grey)) for text, key in line], w)
            background = self.background_colors[1]
            for line_filter in self.get_line_filters():
                if not isinstance(line_filter, ANSIToTruecolor):  # a theme's colours are all of the one kind already
                    strip = strip.apply_filter(line_filter, background)
            self._strips[y] = strip
        return strip

    def render_lines(self, crop: Region) -> list[Strip]:
        """The strips as they are: a panel has no border, padding or opacity for Textual to add each time."""
        w = self._fitting()  # once: Textual works a widget's size out anew each time it is asked
        strips = [self._strip(y, w) for y in crop.line_range]
        if crop.column_span != (0, w):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def text_lines(self) -> list[str]:
        """What is shown now, as plain text, for tests."""
        return ["".join(text for text, _ in line) for line in self._lines]
