"""The chosen turn, beside the table where there is room."""

from __future__ import annotations

from kvtop.ui.draw import Line, cells, pick
from kvtop.ui.keys import Keymap
from kvtop.ui.turn_words import origin, preview
from kvtop.ui.widgets.box import BoxPanel


class Preview(BoxPanel):
    def __init__(self, keymap: Keymap, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.keymap = keymap

    def heading_name(self) -> str:
        turn = self.scene.turn if self.scene else None
        return f"Turn {turn.name}" if turn and turn.numbered else "Turn"

    def note(self, w: int) -> Line:
        turn = self.scene.turn if self.scene else None
        if turn is None:
            return []
        opens = f"{self.keymap.shown('turn')} opens it"
        return [(pick([f"{origin(turn, None, self.at, w - cells(opens) - 4)}, {opens}", opens, ""], w), "d")]

    def body(self, w: int, h: int) -> list[Line]:
        turn = self.scene.turn if self.scene else None
        if turn is None:
            return [[("no turn is chosen", "d")]]
        return preview(turn, self.server, self.at, w)[:h]
