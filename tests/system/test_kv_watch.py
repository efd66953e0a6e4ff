"""The KV events of watched servers, followed over real ZMQ in the thread that the dashboard keeps for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from kv_publisher import Publisher
from msgspec.structs import replace

from kv_event_talk import payload, positional, removed, stored
from kvtop.capture.turn import Captured, Route, TurnState
from kvtop.clock import SystemClock
from kvtop.config import Server
from kvtop.live.endpoint import Endpoint
from kvtop.live.kv_past import NOT_KEPT, SAID_NOTHING, past
from kvtop.live.kv_watch import RANKS, KvWatch
from kvtop.live.named import Named
from kvtop.readings import KvPublisher
from kvtop.sources.kv_places import KvPlaces
from kvtop.triage.ids import pack
from kvtop.triage.kv_facts import SETTLES_S, Unheard
from kvtop.triage.prompt import Prompt
from kvtop.triage.seen import Gone, KvFacts

URL = "http://127.0.0.1:8000"
IDS = list(range(1, 50))
"""Three blocks of 16, and one token more."""
NAMES = [11, 12, 13]
T = time.time() - 600
OLD = Captured(id=7, upstream=URL, route=Route.CHAT, started_at=T, ended_at=T + 10, state=TurnState.DONE)
NEW = Captured(
    id=8, upstream=URL, route=Route.CHAT, started_at=T + 60, sent_at=T + 60, first_token_at=T + 62, ended_at=T + 63,
    state=TurnState.DONE,
)  # fmt: skip
FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {"map": lambda event: event, "array": positional}


@dataclass
class History:
    url: str = URL
    started_at: float | None = 1.0
    pid: int | None = None


@dataclass
class Watched:
    """What is asked of an endpoint."""

    history: History = field(default_factory=History)
    good: bool = True


class Bench:
    """A watch over one server, which publishes where the test says."""

    def __init__(self, *publishers: KvPublisher) -> None:
        self.publishers = publishers
        self.looks: list[tuple[str, Server | None, list[str]]] = []
        self.server, self.turn = Watched(), NEW
        self.watch = KvWatch(self._find, Named([]), SystemClock())

    async def _find(self, url: str, configured: Server | None, command: Sequence[str]) -> KvPlaces:
        self.looks.append((url, configured, list(command)))
        return KvPlaces(self.publishers)

    def follow(self) -> None:
        self.watch.follow([cast(Endpoint, self.server)], None)

    async def facts(self) -> KvFacts:
        async with asyncio.timeout(20):
            while (told := self.watch.told(URL)) is None:  # noqa: ASYNC110  another thread makes it
                await asyncio.sleep(0.005)
            return await told.facts(self.turn, Prompt(), pack(IDS), OLD)

    async def until(self, true: Callable[[KvFacts], object]) -> KvFacts:
        async with asyncio.timeout(20):
            while not true(facts := await self.facts()):
                pass
            return facts

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.watch.run())
        await asyncio.sleep(0)
        self.follow()
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def at(publisher: Publisher) -> KvPublisher:
    return KvPublisher(0, publisher.endpoint, publisher.replay_endpoint, "kv")


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "kvtop-kv-events"]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_without_a_replay_an_eviction_is_told_exactly(form: Callable[[dict[str, Any]], Any]) -> None:
    async with Publisher(replays=False) as publisher:
        bench = Bench(at(publisher))
        async with bench.running():
            await publisher.subscribed()
            await publisher.publish(payload(T + 2, form(stored(NAMES, IDS[:48]))))
            await publisher.publish(payload(T + 3, form(stored(NAMES, [], medium="CPU"))))
            held = await bench.until(lambda facts: facts.anywhere)
            assert held == KvFacts(complete=True, held=48, on_device=48, anywhere=48)
            await publisher.publish(payload(T + 30, form(removed([13])), form(removed([12]))))
            await publisher.publish(payload(T + 40, form(removed([13], "CPU"))))
            assert await bench.until(lambda facts: len(facts.gone) == 3) == KvFacts(
                complete=True,
                gone=(Gone(T + 30, "GPU", 48), Gone(T + 30, "GPU", 32), Gone(T + 40, "CPU", 48)),
                held=48,
                on_device=16,
                anywhere=32,
            )


async def test_a_lost_message_takes_away_what_is_certain() -> None:
    async with Publisher(replays=False) as publisher:
        bench = Bench(at(publisher))
        async with bench.running():
            await publisher.subscribed()
            await publisher.publish(payload(T + 2, stored(NAMES, IDS[:48])))
            await publisher.publish(payload(T + 20, removed([13])), lost=True)
            await publisher.publish(payload(T + 30, removed([12])))
            facts = await bench.until(lambda facts: facts.gone)
            assert (facts.complete, facts.gone) == (False, (Gone(T + 30, "GPU", 32),))
            assert facts.short == (
                "KV events since turn 7 were lost: what the others do not tell may have happened all the same"
            )


async def test_who_begins_too_late_claims_nothing() -> None:
    async with Publisher(replays=False) as publisher:
        await publisher.publish(payload(T + 2, stored(NAMES, IDS[:48])))
        bench = Bench(at(publisher))
        async with bench.running():
            await publisher.subscribed()
            await publisher.publish(payload(T + 61, stored(NAMES, IDS[:48])))
            facts = await bench.until(lambda facts: facts.short.startswith("KV events are"))
            assert (facts.complete, facts.gone, facts.held) == (False, (), 0)
            assert facts.short == "KV events are known only from a time after turn 7 had ended"


async def test_what_a_replay_brings_counts_once() -> None:
    async with Publisher() as publisher:
        await publisher.publish(payload(T + 2, stored(NAMES[:1], IDS[:16])), lost=True)
        await publisher.publish(payload(T + 3, stored(NAMES[1:], IDS[16:48], parent=11)), lost=True)
        bench = Bench(at(publisher))
        async with bench.running():
            await publisher.subscribed()
            await publisher.publish(payload(T + 30, removed([13])))
            facts = await bench.until(lambda facts: facts.gone)
            assert facts == KvFacts(complete=True, gone=(Gone(T + 30, "GPU", 48),), held=48, on_device=32, anywhere=32)


async def test_a_server_that_begins_anew_is_followed_again() -> None:
    async with Publisher(replays=False) as first:
        bench = Bench(at(first))
        async with bench.running():
            await first.subscribed()
            await first.publish(payload(T + 1, stored([1], IDS[:16])))
            await bench.until(lambda facts: facts.held)
            ports = first.ports
            first.close()
            bench.turn = replace(NEW, first_token_at=time.time() - SETTLES_S + 0.5)
            facts = await bench.until(lambda facts: not facts.complete)
            assert facts.short == f"no connection to the KV events at {first.endpoint}"
            bench.turn = NEW
            async with Publisher(*ports, replays=False) as second:
                bench.server.history.started_at = 2.0
                bench.follow()
                await second.subscribed()
                await second.publish(payload(T + 5, stored(NAMES, IDS[:48])))
                facts = await bench.until(lambda facts: facts.held == 48)
                assert facts.complete, "it was heard from its first event on"
                assert len(bench.looks) == 2, "where it publishes was looked for again"


async def test_it_ends_with_the_dashboard_and_with_the_server() -> None:
    async with Publisher(replays=False) as publisher:
        bench = Bench(at(publisher))
        assert threads() == []
        async with bench.running():
            assert await publisher.heard() == b"\x01kv"
            assert threads() == ["kvtop-kv-events"]
            bench.watch.follow([], None)
            assert await publisher.heard() == b"\x00kv", "it is not watched any more"
            assert bench.watch.told(URL) is None
            bench.follow()
            assert await publisher.heard() == b"\x01kv"
        assert await publisher.heard() == b"\x00kv"
        assert bench.watch.told(URL) is None
        assert threads() == []


async def test_nothing_begins_before_a_server_answers() -> None:
    bench = Bench()
    bench.server.good = False
    async with bench.running():
        bench.follow()
        assert (threads(), bench.looks) == ([], [])


async def test_several_engines_behind_one_address_are_not_followed() -> None:
    bench = Bench(KvPublisher(0, "tcp://127.0.0.1:1"), KvPublisher(1, "tcp://127.0.0.1:2"))
    async with bench.running():
        assert await bench.facts() == KvFacts(short=RANKS)


async def no_route(path: str) -> tuple[int, bytes]:
    return 404, b""


async def test_a_command_reads_what_is_kept_and_says_what_would_make_it_exact() -> None:
    async with Publisher(replays=False) as publisher:
        told = await past(no_route, configured=publisher.endpoint)
        assert told == Unheard(NOT_KEPT)
    async with Publisher() as publisher:
        config = {"enable_kv_cache_events": True, "endpoint": f"tcp://*:{publisher.ports[0]}", "topic": "kv"}
        config["replay_endpoint"] = publisher.replay_endpoint or ""
        command = ["vllm", "serve", "m", "--kv-events-config", json.dumps(config)]
        assert await past(no_route, command) == Unheard(SAID_NOTHING), "nothing was published yet"
        await publisher.publish(payload(T + 2, stored(NAMES, IDS[:48])), lost=True)
        await publisher.publish(payload(T + 30, removed([13])), lost=True)
        told = await past(no_route, command)
        assert told is not None
        assert await told.facts(NEW, Prompt(), pack(IDS), OLD) == KvFacts(
            complete=True, gone=(Gone(T + 30, "GPU", 48),), held=48, on_device=32, anywhere=32
        )
    assert await past(no_route, ["vllm", "serve", "m"]) is None
    out = json.dumps({"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:5557"})
    told = await past(no_route, ["vllm", "serve", "m", "--kv-events-config", out])
    assert told is not None
    assert "sends its KV events out" in (await told.facts(NEW, Prompt(), pack(IDS), OLD)).short
