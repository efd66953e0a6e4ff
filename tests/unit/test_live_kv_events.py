"""Where a server's KV events are looked for, and how its streams are followed, with stand-ins for both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest

from kv_event_talk import payload, removed, stored
from kvtop.live.kv_events import Engine, KvEvents, places
from kvtop.readings import KvMessage, KvPublisher, KvSilence, State
from kvtop.sources.http import HttpFailure
from kvtop.sources.kv_places import KvPlaces
from kvtop.triage.certainty import Missing
from kvtop.triage.residency import Leading

TOLD = json.dumps({"0": {"enable_kv_cache_events": True, "endpoint": "tcp://*:5613", "topic": "kv"}}).encode()
COMMAND = ("vllm", "serve", "m", "--kv-events-config", '{"enable_kv_cache_events": true, "endpoint": "tcp://*:7000"}')
HERE = KvPublisher(0, "tcp://127.0.0.1:5613", None, "kv")
THERE = KvPublisher(1, "tcp://127.0.0.1:5614", None, "kv")
IDS = list(range(40))


def answers(status: int, body: bytes = b"") -> Callable[[str], object]:
    async def probe(path: str) -> tuple[int, bytes]:
        assert path == "/kv_event_sources"
        if not status:
            raise HttpFailure(State.REFUSED, "nobody is there")
        return status, body

    return probe


@pytest.mark.parametrize(
    ("status", "body", "command", "configured", "here", "endpoints"),
    [
        (200, TOLD, COMMAND, "", True, ["tcp://127.0.0.1:5613"]),
        (404, b"", COMMAND, "", True, ["tcp://127.0.0.1:7000"]),
        (0, b"", COMMAND, "", True, ["tcp://127.0.0.1:7000"]),
        (200, b"nonsense", COMMAND, "", True, ["tcp://127.0.0.1:7000"]),
        (200, b"{}", COMMAND, "", True, []),
        (404, b"", (), "", True, []),
        (200, TOLD, COMMAND, "", False, []),
        (200, TOLD, COMMAND, "tcp://10.1.1.1:5000", False, ["tcp://10.1.1.1:5000"]),
        (404, b"", (), "tcp://10.1.1.1:5000", True, ["tcp://10.1.1.1:5000"]),
    ],
)
async def test_where_events_are_looked_for(
    status: int, body: bytes, command: tuple[str, ...], configured: str, *, here: bool, endpoints: list[str]
) -> None:
    found = await places(answers(status, body), command, configured, here=here)  # type: ignore[arg-type]
    assert [one.endpoint for one in found.publishers] == endpoints


class Stream:
    """Hands up what a test puts there."""

    def __init__(self, publisher: KvPublisher, fails: Exception | None = None) -> None:
        self.publisher, self.fails = publisher, fails
        self.items: asyncio.Queue[KvMessage | KvSilence] = asyncio.Queue()
        self.connected = self.waiting = True
        self.ended = False

    async def stream(self) -> AsyncIterator[KvMessage | KvSilence]:
        if self.fails is not None:
            raise self.fails
        try:
            while True:
                yield await self.items.get()
        finally:
            self.ended = True


class Followed:
    """A KvEvents that runs, with its streams."""

    def __init__(self, *found: KvPlaces, fails: Exception | None = None) -> None:
        self.found, self.fails = list(found), fails
        self.streams: list[Stream] = []
        self.looks = 0
        self._moved = asyncio.Event()
        self.slept: list[float] = []
        self.events = KvEvents(self._find, self._made, self._sleep)
        self.task = asyncio.create_task(self.events.run(self._moved.set))

    async def _find(self) -> KvPlaces:
        self.looks += 1
        self._moved.set()
        return self.found.pop(0) if len(self.found) > 1 else self.found[0]

    def _made(self, publisher: KvPublisher) -> Stream:
        self.streams.append(Stream(publisher, self.fails))
        self._moved.set()
        return self.streams[-1]

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.Event().wait()

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not true():
                await self._moved.wait()
                self._moved.clear()

    def engine(self, rank: int = 0) -> Engine:
        return self.events.engines[rank]

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_what_a_stream_says_is_known() -> None:
    followed = Followed(KvPlaces((HERE, THERE)))
    await followed.until(lambda: len(followed.streams) == 2)
    first, second = followed.streams
    first.items.put_nowait(KvMessage(0, 0, payload(10.0, stored([1, 2], IDS[:32]))))
    second.items.put_nowait(KvMessage(1, 0, payload(10.0, stored([1], IDS[:16]))))
    await followed.until(lambda: followed.engine().index.batches and followed.engine(1).index.batches)
    first_index, second_index = followed.engine().index, followed.engine(1).index
    assert first_index.leading(first_index.prefix(IDS)) == Leading(32, True)
    assert second_index.leading(second_index.prefix(IDS)) == Leading(16, True)
    first.items.put_nowait(KvMessage(0, 1, b"nonsense"))
    await followed.until(lambda: followed.engine().unread)
    assert first_index.leading(first_index.prefix(IDS)) == Leading(0, False), "it may have told of a removal"
    await followed.end()
    assert first.ended
    assert second.ended


async def test_while_a_stream_is_broken_nothing_is_claimed() -> None:
    followed = Followed(KvPlaces((HERE,)))
    await followed.until(lambda: followed.streams)
    items = followed.streams[0].items
    items.put_nowait(KvMessage(0, 0, payload(10.0, stored([1], IDS[:16]))))
    items.put_nowait(KvSilence(0, 20.0))
    index = followed.engine().index
    await followed.until(lambda: index.batches and index.missing(10.0) is not None)
    prefix = index.prefix(IDS)
    assert index.leading(prefix) == Leading(0, False)
    assert index.leading(prefix, at=15.0) == Leading(16, True)
    assert index.missing(10.0, 15.0) is None
    items.put_nowait(KvMessage(0, 0, payload(10.0, stored([1], IDS[:16]))))  # from the replay: the same engine
    items.put_nowait(KvMessage(0, 1, payload(30.0, stored([2], IDS[16:32], parent=1))))
    await followed.until(lambda: index.batches == 2)
    assert index.leading(index.prefix(IDS)) == Leading(32, True), "no number is missing: nothing was"
    assert index.missing(10.0) is None
    items.put_nowait(KvSilence(0, 35.0))
    items.put_nowait(KvMessage(0, 2, payload(38.0, stored([3], [1] * 16))))
    await followed.until(lambda: index.batches == 3)
    assert index.leading(index.prefix(IDS)) == Leading(0, False), "without one it may be another that counted as far"
    assert (index.missing(10.0, 38.0), index.missing(38.0)) == (Missing.LOST, None)
    items.put_nowait(KvSilence(0, 40.0))
    items.put_nowait(KvMessage(0, 5, payload(50.0, removed([9]))))
    await followed.until(lambda: index.batches == 4)
    assert index.leading(index.prefix(IDS)) == Leading(0, False)
    await followed.end()


async def test_a_stream_that_is_not_published_any_more_is_left() -> None:
    followed = Followed(KvPlaces((HERE, THERE)), KvPlaces(problems=("down",)), KvPlaces((HERE,)))
    await followed.until(lambda: len(followed.streams) == 2)
    first, second = followed.streams
    followed.events.look_soon()
    await followed.until(lambda: followed.looks == 2)
    followed.events.look_soon()
    await followed.until(lambda: followed.looks == 3 and 1 not in followed.events.engines)
    await asyncio.sleep(0)
    assert (first.ended, second.ended) == (False, True)
    assert list(followed.events.engines) == [0]
    await followed.end()


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (ImportError("zmq"), "KV events need pyzmq, which is not installed"),
        (OSError(22, "ZMQ does not take tcp://x"), "ZMQ does not take tcp://x"),
        (RuntimeError("prompt text"), "kvtop itself failed while following KV events: RuntimeError"),
    ],
)
async def test_a_stream_that_fails_says_why_and_is_tried_again(fails: Exception, says: str) -> None:
    followed = Followed(KvPlaces((HERE,)), fails=fails)
    await followed.until(lambda: followed.events.engines and followed.engine().problem)
    assert followed.engine().problem == says
    await followed.until(lambda: 5.0 in followed.slept)
    await followed.end()
