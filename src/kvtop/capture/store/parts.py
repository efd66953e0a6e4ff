"""A request body cut into pieces that the next request will hold again, and put together again byte for byte.

Pure: no I/O. An agent sends its whole conversation every turn, so nearly all of a body stood in the one before. The
pieces are the elements of `messages`, `input`, `tools` and `system`, long ones in chunks; what stands between them, the
gaps, is kept as it is: whatever the JSON looks like, gaps and pieces in turn are the body.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import NamedTuple

import msgspec

MIN_PIECE = 48
"""Bytes. A shorter element costs less in a gap than as a row of its own."""
CHUNK = 4096
"""Bytes. Of a long piece each chunk is a piece: a clock in a long system prompt then costs one chunk a turn."""
MAX_PIECES = 20_000
"""A body of more is not cut: no agent sends one, and each piece costs a row."""
MAX_COMMAS = 1_000_000
"""A body of more is not cut: each may end an element, to find them takes 60 bytes for each, and most would be too short
to be pieces."""

_Raw = msgspec.Raw
_NONE = _Raw(b"")


class _Envelope(msgspec.Struct):
    messages: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE
    tools: msgspec.Raw = _NONE
    system: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_TEXTS = msgspec.msgpack.Decoder(list[bytes])
_COUNTS = msgspec.msgpack.Decoder(list[int])


class Piece(NamedTuple):
    """Some bytes of a body, and whether they follow the piece before without a gap."""

    data: bytes
    follows: bool


class Cut(NamedTuple):
    """A body in pieces. One gap stands before each piece that does not follow another, and one behind the last."""

    pieces: list[Piece]
    gaps: list[bytes]


def cut(body: bytes) -> Cut | None:
    """The pieces of a body; None for one that is not cut: no JSON, nothing in it that is long enough, or too much."""
    if len(body) > MAX_COMMAS and body.count(b",") > MAX_COMMAS:
        return None
    try:
        spans = sorted(_spans(body))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    pieces: list[Piece] = []
    gaps: list[bytes] = []
    end = 0
    for start, stop in spans:
        if start < end:
            continue  # the same text twice: the place that was found lies inside another piece
        gaps.append(body[end:start])
        last = max(stop - CHUNK, start + 1)  # the rest of a long piece is not left as a small one
        edges = [*range(start, last, CHUNK), stop]
        pieces += [Piece(body[a:b], a > start) for a, b in pairwise(edges)]
        end = stop
    gaps.append(body[end:])
    return Cut(pieces, gaps) if 0 < len(pieces) <= MAX_PIECES else None


def _spans(body: bytes) -> Iterator[tuple[int, int]]:
    """(start, end) of the elements. A place may be that of an equal text further ahead: it holds the same bytes."""
    if body.lstrip()[:1] == b"[":
        yield from _places(body, _LIST.decode(body))
        return
    envelope = _ENVELOPE.decode(body)
    for raw in (envelope.messages, envelope.input, envelope.tools, envelope.system, envelope.prompt):
        if len(memoryview(raw)) >= MIN_PIECE:
            yield from _places(body, _LIST.decode(raw) if bytes(memoryview(raw)[:1]) == b"[" else [raw])


def _places(body: bytes, elements: Sequence[msgspec.Raw]) -> Iterator[tuple[int, int]]:
    at, gap = 0, 0
    for element in elements:
        text = bytes(element)
        if len(text) < MIN_PIECE:
            continue
        start = at + gap if body.startswith(text, at + gap) else body.find(text, at)
        gap, at = start - at, start + len(text)
        yield start, at


class Layout(NamedTuple):
    """The gaps, packed: turns of a conversation differ in `runs` alone."""

    texts: bytes
    """The gaps, of equal ones in a row the first."""
    runs: bytes
    """How many in a row."""


def pack_gaps(gaps: Sequence[bytes]) -> Layout:
    texts: list[bytes] = []
    runs: list[int] = []
    for gap in gaps:
        if texts and texts[-1] == gap:
            runs[-1] += 1
        else:
            texts.append(gap)
            runs.append(1)
    return Layout(msgspec.msgpack.encode(texts), msgspec.msgpack.encode(runs))


def join(pieces: Sequence[Piece], layout: Layout) -> bytes:
    """The body. Raises ValueError where pieces and gaps do not belong together."""
    try:
        texts, runs = _TEXTS.decode(layout.texts), _COUNTS.decode(layout.runs)
    except msgspec.MsgspecError as error:
        raise ValueError("the gaps cannot be read") from error
    if sum(runs) != sum(not piece.follows for piece in pieces) + 1 or len(texts) != len(runs):
        raise ValueError("another number of gaps than of pieces")
    gaps = chain.from_iterable(map(repeat, texts, runs))
    out: list[bytes] = []
    for piece in pieces:
        if not piece.follows:
            out.append(next(gaps))
        out.append(piece.data)
    out.append(next(gaps))
    return b"".join(out)


REF_BYTES = 4


def pack_refs(refs: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(refs)}I", *refs)


def unpack_refs(packed: bytes) -> tuple[int, ...]:
    """Raises ValueError for what is no list of references."""
    if len(packed) % REF_BYTES:
        raise ValueError("a reference is cut")
    return struct.unpack(f"<{len(packed) // REF_BYTES}I", packed)


def shared_head(a: bytes, b: bytes) -> int:
    """How many references both begin with."""
    low, high = 0, min(len(a), len(b)) // REF_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        at, to = low * REF_BYTES, middle * REF_BYTES
        low, high = (middle, high) if a[at:to] == b[at:to] else (low, middle - 1)
    return low


def shared_tail(a: bytes, b: bytes, head: int) -> int:
    """How many references both end with, the first `head` of both left out."""
    low, high = 0, min(len(a), len(b)) // REF_BYTES - head
    while low < high:
        middle = (low + high + 1) // 2
        n = middle * REF_BYTES
        low, high = (middle, high) if a[len(a) - n :] == b[len(b) - n :] else (low, middle - 1)
    return low
