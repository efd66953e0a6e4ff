"""A line that something is typed into, above the footer: its keys are text, esc closes it, ctrl+u empties it."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Input


class LineInput(Input):
    """Hidden until it is opened."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "close", "close"), ("ctrl+u", "clear", "clear")]
    DEFAULT_CSS = """
    LineInput { display: none; height: 1; border: none; padding: 0 1; background: $shade-cursor; color: $text; }
    LineInput:focus { border: none; background: $shade-cursor; }
    LineInput.open { display: block; }
    """

    class Closed(Message):
        """esc."""

    @property
    def is_open(self) -> bool:
        return self.has_class("open")

    def open_line(self, value: str = "") -> None:
        self.select_on_focus = False
        self.value = value
        self.cursor_position = len(value)
        self.add_class("open")
        self.focus()

    def close_line(self) -> None:
        self.remove_class("open")
        self.value = ""
        if self.has_focus:
            self.screen.set_focus(None)

    def action_clear(self) -> None:
        self.value = ""

    def action_close(self) -> None:
        self.close_line()
        self.post_message(self.Closed())
