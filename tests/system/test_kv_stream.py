"""The KV event stream over real ZMQ: from the beginning, over a gap, and after the end of a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from kv_publisher import Publisher

from kvtop.readings import KvMessage, KvPublisher, KvSilence
from kvtop.sources.kv_events import KvEventSource


class Heard:
    """What a source hands up, in the background."""

    def __init__(self, source: KvEventSource) -> None:
        self.source = source
        self.items: list[KvMessage | KvSilence] = []
        self._more = asyncio.Event()

    @property
    def seqs(self) -> list[int]:
        return [one.seq for one in self.items if isinstance(one, KvMessage)]

    async def listen(self) -> None:
        async for item in self.source.stream():
            self.items.append(item)
            self._more.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.items) < count:
                await self._more.wait()
                self._more.clear()

    async def until_is(self, item: KvMessage) -> None:
        while not self.items or self.items[-1] != item:
            await self.until(len(self.items) + 1)


@contextlib.asynccontextmanager
async def heard(publisher: Publisher, topic: str = "kv") -> AsyncIterator[Heard]:
    one = Heard(KvEventSource(KvPublisher(2, publisher.endpoint, publisher.replay_endpoint, topic)))
    task = asyncio.create_task(one.listen())
    try:
        yield one
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_messages_come_in_order() -> None:
    async with Publisher(replays=False) as publisher, heard(publisher) as listener:
        await publisher.subscribed()
        for n in range(5):
            await publisher.publish(b"%d" % n)
        await listener.until(5)
        assert listener.items == [KvMessage(2, n, b"%d" % n) for n in range(5)]
        assert (listener.source.connected, listener.source.connections) == (True, 1)


async def test_who_comes_late_is_told_from_the_beginning() -> None:
    async with Publisher() as publisher:
        for n in range(3):
            await publisher.publish(b"%d" % n)
        async with heard(publisher) as listener:
            await publisher.subscribed()
            await listener.until(3)
            await publisher.publish(b"3")
            await listener.until(4)
            assert listener.items == [KvMessage(2, n, b"%d" % n) for n in range(4)]
            assert publisher.asked == [0]


async def test_what_was_lost_on_the_way_is_asked_for() -> None:
    async with Publisher() as publisher, heard(publisher) as listener:
        await publisher.subscribed()
        await publisher.publish(b"0")
        await listener.until(1)
        await publisher.publish(b"1", lost=True)
        await publisher.publish(b"2", lost=True)
        await publisher.publish(b"3")
        await listener.until(4)
        assert listener.seqs == [0, 1, 2, 3]
        assert publisher.asked[-1] == 1


async def test_what_nobody_has_any_more_stays_a_gap() -> None:
    async with Publisher() as publisher, heard(publisher) as listener:
        await publisher.subscribed()
        await publisher.publish(b"0")
        await listener.until(1)
        await publisher.publish(b"1", lost=True)
        publisher.kept.clear()
        await publisher.publish(b"2")
        await publisher.publish(b"3")
        await listener.until(3)
        assert listener.seqs == [0, 2, 3]


async def test_the_end_of_a_server_is_told_and_the_next_one_is_found() -> None:
    async with Publisher() as first, heard(first) as listener:
        await first.subscribed()
        await first.publish(b"old")
        await listener.until(1)
        ports = first.ports
        first.close()
        await listener.until(2)
        assert isinstance(listener.items[1], KvSilence)
        assert not listener.source.connected
        async with Publisher(*ports) as second:
            await second.publish(b"new", lost=True)
            await second.subscribed()
            await listener.until_is(KvMessage(2, 0, b"new"))
            await second.publish(b"newer")
            await listener.until_is(KvMessage(2, 1, b"newer"))
            assert listener.source.connections == 2


async def test_another_topic_and_what_is_no_message_are_left_out() -> None:
    async with Publisher(replays=False) as publisher, heard(publisher, "other") as listener:
        await publisher.subscribed()
        await publisher.publish(b"0")
        await publisher.pub.send_multipart([b"other", b"\x01"])
        await publisher.pub.send_multipart([b"other", b"short", b"x"])
        await publisher.pub.send_multipart([b"other", (7).to_bytes(8, "big"), b"mine"])
        await listener.until(1)
        assert listener.items == [KvMessage(2, 7, b"mine")]
        assert listener.source.unread == 2


async def test_an_endpoint_that_is_none_is_an_error() -> None:
    source = KvEventSource(KvPublisher(0, "tcp://nowhere"))
    with pytest.raises(OSError, match="tcp://nowhere"):
        async for _ in source.stream():
            pass
