"""Style keys -> Rich styles of one theme: the only place where a colour becomes a style.

A style key is a few words. The first names a variable of the theme (or one of the short names below); then come
`bold`, `ul`, `rev` (the state chip) and `@name`, a background `shade-name`: `bright bold`, `warn rev`,
`cached-device @cursor`.
"""

from __future__ import annotations

from rich.style import Style
from textual.color import Color
from textual.theme import Theme

ALIASES: dict[str, str] = {
    "t": "text",
    "d": "dim",
    "f": "faint",
    "b": "bright",
    "computed-text": "computed",
    "prefill-text": "prefill",
    "decode-text": "decode",
}

_BARS = frozenset({"computed", "prefill", "fill-device"})
"""Drawn as areas: grey ones step back as far as rules do. Sixteen colours have one grey for all that is old."""
_ANSI_WORDS = {"@old": "bad", "@new": "ok", "@cached": "cached-device"}
"""Sixteen colours have no shades: plain text on one of these takes a colour of its own instead."""


class Ink:
    """The styles of one theme, made once a key."""

    def __init__(self, theme: Theme) -> None:
        self.theme = theme
        self._styles: dict[tuple[str, bool], Style] = {}

    def style(self, key: str, grey: bool = False) -> Style:
        """The style of a key; `grey`: without colour, its numbers are old. KeyError names an unknown variable."""
        found = self._styles.get((key, grey))
        if found is None:
            found = self._styles[key, grey] = self._make(key, grey)
        return found

    def _make(self, key: str, grey: bool) -> Style:
        first, *words = key.split()
        name = ALIASES.get(first, first)
        if grey and name != "faint":
            name = "faint" if first in _BARS or self.theme.ansi else "dim"
        if "rev" in words:
            return self._chip(name)
        shade = next((w for w in words if w.startswith("@")), "")
        bold = "bold" in words
        background = self._color_of_background()
        if shade and self.theme.ansi:
            bold = bold or shade == "@cursor"
            if name in ("text", "dim"):
                name = _ANSI_WORDS.get(shade, name)
        elif shade:
            background = self._color(f"shade-{shade[1:]}")
        return Style(
            color=self._color(name).rich_color,
            bgcolor=background.rich_color,
            bold=bold,
            underline="ul" in words,
        )

    def _chip(self, name: str) -> Style:
        ground = self._color(name).rich_color
        if self.theme.ansi:
            return Style(color=ground, bold=True, reverse=True)
        return Style(color=self._color("chip-text").rich_color, bgcolor=ground, bold=True)

    def _color(self, name: str) -> Color:
        try:
            return Color.parse(self.theme.variables[name])
        except KeyError:
            raise KeyError(f"theme {self.theme.name} has no variable {name!r}") from None

    def _color_of_background(self) -> Color:
        return Color.parse(self.theme.background or "ansi_default")
