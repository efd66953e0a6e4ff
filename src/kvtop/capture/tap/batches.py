"""Batches of whole frames, of the first of which a part may be with the recorder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvtop.capture.tap.wire import HEADER, Kind, Lost


class Rest(NamedTuple):
    """Of a batch that was cut: the frames of which no byte was sent, and what is known of those before."""

    frames: bytearray
    opened: set[int]
    """Connections that open in these frames."""
    over: set[int]
    """Connections that closed before them: no other recorder hears of them."""
    cut: dict[int, Lost]
    """What the one frame held that was cut."""


def not_begun(batch: bytearray, sent: int) -> Rest:
    """What is left of a batch of which so many bytes were sent."""
    at = 0
    over: set[int] = set()
    cut: dict[int, Lost] = {}
    while at < sent:
        conn, kind, _, size = HEADER.unpack_from(batch, at)
        at += HEADER.size + size
        if kind == Kind.CLOSE:
            over.add(conn)
        elif at > sent and kind == Kind.CLIENT:
            cut[conn] = Lost(client_bytes=size)
        elif at > sent and kind == Kind.SERVER:
            cut[conn] = Lost(server_bytes=size)
    frames = batch[at:]
    return Rest(frames, {conn for conn, kind, _ in not_whole(frames, 0) if kind == Kind.OPEN}, over, cut)


def not_whole(batch: bytearray, sent: int) -> Iterator[tuple[int, int, int]]:
    """Connection, kind and payload's size of the frames that were not sent, or not all of them."""
    at = 0
    while at < len(batch):
        conn, kind, _, size = HEADER.unpack_from(batch, at)
        at += HEADER.size + size
        if at > sent:
            yield conn, kind, size
