"""What the tap saw, on its way to the recorder: a queue with a limit in bytes that never delays traffic.

Frames are gathered in batches. A recorder that is slow or stopped lets the batches pile up to the limit; beyond it the
bytes of a connection are counted instead of kept, and a GAP is told in their place as soon as there is room. A recorder
that died is followed by another one, which gets what was not yet handed over; connections that the dead one knew are
told again, as resumed and with a GAP. What the dead one was given and has not worked through, by its own count, is lost
and counted.
"""

from __future__ import annotations

import itertools
import socket
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic, monotonic_ns
from typing import Protocol

import msgspec

from kvtop.capture.tap.batches import Handed, Rest, not_begun, not_whole
from kvtop.capture.tap.ended import Missed
from kvtop.capture.tap.progress import Progress
from kvtop.capture.tap.reactor import ERR, HUP, OUT, Reactor
from kvtop.capture.tap.tally import Tally
from kvtop.capture.tap.track import Track
from kvtop.capture.tap.wire import HEADER, Kind, Lost, Opened

CAP_BYTES = 32 << 20
BATCH_S = 0.02
_BATCHES_AT_ONCE = 16
"""Then traffic has its turn."""

_UNTOLD = 4096
"""Connections that began and ended while there was no room and are still told of later."""

_pack = HEADER.pack
_encode = msgspec.json.Encoder().encode


class Recorder(Protocol):
    """Keeps a process at the other end: `kvtop.capture.tap.child.Child`."""

    on_start: Callable[[socket.socket, Progress | None], None]

    def start(self) -> None: ...

    def lost(self) -> None: ...

    def end(self, within_s: float, then: Callable[[], None]) -> None: ...


class Spool:
    """The queue, and the recorder at its end."""

    def __init__(
        self,
        reactor: Reactor,
        recorder: Recorder,
        cap_bytes: int = CAP_BYTES,
        note: Callable[[str], None] = lambda _: None,
        tell: Callable[[Missed], None] = lambda _: None,
    ) -> None:
        """`note` and `tell`: as of `Tally`."""
        self._reactor = reactor
        self._recorder = recorder
        recorder.on_start = self._connected
        self._sock: socket.socket | None = None
        self._waiting = False
        """For the socket to take more."""
        self._cap = cap_bytes
        self.room = cap_bytes - cap_bytes // 8
        """For frames with bytes; the rest is kept for those that say how a connection began and ended."""
        self.batch = bytearray()
        """The frames that are being gathered."""
        self._number = 1
        """Of that batch; they count up."""
        self._queue: deque[tuple[int, bytearray]] = deque()
        self.held = 0
        """Bytes in the queue."""
        self._sent = 0
        """Bytes of the first batch in the queue that are with the recorder."""
        self._handed = Handed()
        self.armed = False
        self._conns = itertools.count(1)
        self._live: dict[int, Track] = {}
        self._closed: deque[tuple[int, Track]] = deque()
        """Tracks that are over, until the recorder has worked through the batch with their CLOSE."""
        self._behind: dict[int, Track] = {}
        self.tally = Tally(reactor, lambda: bool(self._behind), note, tell)

    def start(self) -> None:
        self._recorder.start()

    def open(self, opened: Opened) -> Track:
        """A client and an upstream are connected."""
        track = Track(self, next(self._conns) & 0xFFFFFFFF, opened)
        self._live[track.conn] = track
        if self.full():
            self.behind(track)
        else:
            self._tell(track, monotonic_ns())
            self.arm()
        return track

    def refused(self, opened: Opened) -> None:
        """The upstream took no connection."""
        if self.full():
            self.tally.add(0, 1)
            return
        text = _encode(opened)
        self.batch += _pack(next(self._conns) & 0xFFFFFFFF, Kind.REFUSED, monotonic_ns(), len(text)) + text
        self.arm()

    def finish(self, flush_s: float, wait_s: float, then: Callable[[], None]) -> None:
        """All connections are over: hand over what is here within `flush_s`, let the recorder end within `wait_s`."""
        deadline = monotonic() + flush_s

        def look() -> None:
            self._recorder.start()
            self.flush()
            if not (self._queue or self.batch or self._behind) or monotonic() > deadline:
                self._give_up_rest()
                self._recorder.end(wait_s, ended)
            else:
                self._reactor.call_later(BATCH_S, look)

        def ended() -> None:
            self._settle()
            then()

        look()

    def abandon(self, within_s: float, then: Callable[[], None]) -> None:
        """Hand over what the recorder takes within that time, which holds how the last connections ended, and hang up.
        It ends by itself with what it has; what it has not worked through by then is not known to be recorded. At once
        where none is there."""
        deadline = monotonic() + within_s

        def look() -> None:
            self.flush()
            here = self._sock is not None and (self._queue or self.batch or self._behind)
            if (here or self._handed.waits) and monotonic() < deadline:
                self._reactor.call_later(BATCH_S, look)
            else:
                self._give_up_rest()
                self._settle()
                then()

        look()

    def full(self) -> bool:
        """No room for a further frame, even one without bytes."""
        return self.held + len(self.batch) >= self._cap

    def arm(self) -> None:
        """Hand over what is gathered in a moment."""
        if not self.armed:
            self.armed = True
            self._reactor.call_later(BATCH_S, self._due)

    def behind(self, track: Track) -> None:
        """Nothing more is kept of it until there is room to say so."""
        if not track.behind:
            track.behind = True
            self._behind[track.conn] = track
            self.arm()

    def closed(self, track: Track) -> None:
        del self._live[track.conn]
        if not track.behind:
            self._closed.append((self._number, track))
        elif not track.told and len(self._behind) > _UNTOLD:
            del self._behind[track.conn]
            self.missed(track, 0)

    def missed(self, track: Track, size: int) -> None:
        """So many bytes of it were not kept."""
        self.tally.add(size, not track.short)
        track.short = True

    def seal(self) -> None:
        """Close the batch. It is sent when it is due: just now there may be more of a large body to pass on."""
        if self.batch:
            self._queue.append((self._number, self.batch))
            self.held += len(self.batch)
            self.batch = bytearray()
            self._number += 1

    def flush(self) -> None:
        """Send what is here, as much as the recorder takes at once."""
        self.seal()
        if not self._waiting:
            self._send()

    def ready(self, events: int) -> None:
        """The recorder takes more, or hung up."""
        if events & (ERR | HUP):
            self._lost()
        elif events & OUT:
            self._send()

    def give_up(self) -> None:
        self._lost()

    def _due(self) -> None:
        self.armed = False
        self.flush()

    def _send(self) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            for _ in range(_BATCHES_AT_ONCE):
                if not self._queue:
                    self._wait(False)
                    break
                number, batch = self._queue[0]
                with memoryview(batch) as whole:
                    self._sent += sock.send(whole[self._sent :])
                if self._sent < len(batch):
                    continue
                self._queue.popleft()
                self.held -= len(batch)
                self._sent = 0
                self._handed.add(number, batch)
            else:
                self._wait(True)
        except BlockingIOError:
            self._wait(True)
        except OSError:
            self._lost()
            return
        through = self._handed.through()
        while self._closed and self._closed[0][0] <= through:
            self._closed.popleft()
        if self._behind and self.held + len(self.batch) < self._cap // 2:
            self._catch_up()

    def _wait(self, waiting: bool) -> None:
        if waiting != self._waiting and self._sock is not None:
            self._waiting = waiting
            self._reactor.change(self._sock.fileno(), OUT if waiting else 0)

    def _tell(self, track: Track, at_ns: int) -> None:
        text = _encode(track.opened)
        self.batch += _pack(track.conn, Kind.OPEN, at_ns, len(text)) + text
        track.told = True
        track.batch = self._number

    def _catch_up(self) -> None:
        """There is room again: tell what was lost, connection by connection."""
        for conn, track in list(self._behind.items()):
            if self.full():
                break
            del self._behind[conn]
            now = monotonic_ns()
            if not track.told:
                self._tell(track, now)
            self.batch += self._gap(conn, Lost(client_bytes=track.lost_client, server_bytes=track.lost_server), now)
            track.lost_client = track.lost_server = 0
            for kind, at_ns in track.marks:
                self.batch += _pack(conn, kind, at_ns, 0)
            track.marks.clear()
            track.behind = False
            if track.over:
                self._closed.append((self._number, track))
        self.arm()

    def _gap(self, conn: int, lost: Lost, at_ns: int) -> bytes:
        text = _encode(lost)
        return _pack(conn, Kind.GAP, at_ns, len(text)) + text

    def _connected(self, sock: socket.socket, progress: Progress | None) -> None:
        self._sock = sock
        self._handed.begin(progress)
        self._waiting = False
        self._reactor.add(sock.fileno(), self, 0)
        self._send()

    def _hang_up(self) -> None:
        sock, self._sock = self._sock, None
        self._waiting = False
        if sock is not None:
            self._reactor.remove(sock.fileno())
            sock.close()

    def _give_up_rest(self) -> None:
        """Nothing more is handed over."""
        self._hang_up()
        self.seal()

    def _settle(self) -> None:
        """Nothing more is recorded."""
        tracks, cut = self._tracks(), self._queue.popleft()[1] if self._queue else bytearray()
        self._count(self._handed.left(cut, self._sent), tracks)
        self._count(not_whole(not_begun(cut, self._sent).frames, 0), tracks)
        for _, batch in self._queue:
            self._count(not_whole(batch, 0), tracks)
        self._handed.begin(None)
        self._queue.clear()
        self._closed.clear()
        self.held = self._sent = 0
        self.tally.close()

    def _tracks(self) -> dict[int, Track]:
        """All of which a frame may be on its way."""
        over = (track for _, track in self._closed)
        return {track.conn: track for track in (*over, *self._live.values(), *self._behind.values())}

    def _count(self, frames: Iterable[tuple[int, int, int]], tracks: dict[int, Track]) -> dict[int, Lost]:
        """Connection, kind and size of frames that are not recorded. What they held of each connection."""
        lost: dict[int, Lost] = {}
        for conn, kind, size in frames:
            track = tracks.get(conn)
            if kind == Kind.REFUSED:
                self.tally.add(0, 1)
            elif track is None:
                continue
            elif kind in (Kind.CLIENT, Kind.SERVER):
                self.missed(track, size)
                before = lost.get(conn, Lost())
                lost[conn] = Lost(
                    client_bytes=before.client_bytes + (size if kind == Kind.CLIENT else 0),
                    server_bytes=before.server_bytes + (size if kind == Kind.SERVER else 0),
                )
            elif kind == Kind.CLOSE:
                self.missed(track, 0)
        return lost

    def _lost(self) -> None:
        """The recorder is gone: prepare the queue for the next one."""
        if self._sock is None:
            return
        self._hang_up()
        self._resume()
        self._recorder.lost()

    def _resume(self) -> None:
        """What goes to the next recorder: the frames that were not begun, and before them the connections that began
        in those that were."""
        number, rest, cut = self._number - 1, Rest(bytearray(), set(), set()), bytearray()
        sent, self._sent = self._sent, 0
        over = number
        """The last batch of which all is with the dead one."""
        if sent:
            number, cut = self._queue.popleft()
            over = number - 1
            self.held -= len(cut)
            rest = not_begun(cut, sent)
        elif self._queue:
            number = over = self._queue[0][0] - 1
        cuts = self._count(self._handed.left(cut, sent), self._tracks())
        self._handed.begin(None)
        self._closed = deque(one for one in self._closed if one[0] > over and one[1].conn not in rest.over)
        told = rest.opened
        front = bytearray()
        now = monotonic_ns()
        for track in itertools.chain((t for _, t in self._closed), self._live.values(), self._behind.values()):
            if track.told and track.batch <= number and track.conn not in told:
                told.add(track.conn)
                text = _encode(msgspec.structs.replace(track.opened, resumed=True))
                front += _pack(track.conn, Kind.OPEN, now, len(text)) + text
                # What a track that is behind lost comes after what is still in the queue.
                front += self._gap(track.conn, cuts.get(track.conn, Lost()), now)
                track.batch = number
        front += rest.frames
        if front:
            self._queue.appendleft((number, front))
            self.held += len(front)
