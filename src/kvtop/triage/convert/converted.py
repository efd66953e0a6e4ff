"""A request as the server's chat template sees it, and where each piece of it stands in the request as it was sent."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtop.triage.convert.version import at_least
from kvtop.triage.prompt import Path
from kvtop.triage.prompt import pointer as pointer_to


@dataclass(frozen=True, slots=True)
class Place:
    """Where something of the chat body stands in the body as it was sent."""

    pointer: str
    same: bool = True
    """What is below it stands below the pointer too, under the same names."""
    pieces: tuple[tuple[int, str], ...] = ()
    """Of a text that was joined from several: the character at which each begins, and its pointer."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What the server leaves out of the prompt."""

    pointer: str
    """Into the body as it was sent."""
    what: str
    """attribution header, cache_control, redacted thinking, ..."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A request's prompt in the shape of a chat request, or as text or ids."""

    chat: dict[str, Any] | None = field(default=None, repr=False)
    """model, messages, tools, and what else reaches a chat template. It may share values with the body given."""
    prompt: str | list[int] | None = field(default=None, repr=False)
    """Of the completions and embeddings routes."""
    pointers: Mapping[Path, Place] = field(default_factory=dict, repr=False)
    """By path into `chat`; of a path that is not named the nearest one above it counts."""
    approximate: tuple[str, ...] = ()
    """Why the server may make something else of it, one line each, without content of the prompt."""
    dropped: tuple[Dropped, ...] = ()

    def pointer(self, path: Path, at: int | None = None) -> str:
        """The JSON pointer in the request as it was sent of a path into `chat`.

        Always a place that is there, if the path is: what the server made up is where it made it from. `at`: the
        character of the text there, which decides where a text was joined from several; without it the first.
        """
        for depth in range(len(path), -1, -1):
            place = self.pointers.get(path[:depth])
            if place is None:
                continue
            if depth == len(path) and at is not None and place.pieces:
                return place.pieces[max(0, bisect_right(place.pieces, at, key=_start) - 1)][1]
            return place.pointer + (pointer_to(path[depth:]) if place.same else "")
        return ""


def _start(piece: tuple[int, str]) -> int:
    return piece[0]


class Draft:
    """A conversion under way: the messages so far, where they come from, and what was noticed."""

    def __init__(self, version: str | None) -> None:
        self.version = version
        self.messages: list[dict[str, Any]] = []
        self.places: dict[Path, Place] = {(): Place("", same=False)}
        self._approximate: dict[str, None] = {}
        self._dropped: list[Dropped] = []

    def since(self, since: tuple[int, int]) -> bool:
        return at_least(self.version, since)

    def doubt(self, why: str) -> None:
        self._approximate[why] = None

    def drop(self, pointer: str, what: str) -> None:
        self._dropped.append(Dropped(pointer, what))

    def add(self, message: dict[str, Any], pointer: str, *, same: bool = False) -> Path:
        """Append a message that comes from `pointer`; its path."""
        path: Path = ("messages", len(self.messages))
        self.messages.append(message)
        self.places[path] = Place(pointer, same)
        return path

    def finish(self, **more: Any) -> Converted:
        """With the members of the chat body beside the messages; None is left out."""
        chat: dict[str, Any] = {"messages": self.messages} | {k: v for k, v in more.items() if v is not None}
        return Converted(chat, None, self.places, tuple(self._approximate), tuple(self._dropped))


Text = tuple[str, str]
"""A text and its pointer."""


def joined(texts: list[Text], between: str = "") -> tuple[str, Place]:
    """Texts put together to one, and where it comes from."""
    pieces = []
    at = 0
    for text, pointer in texts:
        pieces.append((at, pointer))
        at += len(text) + len(between)
    return between.join(text for text, _ in texts), Place(texts[0][1], same=False, pieces=tuple(pieces))


def items(value: object, pointer: str) -> Iterator[tuple[Any, str]]:
    """The items of a list, each with its pointer; nothing of what is no list."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield item, f"{pointer}/{index}"


def text_of(value: object) -> str | None:
    return value if isinstance(value, str) else None


def uncached(draft: Draft, block: dict[str, Any], pointer: str) -> None:
    """Note the mark of a place to cache up to, which is no part of the prompt."""
    if block.get("cache_control") is not None:
        draft.drop(f"{pointer}/cache_control", "cache_control")
