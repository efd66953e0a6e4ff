"""Where clients knock: accepts a client, reaches the upstream for it, and joins the two.

An upstream that takes no connection looks to the client as it would without a tap: as a connection that breaks at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from kvtop.capture.tap.reactor import IN, OUT, Reactor
from kvtop.capture.tap.splice import Link, prepare
from kvtop.capture.tap.spool import Spool
from kvtop.capture.tap.track import Track
from kvtop.capture.tap.wire import Opened
from kvtop.sources.url import authority

Address = tuple[socket.AddressFamily, Any]

_AT_ONCE = 64
_BREATH_S = 0.1
"""Pause in accepting when the system has no descriptor or memory left. Clients wait in the listener's queue."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_JOINED = (0, errno.EISCONN)
_UNDER_WAY = (errno.EINPROGRESS, errno.EALREADY)


@dataclass(frozen=True)
class Mapping:
    """One port of the tap, and the server behind it."""

    listen_host: str
    listen_port: int
    """0 for any free one."""
    upstream_host: str
    upstream_port: int
    upstream_url: str
    """As it is shown and stored, without user and password."""


def resolve(host: str, port: int) -> list[Address]:
    """All addresses of a name, in the system's order. Raises OSError. May take seconds for what is no address."""
    rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in rows]


def is_address(host: str) -> bool:
    """An address, so that there is no name to look up."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def _upstream_socket(family: socket.AddressFamily) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    prepare(sock)
    return sock


class Door:
    """One listening socket."""

    def __init__(
        self,
        reactor: Reactor,
        listener: socket.socket,
        mapping: Mapping,
        addresses: list[Address],
        spool: Spool | None,
    ) -> None:
        self.reactor = reactor
        self.mapping = mapping
        self.addresses = addresses
        """Where the upstream is; the one that worked last comes first."""
        self.spool = spool
        self.links: set[Link] = set()
        self.dials: set[Dial] = set()
        self.served = 0
        """Connections that are over."""
        self._listener: socket.socket | None = listener
        self._spare: socket.socket | None = None
        """For the next upstream connection: nobody is let in while there is no descriptor for it."""
        self._resolving = False
        prepare(listener)
        host, port = listener.getsockname()[:2]
        self.listens: tuple[str, int] = (host, port)
        self._here = authority(host, port)
        reactor.add(listener.fileno(), self, IN)

    def ready(self, _events: int) -> None:
        """Somebody knocks."""
        for _ in range(_AT_ONCE):
            if self._listener is None:
                return
            try:
                spare = self._next_upstream()
                client, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause()
                    return
                continue  # it left before it was let in
            client.setblocking(False)
            self._spare = None
            dial = Dial(self, client, authority(*peer[:2]), spare)
            self.dials.add(dial)
            dial.go_on()

    def give_up(self) -> None:
        self._pause()

    def close(self) -> None:
        """Let nobody in any more. What is open stays open."""
        if self._listener is not None:
            self.reactor.closing(self._listener.fileno())
            self._listener.close()
            self._listener = None
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def join(self, dial: Dial, upstream: socket.socket, address: Address) -> None:
        """The upstream took the connection."""
        self.dials.discard(dial)
        if self.addresses and self.addresses[0] != address and address in self.addresses:
            self.addresses = [address, *(other for other in self.addresses if other != address)]
        link = Link(self.reactor, dial.client, upstream, self._over, self._track(dial.peer), peer=dial.peer)
        self.links.add(link)
        link.start()

    def refuse(self, dial: Dial, why: str) -> None:
        """The upstream could not be reached by any address."""
        self.dials.discard(dial)
        self.served += 1
        dial.client.close()
        if self.spool is not None:
            self.spool.refused(self._opened(dial.peer, why))
        self._resolve_anew()

    def left(self, dial: Dial) -> None:
        """The client went before the upstream was reached."""
        self.dials.discard(dial)
        self.served += 1
        dial.client.close()

    def _opened(self, peer: str, why: str = "") -> Opened:
        return Opened(upstream=self.mapping.upstream_url, listen=self._here, peer=peer, why=why)

    def _track(self, peer: str) -> Track | None:
        return None if self.spool is None else self.spool.open(self._opened(peer))

    def _over(self, link: Link) -> None:
        self.links.discard(link)
        self.served += 1

    def _next_upstream(self) -> socket.socket:
        family = self.addresses[0][0] if self.addresses else socket.AF_INET
        if self._spare is not None and self._spare.family != family:
            self._spare.close()
            self._spare = None
        if self._spare is None:
            self._spare = _upstream_socket(family)
        return self._spare

    def _pause(self) -> None:
        if self._listener is not None:
            self.reactor.change(self._listener.fileno(), 0)
            self.reactor.call_later(_BREATH_S, self._resume)

    def _resume(self) -> None:
        if self._listener is not None:
            self.reactor.change(self._listener.fileno(), IN)

    def _resolve_anew(self) -> None:
        """Look the upstream's name up again, off the loop: it may have moved."""
        mapping = self.mapping
        if self._resolving or is_address(mapping.upstream_host):
            return
        self._resolving = True

        def look() -> None:
            try:
                found = resolve(mapping.upstream_host, mapping.upstream_port)
            except OSError:
                found = []
            self.reactor.post(lambda: self._resolved(found))

        threading.Thread(target=look, daemon=True).start()

    def _resolved(self, found: list[Address]) -> None:
        self._resolving = False
        if found:
            self.addresses = found


class Dial:
    """A client that is let in, while the upstream is being reached."""

    def __init__(self, door: Door, client: socket.socket, peer: str, spare: socket.socket) -> None:
        self.door = door
        self.client = client
        self.peer = peer
        self.began_ns = monotonic_ns()
        self._left = list(door.addresses)
        self._sock: socket.socket | None = spare
        self._watched = False
        self._why = "its name cannot be resolved"

    def go_on(self) -> None:
        """Try the next address, until one answers or has to be waited for."""
        while self._left:
            code = self._connect()
            if code in _UNDER_WAY:
                self._watch()
                return
            if code in _JOINED:
                self._joined()
                return
            self._failed(code)
        self._forget()
        self.door.refuse(self, self._why)

    def ready(self, _events: int) -> None:
        """The upstream answered, or the client broke off."""
        if self.client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.abort()
            return
        code = self._connect()
        if code in _JOINED:
            self._joined()
        elif code not in _UNDER_WAY:
            self._failed(code)
            self.go_on()

    def abort(self) -> None:
        """Drop both."""
        self._forget()
        self.door.left(self)

    def give_up(self) -> None:
        self.abort()

    def _connect(self) -> int:
        """0 or an errno. Again and again until it is neither of _UNDER_WAY."""
        family, address = self._left[0]
        try:
            if self._sock is None:
                self._sock = _upstream_socket(family)
            code = self._sock.connect_ex(address)
            if code == errno.EINPROGRESS:
                # Within one machine the handshake is done by now: another call tells, and spares a wait.
                code = self._sock.connect_ex(address)
        except OSError as error:
            code = error.errno or errno.EIO
        return code

    def _watch(self) -> None:
        reactor = self.door.reactor
        if self._sock is not None and not self._watched:
            reactor.add(self._sock.fileno(), self, OUT)
            reactor.add(self.client.fileno(), self, 0)
            self._watched = True

    def _unwatch(self) -> None:
        if self._watched and self._sock is not None:
            self.door.reactor.remove(self._sock.fileno())
            self.door.reactor.remove(self.client.fileno())
            self._watched = False

    def _joined(self) -> None:
        self._unwatch()
        if self._sock is not None:
            self.door.join(self, self._sock, self._left[0])

    def _failed(self, code: int) -> None:
        self._why = os.strerror(code)
        self._forget()
        del self._left[0]

    def _forget(self) -> None:
        """Let go of the upstream's socket."""
        self._unwatch()
        if self._sock is not None:
            self._sock.close()
            self._sock = None
