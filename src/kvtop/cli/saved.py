"""Saved /metrics texts, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from kvtop.errors import UsageError

MAX_BYTES = 64_000_000
"""Of one text, unpacked. A real one is below 1 MB."""


def read_text(name: str) -> str:
    """The text of a file. Raises UsageError where it cannot be read."""
    path = Path(name)
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read {name!r}: {why}") from None
    if len(raw) > MAX_BYTES:
        raise UsageError(f"{name!r} is larger than {MAX_BYTES:,} bytes: no /metrics text is")
    return raw.decode("utf-8", "replace")
