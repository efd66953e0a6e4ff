"""Tagged blocks of a text, `<name ...>...</name>`: reminders, environments, statuses. One pass, whatever it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

MOST_CHARS = 400_000
MOST_TAGS = 20_000
"""Of a text with more nothing is looked for."""

_TAG = re.compile(r"<(/?)([A-Za-z][\w-]{1,60})(?:\s[^<>]{0,400})?>")


class Block(NamedTuple):
    """Where one stands in its text, tags and all."""

    start: int
    end: int
    name: str


@lru_cache(maxsize=256)
def blocks(text: str) -> tuple[Block, ...]:
    """The outermost ones, in order."""
    if "</" not in text or len(text) > MOST_CHARS:
        return ()
    opened: dict[str, list[int]] = {}
    found: list[Block] = []
    for n, tag in enumerate(_TAG.finditer(text)):
        if n >= MOST_TAGS:
            return ()
        if not tag[1]:
            opened.setdefault(tag[2], []).append(tag.start())
        elif starts := opened.get(tag[2]):
            found.append(Block(starts.pop(), tag.end(), tag[2]))
    return tuple(_outermost(sorted(found, key=lambda block: (block.start, -block.end))))


def _outermost(found: list[Block]) -> Iterator[Block]:
    end = 0
    for block in found:
        if block.start >= end:
            yield block
            end = block.end


def without(text: str) -> str:
    """The text without its blocks; the text itself where nothing else is in it."""
    found = blocks(text)
    if not found:
        return text
    out, at = [], 0
    for block in found:
        out.append(text[at : block.start])
        at = block.end
    rest = "".join([*out, text[at:]])
    return rest if rest.strip() else text


def around(text: str, at: int) -> list[str]:
    """The names of the blocks that a place stands in, the nearest first."""
    if "</" not in text or len(text) > MOST_CHARS:
        return []
    opened: list[str] = []
    for n, tag in enumerate(_TAG.finditer(text, 0, at)):
        if n >= MOST_TAGS:
            return []
        if not tag[1]:
            opened.append(tag[2])
        elif tag[2] in opened[-64:]:
            while opened.pop() != tag[2]:
                pass
    return [name for name in reversed(opened[-64:]) if text.find(f"</{name}>", at) >= 0]
