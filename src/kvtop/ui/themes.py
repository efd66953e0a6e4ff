"""Theme files: the shipped ones and the user's, each checked before Textual sees it.

A colour that Textual cannot read kills the app when the theme is chosen, so every file is read here first and a bad
one is listed with its reason and left out. The user's file wins over a shipped theme of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from textual.app import App
from textual.color import Color, ColorParseError
from textual.theme import Theme

from kvtop import files, paths
from kvtop.config import located
from kvtop.errors import Problem, keyless

VARIABLES: dict[str, str] = {
    "text": "words and numbers",
    "bright": "the first clause of the sentence, the big figure when it is good",
    "dim": "labels, units, context, what is old",
    "faint": "rules and the tracks of bars: below 3:1 on purpose, never a word",
    "ok": "judgement: fine",
    "warn": "judgement: look, beside `!`",
    "bad": "judgement: fault, beside `×`",
    "cached-device": "prompt tokens whose KV was still on the GPU",
    "fill-device": "the area under the line of the share chart",
    "cached-host": "prompt tokens whose KV came back from host memory",
    "cached-disk": "prompt tokens whose KV came back from disk",
    "cached-p2p": "prompt tokens whose KV came from another instance",
    "computed": "prompt tokens that were computed",
    "lost": "should have been cached and was not",
    "store": "traffic to the offload tier",
    "load": "traffic from it; the same as cached-host in the shipped themes, since what comes back is a hit",
    "queue": "time in the queue",
    "prefill": "time reading the prompt; the same as computed, since it is the same work",
    "decode": "time writing the answer",
    "gauge": "meters that are not judged: utilisation, memory",
    "shade-cached": "background: text that was cached",
    "shade-help": "background: help and dialogs",
    "shade-cursor": "background: the chosen row",
    "shade-old": "background: what was",
    "shade-new": "background: what is",
    "chip-text": "the word inside the coloured state chip",
}
"""Every variable that a theme file has to define under `[variables]`, and what is drawn with it."""

ANSI_VARIABLES: dict[str, str] = {
    "ansi-background": "what Textual's own widgets take for the terminal's background",
    "ansi-foreground": "what Textual's own widgets take for the terminal's text",
    "border": "frame of a focused input",
    "border-blurred": "frame of one without focus",
    "block-cursor-foreground": "text of the chosen row of the command palette",
    "block-cursor-background": "its background",
    "input-cursor-foreground": "text under the cursor of an input",
    "input-cursor-background": "its background",
}
"""What a theme with `ansi = true` has to define beside VARIABLES: Textual makes none of usable value itself."""

WORDS = (
    "text", "bright", "dim", "ok", "warn", "bad", "cached-device", "cached-host", "cached-disk", "cached-p2p",
    "computed", "lost", "store", "load", "queue", "prefill", "decode", "gauge",
)  # fmt: skip
"""The variables that colour words: 4.5:1 or more on the background and on every shade in the truecolor themes."""

DEFAULT = "kvtop-dark"

_FIELDS = {f.name for f in fields(Theme)}
_MAX_BYTES = 64_000


class ThemeError(ValueError):
    """Why a theme file cannot be used, in one line."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.line = line
        """From 1; None where that cannot be told."""


@dataclass(frozen=True)
class BadTheme:
    """A theme file, or a whole folder of them, that was left out."""

    path: Path
    reason: str
    line: int | None = None

    @property
    def problem(self) -> Problem:
        fix = "mend or remove it: docs/themes.md"
        return Problem("theme", f"{self.reason}; it is left out", fix, self.path, self.line)


@dataclass(frozen=True)
class Themes:
    """What the folders held."""

    themes: tuple[Theme, ...]
    """In the order of the theme key: shipped ones by name, then the user's own."""
    bad: tuple[BadTheme, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(t.name for t in self.themes)

    def get(self, name: str) -> Theme | None:
        return next((t for t in self.themes if t.name == name), None)

    def after(self, name: str) -> str:
        """The name of the next theme, round and round."""
        names = self.names
        return names[(names.index(name) + 1) % len(names)] if name in names else names[0]


def parse(text: str) -> Theme:
    """A checked theme from the text of a file. Raises ThemeError."""
    try:
        raw = files.parse_toml(text)
    except files.Unusable as error:
        raise ThemeError(str(error), error.line) from None
    return _checked(raw)


def _checked(raw: dict[str, Any]) -> Theme:
    if unknown := sorted(set(raw) - _FIELDS):
        raise ThemeError(f"unknown key '{keyless(unknown[0], 40)}'")
    for key in ("name", "primary", "background", "foreground"):
        if not isinstance(raw.get(key), str) or not raw[key].strip():
            raise ThemeError(f"{key} is missing" if key not in raw else f"{key} must be a text")
    if not raw["name"].isprintable():
        raise ThemeError("name holds control characters")
    for key, value in raw.items():
        _check_field(key, value)
    theme = Theme(**raw)
    _check_variables(theme)
    return theme


def _check_field(key: str, value: object) -> None:
    if key == "variables":
        if not isinstance(value, dict):
            raise ThemeError("variables must be a table")
    elif key in ("dark", "ansi"):
        if not isinstance(value, bool):
            raise ThemeError(f"{key} must be true or false")
    elif key in ("luminosity_spread", "text_alpha"):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ThemeError(f"{key} must be a number from 0 to 1")
    elif not isinstance(value, str):
        raise ThemeError(f"{key} must be a text")
    elif key != "name":
        _color(key, value)


def _color(key: str, value: object) -> Color:
    if not isinstance(value, str):
        raise ThemeError(f"{key} must be a colour in quotes")
    try:
        return Color.parse(value)
    except ColorParseError:
        raise ThemeError(f"{key}: '{keyless(value, 40)}' is not a colour") from None


def _check_variables(theme: Theme) -> None:
    for name in (*VARIABLES, *(ANSI_VARIABLES if theme.ansi else ())):
        if name not in theme.variables:
            raise ThemeError(f"variables.{name} is missing")
    for name, value in theme.variables.items():
        _color(f"variables.{keyless(name, 40)}", value)
    try:
        theme.to_color_system().generate()
    except (ColorParseError, ValueError, TypeError, AttributeError) as error:
        raise ThemeError(f"Textual cannot make a colour system of it: {error}") from None


def read(path: Path) -> Theme:
    """A checked theme from a file. Raises ThemeError, also where the file cannot be read."""
    try:
        _, raw = files.read_toml(path, _MAX_BYTES)
    except FileNotFoundError as error:
        raise ThemeError(error.strerror or "not there") from None
    except files.Unusable as error:
        raise ThemeError(str(error), error.line) from None
    return _checked(raw)


def load(folders: Iterable[Path] | None = None) -> Themes:
    """All usable themes of the shipped folder and the user's (or of these folders, the later ones winning)."""
    if folders is None:
        folders = (paths.builtin_themes(), paths.config_dir() / "themes")
    found: dict[str, Theme] = {}
    bad: list[BadTheme] = []
    for folder in folders:
        try:
            listed = sorted(p for p in folder.iterdir() if p.suffix == ".toml")
        except FileNotFoundError:
            continue
        except OSError as error:
            bad.append(BadTheme(folder, error.strerror or "cannot be read"))
            continue
        for path in listed:
            try:
                theme = read(path)
            except ThemeError as error:
                bad.append(BadTheme(path, str(error), error.line))
            else:
                found[theme.name] = theme
    return Themes(tuple(found.values()), tuple(bad))


def variable_defaults(themes: Themes) -> dict[str, str]:
    """For `App.get_theme_variable_defaults`: a value for every `$name` that CSS may use, whatever the theme defines.

    Textual's ansi themes and other registered themes lack some of the names; one that is missing stops the app.
    """
    defaults = {"ansi-background": "transparent", "ansi-foreground": "transparent"}
    base = themes.get(DEFAULT) or next(iter(themes.themes), None)
    if base is not None:
        defaults = {**base.to_color_system().generate(), **base.variables, **defaults}
    for name in VARIABLES:
        defaults.setdefault(name, "ansi_default")
    return defaults


def problems(themes: Themes, wanted: str, file: Path | None = None) -> tuple[Problem, ...]:
    """Each file that was left out, and the theme that config.toml, `file`, wants where it is not there."""
    found = [bad.problem for bad in themes.bad]
    if themes.get(wanted) is None:
        names = ", ".join(themes.names) or "none"
        what = f"theme '{keyless(wanted, 40)}' is not there; {_usable(themes, wanted)} is used"
        found.append(Problem("theme", what, f"choose one of: {names}", file, place=("", "theme", 0)))
    return located(found)


def _usable(themes: Themes, wanted: str) -> str:
    names = themes.names
    return next((name for name in (wanted, DEFAULT, *names) if name in names), "ansi-dark")


def register(app: App[Any], themes: Themes, wanted: str) -> str:
    """Register all themes; the name to set as `app.theme`: the wanted one, else one that is there."""
    for theme in themes.themes:
        app.register_theme(theme)
    return _usable(themes, wanted)
