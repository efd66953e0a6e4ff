"""Batches of whole frames: those with the recorder, and the one of which a part may be with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from kvtop.capture.tap.progress import Progress
from kvtop.capture.tap.wire import HEADER, Kind

_UNPROVEN = 1 << 20
"""More than the socket to a recorder and one of its reads hold together: what was sent before is worked through,
whatever it says."""


class Rest(NamedTuple):
    """Of a batch that was cut: the frames of which no byte was sent, and what is known of those before."""

    frames: bytearray
    opened: set[int]
    """Connections that open in these frames."""
    over: set[int]
    """Connections that closed before them: no other recorder hears of them."""


def not_begun(batch: bytearray, sent: int) -> Rest:
    """What is left of a batch of which so many bytes were sent."""
    at = 0
    over: set[int] = set()
    while at < sent:
        conn, kind, _, size = HEADER.unpack_from(batch, at)
        at += HEADER.size + size
        if kind == Kind.CLOSE:
            over.add(conn)
    frames = batch[at:]
    return Rest(frames, {conn for conn, kind, _ in not_whole(frames, 0) if kind == Kind.OPEN}, over)


def not_whole(batch: bytearray, done: int, sent: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Connection, kind and payload's size of the frames that are not within the first `done` bytes, or not all of them.
    With `sent` of those that are begun within so many."""
    at = 0
    until = len(batch) if sent is None else sent
    while at < until:
        conn, kind, _, size = HEADER.unpack_from(batch, at)
        at += HEADER.size + size
        if at > done:
            yield conn, kind, size


class Handed:
    """Whole batches that one recorder was sent, as long as it has not worked them through. Without its word on that,
    what was sent counts as worked through."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._sent = 0
        self._batches: deque[tuple[int, int, bytearray]] = deque()
        """How far each reaches, its number, its frames."""
        self._through = 0

    def begin(self, progress: Progress | None) -> None:
        """Another recorder, which was sent nothing yet."""
        self._progress = progress
        self._sent = 0
        self._batches.clear()

    def add(self, number: int, batch: bytearray) -> None:
        """The next batch was sent, all of it."""
        self._sent += len(batch)
        if self._progress is None:
            self._through = number
        else:
            self._batches.append((self._sent, number, batch))

    def through(self) -> int:
        """The number of the last batch that is worked through."""
        batches = self._batches
        if batches and self._progress is not None:
            done = max(self._progress.bytes, self._sent - _UNPROVEN)
            while batches and batches[0][0] <= done:
                self._through = batches.popleft()[1]
        return self._through

    @property
    def waits(self) -> bool:
        """The recorder has something that it has not worked through."""
        self.through()
        return bool(self._batches)

    def left(self, cut: bytearray, sent: int) -> Iterator[tuple[int, int, int]]:
        """As of `not_whole`: the frames that went to the recorder and are not worked through. `cut`: the batch behind
        the whole ones, of which so many bytes were sent."""
        done = self._sent + sent if self._progress is None else self._progress.bytes
        for end, _, batch in self._batches:
            yield from not_whole(batch, done - (end - len(batch)))
        yield from not_whole(cut, done - self._sent, sent)
