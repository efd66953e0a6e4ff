"""Replays on a real server: what two prompts share, with and without a repair, and what an eviction is told from."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from test_offload_server import filler
from vllm_agent import TOOLS, Agent, Book, Message, Server, opening, shuffled, tool_turn

from kvtop.capture.turn import Route
from kvtop.errors import KvtopError
from kvtop.model.window import between
from kvtop.triage.fixes import repair
from kvtop.triage.kinds import Kind, Verdict
from kvtop.triage.replay import Replay, Sent
from kvtop.triage.replay_server import ReplayServer
from kvtop.triage.replayed import Live, Name, Replayed

pytestmark = [pytest.mark.vllm, pytest.mark.long]

BLOCK = 128


@pytest.fixture(scope="module")
def server(offload: Server) -> Server:
    return offload


@pytest.fixture
async def box(server: Server) -> AsyncIterator[ReplayServer]:
    one = ReplayServer(server.url)
    async with aclosing(one):
        yield one


def body(messages: list[Message], tools: list[dict[str, Any]] | None = TOOLS, **more: Any) -> bytes:
    made: dict[str, Any] = {"model": "tiny", "messages": messages, "stream": True, "max_tokens": 400} | more
    made["stream_options"] = {"include_usage": True}
    return json.dumps(made | ({"tools": tools} if tools else {})).encode()


def cached(found: Replayed) -> dict[Name, int | None]:
    return {run.name: run.cached_tokens for run in found.runs}


def pair() -> tuple[list[Message], list[Message]]:
    old = opening("Replayed. ") + tool_turn(0) + tool_turn(1)
    return old, old + tool_turn(2)


def reusable(tokens: int) -> int:
    return (tokens - 1) // BLOCK * BLOCK


async def test_a_shuffled_schema_before_and_after_its_repair(agent: Agent, box: ReplayServer) -> None:
    before, after = pair()
    old, new = body(before), body(after, shuffled(TOOLS))
    prompt, longer = await agent.count(before, TOOLS), await agent.count(after, shuffled(TOOLS))
    start = await agent.settled()
    fixed = repair(Kind.TOOL_KEY_ORDER, old, new, Route.CHAT)
    replay = Replay(box, Sent(Route.CHAT, old, new, prompt, longer), repaired=fixed)
    plan = await replay.plan()
    assert (plan.idle, plan.write_tokens, plan.pool_tokens) == (True, 2 * (prompt + longer), 130 * BLOCK)
    assert plan.offloads
    names = []
    found = await replay.run(told=lambda run: names.append(run.name))
    assert names == list(Name)
    got = cached(found)
    assert (got[Name.COLD], got[Name.WARM], got[Name.OLD_FIXED]) == (0, reusable(prompt), 0)
    assert (got[Name.NEW] or 0) < BLOCK * 4
    sorted_prompt, sorted_longer = [
        await agent.count(one["messages"], one["tools"]) for one in (fixed.old, fixed.new)
    ]  # sorted keys are other tokens
    assert got[Name.NEW_FIXED] == sorted_prompt // BLOCK * BLOCK
    assert [run.prompt_tokens for run in found.runs] == [prompt, prompt, longer, sorted_prompt, sorted_longer]
    assert all(run.ttft_s and run.ttft_s > 0 for run in found.runs)
    assert found.verdict is Verdict.PROMPT_DIVERGED
    gets = f"the new turn gets {got[Name.NEW_FIXED]:,} of the {sorted_prompt:,} tokens that the old one then has"
    assert gets in found.sentence
    stored = between(start, await agent.settled(), None).all.offload.store_bytes
    assert stored == 0, "the tier was left alone"


async def test_an_evicted_conversation_is_told_from_a_changed_prompt(agent: Agent, box: ReplayServer) -> None:
    """max_load_tokens keeps the tier out, as if there were none: what is off the device is gone."""
    before, after = (opening("Evicted. ") + tool_turn(3) for _ in range(2))
    after = after + tool_turn(4)
    first = await agent.chat(Book(), before)
    for n in range(6):
        await agent.chat(Book(), filler(n), None)
    live = await agent.chat(Book(), after, kv_transfer_params={"max_load_tokens": 0})
    assert live.cached == 0, "the fillers must have evicted it"
    found = await Replay(
        box, Sent(Route.CHAT, body(before), body(after)), live=Live(live.cached, first.completion)
    ).run()
    assert cached(found)[Name.NEW] == first.prompt // BLOCK * BLOCK
    assert found.verdict is Verdict.ENGINE_LOST_CACHE, found.sentence

    again = await agent.chat(Book(), after + tool_turn(5))
    found = await Replay(
        box, Sent(Route.CHAT, body(after), body(after + tool_turn(5))), live=Live(again.cached, live.completion)
    ).run()
    assert found.verdict is Verdict.NO_FAULT, found.sentence


ROUTES = {
    Route.COMPLETIONS: lambda text, more: {"prompt": text + more},
    Route.MESSAGES: lambda text, more: {"system": text, "messages": [{"role": "user", "content": "Go on." + more}]},
    Route.RESPONSES: lambda text, more: {"instructions": text, "input": "Go on." + more, "max_output_tokens": 60},
}


@pytest.mark.parametrize("route", ROUTES)
async def test_each_route_keeps_its_salt(route: Route, box: ReplayServer) -> None:
    text = "\n".join(f"{n}. Read a file before you change it." for n in range(60))
    old, new = (
        json.dumps({"model": "tiny", "max_tokens": 60, "stream": True} | ROUTES[route](text, more)).encode()
        for more in (" Now.", " Now." + " And then?" * 60)
    )
    found = await Replay(box, Sent(route, old, new)).run()
    got = cached(found)
    assert got[Name.COLD] == 0
    assert got[Name.WARM] == reusable(found.runs[0].prompt_tokens or 0) > 0
    assert (got[Name.NEW] or 0) >= (got[Name.WARM] or 0)
    assert found.verdict is Verdict.NO_FAULT, found.sentence


async def test_a_busy_server_is_left_alone_unless_forced(agent: Agent, box: ReplayServer) -> None:
    before, after = pair()
    replay = Replay(box, Sent(Route.CHAT, body(before), body(after)))
    async with httpx.AsyncClient(base_url=agent.server.url, timeout=120) as http:
        asked = {"model": "tiny", "prompt": "Count. ", "max_tokens": 12_000, "ignore_eos": True, "stream": True}
        async with http.stream("POST", "/v1/completions", json=asked) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            with pytest.raises(KvtopError, match=r"is busy: (1 request runs|requests came in the last second)"):
                await replay.run()
            assert replay.so_far().runs == ()
            found = await replay.run(force=True)
    assert not found.idle
    assert cached(found)[Name.WARM] == cached(found)[Name.NEW] or found.verdict is Verdict.UNKNOWN


async def test_a_replay_that_is_broken_off_says_how_far_it_came(agent: Agent, box: ReplayServer) -> None:
    await agent.settled()
    before, after = pair()
    replay = Replay(box, Sent(Route.CHAT, body(before), body(after)))
    warm = asyncio.Event()
    task = asyncio.create_task(replay.run(told=lambda run: warm.set() if run.name is Name.WARM else None))
    await warm.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    found = replay.so_far()
    assert [run.name for run in found.runs] == [Name.COLD, Name.WARM]
    assert found.verdict is Verdict.UNKNOWN
    assert "stopped before new" in found.sentence


async def test_a_model_that_is_not_there_is_one_line(agent: Agent, box: ReplayServer) -> None:
    await agent.settled()
    wrong = body(opening(), model="another")
    with pytest.raises(KvtopError, match="HTTP 404") as failure:
        await Replay(box, Sent(Route.CHAT, wrong, copy.copy(wrong))).run()
    assert "programmer" not in str(failure.value)
