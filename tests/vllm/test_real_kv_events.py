"""A real server that publishes KV events: what lies where, when it left and why, against what its usage says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import httpx
import pytest
from test_offload_server import filler
from vllm_agent import TOOLS, Agent, Book, Message, Server, opening, tool_turn
from vllm_events import Followed, events_flag, followed, token_ids, usable

from kvtop.clock import SystemClock
from kvtop.config import Settings
from kvtop.live.factories import real
from kvtop.triage.residency import Leading

pytestmark = pytest.mark.vllm

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
        assert one.index.complete(stored, evicted)

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
        assert once is not None, "the dashboard reads it so, for one turn"
        known = once.leading(once.prefix(await token_ids(agent.server, messages, TOOLS)), at=now)
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
