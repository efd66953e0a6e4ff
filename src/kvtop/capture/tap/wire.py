"""What the tap tells its recorder: one frame for each thing that happened on a connection, over a socket pair.

A frame is a header and its payload. Times are CLOCK_MONOTONIC, which both processes share.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import msgspec

HEADER = struct.Struct("<IBQI")
"""Connection (a running number of this tap), kind, time in ns of CLOCK_MONOTONIC (of bytes: when the tap had
read them, before it passed them on), bytes of the payload."""


class Kind(IntEnum):
    """What happened."""

    OPEN = 1
    """A client connected and the upstream took the connection. Payload: `Opened` as JSON."""
    CLIENT = 2
    """Bytes that the client sent, in order, as they were passed on."""
    SERVER = 3
    """Bytes that the upstream sent."""
    CLIENT_END = 4
    """The client will send no more (FIN)."""
    SERVER_END = 5
    CLIENT_RESET = 6
    """The client's side broke (RST)."""
    SERVER_RESET = 7
    CLOSE = 8
    """Both sides are gone: the last frame of a connection."""
    GAP = 9
    """Bytes were not handed over because the recorder was too far behind, or was not there. Payload: `Lost` as JSON."""
    REFUSED = 10
    """A client connected, the upstream did not take it. Payload: `Opened` as JSON; no CLOSE follows."""


_KINDS = {int(kind): kind for kind in Kind}


class Opened(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Between whom a connection is."""

    upstream: str
    """Base URL, for instance http://127.0.0.1:8000."""
    listen: str
    """host:port the client connected to."""
    peer: str
    """host:port of the client."""
    why: str = ""
    """Of REFUSED: what the system said."""
    resumed: bool = False
    """The connection is older than this recorder: what went before is lost."""


class Lost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much of each direction is missing at this place."""

    client_bytes: int = 0
    server_bytes: int = 0


class Frame(NamedTuple):
    """One frame, read."""

    conn: int
    kind: Kind
    at_ns: int
    data: bytes


Bare = tuple[int, int, int, bytes]
"""The fields of a frame, its kind as a number that may be none."""


def frame_of(bare: Bare) -> Frame:
    """Raises ValueError where there is no such kind."""
    conn, kind, at_ns, data = bare
    return Frame(conn, _KINDS.get(kind) or Kind(kind), at_ns, data)


class Frames:
    """Takes the stream in pieces of any size and gives the whole frames back."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Bare]:
        """The frames that are complete with these bytes. To be used up before the next call."""
        if self._rest:
            self._rest += data
            data = bytes(self._rest)
            self._rest.clear()
        at, end, size_of_head = 0, len(data), HEADER.size
        unpack = HEADER.unpack_from
        while end - at >= size_of_head:
            conn, kind, at_ns, size = unpack(data, at)
            begin = at + size_of_head
            if begin + size > end:
                break
            at = begin + size
            yield conn, kind, at_ns, data[begin:at]
        self._rest += data[at:]
