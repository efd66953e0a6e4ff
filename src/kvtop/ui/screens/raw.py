"""A captured turn's bodies, JSON indented. Read and laid out beside the loop: they may be large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from textual.binding import BindingType

from kvtop.errors import KvtopError
from kvtop.live.desk import Desk
from kvtop.model.shown_turn import Turn
from kvtop.ui import keys
from kvtop.ui.draw import Line, cells, pick, safe
from kvtop.ui.keys import Keymap
from kvtop.ui.numbers import exact, traffic
from kvtop.ui.screens.page import Page
from kvtop.ui.widgets.panel import rule
from kvtop.worker import Hangs, Worker

MOST = 2_000_000
"""Bytes of a body that are shown."""
LAY_OUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Text:
    """A body fit to be shown."""

    lines: tuple[str, ...]
    size: int
    """Bytes of the whole body."""
    cut: bool = False
    """Only its beginning is shown."""
    indented: bool = False
    """It is JSON with a line a member: the white space is not what was sent."""


def laid_out(body: bytes | None) -> Text | None:
    """JSON with a line a member, anything else as it is; nothing of it can move the cursor."""
    if body is None:
        return None
    cut = len(body) > MOST
    try:
        text = msgspec.json.format(body if not cut else b"", indent=1)
    except (msgspec.MsgspecError, RecursionError):
        text = b""
    cut = cut or len(text) > MOST
    shown = (text or body)[:MOST].decode("utf-8", "replace")
    return Text(tuple(_shown(line) for line in shown.split("\n")), len(body), cut, indented=bool(text))


def _shown(line: str) -> str:
    line = line.removesuffix("\r")
    return line if line.isascii() and line.isprintable() else safe.__wrapped__(line)


def rows_of(text: Text, w: int) -> list[str]:
    """In rows of at most w cells; what a row does not hold goes on in the next one."""
    out: list[str] = []
    w = max(2, w)
    for line in text.lines:
        if line.isascii():
            out += [line[i : i + w] for i in range(0, len(line), w)] or [""]
            continue
        row, used = "", 0
        for char in line:
            n = cells(char)
            if used + n > w:
                out.append(row)
                row, used = "", 0
            row += char
            used += n
        out.append(row)
    return out


class RawScreen(Page):
    """First the request."""

    ON = keys.RAW
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings(keys.RAW)]

    def __init__(self, keymap: Keymap, desk: Desk, turn: Turn, now: Callable[[], float]) -> None:
        super().__init__(keymap, now)
        self.desk, self.row = desk, turn
        self.answer = False
        """The answer is shown, not the request."""
        self.texts: tuple[Text | None, Text | None] | None = None
        self.said = "is read from disk"
        self._made: tuple[object, list[Line]] = (None, [])

    def on_mount(self) -> None:
        super().on_mount()
        self.run_worker(self._read(), name="bodies", exit_on_error=False)

    async def _read(self) -> None:
        try:
            request, answer = await self.desk.bodies(self.row.id)
            self.texts = await Worker("lay out").call(lambda: (laid_out(request), laid_out(answer)), LAY_OUT_S)
        except KvtopError as error:
            self.said = error.what
        except (TimeoutError, Hangs):
            self.said = "it takes too long"
        self.redraw()

    def action_other_body(self) -> None:
        self.answer = not self.answer
        self.offset_lines = 0
        self.redraw()

    @property
    def text(self) -> Text | None:
        return self.texts[self.answer] if self.texts is not None else None

    def above(self, first: int, last: int, total: int, w: int) -> Line:
        name = f"Turn {self.row.id}: {'answer' if self.answer else 'request'}"
        text = self.text
        if text is None:
            return rule(name, w)
        lines, size = f"lines {exact(first)}–{exact(last)} of {exact(total)}", traffic(text.size)
        how = "JSON, indented here" if text.indented else "as it was sent"
        notes = [f"{how}, {lines}, {size}", f"{how}, {size}", f"{lines}, {size}", size]
        if text.cut:
            cut = f"{size}, only the first {traffic(MOST)} are shown"
            notes = [f"{how}, {lines}, {cut}", f"{lines}, {cut}", cut, f"{size}, cut"]
        return rule(name, w, [(pick(notes, w - cells(name) - 6), "warn" if text.cut else "d")])

    def lines(self, w: int, h: int) -> list[Line]:
        text = self.text
        if text is None:
            missing = "there is none" if self.texts is not None else self.said
            return [[(f" {safe(missing)}", "d")]]
        made_for = (w, self.answer, id(text))
        if self._made[0] != made_for:
            self._made = (made_for, [[(" ", "t"), (row, "t")] for row in rows_of(text, w - 1)])
        return self._made[1]
