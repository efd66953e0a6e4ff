"""The KV event stream of one engine, over ZMQ. Reads only; prompts are in it, so nothing of it is logged.

ZMQ connects again by itself. Where there is a replay endpoint, what was published before the connection, or was lost
on the way, is asked for and handed up in its place; what nobody has any more stays a gap in the numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

from kvtop.clock import Clock, SystemClock
from kvtop.readings import KvMessage, KvPublisher, KvSilence

if TYPE_CHECKING:
    from zmq.asyncio import Context, Socket

MAX_BYTES = 64 << 20
"""Of one frame; a larger one ends the connection."""
QUEUED = 10_000
"""Messages that wait here; more are dropped, and seen as a gap."""
REPLAY_S = 5.0
"""A replay that says nothing for so long is given up. vLLM looks for requests ten times a second."""
_RECONNECT_MS = 200
_RECONNECT_MOST_MS = 5_000
_FRAMES = 3
_MISSED = 1 << 40
"""Numbers beyond this are none."""


class KvEventSource:
    """`stream` until closed. Needs pyzmq, which is imported then."""

    def __init__(self, publisher: KvPublisher, *, clock: Clock | None = None) -> None:
        self.publisher = publisher
        self.connected = False
        self.waiting = False
        """All that came was handed up, and nothing more is here."""
        self.connections = 0
        """So far: a new one may mean a new engine."""
        self.unread = 0
        """Messages that were none of vLLM's."""
        self._clock = clock or SystemClock()
        self._next: int | None = None
        """The number that is due; None: the first, or the first after a new connection."""

    def __repr__(self) -> str:
        return f"KvEventSource({self.publisher.endpoint!r})"

    async def stream(self) -> AsyncGenerator[KvMessage | KvSilence, None]:
        """Messages in the order of their numbers, and the ends of the connection. After a new connection messages may
        come again, as a replay brings them. Ends never; raises OSError for an endpoint that ZMQ does not take, and
        ImportError."""
        import zmq
        import zmq.asyncio

        context = zmq.asyncio.Context()
        try:
            try:
                stream, monitor = _subscribed(context, self.publisher)
            except zmq.ZMQError as error:
                raise OSError(error.errno, f"ZMQ does not take {self.publisher.endpoint}") from None
            poller = zmq.asyncio.Poller()
            poller.register(stream, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
            while True:
                self.waiting = True
                ready = dict(await poller.poll())
                self.waiting = False
                if monitor in ready:
                    # All of them before a message: one that came over a new connection may be of a new engine.
                    while await monitor.poll(0):
                        silence = await self._heard(monitor)
                        if silence is not None:
                            yield silence
                    if self._next is None and self.connected and self.publisher.replay is not None:
                        async for message in self._replayed(context, 0):
                            yield message
                if stream in ready:
                    async for message in self._taken(context, await stream.recv_multipart()):
                        yield message
        finally:
            context.destroy(linger=0)

    async def _heard(self, monitor: Socket) -> KvSilence | None:
        import zmq
        from zmq.utils.monitor import recv_monitor_message

        event = (await recv_monitor_message(monitor))["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.connected, self._next = True, None
            self.connections += 1
        elif event == zmq.EVENT_DISCONNECTED and self.connected:
            self.connected, self._next = False, None
            return KvSilence(self.publisher.rank, self._clock.wall())
        return None

    async def _taken(self, context: Context, frames: list[bytes]) -> AsyncIterator[KvMessage]:
        message = self._message(frames)
        if message is None:
            return
        due = self._next
        if due is not None and message.seq < due:
            return  # the replay brought it; no engine begins anew within one connection
        if message.seq > (due or 0) and self.publisher.replay is not None:
            async for missed in self._replayed(context, due or 0, message.seq):
                yield missed
        self._next = message.seq + 1
        yield message

    async def _replayed(self, context: Context, start: int, end: int | None = None) -> AsyncIterator[KvMessage]:
        """What the server has kept from that number on, up to `end`: it keeps the last 10,000 unless told otherwise."""
        import zmq

        assert self.publisher.replay is not None
        socket = context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
            with contextlib.suppress(zmq.ZMQError, TimeoutError):
                socket.connect(self.publisher.replay)
                await socket.send_multipart([b"", start.to_bytes(8, "big")])
                while True:
                    frames = await asyncio.wait_for(socket.recv_multipart(), REPLAY_S)
                    # [empty, (topic,) number, payload]: the topic stands there in newer versions.
                    message = self._message([b"", *frames[-2:]], ends=True)
                    if message is None:
                        break
                    if end is None or message.seq < end:
                        self._next = message.seq + 1
                        yield message
        finally:
            socket.close()

    def _message(self, frames: list[bytes], *, ends: bool = False) -> KvMessage | None:
        """None for what is none, and with `ends` for the end of a replay."""
        if len(frames) == _FRAMES and len(frames[1]) == 8:
            seq = int.from_bytes(frames[1], "big", signed=True)
            if 0 <= seq < _MISSED:
                return KvMessage(self.publisher.rank, seq, frames[2])
            if ends and seq == -1:
                return None
        self.unread += 1
        return None


def _subscribed(context: Context, publisher: KvPublisher) -> tuple[Socket, Socket]:
    """The stream, and what tells of its connection. Raises ZMQError."""
    import zmq

    stream = context.socket(zmq.SUB)
    for name, value in (
        (zmq.LINGER, 0),
        (zmq.RCVHWM, QUEUED),
        (zmq.MAXMSGSIZE, MAX_BYTES),
        (zmq.RECONNECT_IVL, _RECONNECT_MS),
        (zmq.RECONNECT_IVL_MAX, _RECONNECT_MOST_MS),
        (zmq.IPV6, 1),
    ):
        stream.setsockopt(name, value)
    monitor = stream.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    stream.setsockopt(zmq.SUBSCRIBE, publisher.topic.encode("utf-8", "replace"))
    stream.connect(publisher.endpoint)
    return stream, monitor
