"""JSON of requests, read leniently, and brought into a form that is equal where the prompt is.

Canonical: the keys of the envelope sorted, nulls left out, no white space, a text for a list of one text block,
without `cache_control`. The order of keys inside a tool's parameters and a call's arguments stays, since templates
print them as they come; so does the order of every list.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

MAX_DEPTH = 200
"""Levels of a body that are looked at; no client nests deeper."""

MAX_VALUES = 2_000_000
"""Of a JSON text of more values nothing is read: 30 MB of empty lists would take more than a gigabyte, and seconds."""

_AS_THEY_COME = frozenset({"parameters", "input_schema", "arguments", "input"})
"""Keys whose values reach the prompt as they are, with the order of their keys."""
_NOT_PRINTED = frozenset({"cache_control"})
_TEXTS = frozenset({"text", "input_text", "output_text"})
"""Types of a block that is only text; which of them depends on the API alone."""


def crowded(data: bytes | msgspec.Raw) -> bool:
    """Whether a JSON text may hold more than MAX_VALUES. What its strings hold is counted too."""
    if len(memoryview(data)) <= MAX_VALUES:
        return False
    return sum(map(bytes(data).count, (b",", b"[", b"{"))) >= MAX_VALUES


def object_of(value: object) -> dict[str, Any]:
    """An object's members; of anything else none."""
    return value if isinstance(value, dict) else {}


def decode(data: bytes | msgspec.Raw) -> Any:
    """The JSON value; also of what is not quite JSON but common (lone surrogates, NaN). Raises ValueError, also for
    what is crowded."""
    if crowded(data):
        raise ValueError("too many values")
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError):
        pass
    except RecursionError:
        raise ValueError("nested too deeply") from None
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None


def encode(value: Any) -> bytes:
    """Compact JSON in UTF-8, keys in the order in which they stand. Raises ValueError."""
    try:
        return msgspec.json.encode(value)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError):
        pass
    except RecursionError:
        raise ValueError("nested too deeply") from None
    try:
        return json.dumps(value, separators=(",", ":")).encode("ascii")
    except (ValueError, TypeError, RecursionError):
        raise ValueError("not JSON") from None


def members(data: bytes) -> dict[str, msgspec.Raw | bytes]:
    """An object's members, each as the bytes that stand there. Raises ValueError for what is no JSON object."""
    try:
        found: dict[str, msgspec.Raw | bytes] = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        return found
    except (msgspec.MsgspecError, ValueError, RecursionError):
        value = decode(data)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return {key: encode(member) for key, member in value.items()}


def items(data: bytes | msgspec.Raw) -> list[msgspec.Raw | bytes]:
    """A list's items likewise. Raises ValueError for what is no list."""
    try:
        return list(msgspec.json.decode(data, type=list[msgspec.Raw]))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        value = decode(data)
    if not isinstance(value, list):
        raise ValueError("not a list")
    return [encode(item) for item in value]


def canonical(value: Any, depth: int = 0) -> Any:
    """The value in canonical form. Raises ValueError where it is nested too deeply."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return _object(value, depth)
    if isinstance(value, list):
        return [canonical(item, depth + 1) for item in value]
    return value


def _object(value: dict[str, Any], depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in sorted(value):
        member = value[key]
        if member is None or key in _NOT_PRINTED:
            continue
        if key in _AS_THEY_COME and isinstance(member, dict):
            out[key] = member
        elif key == "content" or (key == "output" and isinstance(member, list)):
            out[key] = text_or_blocks(member, depth + 1)
        else:
            out[key] = canonical(member, depth + 1)
    return out


def text_or_blocks(content: Any, depth: int = 0) -> Any:
    """A message's content or a system prompt: a list of one text block is the text of it."""
    if not isinstance(content, list):
        return canonical(content, depth)
    blocks = [_block(block, depth + 1) for block in content]
    first = blocks[0] if len(blocks) == 1 else None
    if isinstance(first, dict) and first.keys() == {"type", "text"} and first["type"] == "text":
        return first["text"]
    return blocks


def _block(block: Any, depth: int) -> Any:
    if isinstance(block, str):
        return {"text": block, "type": "text"}
    block = canonical(block, depth)
    if not isinstance(block, dict):
        return block
    kind = block.get("type", "text")
    if isinstance(kind, str) and kind in _TEXTS and isinstance(block.get("text"), str):
        if not block.get("annotations", True):
            del block["annotations"]
        block["type"] = "text"
    return block


def digest(value: Any) -> str:
    """16 hex digits over a value's canonical form. Raises ValueError."""
    return hashlib.blake2b(encode(value), digest_size=8).hexdigest()
