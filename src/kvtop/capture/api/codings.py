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
        self._members = 0
        """That are unpacked to their end: a gzip body may be several in a row."""
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
        out = b""
        while data and len(out) <= self._left:
            if self._inflate is None:
                if self._members and (self._coding == "deflate" or not (data := data.lstrip(b"\0"))):
                    break  # nothing may follow; of gzip another member may, or padding
                self._inflate = zlib.decompressobj(self._bits(data))
            try:
                out += self._inflate.decompress(data, self._left + 1 - len(out))
            except zlib.error:
                if not out:
                    raise
                self.broken = True
                break
            if not self._inflate.eof:
                self.over = bool(self._inflate.unconsumed_tail)
                break
            data, self._inflate = self._inflate.unused_data, None
            self._members += 1
        return out[: self._left] if self.over else out

    def _bits(self, data: bytes) -> int:
        # Some senders of deflate leave the zlib header away: its first byte tells.
        if self._coding == "deflate" and data[0] & 0x0F != 8:
            return -zlib.MAX_WBITS
        return zlib.MAX_WBITS | 32

    def _zstandard(self, data: bytes) -> bytes:
        out = b""
        # Its output cannot be capped, so a bomb is fed in small pieces.
        for at in range(0, len(data), _PIECE):
            piece = data[at : at + _PIECE]
            while piece and len(out) <= self._left and not self.broken:
                if self._zstd is None:
                    self._zstd = zstandard.ZstdDecompressor(max_window_size=MAX_BYTES).decompressobj()
                try:
                    out += self._zstd.decompress(piece)
                except zstandard.ZstdError:
                    if not out:
                        raise
                    self.broken = True
                if not self._zstd.eof:
                    break
                piece, self._zstd = self._zstd.unused_data, None
        return out


_CODINGS = ("gzip", "x-gzip", "deflate", "zstd")
_PIECE = 512  # no more than 16 MiB come out of it
