"""One connection on its way to the recorder: what of it is kept for the queue, and what is only counted."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from kvtop.capture.tap.wire import HEADER, Kind, Opened

if TYPE_CHECKING:
    from kvtop.capture.tap.spool import Spool

BATCH_BYTES = 64 * 1024
"""A batch of whole frames is closed at this size, so that what was cut by a recorder's death is soon looked through."""

_pack = HEADER.pack


class Track:
    """A connection as the recorder is to know it."""

    __slots__ = (
        "batch",
        "behind",
        "conn",
        "lost_client",
        "lost_server",
        "marks",
        "opened",
        "over",
        "short",
        "spool",
        "told",
    )

    def __init__(self, spool: Spool, conn: int, opened: Opened) -> None:
        self.spool = spool
        self.conn = conn
        self.opened = opened
        self.told = False
        """Its OPEN is in a batch, or was sent."""
        self.batch = 0
        """In which batch."""
        self.behind = False
        """Something of it was not kept and not yet told."""
        self.short = False
        """Bytes of it were not kept, now or before."""
        self.over = False
        self.lost_client = 0
        self.lost_server = 0
        self.marks: list[tuple[int, int]] = []
        """Kind and time of what happened while it was behind; at most five."""

    def data(self, kind: int, at_ns: int, data: memoryview) -> None:
        """Bytes that were passed on. They are copied."""
        spool = self.spool
        batch = spool.batch
        size = len(data)
        if self.behind or spool.held + len(batch) + size > spool.room:
            spool.behind(self)
            if kind == Kind.CLIENT:
                self.lost_client += size
            else:
                self.lost_server += size
            spool.missed(self, size)
            return
        batch += _pack(self.conn, kind, at_ns, size)
        batch += data
        if len(batch) >= BATCH_BYTES:
            spool.seal()
        if not spool.armed:
            spool.arm()

    def mark(self, kind: int) -> None:
        """Something without bytes happened, now."""
        spool = self.spool
        if self.behind or spool.full():
            spool.behind(self)
            self.marks.append((kind, monotonic_ns()))
            return
        spool.batch += _pack(self.conn, kind, monotonic_ns(), 0)
        spool.arm()

    def close(self) -> None:
        """Both sides are gone."""
        self.over = True
        self.mark(Kind.CLOSE)
        self.spool.closed(self)
