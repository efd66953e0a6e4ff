"""A server with a small device cache and tiers behind it: bytes each way follow from blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from vllm_agent import BLOCK_BYTES_A_TOKEN, TEXT, TOOLS, Agent, Book, Message, Server, opening, shuffled, tool_turn
from vllm_tap import tapping
from vllm_why import Asked, Talk, assert_clean, assert_lost

from kvtop.model.window import between

pytestmark = pytest.mark.vllm

BLOCK = 128
BLOCK_BYTES = BLOCK * BLOCK_BYTES_A_TOKEN
DEVICE_BLOCKS = 130


@pytest.fixture(scope="module", params=["offload", pytest.param("tier", marks=pytest.mark.long)])
def server(
    request: pytest.FixtureRequest, offload: Server, serving: Callable[..., AbstractContextManager[Server]]
) -> Iterator[Server]:
    if request.param == "offload":
        yield offload
        return
    with serving(request.param) as running:
        yield running


def filler(n: int) -> list[Message]:
    """A conversation of its own, long enough that three of them push everything else off the device."""
    return [{"role": "user", "content": f"Conversation {n}. " + "\n".join(TEXT.splitlines()[n * 30 : n * 30 + 420])}]


async def test_eviction_and_return(agent: Agent) -> None:
    start, book = await agent.settled(), Book()
    messages = opening("The one that comes back. ")
    for n in range(3):
        messages = messages + tool_turn(n)
        await agent.chat(book, messages)
    stored = between(start, await agent.settled(), 5.0)
    assert stored.all.offload.supported
    # Each new whole block of a prompt is stored once; replies are not (offload_prompt_only).
    blocks = book.rows[-1].prompt // BLOCK
    assert stored.all.offload.store_bytes == blocks * BLOCK_BYTES
    assert stored.all.offload.load_bytes == 0

    filled = Book()
    for n in range(5):
        await agent.chat(filled, filler(n), None)
    assert filled.prompt // BLOCK > DEVICE_BLOCKS, "the fillers must not fit beside the conversation"
    before = await agent.settled()
    assert between(start, before, 5.0).all.offload.load_bytes == 0

    back = Book()
    messages = messages + tool_turn(3)
    await agent.chat(back, messages)
    window = between(before, await agent.settled(), 3.0)
    sources, offload = window.all.cached.by_source, window.all.offload
    expected = book.rows[-1].prompt // BLOCK * BLOCK
    assert (window.all.cached.prompt_tokens, window.all.cached.cached_tokens) == (back.prompt, back.cached)
    assert back.cached == expected
    assert (sources.device, sources.computed) == (0, back.computed)
    assert (sources.host or 0) + (sources.disk or 0) + (sources.external or 0) == expected
    assert offload.load_bytes == expected * BLOCK_BYTES_A_TOKEN
    assert offload.store_bytes == (back.prompt // BLOCK - expected // BLOCK) * BLOCK_BYTES
    assert offload.loads == 1
    assert offload.load_time_s
    assert window.all.latency.ttft.n == 1

    again = Book()
    await agent.chat(again, messages)
    after = await agent.settled()
    local = between(before, after, 5.0).all
    assert local.offload.load_bytes == expected * BLOCK_BYTES_A_TOKEN, "a repeat is served by the device"
    assert local.cached.by_source.device == again.cached
    assert (local.cached.prompt_tokens, local.cached.cached_tokens) == (
        back.prompt + again.prompt,
        expected + again.cached,
    )

    everything = between(start, after, 20.0).all
    books = (book, filled, back, again)
    assert everything.cached.prompt_tokens == sum(b.prompt for b in books)
    assert everything.cached.cached_tokens == sum(b.cached for b in books)
    assert everything.cached.by_source.computed == sum(b.computed for b in books)
    assert everything.latency.ttft.n == sum(len(b.rows) for b in books)


async def test_a_broken_prefix_loads_nothing(agent: Agent) -> None:
    """Shuffled schema keys: the tier holds the conversation and is of no use to it."""
    messages = opening("One more. ") + tool_turn(5)
    await agent.chat(Book(), messages)
    start, book = await agent.settled(), Book()
    await agent.chat(book, messages, shuffled(TOOLS))
    window = between(start, await agent.settled(), 3.0).all
    assert (window.cached.prompt_tokens, window.cached.cached_tokens) == (book.prompt, book.cached)
    assert window.offload.load_bytes == 0
    assert window.offload.store_bytes == (book.prompt // BLOCK - book.cached // BLOCK) * BLOCK_BYTES


async def test_why_of_a_conversation_that_was_evicted(server: Server, tmp_path: Path) -> None:
    """What comes back from the tier is no loss; where the tier is not read, that is told, and not the eviction."""
    with tapping(server.url, tmp_path / "tap") as tap:
        asked, found = Asked(tap), []
        async with Talk(tap.url, "Why, with a tier. ") as talk:
            await talk.next()
            await talk.next()
            await asked.rows(2)
            for more in ({}, {"kv_transfer_params": {"max_load_tokens": 0}}):
                for n in range(5):
                    await talk.ask(filler(n))
                await asked.rows(5)
                await talk.next(**more)
                found += await asked.why(1)
    back, lost = found
    assert_clean(back)
    assert_lost(lost, "offload_not_loaded")
