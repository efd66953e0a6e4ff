"""JSON values of prompts: when two are the same to a template, and what of a message is text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvtop.capture.api.canonical import encode
from kvtop.capture.api.redact import digest

SYSTEM = ("system", "developer")
"""Roles of what stands before the talk."""

_AS_THEY_COME = frozenset({"parameters", "arguments", "input"})
"""Members whose keys a template prints in the order in which they stand."""


def key_of(value: Any) -> str:
    """Equal for what a template prints alike: the order of keys counts only where it does for templates."""
    return ordered(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: value[key] if key in _AS_THEY_COME else _plain(value[key]) for key in sorted(value)}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def key_sorted(value: Any, *, arrays: bool = False) -> Any:
    """With sorted keys, at every level; `arrays`: lists of scalars sorted as well."""
    if isinstance(value, dict):
        return {key: key_sorted(value[key], arrays=arrays) for key in sorted(value)}
    if isinstance(value, list):
        inner = [key_sorted(one, arrays=arrays) for one in value]
        scalars = arrays and not any(isinstance(one, dict | list) for one in inner)
        return sorted(inner, key=ordered) if scalars else inner
    return value


def salt(value: Any) -> str:
    """A cache_salt, fit to be shown: whoever knows it can tell by the clock what others ask."""
    return digest(value, "salt") if isinstance(value, str) and value else "none"


def ordered(value: Any) -> str:
    """Equal only where the order of keys is, too."""
    try:
        return encode(value).decode("utf-8", "replace")
    except ValueError:
        return repr(value)


def role(message: Mapping[str, Any]) -> str:
    found = message.get("role")
    return found if isinstance(found, str) else ""


def text_of(message: Mapping[str, Any]) -> str:
    """All words of its content."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(block["text"] for block in content if is_text(block))
    return content if isinstance(content, str) else ""


def is_text(block: Any) -> bool:
    return isinstance(block, dict) and isinstance(block.get("text"), str)


def system_head(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many system messages stand before the talk."""
    return next((i for i, message in enumerate(messages) if role(message) not in SYSTEM), len(messages))
