"""What an engine lost: `kvtop why` names how where there is evidence, and never blames the prompt for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from test_tap import counted
from vllm_agent import TEXT, Agent, Message, Server
from vllm_routes import shapes
from vllm_tap import Tap, free_port, tapping
from vllm_why import (
    RUNNING,
    Asked,
    Talk,
    Told,
    assert_begins,
    assert_clean,
    assert_contract,
    assert_lost,
)

pytestmark = [pytest.mark.vllm, pytest.mark.long]

Serving = Callable[..., AbstractContextManager[Server]]
SMALL = ("--num-gpu-blocks-override", "48", "--max-model-len", "6000")
"""A pool of 6,144 tokens, most of which one conversation may take."""
SLOWLY = ("--max-num-batched-tokens", "1024", "--long-prefill-token-threshold", "32")
"""Two prompts are read at once, in small steps."""


@dataclass(frozen=True)
class Before:
    """What a server had been asked until it was started anew."""

    talk: Talk
    told: list[Told]


@pytest.fixture(scope="module")
def port() -> str:
    return str(free_port())


@pytest.fixture(scope="module")
def tap(port: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tap]:
    with tapping(f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("lost")) as running:
        yield running


@pytest.fixture(scope="module")
def asked(tap: Tap) -> Asked:
    return Asked(tap)


@pytest.fixture(scope="module")
def until_restart(serving: Serving, port: str) -> Iterator[tuple[Server, ExitStack]]:
    """Its answers do not tell what was cached. Closing the stack stops it."""
    with ExitStack() as stack:
        arguments = ("--port", port, *SMALL, "--no-enable-prompt-tokens-details")
        yield stack.enter_context(serving("small", *arguments)), stack


@pytest.fixture(scope="module")
def before(until_restart: tuple[Server, ExitStack], tap: Tap, asked: Asked) -> Before:
    """The turns come one by one, so that the counters can tell what each had."""

    async def turns() -> list[Told]:
        found = []
        async with talk:
            for _ in range(2):
                assert (await talk.next()).cached == -1
                found += await asked.why(1)
        return found

    talk = Talk(tap.url, "Before the restart. ")
    return Before(talk, asyncio.run(turns()))


@pytest.fixture(scope="module")
def server(before: Before, until_restart: tuple[Server, ExitStack], serving: Serving, port: str) -> Iterator[Server]:
    """The same one, started anew."""
    until_restart[1].close()
    with serving("small", "--port", port, *SMALL, *SLOWLY, VLLM_SERVER_DEV_MODE="1") as running:
        yield running


def filler(n: int) -> list[Message]:
    return [{"role": "user", "content": f"Filler {n}. " + "\n".join(TEXT.splitlines()[n * 30 : n * 30 + 200])}]


async def fill(url: str, first: int) -> None:
    """Three times 1,800 tokens that nobody had."""
    async with Talk(url, "") as talk:
        for n in range(first, first + 3):
            assert (await talk.ask(filler(n))).cached == 0


async def clear(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=30.0) as http:
        assert (await http.post("/reset_prefix_cache")).json() == {"success": True}


def test_cached_tokens_that_no_answer_tells(before: Before) -> None:
    """The counters tell them where they can; else they are not known, and never 0."""
    first, second = before.told
    for one, expected in ((first, 0), (second, first.turn.prompt_tokens)):
        assert_contract(one)
        assert one.verdict == "no_fault", one.said
        assert one.why["expected_cached_tokens"] == (expected or 0) // 128 * 128
        told = one.why["cached_tokens"]
        assert (told, one.turn.cached_source) in ((one.why["expected_cached_tokens"], "metrics"), (None, None))
    assert second.diff["append_only"]


async def test_turns_of_a_server_that_tells_no_cached_tokens(
    until_restart: tuple[Server, ExitStack], tmp_path: Path
) -> None:
    """Without --enable-prompt-tokens-details the counters tell, where a turn was alone."""
    server = until_restart[0]
    with tapping(server.url, tmp_path / "tap") as tap:
        async with Agent(server) as agent:
            for shape in shapes("Switch it off.", max_tokens=80):
                if "tools" in shape.body:
                    continue
                row, raw = await counted(tap, agent, shape.path, shape.body | {"ignore_eos": True})
                # The answers of responses tell them all the same.
                source = "usage" if shape.route == "responses" else "metrics"
                assert (row.cached_source, b'"cached_tokens"' in raw) == (source, source == "usage"), shape.name
                assert row.cached_tokens is not None
                assert row.cached_tokens >= 128 or not shape.stream


async def test_a_restart(before: Before, server: Server, tap: Tap, asked: Asked) -> None:
    async with Talk(tap.url, "") as talk:
        talk.messages, talk.steps = before.talk.messages, before.talk.steps
        await talk.next()
        await talk.next()
    restarted, clean = await asked.why(2)
    assert_lost(restarted, "restart")
    assert restarted.why["cached_tokens"] == 0
    assert restarted.diff["append_only"]
    assert_clean(clean)


@pytest.mark.parametrize("past", [False, True], ids=["seen", "past the tap"])
async def test_an_eviction(server: Server, tap: Tap, asked: Asked, past: bool) -> None:
    """By turns that the tap saw, and by requests that only the counters tell of."""
    async with Talk(tap.url, f"Evicted, {past}. ") as talk:
        await talk.next()
        await talk.next()
        first, clean = await asked.why(2)
        await fill(server.url if past else tap.url, 3 * past)
        await talk.next()
    *fillers, evicted = await asked.why(1 if past else 4)
    assert_clean(clean)
    for one in (first, *fillers):
        assert_begins(one)
    assert_lost(evicted, "evicted")
    assert evicted.diff["append_only"]
    ids = [one.turn.id for one in fillers]
    by = "requests that went past the tap" if past else f"turns {ids[0]}–{ids[-1]}"
    assert evicted.why["sentence"].endswith(f"evicted by {by}")


async def test_a_cache_that_is_cleared(server: Server, tap: Tap, asked: Asked) -> None:
    async with Talk(tap.url, "Cleared. ") as talk:
        await talk.next()
        (first,) = await asked.why(1)
        await clear(server.url)
        await talk.next()
        (cleared,) = await asked.why(1)
    assert_begins(first)
    assert_lost(cleared, "cache_reset")
    assert f"/reset_prefix_cache or /sleep was called once since turn {first.turn.id}" in cleared.why["evidence"]


async def test_two_that_come_at_once_with_one_beginning(server: Server, tap: Tap, asked: Asked) -> None:
    """The second one misses what the first one has not yet read. Where that was nearly done, two others are sent."""
    for n in range(4):
        first, second = await asked_at_once(server, tap, asked, n)
        if (second.turn.cached_tokens or 0) + 640 < (first.turn.prompt_tokens or 0):
            break
    assert_begins(first)
    assert_lost(second, "still_running")
    assert f"turn {first.turn.id} was still being read when it came" in second.why["evidence"]
    assert second.why["expected_cached_tokens"] == ((first.turn.prompt_tokens or 0) - 1) // 128 * 128


async def asked_at_once(server: Server, tap: Tap, asked: Asked, n: int) -> list[Told]:
    """The same prompt twice, the second one while the first one is read."""
    who, task = f"At once, {n}. ", filler(20 + n)[0]["content"]
    async with Agent(server) as agent, Talk(tap.url, who, task=task) as one, Talk(tap.url, who, task=task) as two:
        sent = asyncio.create_task(one.again())
        while not sent.done() and not (await agent.scrape()).values[RUNNING]:
            pass
        await two.again()
        await sent
    return await asked.why(2)
