"""Style keys become styles of the theme's variables."""

from __future__ import annotations

import pytest
from textual.color import Color

from kvtop import paths
from kvtop.ui import themes
from kvtop.ui.ink import ALIASES, Ink

FOUND = {t.name: t for t in themes.load((paths.builtin_themes(),)).themes}
DARK, SIXTEEN = Ink(FOUND["kvtop-dark"]), Ink(FOUND["kvtop-16"])


def front(ink: Ink, variable: str) -> object:
    return Color.parse(ink.theme.variables[variable]).rich_color


@pytest.mark.parametrize("name", sorted(FOUND))
@pytest.mark.parametrize("variable", [*themes.VARIABLES, *ALIASES])
def test_every_variable_and_alias_has_a_style(name: str, variable: str) -> None:
    ink = Ink(FOUND[name])
    for words in ("", " bold", " rev", " @cursor", " ul @help"):
        for grey in (False, True):
            ink.style(variable + words, grey)


def test_words_of_a_key() -> None:
    style = DARK.style("cached-device bold @cursor")
    assert style.color == front(DARK, "cached-device")
    assert style.bgcolor == front(DARK, "shade-cursor")
    assert style.bold
    assert not style.underline
    assert DARK.style("t ul").underline


def test_styles_are_kept() -> None:
    assert DARK.style("warn bold") is DARK.style("warn bold")


def test_old_numbers_lose_their_colour() -> None:
    assert DARK.style("bad", grey=True).color == front(DARK, "dim")
    assert DARK.style("computed", grey=True).color == front(DARK, "faint")
    assert DARK.style("f", grey=True).color == front(DARK, "faint")
    assert SIXTEEN.style("t", grey=True).color == front(SIXTEEN, "faint") != front(SIXTEEN, "dim")


def test_a_chip_in_sixteen_colours_is_reversed() -> None:
    chip = SIXTEEN.style("warn rev bold")
    assert chip.reverse
    assert chip.color == front(SIXTEEN, "warn")
    assert chip.bgcolor is None


def test_sixteen_colours_have_no_shades() -> None:
    cursor = SIXTEEN.style("t @cursor")
    assert cursor.bold
    assert cursor.bgcolor == Color.parse("ansi_default").rich_color
    assert SIXTEEN.style("t @old").color == front(SIXTEEN, "bad")


def test_an_unknown_variable_is_named() -> None:
    with pytest.raises(KeyError, match="kvtop-dark has no variable 'mauve'"):
        DARK.style("mauve bold")
