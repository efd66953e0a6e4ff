"""Waits for sockets, times and other threads: one thread, epoll, no tasks.

It stands where asyncio's loop would: that one costs a third more CPU for an event of the splice, cannot keep watch over
a socket that nobody reads at the moment (and a client that breaks off is to be noticed then too), and takes 6 MB.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import select
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Protocol

IN = select.EPOLLIN
OUT = select.EPOLLOUT
ERR = select.EPOLLERR
HUP = select.EPOLLHUP
"""ERR and HUP come without being asked for, as long as a descriptor is watched at all."""

_AT_ONCE = 256


class Owner(Protocol):
    """Whom the events of a descriptor concern."""

    def ready(self, events: int) -> None:
        """What epoll said. May come once for a descriptor of that number that was closed a moment ago."""
        ...

    def give_up(self) -> None:
        """`ready` raised: let go of everything, so that one fault ends one connection and not all."""
        ...


class Reactor:
    """Level triggered. Not for use from other threads, but for `post`."""

    def __init__(self, trouble: Callable[[str], None] = lambda _: None) -> None:
        self._epoll = select.epoll()
        self._owners: dict[int, Owner] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._posted: deque[Callable[[], None]] = deque()
        self._stopped = False
        self._trouble = trouble
        self._bell, self._button = socket.socketpair()
        self._bell.setblocking(False)
        self._button.setblocking(False)
        self.add(self._bell.fileno(), self, IN)

    @property
    def wakeup_fd(self) -> int:
        """For signal.set_wakeup_fd: without it a signal that comes just before the wait is seen after it."""
        return self._button.fileno()

    def add(self, fd: int, owner: Owner, events: int) -> None:
        """Watch a descriptor; with `events` 0 for ERR and HUP alone."""
        self._owners[fd] = owner
        self._epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Watch it no more; it stays open."""
        if self._owners.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def closing(self, fd: int) -> None:
        """It is closed next, which takes it out of epoll without a further call."""
        self._owners.pop(fd, None)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """There is no cancelling: what is called looks whether it is still wanted."""
        heapq.heappush(self._timers, (monotonic() + delay_s, next(self._order), call))

    def post(self, call: Callable[[], None]) -> None:
        """Have it called by `run`. From any thread, and from a signal handler."""
        self._posted.append(call)
        with contextlib.suppress(OSError):  # full: then it wakes up anyway
            self._button.send(b"\0")

    def run(self) -> None:
        """Until `stop`."""
        poll, owners, timers = self._epoll.poll, self._owners, self._timers
        self._stopped = False
        while not self._stopped:
            timeout = max(0.0, timers[0][0] - monotonic()) if timers else None
            for fd, events in poll(timeout, _AT_ONCE):
                owner = owners.get(fd)
                if owner is not None:
                    try:
                        owner.ready(events)
                    except Exception as error:  # noqa: BLE001 - whatever it is, the other connections go on
                        self._fault(error)
                        owner.give_up()
            while timers and timers[0][0] <= monotonic():
                self._call(heapq.heappop(timers)[2])

    def stop(self) -> None:
        """Let `run` return after what is at hand."""
        self._stopped = True

    def close(self) -> None:
        self._epoll.close()
        self._bell.close()
        self._button.close()

    def ready(self, _events: int) -> None:
        """The bell rang."""
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(4096)
        while self._posted:
            self._call(self._posted.popleft())

    def give_up(self) -> None:
        """`ready` catches what it calls."""

    def _call(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - as above
            self._fault(error)

    def _fault(self, error: Exception) -> None:
        self._trouble(f"internal error, one connection or task given up: {error!r}")
