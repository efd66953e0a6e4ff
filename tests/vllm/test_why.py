"""Real conversations through a real tap: `kvtop why` names what was done to them, and accuses no turn that is clean."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from vllm_agent import TEXT, Agent, Message, Server, shuffled
from vllm_tap import Client, Tap, tapping
from vllm_why import (
    RUNNING,
    WAITING,
    Asked,
    Rendered,
    Talk,
    Told,
    assert_broke,
    assert_clean,
    assert_contract,
    assert_lost,
    assert_unaccused,
    document,
)

pytestmark = [pytest.mark.vllm, pytest.mark.long]

TITLE = [
    {"role": "system", "content": "You write titles."},
    {"role": "user", "content": "Find out why step_7 is wrong"},
]
LONG = "\n".join((TEXT.splitlines() * 2)[:2000])
"""20,000 tokens."""


@pytest.fixture
def tap(plain: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tap]:
    with tapping(plain.url, tmp_path_factory.mktemp("why")) as running:
        yield running


def clock(messages: list[Message], at: str) -> list[Message]:
    """A clock in the system prompt, behind its first rules."""
    messages = copy.deepcopy(messages)
    lines = [line for line in messages[0]["content"].splitlines() if not line.startswith("Now:")]
    lines.insert(4, f"Now: 2026-11-30 {at}.")
    messages[0]["content"] = "\n".join(lines)
    return messages


def more_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One more of them in the middle."""
    added = copy.deepcopy(tools[0])
    added["function"] |= {"name": "list_files", "description": "List the files of a folder."}
    return [*tools[:2], added, *tools[2:]]


async def test_a_day_of_an_agent(tap: Tap, plain: Server) -> None:
    """Each break is named on the turn that it happens on, and the turns after it are clean."""
    wanted = ["clean"] * 3
    async with Talk(tap.url, "Of the whole day. ") as talk:
        await talk.again()
        await talk.next()
        await talk.next()
        before = talk.messages, talk.tools
        talk.tools = shuffled(talk.tools)
        await talk.next()
        after = talk.messages, talk.tools
        await talk.next()
        wanted += ["tool_key_order", "clean"]
        talk.edit(5, "[Old tool result content cleared]")
        await talk.next()
        await talk.ask(TITLE)
        await talk.next()
        await talk.again()
        wanted += ["tool_output_cleared", "side", "clean", "clean"]
        for at in ("10:01:22", "10:04:31", "10:09:05"):
            talk.messages = clock(talk.messages, at)
            await talk.next()
        wanted += ["text_edited", "volatile_text", "volatile_text"]
        talk.tools = more_tools(talk.tools)
        await talk.next()
        talk.more["cache_salt"] = "the salt of a whole day"
        await talk.next()
        await talk.next()
        wanted += ["tool_added", "cache_salt_changed", "clean"]
        talk.more["chat_template_kwargs"] = {"enable_thinking": False}
        await talk.next()
        await talk.next()
        wanted += ["template_inputs_changed", "clean"]
    found = dict(enumerate(await Asked(tap).why(len(wanted))))
    for i, name in enumerate(wanted):
        if name == "clean":
            assert_clean(found[i])
        elif name != "side":
            assert_broke(found[i], name, *(["date_time"] if name == "volatile_text" else []))
    once, twice = [found[i].causes[0]["seen"] for i, name in enumerate(wanted) if name == "volatile_text"]
    assert once is None and twice.startswith("2 of the last "), twice
    assert_aside(found[wanted.index("side")], found[wanted.index("side") - 1], found[wanted.index("side") + 1])
    await assert_parts_at(plain, found[wanted.index("tool_key_order")], before, after)
    diff = await asyncio.to_thread(document, tap, "diff", "3", "4")
    assert diff == found[3].diff
    await assert_repaired(tap, found[3])


def assert_aside(title: Told, before: Told, after: Told) -> None:
    """A title between two turns: no fault, and the next turn is compared with the one before it."""
    assert_unaccused(title)
    assert [cause["kind"] for cause in title.causes] == ["other_conversation"]
    assert after.diff["old"] == str(before.turn.id)


async def assert_parts_at(
    server: Server,
    one: Told,
    before: tuple[list[Message], list[dict[str, Any]]],
    after: tuple[list[Message], list[dict[str, Any]]],
) -> None:
    """The first difference is at that byte of the prompts as the server renders them."""
    async with Rendered(server.url) as rendered:
        old, new = await rendered.text(*before), await rendered.text(*after)
    first = one.diff["first_difference"]
    at = first["byte"]
    assert old[:at] == new[:at]
    assert old[at : at + 4] != new[at : at + 4]
    assert first["section"].startswith("tools[0]")
    assert first["pointer"].startswith("/tools/0")


async def assert_repaired(tap: Tap, one: Told) -> None:
    """Sent once more, with and without the keys sorted."""
    wanted = ("--fix", "tool_key_order", "--yes")
    said = await asyncio.to_thread(tap.kvtop, "replay", one.diff["old"], str(one.turn.id), *wanted, "--json")
    assert said.returncode == 0, said.stderr
    replay = json.loads(said.stdout)
    runs = {run["name"]: run for run in replay["runs"]}
    assert runs["new"]["cached_tokens"] == one.turn.cached_tokens == one.diff["tokens"]["reusable"]
    assert runs["new"]["share"] < 0.3
    assert runs["new_fixed"]["share"] > 0.6
    assert replay["verdict"] == "prompt_diverged"


async def test_the_messages_route(tap: Tap) -> None:
    """A cache_control that moves on, and content in blocks, are no break; a shuffled schema is."""
    async with Talk(tap.url, "By messages. ", "messages") as talk:
        for _ in range(3):
            await talk.next()
        talk.tools = shuffled(talk.tools)
        await talk.next()
        talk.edit(3, "[Old tool result content cleared]")
        await talk.next()
    *clean, order, cleared = await Asked(tap).why(5)
    for one in clean:
        assert_clean(one)
    assert [one.turn.route for one in clean] == ["messages"] * 3
    assert_broke(order, "tool_key_order")
    assert_broke(cleared, "tool_output_cleared")
    assert cleared.causes[0]["pointer"] == "/messages/2/content/0/content"


async def test_turns_that_did_not_end_well(tap: Tap, plain: Server) -> None:
    """One that its client gave up while it was read, the one behind it, which misses what was not read, and one that
    the server refuses."""
    async with Agent(plain) as agent, Talk(tap.url, "Given up. ") as talk:
        await talk.again()
        await agent.settled()
        talk.messages = [*talk.messages, {"role": "user", "content": LONG}]
        body = {"model": "tiny", "messages": talk.messages, "tools": talk.tools, "max_tokens": 1, "stream": True}
        client = await Client.ask(tap.url, "/v1/chat/completions", body)
        await reaches(agent, 1)
        client.reset()
        await agent.settled()
        usage = await talk.again()
        with pytest.raises(httpx.HTTPStatusError):
            await talk.ask([*talk.messages, *talk.messages[-1:]], talk.tools)
    first, gone, after, refused = await Asked(tap).why(4)
    assert_clean(first)
    assert_contract(gone)
    assert (gone.verdict, gone.why["cached_tokens"]) == ("aborted", None), gone.said
    assert "before its first token" in gone.why["sentence"]
    assert_lost(after, "previous_aborted")
    assert after.why["expected_cached_tokens"] == (usage.prompt - 1) // 128 * 128
    assert f"turn {gone.turn.id} was aborted before its prompt had been read" in after.why["evidence"]
    assert (refused.verdict, refused.why["phases"]["prefill_s"]) == ("failed", None), refused.said
    assert "400" in refused.why["sentence"]


async def test_a_queue(tap: Tap, plain: Server) -> None:
    """All of the server's places are taken; the next turn stands in line, and its cache is as it should be."""
    asked = Asked(tap)
    async with Agent(plain) as agent, Talk(tap.url, "In line. ") as talk:
        await talk.again()
        busy = [asyncio.create_task(_write(plain.url, n)) for n in range(8)]
        await reaches(agent, len(busy))
        turn = asyncio.create_task(talk.next())
        since: float | None = None
        async with asyncio.timeout(60):
            while since is None or time.monotonic() < since + 3.0:  # a wait that is worth a word
                waiting = (await agent.scrape()).values[WAITING] > 0
                since = (since or time.monotonic()) if waiting else None
        for one in busy:
            one.cancel()
        await turn
        await asyncio.gather(*busy, return_exceptions=True)
    first, stood = await asked.why(2)
    assert_clean(first)
    assert_contract(stood)
    assert (stood.verdict, stood.causes) == ("queued", []), stood.said
    assert stood.why["expected_cached_tokens"] == stood.why["cached_tokens"]
    assert "8 ran and 1 waited meanwhile" in stood.why["evidence"]


async def reaches(agent: Agent, running: int) -> None:
    """Until so many requests run."""
    async with asyncio.timeout(60):
        while (await agent.scrape()).values[RUNNING] < running:
            pass


async def _write(url: str, n: int) -> None:
    """Past the tap, until it is told to stop."""
    async with Talk(url, "") as talk:
        await talk.ask([{"role": "user", "content": f"Write on, {n}."}], max_tokens=20_000)
