"""Batches of whole frames, of the first of which a part may be with the recorder."""

from __future__ import annotations

from collections.abc import Iterator

from kvtop.capture.tap.wire import HEADER, Kind, Lost


def not_begun(batch: bytearray, sent: int) -> tuple[bytearray, set[int], dict[int, Lost]]:
    """The frames of which no byte was sent, the connections that open in them, and what the one frame held that was
    cut."""
    at = 0
    cut: dict[int, Lost] = {}
    while at < sent:
        conn, kind, _, size = HEADER.unpack_from(batch, at)
        at += HEADER.size + size
        if at > sent and kind == Kind.CLIENT:
            cut[conn] = Lost(client_bytes=size)
        elif at > sent and kind == Kind.SERVER:
            cut[conn] = Lost(server_bytes=size)
    rest = batch[at:]
    opens = {conn for conn, kind, _ in not_whole(rest, 0) if kind == Kind.OPEN}
    return rest, opens, cut


def not_whole(batch: bytearray, sent: int) -> Iterator[tuple[int, int, int]]:
    """Connection, kind and payload's size of the frames that were not sent, or not all of them."""
    at = 0
    while at < len(batch):
        conn, kind, _, size = HEADER.unpack_from(batch, at)
        at += HEADER.size + size
        if at > sent:
            yield conn, kind, size
