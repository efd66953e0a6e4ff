"""The keys that work here, and the time."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events

from kvtop.ui.draw import Line, cells, pick_line, spread, width
from kvtop.ui.keys import Footer, Keymap
from kvtop.ui.numbers import hms
from kvtop.ui.widgets.panel import Panel


class Foot(Panel):
    """One row: keys left, clock right. A click on a key does what the key does."""

    def __init__(
        self, keymap: Keymap, screen: str, *, id: str | None = None, hide: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(id=id)
        self.keymap, self.on = keymap, screen
        self.hide = hide
        """Actions that mean nothing here just now, for instance the next server where there is one."""
        self.clock: float | None = None
        """Unix time to show."""
        self.word = ""
        """What must not be missed: DEMO, FROZEN."""
        self.more = ""
        """That text goes on above or below what is seen."""
        self.prompt: tuple[Line, ...] = ()
        """What is being typed, longest wording first; it takes the place of the keys."""
        self._spots: list[tuple[int, int, Footer]] = []

    def set(
        self,
        *,
        clock: float | None,
        word: str = "",
        more: str = "",
        hide: frozenset[str] = frozenset(),
        prompt: Sequence[Line] = (),
    ) -> None:
        """Show these."""
        self.more = more
        self.clock, self.word, self.hide, self.prompt = clock, word, hide, tuple(prompt)
        self.redraw()

    def depends(self) -> object:
        return hms(self.clock), self.word, self.more, self.hide, self.keymap, self.prompt

    def all_lines(self, w: int, h: int) -> list[Line]:
        time = hms(self.clock) if w >= 60 and self.clock is not None else ""
        right: Line = [(self.word, "warn bold")] if self.word else []
        right += [*([("  ", "t")] if right else []), (self.more, "t bold")] if self.more else []
        if time:
            right += [("  ", "t"), (time, "d")] if right else [(time, "d")]
        taken = sum(cells(text) for text, _ in right)
        line: Line = []
        self._spots = []
        room = w - taken - (2 if taken else 0)
        if self.prompt:
            prompt = pick_line(self.prompt, room)
            if width(prompt) > room:  # what is asked comes before the time
                return [pick_line(self.prompt, w)]
            return [spread(prompt, right, w) if right else prompt]
        x = 0
        for item in self.keymap.footer(self.on, room, self.hide):
            line += [("  " if line else "", "d"), (item.keys, "t bold"), (f" {item.label}", "d")]
            self._spots.append((x, x + item.cells - 2, item))
            x += item.cells
        return [spread(line, right, w) if right else line]

    def on_click(self, event: events.Click) -> None:
        event.stop()
        for a, b, item in self._spots:
            if a <= event.x < b:
                self.press(item)
                return

    def press(self, item: Footer) -> None:
        """Do what the key does."""
        for action in self.keymap.on(self.on):
            if action.label == item.label and self.keymap.shown(action.id) == item.keys:
                self.app.simulate_key(action.keys[0])
                return
