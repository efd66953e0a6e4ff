"""What servers answer in JSON, as a type."""

from __future__ import annotations

from typing import TypeVar

import msgspec

_T = TypeVar("_T")


def typed(body: bytes | msgspec.Raw, kind: type[_T]) -> _T | None:
    """None: it is no JSON, or of another shape."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
