"""A real server that publishes KV events: what lies where, when it left and why, against what its usage says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import httpx
import pytest
from test_offload_server import filler
from vllm_agent import TOOLS, Agent, Book, Message, Server, opening, tool_turn
from vllm_events import Followed, events_flag, followed, token_ids, usable

from kvtop.capture.turn import Captured, Route
from kvtop.clock import SystemClock
from kvtop.config import Settings
from kvtop.live.endpoint import Endpoint
from kvtop.live.factories import real
from kvtop.live.kv_watch import KvWatch
from kvtop.live.named import Named
from kvtop.triage.ids import pack
from kvtop.triage.kv_facts import Past
from kvtop.triage.prompt import Prompt
from kvtop.triage.residency import Leading

pytestmark = [pytest.mark.vllm, pytest.mark.long]

BLOCK = 128


@pytest.fixture(scope="module")
def server(serving: Callable[..., AbstractContextManager[Server]]) -> Iterator[Server]:
    with serving("offload", *events_flag(), VLLM_SERVER_DEV_MODE="1") as running:
        yield running


async def told(agent: Agent, one: Followed, messages: list[Message], tools: list[dict[str, object]] | None) -> None:
    """The events of a prompt that was just sent are in."""
    ids = await token_ids(agent.server, messages, tools)
    whole = len(ids) // BLOCK * BLOCK
    for tier in ("GPU", "CPU"):
        await one.until(lambda tier=tier: one.index.leading(one.index.prefix(ids), (tier,)).tokens >= whole)


async def ask(agent: Agent, one: Followed, messages: list[Message], tools: list[dict[str, object]] | None) -> int:
    """Send a prompt; what the index said before must be what its usage says. The cached tokens."""
    prefix = one.index.prefix(await token_ids(agent.server, messages, tools))
    expected = usable(one.index, prefix, BLOCK, "GPU", "CPU")
    usage = await agent.chat(Book(), messages, tools)
    assert usage.cached == expected
    await told(agent, one, messages, tools)
    return usage.cached


async def test_a_conversation_is_evicted_and_returns_from_the_tier(agent: Agent) -> None:
    async with followed(agent) as one:
        messages = opening("The one that the events follow. ")
        for n in range(3):
            messages = messages + tool_turn(n)
            await ask(agent, one, messages, TOOLS)
        stored = time.time()
        prefix = one.index.prefix(await token_ids(agent.server, messages, TOOLS))
        whole = prefix.tokens // BLOCK * BLOCK
        assert one.index.leading(prefix) == Leading(whole, True)
        assert one.index.leading(prefix, ("CPU",)) == Leading(whole, True)
        assert one.index.removals(prefix, 0, stored) == ()

        for n in range(5):
            assert await ask(agent, one, filler(n), None) == 0
        evicted = time.time()
        assert one.index.leading(prefix) == Leading(0, True)
        assert one.index.leading(prefix, at=stored) == Leading(whole, True)
        assert one.index.leading(prefix, ("CPU",)) == Leading(whole, True)
        gone = one.index.removals(prefix, stored, evicted)
        assert {(removal.tier, removal.cleared) for removal in gone} == {("GPU", False)}
        assert sorted(removal.end_tokens for removal in gone) == list(range(BLOCK, whole + 1, BLOCK))
        assert all(stored <= removal.at <= evicted for removal in gone)
        assert one.index.clearings(stored, evicted) == ()
        assert one.index.missing(stored, evicted) is None

        messages = messages + tool_turn(3)
        assert await ask(agent, one, messages, TOOLS) == whole, "from the tier"
        assert one.index.leading(one.index.prefix(await token_ids(agent.server, messages, TOOLS))).tokens > whole


async def test_who_comes_late_learns_it_from_the_replay(agent: Agent) -> None:
    messages = opening("Before anybody listens. ") + tool_turn(1)
    usage = await agent.chat(Book(), messages)
    async with followed(agent) as one:
        await told(agent, one, messages, TOOLS)
        prefix = one.index.prefix(await token_ids(agent.server, messages, TOOLS))
        assert one.index.leading(prefix) == Leading(usage.prompt // BLOCK * BLOCK, True)
        now = time.time()
        once = await real(Settings(), SystemClock()).kv_events(agent.server.url, None)
        assert isinstance(once, Past), "a command reads it so, for one turn"
        index = once.index
        known = index.leading(index.prefix(await token_ids(agent.server, messages, TOOLS)), at=now)
        assert known.tokens == usage.prompt // BLOCK * BLOCK


async def test_a_reset_clears_the_device_and_is_told_with_the_next_step(agent: Agent) -> None:
    async with followed(agent) as one:
        messages = opening("The one that a reset takes. ") + tool_turn(2)
        await ask(agent, one, messages, TOOLS)
        before = time.time()
        prefix = one.index.prefix(await token_ids(agent.server, messages, TOOLS))
        async with httpx.AsyncClient(base_url=agent.server.url) as http:
            answer = await http.post("/reset_prefix_cache", timeout=30.0)
            assert answer.json() == {"success": True}
        sent = time.time()
        assert one.index.clearings(before, sent) == (), "an engine that does nothing publishes nothing"
        window = await agent.chat(Book(), messages)
        await one.until(lambda: one.index.clearings(before, time.time()))
        (clearing,) = one.index.clearings(before, time.time())
        assert not clearing.restart
        assert sent <= clearing.at <= time.time()
        gone = one.index.removals(prefix, before, time.time())
        assert {(removal.tier, removal.cleared) for removal in gone} == {("GPU", True)}
        assert window.cached == prefix.tokens // BLOCK * BLOCK, "the tier was not emptied with it"
        back = time.time()
        await one.until(lambda: one.index.leading(prefix, ("GPU",)).tokens == window.cached)
        assert one.index.leading(prefix, ("CPU",), back) == Leading(0, False), "which the events leave open"


async def test_a_salt_is_another_prompt(agent: Agent) -> None:
    async with followed(agent) as one:
        messages = opening("Salted. ")
        ids = await token_ids(agent.server, messages, TOOLS)
        usage = await agent.chat(Book(), messages, cache_salt="a grain")
        whole = usage.prompt // BLOCK * BLOCK
        await one.until(lambda: one.index.leading(one.index.prefix(ids, "a grain")).tokens >= whole)
        assert one.index.leading(one.index.prefix(ids)).tokens == 0
        assert one.index.leading(one.index.prefix(ids, "a grain")).tokens == whole


@dataclass
class Watched:
    """What a dashboard knows of a server that answers."""

    history: SimpleNamespace
    good: bool = True


def listens(watch: KvWatch, url: str) -> bool:
    followed = watch._followed.get(url)
    engine = followed.events.engines.get(0) if followed is not None else None
    return engine is not None and engine.source is not None and engine.source.connected


async def test_without_a_replay_a_dashboard_follows_them(
    serving: Callable[..., AbstractContextManager[Server]],
) -> None:
    with serving("small", *events_flag(replay=False)) as running:
        watch = KvWatch(real(Settings(), SystemClock()).kv_places, Named([]), SystemClock())
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0)
        history = SimpleNamespace(url=running.url, started_at=1.0, pid=running.pid)
        watch.follow([cast(Endpoint, Watched(history))], None)
        try:
            async with asyncio.timeout(30):
                while not listens(watch, running.url):  # noqa: ASYNC110  ZMQ tells it to its own monitor alone
                    await asyncio.sleep(0.05)
            async with Agent(running) as agent:
                messages = opening("The one that a dashboard follows. ") + tool_turn(1)
                began = time.time()
                usage = await agent.chat(Book(), messages)
                old = Captured(id=1, upstream=running.url, route=Route.CHAT, started_at=began, ended_at=time.time())
                for n in range(5):
                    await agent.chat(Book(), filler(n))
                came = time.time()
                assert (await agent.chat(Book(), messages)).cached == 0
                new = Captured(
                    id=2, upstream=running.url, route=Route.CHAT, started_at=came, sent_at=came,
                    first_token_at=time.time(), ended_at=time.time(),
                )  # fmt: skip
                told = watch.told(running.url)
                assert told is not None
                ids = pack(await token_ids(running, messages, TOOLS))
                facts = await told.facts(new, Prompt(), ids, old)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    whole = (usage.prompt - 1) // BLOCK * BLOCK
    assert (facts.complete, facts.held, facts.on_device, facts.short) == (True, whole, 0, "")
    assert sorted(gone.end_tokens for gone in facts.gone) == list(range(BLOCK, whole + 1, BLOCK))
    assert all(old.ended_at <= gone.at <= came for gone in facts.gone if old.ended_at)
