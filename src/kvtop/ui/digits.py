"""Big digits: three rows of half blocks, five pixels high and three wide. Read across a room."""

from __future__ import annotations

_PIXELS = {
    "0": ("###", "# #", "# #", "# #", "###"),
    "1": (" # ", "## ", " # ", " # ", "###"),
    "2": ("###", "  #", "###", "#  ", "###"),
    "3": ("###", "  #", "###", "  #", "###"),
    "4": ("# #", "# #", "###", "  #", "  #"),
    "5": ("###", "#  ", "###", "  #", "###"),
    "6": ("###", "#  ", "###", "# #", "###"),
    "7": ("###", "  #", "  #", "  #", "  #"),
    "8": ("###", "# #", "###", "# #", "###"),
    "9": ("###", "# #", "###", "  #", "###"),
    "–": ("   ", "   ", "###", "   ", "   "),
    " ": ("   ", "   ", "   ", "   ", "   "),
}
_HALF = {("#", "#"): "█", ("#", " "): "▀", (" ", "#"): "▄", (" ", " "): " "}


def big(text: str, places: int = 2) -> list[str]:
    """Three rows, right-aligned in so many digits: 9 and 96 end in the same column."""
    glyphs = [(*_PIXELS[char], "   ") for char in text.rjust(places)]
    return [
        " ".join("".join(_HALF[pair] for pair in zip(glyph[row], glyph[row + 1], strict=True)) for glyph in glyphs)
        for row in (0, 2, 4)
    ]
