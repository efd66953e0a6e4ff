"""Content codings: what a body says, whatever it was packed with on the way."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import zstandard

MAX_BYTES = 64 * 1024 * 1024
"""A body, as sent and unpacked. What goes beyond is not kept."""


class Unpacker:
    """Unpacks one body piece by piece. `known` is False for codings that cannot be read here (br): such bytes come out
    as they went in."""

    def __init__(self, headers: Sequence[tuple[str, str]], limit: int = MAX_BYTES) -> None:
        codings = [
            coding
            for name, value in headers
            if name.lower() == "content-encoding"
            for part in value.split(",")
            if (coding := part.strip().lower()) not in ("", "identity")
        ]
        self.packed = bool(codings)
        self.known = len(codings) <= 1 and all(coding in _CODINGS for coding in codings)
        self._coding = codings[0] if codings and self.known else ""
        self._inflate: zlib._Decompress | None = None
        self._zstd: zstandard.ZstdDecompressionObj | None = None
        self._left = limit
        self.broken = False
        """It is not packed as it says. What came out before that is right."""
        self.over = False
        """It is larger than is kept."""

    def feed(self, data: bytes) -> bytes:
        """What these bytes add. Never raises, and gives no more than the limit in all."""
        if self.broken or self.over:
            return b""
        if not self._coding:
            out = data
        else:
            try:
                out = self._zstandard(data) if self._coding == "zstd" else self._zlib(data)
            except (zlib.error, zstandard.ZstdError, EOFError):
                self.broken = True
                return b""
        if len(out) > self._left:
            self.over = True
            out = out[: self._left]
        self._left -= len(out)
        return out

    def _zlib(self, data: bytes) -> bytes:
        if self._inflate is None:
            bits = zlib.MAX_WBITS | 32
            # Some senders of deflate leave the zlib header away: its first byte tells.
            if self._coding == "deflate" and data and data[0] & 0x0F != 8:
                bits = -zlib.MAX_WBITS
            self._inflate = zlib.decompressobj(bits)
        out = self._inflate.decompress(data, self._left + 1)
        if self._inflate.unconsumed_tail:
            self.over = True
            out = out[: self._left]
        return out

    def _zstandard(self, data: bytes) -> bytes:
        if self._zstd is None:
            self._zstd = zstandard.ZstdDecompressor(max_window_size=MAX_BYTES).decompressobj()
        out = b""
        # Its output cannot be capped, so a bomb is fed in small pieces.
        for at in range(0, len(data), _PIECE):
            if self._zstd.eof:
                break
            out += self._zstd.decompress(data[at : at + _PIECE])
            if len(out) > self._left:
                break
        return out


_CODINGS = ("gzip", "x-gzip", "deflate", "zstd")
_PIECE = 512  # no more than 16 MiB come out of it
