"""The chosen turn, beside the table where there is room."""

from __future__ import annotations

from kvtop.ui.draw import Line, pick
from kvtop.ui.turn_words import about, preview
from kvtop.ui.widgets.box import BoxPanel


class Preview(BoxPanel):
    def heading_name(self) -> str:
        turn = self.scene.turn if self.scene else None
        return f"Turn {turn.id}" if turn else "Turn"

    def note(self, w: int) -> Line:
        turn = self.scene.turn if self.scene else None
        if turn is None:
            return []
        return [(pick([f"{about(turn, None, w - 18)}, enter opens it", "enter opens it", ""], w), "d")]

    def body(self, w: int, h: int) -> list[Line]:
        turn = self.scene.turn if self.scene else None
        if turn is None:
            return [[("no turn is chosen", "d")]]
        return preview(turn, self.server, self.at, w)[:h]
