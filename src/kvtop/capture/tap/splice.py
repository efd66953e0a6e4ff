"""One connection through the tap: what a side says goes to the other, byte for byte and event for event.

FIN becomes FIN and RST becomes RST. Both sockets are set to reset when they are closed (SO_LINGER 0) until an answer
ended in order: whatever happens to the tap, kill -9 too, a cut answer never looks complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic_ns
from typing import ClassVar

from kvtop.capture.tap.reactor import ERR, HUP, IN, OUT, Reactor
from kvtop.capture.tap.track import Track
from kvtop.capture.tap.wire import Kind

READ_BYTES = 256 * 1024
"""Most that is taken from one side in one go, and so most that waits in the tap for the other side."""

_BUFFER = memoryview(bytearray(READ_BYTES))
"""Of all connections: what is read is passed on before the next read, and the rest of it copied."""

_RESET = struct.pack("ii", 1, 0)
_ORDERLY = struct.pack("ii", 0, 0)
_UNSENT = 0x894B
"""SIOCOUTQNSD: bytes in the send queue that the network has not seen."""
_LOOK_AGAIN_S = (0.002, 0.25)


def prepare(sock: socket.socket) -> None:
    """Non-blocking, no delay, and a reset should it be closed for whatever reason. A listener hands the latter two to
    the sockets that it accepts."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class Side(ABC):
    """One of the two sockets: bytes are read from it and sent to its peer."""

    __slots__ = ("broken", "ended", "eof", "fd", "link", "mask", "peer", "pending", "sock", "watched")

    DATA: ClassVar[int]
    END: ClassVar[int]
    RESET: ClassVar[int]
    peer: Side

    def __init__(self, sock: socket.socket, link: Link) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.link = link
        self.mask = 0
        self.watched = False
        self.pending: memoryview | None = None
        """What is to be sent to this side and did not fit. While there is any, the peer is not read."""
        self.eof = False
        """It will say no more."""
        self.ended = False
        """It was told that the peer will say no more."""
        self.broken = False
        """It takes nothing more. What it said before that may still wait to be read."""

    def ready(self, events: int) -> None:
        if events & OUT and self.pending is not None:
            self._write(self.pending)
        if self.link.over:
            return
        if self.mask & IN:
            if events & ~OUT:
                self.read()
        elif events & (ERR | HUP) and self.pending is None:
            self._hung(events)

    def give_up(self) -> None:
        self.link.abort()

    def read(self) -> None:
        """Take what is there and send it on at once."""
        try:
            size = self.sock.recv_into(_BUFFER)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.gone()
            return
        if not size:
            self._said_all()
            return
        # before the send: a tap that is preempted behind it would stamp a question later than its answer
        at_ns = monotonic_ns()
        data = _BUFFER[:size]
        peer, link = self.peer, self.link
        try:
            sent = peer.sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            peer.unwritable()
            return
        link.at_ns = at_ns
        link.tail = bytes(data[-5:])
        if link.last is not self:
            link.last = self
            if self is link.client:
                link.asked_ns = at_ns
        if sent < size:
            peer.pending = memoryview(bytes(data[sent:]))
            self.watch()
            peer.watch()
        if link.track is not None:
            link.track.data(self.DATA, at_ns, data)

    def _write(self, pending: memoryview) -> None:
        try:
            sent = self.sock.send(pending)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.unwritable()
            return
        if sent < len(pending):
            self.pending = pending[sent:]
            return
        self.pending = None
        if self.peer.eof:
            self._end()
        if not self.link.over:
            self.watch()
            self.peer.watch()
            self.link.delivered()

    def _said_all(self) -> None:
        if self.broken:
            # A failed send took the error away from the read, which then looks like an orderly end.
            self.gone()
            return
        self.eof = True
        self.link.mark(self.END)
        if self.peer.pending is None:
            self.peer._end()
        if not self.link.over:
            self.watch()

    def _end(self) -> None:
        """Tell this side that the peer will say no more."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.unwritable()
            return
        self.ended = True
        if self.peer.ended:
            self.link.close()

    @abstractmethod
    def _hung(self, events: int) -> None:
        """Something happened to a side that is not read at the moment."""

    @abstractmethod
    def unwritable(self) -> None:
        """A send to this side failed: the other end of it has reset."""

    @abstractmethod
    def gone(self) -> None:
        """It reset, and everything that it said before was read."""

    def watch(self) -> None:
        """Ask for the events that matter now."""
        idle = self.eof or self.peer.pending is not None or self.peer.broken or self.link.dying
        mask = (0 if idle else IN) | (OUT if self.pending is not None else 0)
        if not self.watched:
            if not mask:
                return
            self.link.reactor.add(self.fd, self, mask)
            self.watched = True
        elif mask != self.mask:
            self.link.reactor.change(self.fd, mask)
        self.mask = mask

    def unwatch(self) -> None:
        """It has nothing to say that could be acted upon now, and epoll would repeat it for ever."""
        self.link.reactor.remove(self.fd)
        self.watched = False
        self.mask = 0

    def drop(self, linger: bytes | None = None) -> None:
        """Close it; with `_ORDERLY` without a reset."""
        if linger is not None:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.link.reactor.closing(self.fd)
        self.sock.close()


class Client(Side):
    """Nobody is left to read an answer when it is gone, so its end is passed on at once."""

    __slots__ = ()

    DATA, END, RESET = int(Kind.CLIENT), int(Kind.CLIENT_END), int(Kind.CLIENT_RESET)

    def _hung(self, events: int) -> None:
        if events & ERR and self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.gone()
        else:
            self.unwatch()

    def unwritable(self) -> None:
        self.gone()

    def gone(self) -> None:
        self.link.mark(self.RESET)
        self.link.abort()


class Upstream(Side):
    """What it said before it went is delivered first, for instance an early 413 in the middle of an upload."""

    __slots__ = ()

    DATA, END, RESET = int(Kind.SERVER), int(Kind.SERVER_END), int(Kind.SERVER_RESET)

    def _hung(self, events: int) -> None:
        if self.eof and events & ERR and self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.gone()
        else:
            self.unwatch()

    def unwritable(self) -> None:
        self.broken = True
        self.pending = None
        if self.eof:
            self.gone()
            return
        self.watch()
        self.peer.watch()

    def gone(self) -> None:
        link = self.link
        link.mark(self.RESET)
        link.dying = True
        self.broken = True
        self.pending = None
        self.watched = False
        self.drop()
        link.client.watch()
        link.delivered()


class Link:
    """A client's connection and the upstream's that belongs to it."""

    __slots__ = (
        "asked_ns",
        "at_ns",
        "client",
        "dying",
        "last",
        "look_again_s",
        "on_close",
        "over",
        "peer",
        "reactor",
        "tail",
        "track",
        "upstream",
    )

    def __init__(
        self,
        reactor: Reactor,
        client: socket.socket,
        upstream: socket.socket,
        on_close: Callable[[Link], None],
        track: Track | None = None,
        *,
        peer: str = "",
    ) -> None:
        self.reactor = reactor
        self.on_close = on_close
        self.track = track
        self.peer = peer
        """host:port of the client."""
        self.over = False
        self.dying = False
        """The upstream reset, and the client gets the same when it has got what was said before."""
        self.look_again_s = _LOOK_AGAIN_S[0]
        self.client = Client(client, self)
        self.upstream = Upstream(upstream, self)
        self.client.peer, self.upstream.peer = self.upstream, self.client
        self.last: Side = self.upstream
        """Who spoke last, and when; one that was only opened counts as waiting for a request."""
        self.at_ns = self.asked_ns = monotonic_ns()
        """The latter: when the client began to speak the last time, or came."""
        self.tail = b""
        """The last bytes of what was read last."""

    @property
    def answered(self) -> bool:
        """The upstream spoke last, and its answer is whole as far as that shows without reading HTTP: a head whose body
        is to come and a chunk of a stream end with the end of a line, the last chunk is empty."""
        return self.last is self.upstream and (self.tail[-2:] != b"\r\n" or self.tail == b"0\r\n\r\n")

    def start(self) -> None:
        """Begin to read both; the client may have spoken already."""
        self.upstream.watch()
        self.client.watch()
        self.client.read()

    def mark(self, kind: int) -> None:
        if self.track is not None:
            self.track.mark(kind)

    def delivered(self) -> None:
        """Nothing waits for the client in the tap: if the upstream is gone, pass its reset on, unless the kernel still
        has bytes for the client, which a reset would throw away."""
        if self.over or not self.dying or self.client.pending is not None:
            return
        try:
            unsent = struct.unpack("i", fcntl.ioctl(self.client.fd, _UNSENT, b"\0\0\0\0"))[0]
        except OSError:
            unsent = 0
        if unsent:
            self.reactor.call_later(self.look_again_s, self.delivered)
            self.look_again_s = min(self.look_again_s * 2, _LOOK_AGAIN_S[1])
        else:
            self.abort()

    def close(self) -> None:
        """Both sides ended in order."""
        self._finish(_ORDERLY)

    def abort(self) -> None:
        """Reset both."""
        self._finish(None)

    def _finish(self, linger: bytes | None) -> None:
        if self.over:
            return
        self.over = True
        self.client.drop(linger)
        if not self.dying:
            self.upstream.drop(linger)
        if self.track is not None:
            self.track.close()
        self.on_close(self)
