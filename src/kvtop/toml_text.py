"""What stands where in a TOML text, and how its values and kinds are named to the person who wrote it."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from kvtop.errors import keyless

_PART = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[\w-]+)"""
_PATH = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEAD = re.compile(rf"\s*(\[\[?)\s*({_PATH})\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(rf"\s*({_PATH})\s*=")
_IN_LIST = re.compile(r"""\"(?:[^"\\]|\\.)*"|'[^']*'|\]|#.*""")
_LONGEST = 2000
"""Characters of a line that is looked at: no name stands behind them."""


def line_of(text: str, path: Sequence[str], nth: int = 0) -> int | None:
    """The line of a value, from 1: of its key, or else of the longest part of `path` that is seen; None for none.

    Empty parts of the path are left out. `nth` counts the tables `[[name]]` of the path's first part. Sees one key a
    line, which is how people write them: a key inside an inline table is found by its table.
    """
    wanted = tuple(part for part in path if part)
    best: tuple[int, int] | None = None
    for number, at in _places(text, wanted[:1], nth):
        if wanted[: len(at)] == at and (best is None or len(at) > best[0]):
            best = len(at), number
    return best[1] if best else None


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The line of every path that is seen, for many questions to one text; of a path that is there twice the first."""
    lines: dict[tuple[str, ...], int] = {}
    for number, at in _places(text, (), 0):
        lines.setdefault(at, number)
    return lines


def nearest(lines: Mapping[tuple[str, ...], int], path: Sequence[str]) -> int | None:
    """The line of the longest part of `path`; None for none."""
    parts = tuple(path)
    return next((lines[parts[:length]] for length in range(len(parts), 0, -1) if parts[:length] in lines), None)


def lines_of_texts(text: str, line: int, count: int) -> list[int]:
    """The line of each text of a list that begins in `line`, from 1; all in `line` where it is not plain."""
    found: list[int] = []
    for number, row in enumerate(text.split("\n")[line - 1 :], line):
        part = row[:_LONGEST].partition("=")[2] if number == line else row[:_LONGEST]
        for one in _IN_LIST.findall(part):
            if one == "]":
                return found if len(found) == count else [line] * count
            if not one.startswith("#"):
                found.append(number)
    return [line] * count


def _places(text: str, first: tuple[str, ...], nth: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line, whole path of what begins there); of the tables `[[first]]` only the nth."""
    here: tuple[str, ...] = ()
    count = -1
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:_LONGEST]
        if head := _HEAD.match(line):
            here = _parts(head[2])
            listed = head[1] == "[["
            count += listed and here == first
            if here[:1] == first and count not in (-1, nth):
                here = ("",)  # of another one: no path leads there
            yield number, here
        elif found := _KEY.match(line):
            yield number, here + _parts(found[1])


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in re.findall(_PART, path))


def expected(kind: Any) -> str:
    """What may stand there, by the description of a kind's limits."""
    if words := get_args(kind) and getattr(kind, "__metadata__", None):
        return str(words[0].description)
    origin = get_origin(kind)
    if origin is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(expected(one) for one in get_args(kind) if one is not type(None))
    if kind is bool:
        return "true or false"
    if origin is list or kind is list:
        return 'a list of texts in quotes: ["a", "b"]'
    if origin is dict or kind is dict:
        return "a table"
    return "a text in quotes"


def shown(value: object) -> str:
    """A value about as it stands in the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{keyless(value, 40)}"'
    if isinstance(value, int) and abs(value) >= 10**15:
        return "a huge number"
    if isinstance(value, int | float):
        return str(value)
    return "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a date or time"
