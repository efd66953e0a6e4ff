"""A prompt as text without a server: what a template that prints everything would show, and where each part stands."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from kvtop.triage.prompt import Path, Prompt
from kvtop.triage.values import is_text, ordered

AROUND = 40
"""Characters on each side of a difference that an excerpt holds."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Text, and its parts: where each one begins, and its path into the prompt."""

    text: str
    starts: tuple[int, ...]
    paths: tuple[Path, ...]

    def path(self, at: int) -> Path:
        """The part that a place of the text is in; empty: of an empty prompt."""
        place = bisect_right(self.starts, at) - 1
        return self.paths[place] if 0 <= place < len(self.paths) else ()

    def start(self, path: Path) -> int | None:
        """Where a part begins."""
        return next((start for start, one in zip(self.starts, self.paths, strict=True) if one == path), None)


def render(prompt: Prompt) -> Rendered:
    """Tools, a line each, then the messages: role, reasoning, content, calls."""
    out: list[str] = []
    starts: list[int] = []
    paths: list[Path] = []
    at = 0

    def put(text: str, path: Path) -> None:
        nonlocal at
        if text:
            starts.append(at)
            paths.append(path)
            out.append(text)
            at += len(text)

    for i, tool in enumerate(prompt.tools):
        put('{"type": "function", "function": {', ("tools", i))
        for n, (key, value) in enumerate(tool.items()):
            put(f'{", " if n else ""}"{key}": {ordered(value)}', ("tools", i, "function", key))
        put("}}\n", ("tools", i))
    for i, message in enumerate(prompt.messages):
        here: Path = ("messages", i)
        put(f"<{message.get('role', '')}>", (*here, "role"))
        for key in (*_FIRST, *(key for key in message if key not in (*_FIRST, *_LAST, "role")), *_LAST):
            value = message.get(key)
            if value in (None, "", []):
                continue
            if isinstance(value, list):
                for n, item in enumerate(value):
                    put(_item(item), (*here, key, n))
            else:
                put(value if isinstance(value, str) else ordered(value), (*here, key))
        put("\n", here)
    return Rendered("".join(out), tuple(starts), tuple(paths))


_FIRST = ("tool_call_id", "reasoning")
_LAST = ("content", "tool_calls")


def _item(item: Any) -> str:
    return str(item["text"]) if is_text(item) and item.get("type", "text") == "text" else ordered(item)


def excerpt(text: str, at: int, size: int = 2 * AROUND) -> str:
    """Up to `size` characters around a place."""
    start = max(0, at - size // 2)
    return text[start : start + size]
