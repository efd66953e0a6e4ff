"""A hybrid model (linear and full attention): the cache works in blocks of 288 and resumes only where it saved."""

from __future__ import annotations

import pytest
from vllm_agent import TOOLS, Agent, Book, assert_equal, opening, shuffled, tool_turn

from kvtop.model.turns import TurnTracker
from kvtop.model.window import between

pytestmark = pytest.mark.vllm

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
