"""The bytes of a file to import, unpacked, and what stands in them as JSON."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from kvtop.capture.importers.exchange import Bad
from kvtop.errors import UsageError, printable

MAX_BYTES = 2 << 30
"""Of one file, unpacked."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20
_ZSTD_PIECE = 1 << 10
"""Is unpacked at a time: no more than 32 MiB come out of it, and its output cannot be capped otherwise."""


def read(path: Path) -> bytes:
    """What a file holds, unpacked if it is gzip or zstd. Raises UsageError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return _take(file, path)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read '{printable(str(path))}': {printable(why)}") from None


def _take(file: io.BufferedReader, path: Path) -> bytes:
    head = file.peek(4)[:4]
    if head.startswith(_GZIP):
        import gzip

        with gzip.open(file) as unpacked:
            return _joined(_pieces(unpacked), path)
    if head == _ZSTD:
        return _joined(_unpacked(file), path)
    return _joined(_pieces(file), path)


def _pieces(file: Any, size: int = _CHUNK) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece


def _unpacked(file: io.BufferedReader) -> Iterator[bytes]:
    """What zstd frames hold. Raises EOFError where the last one is cut."""
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    for piece in _pieces(file, _ZSTD_PIECE):
        while piece:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                yield frame.decompress(piece)
            except zstandard.ZstdError as error:
                raise EOFError(str(error)) from None
            piece = frame.unused_data if frame.eof else b""
    if not frame.eof:
        raise EOFError("it is cut: the end of its last zstd frame is missing")


def _joined(pieces: Iterator[bytes], path: Path) -> bytes:
    parts, size = [], 0
    for part in pieces:
        size += len(part)
        if size > MAX_BYTES:
            raise UsageError(f"'{printable(str(path))}' holds more than {MAX_BYTES >> 30} GiB", "import it in pieces")
        parts.append(part)
    return b"".join(parts)


def objects(data: bytes) -> Iterator[tuple[str, dict[str, Any]] | Bad]:
    """The JSON objects of a file with their places: a document, a list of them, or one a line."""
    text = data.removeprefix(b"\xef\xbb\xbf").strip()
    if text[:1] == b"[" or (text[:1] == b"{" and b"\n" in text and not _is_json(text.split(b"\n", 1)[0])):
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError):
            whole = None
        if isinstance(whole, dict):
            yield "entry 1", whole
            return
        if isinstance(whole, list):
            for at, entry in enumerate(whole, 1):
                yield (f"entry {at}", entry) if isinstance(entry, dict) else Bad(f"entry {at}", "no JSON object")
            return
    for at, line in enumerate(data.split(b"\n"), 1):
        line = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not line:
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Bad(f"line {at}", f"no JSON: {printable(str(error), 80)}")
            continue
        yield (f"line {at}", entry) if isinstance(entry, dict) else Bad(f"line {at}", "no JSON object")


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def unix_time(value: object) -> float | None:
    """A time as Unix seconds: a number of seconds or milliseconds, or ISO 8601; None for what is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        if not 0 < value < 1e14:  # looked at as it stands: of 400 digits there is no float
            return None
        return value / 1000 if value >= 1e11 else float(value)
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
