"""Tagged blocks of a text, `<name ...>...</name>`: reminders, environments, statuses. One pass, whatever it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

MOST_CHARS = 400_000
MOST_TAGS = 4_000
"""Of a text with more nothing is looked for."""

_TAG = re.compile(r"<(/?)([A-Za-z][\w-]{1,60})(?:\s[^<>]{0,400})?>")


class Block(NamedTuple):
    """Where one stands in its text, tags and all."""

    start: int
    end: int
    name: str


@lru_cache(maxsize=8)
def _tags(text: str) -> tuple[tuple[int, int, bool, str], ...]:
    """(start, end, whether it closes, name); none of a text with too many."""
    if "</" not in text or len(text) > MOST_CHARS:
        return ()
    found = []
    for tag in _TAG.finditer(text):
        found.append((tag.start(), tag.end(), bool(tag[1]), tag[2]))
        if len(found) > MOST_TAGS:
            return ()
    return tuple(found)


@lru_cache(maxsize=8)
def blocks(text: str) -> tuple[Block, ...]:
    """The outermost ones, in order."""
    opened: dict[str, list[int]] = {}
    found: list[Block] = []
    for start, end, closes, name in _tags(text):
        if not closes:
            opened.setdefault(name, []).append(start)
        elif starts := opened.get(name):
            found.append(Block(starts.pop(), end, name))
    return tuple(_outermost(sorted(found, key=lambda block: (block.start, -block.end))))


def _outermost(found: list[Block]) -> Iterator[Block]:
    end = 0
    for block in found:
        if block.start >= end:
            yield block
            end = block.end


def without(text: str) -> str:
    """The text without its blocks; the text itself where nothing else is in it."""
    rest = outside(text)
    return rest if rest.strip() else text


def outside(text: str) -> str:
    """What stands in none of its blocks."""
    if "</" not in text or len(text) > MOST_CHARS:
        return text  # and is not remembered
    out, at = [], 0
    for block in blocks(text):
        out.append(text[at : block.start])
        at = block.end
    return "".join([*out, text[at:]])


def around(text: str, at: int) -> list[str]:
    """The names of the blocks that a place stands in, the nearest first."""
    opened: list[str] = []
    for start, _, closes, name in _tags(text):
        if start >= at:
            break
        if not closes:
            opened.append(name)
        elif name in opened[-64:]:
            while opened.pop() != name:
                pass
    return [name for name in reversed(opened[-64:]) if text.find(f"</{name}>", at) >= 0]
