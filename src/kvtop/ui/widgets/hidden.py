"""What stands in the middle of a dashboard whose panels are all hidden."""

from __future__ import annotations

from kvtop.ui.draw import Line, cells, pick
from kvtop.ui.keys import Keymap
from kvtop.ui.widgets.box import BoxPanel


class Hidden(BoxPanel):
    """One line: how to bring them back."""

    def __init__(self, keymap: Keymap, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.keymap = keymap

    def depends(self) -> object:
        return self.keymap

    def all_lines(self, w: int, h: int) -> list[Line]:
        keys = self.keymap.panels()
        said = pick([f"all panels are hidden: {keys} show them", f"{keys} show panels", keys], w)
        return [[]] * ((h - 1) // 2) + [[(" " * ((w - cells(said)) // 2), "t"), (said, "d")]]
