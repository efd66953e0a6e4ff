"""Bytes as they are kept: zstd, or as they are where that would not make them fewer."""

from __future__ import annotations

import zstandard

from kvtop.capture.store.schema import Damaged

_PLAIN = b"\x00"
"""In front of bytes that zstd would not make fewer. A zstd frame begins with another byte."""


class Packer:
    """zstd, level 3."""

    def __init__(self) -> None:
        self._compress = zstandard.ZstdCompressor(level=3).compress
        self._decompress = zstandard.ZstdDecompressor().decompress

    def pack(self, data: bytes) -> bytes:
        packed = self._compress(data)
        return packed if len(packed) <= len(data) else _PLAIN + data

    def unpack(self, packed: bytes, at_most: int | None = None) -> bytes:
        """Raises Damaged, also where there are more bytes than `at_most`."""
        if not isinstance(packed, bytes):
            raise Damaged("a value of another type stands where packed bytes were written")
        if packed[:1] == _PLAIN:
            return packed[1:]
        try:
            if at_most is not None and not 0 <= zstandard.frame_content_size(packed) <= at_most:
                raise Damaged("a packed piece has another size than was written")
            return self._decompress(packed)
        except (zstandard.ZstdError, MemoryError) as error:
            raise Damaged(f"a packed piece cannot be unpacked: {error}") from error
