"""What the terminal sends, as events: Textual's parser, which a paste without an end cannot hold for ever."""

from __future__ import annotations

from collections.abc import Iterable

from textual._xterm_parser import BRACKETED_PASTE_END as END
from textual._xterm_parser import BRACKETED_PASTE_START as START
from textual._xterm_parser import XTermParser
from textual.message import Message

PASTE_CHARS = 1_000_000
"""Of a longer paste nothing is kept: there is no line here that it would be for."""


class Typed:
    """`feed` it what was read and ask `tick` while a key may be unsure; `silent` when nothing came for a while."""

    def __init__(self, debug: bool = False) -> None:
        self._debug = debug
        self._parser = XTermParser(debug)
        self._tail = ""
        """The end of what was fed, in which an end or a start may have begun."""
        self._pasted: int | None = None
        """Characters of the paste that is open; None: none is."""

    def feed(self, text: str) -> Iterable[Message]:
        if self._pasted is not None and self._pasted > PASTE_CHARS:
            _, end, after = (self._tail + text).partition(END)
            if not end:
                self._keep_tail(text)
                return
            self._anew()
            text = after
        if not text:  # would tell the parser that this is the end
            return
        seen = self._tail + text
        start, end_at = seen.rfind(START), seen.rfind(END)
        if start > end_at:
            self._pasted = len(seen) - start
        elif end_at >= 0:
            self._pasted = None
        elif self._pasted is not None:
            self._pasted += len(text)
        self._keep_tail(text)
        yield from self._parser.feed(text)
        if self._pasted is not None and self._pasted > PASTE_CHARS:
            self._parser = self._fresh()

    def tick(self) -> Iterable[Message]:
        return self._parser.tick()

    def silent(self) -> None:
        """A paste comes in one piece: one that is still open has lost its end. What follows are keys again."""
        if self._pasted is not None:
            self._anew()

    def _keep_tail(self, text: str) -> None:
        self._tail = (self._tail + text)[1 - len(END) :]

    def _anew(self) -> None:
        self._parser, self._pasted, self._tail = self._fresh(), None, ""

    def _fresh(self) -> XTermParser:
        """A parser that knows what the terminal said of its pixels to the last one."""
        old, new = self._parser, XTermParser(self._debug)
        new.mouse_pixels = old.mouse_pixels
        new.terminal_size, new.terminal_pixel_size = old.terminal_size, old.terminal_pixel_size
        new.last_x, new.last_y = old.last_x, old.last_y
        return new
