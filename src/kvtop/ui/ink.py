"""Style keys to Rich styles, one cache a theme."""

from __future__ import annotations

from rich.style import Style
from textual.color import Color
from textual.theme import Theme

ALIAS = {"t": "text", "d": "dim", "f": "faint"}


class Ink:
    """What a style key looks like in one theme."""

    def __init__(self, theme: Theme) -> None:
        self.theme = theme
        self._styles: dict[tuple[str, bool], Style] = {}

    def style(self, key: str, grey: bool = False) -> Style:
        """The style of a key; grey: drawn without meaning, because what it shows is old."""
        style = self._styles.get((key, grey))
        if style is None:
            style = self._styles[key, grey] = self._make(key, grey)
        return style

    def _make(self, key: str, grey: bool) -> Style:
        words = key.split()
        name = ALIAS.get(words[0], words[0])
        if grey and name != "faint":
            name = "faint" if name in ("computed", "prefill", "fill-device") else "dim"
        variables = self.theme.variables
        front = Color.parse(variables[name])
        back = Color.parse(self.theme.background or "ansi_default")
        bold = "bold" in words
        if "rev" in words:
            if self.theme.ansi:
                return Style(color=front.rich_color, bold=True, reverse=True)
            return Style(color=Color.parse(variables["chip-text"]).rich_color, bgcolor=front.rich_color, bold=True)
        for word in words[1:]:
            if word.startswith("@"):
                if self.theme.ansi:
                    bold = bold or word == "@cursor"
                else:
                    back = Color.parse(variables["shade-" + word[1:]])
        return Style(color=front.rich_color, bgcolor=back.rich_color, bold=bold, underline="ul" in words)
