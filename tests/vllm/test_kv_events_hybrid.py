"""A hybrid model's KV events say exactly at which positions a turn can go on, of two groups together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from vllm_agent import TOOLS, Agent, Book, Message, Server, opening, shuffled, tool_turn
from vllm_events import events_flag, followed, token_ids

pytestmark = [pytest.mark.vllm, pytest.mark.long]


@pytest.fixture(scope="module")
def server(serving: Callable[..., AbstractContextManager[Server]]) -> Iterator[Server]:
    with serving("hybrid", *events_flag(replay=False)) as running:
        yield running


def turns() -> list[tuple[list[Message], list[dict[str, object]]]]:
    """A conversation that grows, is sent again, diverges, and goes on; and another one with the same head."""
    first = opening("One. ")
    sent = [(first, TOOLS)]
    for n in range(4):
        first = first + tool_turn(n)
        sent.append((first, TOOLS))
    sent += [(first, TOOLS), (first, shuffled(TOOLS)), (first + tool_turn(5), shuffled(TOOLS))]
    edited = [*first[:3], {"role": "tool", "tool_call_id": "call_0", "content": "cleared"}, *first[4:]]
    sent += [(edited, TOOLS), (edited + tool_turn(6), TOOLS), (first + tool_turn(7), TOOLS)]
    other = opening("One. ", "Write a test for step_9.")
    return [*sent, (other, TOOLS), (other + tool_turn(8), TOOLS)]


async def test_each_turn_gets_what_the_events_said(agent: Agent) -> None:
    got = []
    async with followed(agent) as one:
        for messages, tools in turns():
            ids = await token_ids(agent.server, messages, tools)
            expected = None
            if one.index.batches:  # the last token is never taken from the cache
                expected = one.index.leading(one.index.prefix(ids[:-1])).tokens
            usage = await agent.chat(Book(), messages, tools)
            await agent.settled()  # a turn that changes nothing is told by no event
            got.append((expected if expected is not None else 0, usage.cached))
    assert [expected for expected, _ in got] == [cached for _, cached in got]
    assert sum(cached > 0 for _, cached in got) > len(got) / 2
    assert one.index.lost == 0
