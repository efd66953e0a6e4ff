"""Token ids, packed: four bytes each, little-endian. Prompts of 120,000 tokens are cheap to keep so, and to compare."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

WIDTH = 4
"""Bytes of one id."""
_STRIDE = 2_048 * WIDTH
"""So many bytes are compared at once: one comparison of memory, and little is copied beyond the first difference."""


def pack(ids: Sequence[int]) -> bytes:
    """The ids as bytes. ValueError for what is no token id: not a whole number, below 0, or over 2^31 - 1."""
    try:
        packed = array("i", ids)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not token ids: {error}") from None
    if packed and min(packed) < 0:
        raise ValueError("not token ids: one is below 0")
    return _swapped(packed).tobytes()


def unpack(packed: bytes) -> list[int]:
    """The ids again. ValueError for bytes that are none: not four each."""
    if len(packed) % WIDTH:
        raise ValueError(f"not packed token ids: {len(packed)} bytes")
    ids = array("i")
    ids.frombytes(packed)
    return _swapped(ids).tolist()


def count(packed: bytes) -> int:
    """How many ids."""
    return len(packed) // WIDTH


def common(a: bytes, b: bytes, start: int = 0) -> int:
    """How many ids at the beginning are the same in both. `start`: so many are known to be."""
    most = min(len(a), len(b)) // WIDTH * WIDTH
    low = min(start * WIDTH, most)
    while low < most and a[low : low + _STRIDE] == b[low : low + _STRIDE]:
        low += _STRIDE
    if low >= most:
        return most // WIDTH
    high = min(low + _STRIDE, most)  # equal up to low; not equal up to high, or they end there
    if a[low:high] == b[low:high]:
        return high // WIDTH
    while high - low > WIDTH:
        middle = low + (high - low) // (2 * WIDTH) * WIDTH
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low // WIDTH


def _swapped(ids: array[int]) -> array[int]:
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
