"""Theme files are checked before Textual sees them; the shipped ones can be read."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.color import Color
from textual.theme import Theme

from kvtop import paths
from kvtop.ui import themes

SHIPPED = themes.load((paths.builtin_themes(),))
DARK = (paths.builtin_themes() / "kvtop-dark.toml").read_text()
TRUECOLOR = [t for t in SHIPPED.themes if not t.ansi]


def luminance(color: Color) -> float:
    """WCAG 2 relative luminance."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color.normalized]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(Color.parse(a)), luminance(Color.parse(b))))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_formula_is_the_standards_one() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_five_themes_are_shipped_and_good() -> None:
    assert not SHIPPED.bad
    assert set(SHIPPED.names) == {
        "kvtop-dark", "kvtop-light", "kvtop-16", "kvtop-colorblind", "kvtop-light-colorblind",
    }  # fmt: skip
    assert {t.name for t in SHIPPED.themes if t.ansi} == {"kvtop-16"}


@pytest.mark.parametrize("theme", TRUECOLOR, ids=lambda t: t.name)
@pytest.mark.parametrize("word", themes.WORDS)
def test_words_can_be_read_on_every_ground(theme: Theme, word: str) -> None:
    grounds = {"background": theme.background, **{k: v for k, v in theme.variables.items() if k.startswith("shade-")}}
    low = {name: contrast(theme.variables[word], ground) for name, ground in grounds.items() if ground}
    assert len(low) == 6
    assert min(low.values()) >= 4.5, low


@pytest.mark.parametrize("theme", TRUECOLOR, ids=lambda t: t.name)
@pytest.mark.parametrize("tone", ["ok", "warn", "bad", "dim"])
def test_the_word_in_a_chip_can_be_read(theme: Theme, tone: str) -> None:
    assert contrast(theme.variables["chip-text"], theme.variables[tone]) >= 4.5


@pytest.mark.parametrize("theme", TRUECOLOR, ids=lambda t: t.name)
def test_rules_and_fills_step_back(theme: Theme) -> None:
    assert theme.background
    for name in ("faint", "fill-device"):
        assert 1.3 < contrast(theme.variables[name], theme.background) < 3


def test_sixteen_colours_leave_ground_and_text_to_the_terminal() -> None:
    """White text on white or black on black cannot happen where neither is chosen; only mid tones are."""
    theme = SHIPPED.get("kvtop-16")
    assert theme is not None
    assert (theme.background, theme.foreground, theme.surface, theme.panel) == ("ansi_default",) * 4
    assert theme.variables["text"] == theme.variables["bright"] == "ansi_default"
    for word in themes.WORDS:
        assert theme.variables[word] not in ("ansi_black", "ansi_white", "ansi_bright_white"), word
    for name, value in theme.variables.items():
        assert value.startswith("ansi_"), name


@pytest.mark.parametrize("name", [*themes.VARIABLES])
def test_a_missing_variable_is_named(name: str) -> None:
    text = re.sub(rf"(?m)^{name} = .*\n", "", DARK)
    assert text != DARK
    with pytest.raises(themes.ThemeError, match=rf"variables\.{name} is missing"):
        themes.parse(text)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('name = "kvtop-dark"', "name = 3", "name must be a text"),
        ('name = "kvtop-dark"\n', "", "name is missing"),
        ('primary = "#7aa7f0"', 'primary = "#zz"', "primary: '#zz' is not a colour"),
        ("dark = true", 'dark = "yes"', "dark must be true or false"),
        ("dark = true", "dark = true\nansi = 1", "ansi must be true or false"),
        ("dark = true", "dark = true\ntext_alpha = 7", "text_alpha must be a number from 0 to 1"),
        ("dark = true", "dark = true\nprimry = 1", "unknown key 'primry'"),
        ('bad = "#f0716b"', 'bad = "tomatoe"', "variables.bad: 'tomatoe' is not a colour"),
        ('bad = "#f0716b"', "bad = 12", "variables.bad must be a colour in quotes"),
        ("[variables]", "variables", "not TOML"),
        ("dark = true", "dark = true\ntext_alpha = " + "9" * 5000, "not TOML"),
        ("dark = true", "dark = true\nansi = true", "variables.ansi-background is missing"),
        ('name = "kvtop-dark"', 'name = "a\\u001b[2J"', "control characters"),
    ],
)
def test_what_is_wrong_is_said(old: str, new: str, reason: str) -> None:
    assert old in DARK
    with pytest.raises(themes.ThemeError) as error:
        themes.parse(DARK.replace(old, new, 1))
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.data())
def test_a_spoilt_theme_is_refused_or_harmless(data: st.DataObject) -> None:
    """Whatever is written over a piece of a good file: a ThemeError, or a theme that Textual can use."""
    at = data.draw(st.integers(0, len(DARK) - 1))
    end = data.draw(st.integers(at, min(len(DARK), at + 60)))
    text = DARK[:at] + data.draw(st.text(max_size=20)) + DARK[end:]
    try:
        theme = themes.parse(text)
    except themes.ThemeError:
        return
    theme.to_color_system().generate()
    for value in theme.variables.values():
        Color.parse(value)


def user_folder(own_home: Path) -> Path:
    folder = own_home / "config" / "themes"
    folder.mkdir(parents=True)
    return folder


def test_the_users_file_wins_and_bad_ones_are_listed(own_home: Path) -> None:
    folder = user_folder(own_home)
    (folder / "dark.toml").write_text(DARK.replace("#13161b", "#000000"))
    (folder / "mine.toml").write_text(DARK.replace('"kvtop-dark"', '"mine"'))
    (folder / "broken.toml").write_text("name = ")
    (folder / "latin.toml").write_bytes(b"name = '\xff'")
    (folder / "notes.txt").write_text("not a theme")
    found = themes.load()
    mine, dark = found.get("mine"), found.get("kvtop-dark")
    assert mine is not None
    assert dark is not None
    assert dark.background == "#000000"
    assert len(found.themes) == 6
    assert [b.path.name for b in found.bad] == ["broken.toml", "latin.toml"]
    assert found.bad[1].reason == "not UTF-8"
    assert str(folder / "broken.toml") in str(found.bad[0])


def test_unreadable_things_are_listed(own_home: Path) -> None:
    folder = user_folder(own_home)
    (folder / "folder.toml").mkdir()
    (folder / "gone.toml").symlink_to(folder / "nowhere")
    (folder / "huge.toml").write_text("#" * 200_000)
    (folder / "zeros.toml").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.toml")
    reasons = {b.path.name: b.reason for b in themes.load().bad}
    assert reasons == {
        "folder.toml": "cannot be read: Is a directory",
        "gone.toml": os.strerror(2),
        "huge.toml": "larger than 64 kB",
        "zeros.toml": "cannot be read: not a regular file",
        "pipe.toml": "cannot be read: not a regular file",
    }


def test_no_folder_at_all(tmp_path: Path) -> None:
    none = themes.load((tmp_path / "nothing",))
    assert none.themes == ()
    assert themes.variable_defaults(none)["text"] == "ansi_default"


def test_the_next_theme_goes_round() -> None:
    names = SHIPPED.names
    seen = [names[0]]
    for _ in names[1:]:
        seen.append(SHIPPED.after(seen[-1]))
    assert seen == list(names)
    assert SHIPPED.after(seen[-1]) == names[0]
    assert SHIPPED.after("unheard of") == names[0]


@pytest.mark.parametrize(
    "text",
    ["x = " + "[" * 40_000, "x = " + "{a=" * 20_000, "a." * 30_000 + "a = 1", "text_alpha = " + "9" * 5000],
    ids=["lists", "tables", "dots", "digits"],
)
def test_a_deeply_nested_file_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "deep.toml").write_text(text)
    found = themes.load((tmp_path,))
    assert found.themes == ()
    assert [bad.path.name for bad in found.bad] == ["deep.toml"]
