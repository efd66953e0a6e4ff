"""A hybrid model (linear and full attention): the cache works in blocks of 288 and resumes only where it saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_agent import TEXT, TOOLS, Agent, Book, Server, assert_equal, opening, shuffled, tool_turn
from vllm_tap import Tap, tapping
from vllm_why import Asked, Talk, assert_broke, assert_clean, assert_unaccused

from kvtop.model.turns import TurnTracker
from kvtop.model.window import between

pytestmark = [pytest.mark.vllm, pytest.mark.long]

SERVER = "hybrid"

BLOCK = 288


async def test_configuration_is_read(agent: Agent) -> None:
    start = await agent.settled()
    config = between(start, start, 1.0).all.config
    assert (config.block_tokens, config.match_unit_tokens, config.mamba_mode) == (BLOCK, BLOCK, "align")


async def test_conversation(agent: Agent) -> None:
    """A follow-up gets what the last prompt saved at its last whole block, and shuffled schema keys get nothing."""
    start, book, tracker = await agent.settled(), Book(), TurnTracker()
    tracker.add(start)
    messages = opening()

    async def turn(tools: list[dict[str, object]] = TOOLS) -> None:
        usage = await agent.chat(book, messages, tools)
        (row,) = tracker.add(await agent.settled())
        assert (row.prompt_tokens, row.cached_tokens) == (usage.prompt, usage.cached)

    await turn()
    for n in range(4):
        before = book.rows[-1].prompt
        messages = messages + tool_turn(n)
        await turn()
        assert book.rows[-1].cached == (before - 1) // BLOCK * BLOCK
    await turn()
    assert book.rows[-1].cached == (book.rows[-1].prompt - 1) // BLOCK * BLOCK
    await turn(shuffled(TOOLS))
    assert book.rows[-1].cached == 0
    assert_equal(between(start, await agent.settled(), 10.0), book)


@pytest.fixture
def tap(server: Server, tmp_path: Path) -> Iterator[Tap]:
    with tapping(server.url, tmp_path / "tap") as running:
        yield running


async def test_why_of_a_conversation_that_breaks(tap: Tap) -> None:
    """What is appended is clean, whatever is saved of it; a break is one, and that it gets nothing at first is not the
    engine's doing."""
    async with Talk(tap.url, "Why, on a hybrid. ") as talk:
        for _ in range(3):
            await talk.next()
        talk.tools = shuffled(talk.tools)
        await talk.next()
        await talk.next()
        messages = talk.messages
        talk.edit(5, "[Old tool result content cleared]")
        await talk.next()
        talk.messages = messages
        talk.edit(5, "[Old tool result content removed]")
        await talk.next()
    found = await Asked(tap).why(7)
    order, cleared, again = found[3], found[5], found[6]
    for one in (*found[:3], found[4]):
        assert_clean(one)
    assert_broke(order, "tool_key_order")
    assert_broke(cleared, "tool_output_cleared")
    for one in (order, cleared):
        assert one.why["expected_because"] == ["hybrid_boundary"]
        assert one.turn.cached_tokens < one.diff["tokens"]["reusable"], one.said
        assert any("the next one hits" in line for line in one.why["evidence"])
    assert again.turn.cached_tokens == again.diff["tokens"]["reusable"] >= 4 * BLOCK, again.said
    assert (again.why["expected_cached_tokens"], again.why["expected_because"]) == (again.turn.cached_tokens, [])


async def test_why_of_two_conversations_with_one_head(tap: Tap) -> None:
    """The second one gets nothing of the head that it shares, the third one all of it: no fault of anybody."""
    async with Talk(tap.url, "Heads, on a hybrid. ") as talk:
        head = talk.messages[0]
        for n in range(3):
            task = f"Task {n}. " + "\n".join(TEXT.splitlines()[40 * n : 40 * n + 30])
            await talk.ask([head, {"role": "user", "content": task}], talk.tools)
    _, first, second = await Asked(tap).why(3)
    assert_unaccused(first)
    assert (first.turn.cached_tokens, first.why["expected_because"]) == (0, ["hybrid_boundary"])
    assert first.why["sentence"].endswith("were read again; expected on this model, the next one hits"), first.said
    assert_unaccused(second)
    assert (second.turn.cached_tokens, second.why["expected_because"]) == (864, [])
