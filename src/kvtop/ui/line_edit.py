"""A short text that is typed on a screen without a box for it: what a key, or a paste, makes of it."""

from __future__ import annotations

from textual import events

from kvtop.ui.draw import cells

MOST = 60
"""Cells of it."""


def edited(words: str, event: events.Key) -> str:
    """As it is after this key; the same for one that means nothing here."""
    if event.key in ("backspace", "ctrl+h"):
        return words[:-1]
    if event.key == "ctrl+u":
        return ""
    if event.is_printable and event.character and cells(words + event.character) <= MOST:
        return words + event.character
    return words


def pasted(words: str, event: events.Paste) -> str:
    """With what was pasted, in one line."""
    made = words + " ".join(event.text.split())
    while cells(made) > MOST:
        made = made[: MOST if len(made) > MOST else -1]
    return made
