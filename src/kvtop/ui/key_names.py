"""Keys as users write them, as Textual names them, and as they are shown."""

from __future__ import annotations

import unicodedata

from textual.binding import Binding
from textual.keys import KEY_ALIASES, Keys

_MODIFIERS = {"ctrl", "alt", "shift", "super", "hyper", "meta"}
_SAME = {
    **{alias: key for key, aliases in KEY_ALIASES.items() for alias in aliases if key != "ctrl+at"},
    "ctrl+left_square_bracket": "escape",
    "return": "enter",
}
"""What a terminal cannot tell from another key: ctrl+i is tab, ctrl+m is enter."""
_NAMED = {k.value for k in Keys if "+" not in k.value and not k.value.startswith("<")}
_SHOWN = {
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "escape": "esc",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "backspace": "bksp",
}


def key_name(text: str) -> str | None:
    """Textual's name of a key as a user writes it (`?`, `ctrl+w`, `f5`, `question_mark`); None: no such key."""
    text = text.strip()
    if len(text) > 40:
        return None
    if text == "+" or text.endswith("++"):
        text = text[:-1] + "plus"
    *modifiers, base = text.split("+")
    modifiers = [m.lower() for m in modifiers]
    if len(set(modifiers)) < len(modifiers) or not _MODIFIERS.issuperset(modifiers):
        return None
    if len(base) == 1 and not base.isspace():
        if not base.isprintable():
            return None
        if modifiers == ["shift"] and base.isalpha():
            return None  # a terminal sends the capital letter instead
        name = _key_of(base)
        if modifiers and name.isalpha() and len(name) == 1:
            name = name.lower()
    else:
        name = base.lower()
        if name not in _NAMED and _char(name) is None:
            return None
    order = [m for m in ("alt", "ctrl", "shift", "super", "hyper", "meta") if m in modifiers]
    full = "+".join([*order, name])
    return _SAME.get(full, full)


def _char(name: str) -> str | None:
    """The character that a long key name such as `question_mark` stands for."""
    plain = {"slash": "/", "backslash": "\\", "at": "@", "minus": "-", "plus": "+", "underscore": "_"}
    if name in plain:
        return plain[name]
    try:
        found = unicodedata.lookup(name.replace("_", " "))
    except KeyError:
        return None
    return found if len(found) == 1 and found.isprintable() and _key_of(found) == name else None


def _key_of(char: str) -> str:
    """Textual's name of a printable character."""
    return "comma" if char == "," else next(iter(Binding.make_bindings([Binding(char, "")]))).key


def key_display(key: str) -> str:
    """A key as it is shown: `?`, `esc`, `↑`, `ctrl+w`."""
    *modifiers, base = key.split("+")
    shown = _SHOWN.get(base) or (base if base in _NAMED else None) or _char(base) or base
    return "+".join([*modifiers, shown])
