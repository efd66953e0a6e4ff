"""A real server behind `kvtop tap`: the client gets what the server said, and the turns say what the client got."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import psutil
import pytest
from vllm_agent import TEXT, TOOLS, Agent, Book, Server, Usage, opening, tool_turn
from vllm_gate import Passed, gate
from vllm_routes import CHAT_TOOL, MESSAGES_TOOL, RESPONSES_TOOL, shapes, told
from vllm_tap import Client, Tap, alike, head_and_body, tapping

from kvtop.capture.turn import Captured
from kvtop.model.window import between

pytestmark = pytest.mark.vllm

BLOCK = 128
Serving = Callable[..., AbstractContextManager[Server]]


@pytest.fixture(scope="module")
def server(plain: Server) -> Server:
    return plain


@pytest.fixture(scope="module")
def tap(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tap]:
    with tapping(server.url, tmp_path_factory.mktemp("tap")) as running:
        yield running


@pytest.fixture
def own_tap(server: Server, tmp_path: Path) -> Iterator[Tap]:
    """One that may be killed."""
    with tapping(server.url, tmp_path / "tap") as running:
        yield running


def assert_says(row: dict[str, Any], usage: Usage, finish: str) -> None:
    """A turn's tokens are those of its usage."""
    assert (row["state"], row["status"], row["record"], row["error"]) == ("done", 200, "complete", None)
    assert (row["prompt_tokens"], row["cached_tokens"]) == (usage.prompt, usage.cached)
    assert (row["new_tokens"], row["completion_tokens"]) == (usage.computed, usage.completion)
    assert (row["cached_source"], row["finish_reason"]) == ("usage", finish)


async def test_every_route(server: Server, tmp_path: Path) -> None:
    """Byte for byte what the server said to the tap; but for ids and times what it says without one; and the turns are
    what the client was told."""
    kept: list[Passed] = []
    wanted = list(shapes("Switch on the light in the hall."))
    answers: list[bytes] = []
    async with gate(server.url, kept) as (url, _):
        with tapping(url, tmp_path / "tap") as tap:
            for n, shape in enumerate(wanted):
                said = []
                # The first one fills the cache: the others read the same from it.
                for where in (server.url, server.url, tap.url):
                    client = await Client.ask(where, shape.path, shape.body, mark=str(n))
                    said.append(await client.rest())
                (passed,) = [one for one in kept if bytes(one.asked) == client.sent]
                assert bytes(passed.answered) == said[2], shape.name
                assert said[2].startswith(b"HTTP/1.1 200 OK\r\n"), said[2]
                assert alike(said[2]) == alike(said[1]), shape.name
                answers.append(said[2])
            rows = await tap.turns(len(wanted))
            assert tap.kvtop("turns", "--check").returncode == 0
    for shape, row, raw in zip(wanted, rows, answers, strict=True):
        _, body = head_and_body(raw)
        answer = told(shape, body)
        assert answer.usage.cached >= BLOCK, shape.name
        assert (row["route"], row["path"], row["stream"]) == (shape.route, shape.path, shape.stream)
        assert (row["model"], row["upstream"], row["response_id"]) == ("tiny", url, answer.id)
        assert row["response_bytes"] == len(body)
        assert (row["ttft_s"] is not None) == shape.stream, shape.name
        assert_says(row, answer.usage, answer.finish)


async def test_interleaved_conversations(tap: Tap, server: Server, agent: Agent) -> None:
    """Each goes on by itself, streamed and not, whatever comes between."""
    talks = [opening(task="Mend step_7."), opening(task="Write a test for step_9.")]
    book, prompts = Book(), []
    async with Agent(Server(tap.url, server.pid)) as tapped:
        for n in range(4):
            for talk in talks:
                await (tapped.stream if n % 2 else tapped.chat)(book, talk)
                prompts.append(await agent.count(talk, TOOLS))
                talk += tool_turn(n)
    rows = await tap.turns(8)
    for row, usage, prompt in zip(rows, book.rows, prompts, strict=True):
        assert_says(row, usage, "length")
        assert row["prompt_tokens"] == prompt
    assert sum(usage.cached for usage in book.rows[2:]) > 0
    for one in (rows[::2], rows[1::2]):
        assert {row["conversation"] for row in one} == {f"c{one[0]['id']}"}
        assert [row["relation"] for row in one] == ["first", "next", "next", "next"]
        assert [row["parent"] for row in one] == [None, *(row["id"] for row in one[:-1])]


async def counted(tap: Tap, agent: Agent, path: str, body: dict[str, Any]) -> tuple[Captured, bytes]:
    """A turn whose cached tokens the counters tell, and its answer. Where the recorder came too late to look it says
    nothing, and another one is asked."""
    for _ in range(10):
        start = await agent.settled()
        raw = await (await Client.ask(tap.url, path, body)).rest()
        assert raw.startswith(b"HTTP/1.1 200 OK"), raw
        window = between(start, await agent.settled(), 2.0).all.cached
        (row,) = await tap.captured(1, settled=True)
        if row.cached_tokens is not None:
            assert (row.prompt_tokens, row.cached_tokens) == (window.prompt_tokens, window.cached_tokens)
            return row, raw
        assert (row.cached_source, row.alone) == (None, None)
    raise AssertionError("the counters never tell")


async def test_usage_that_no_answer_tells(tap: Tap, agent: Agent) -> None:
    """A stream that was not asked for its usage: the counters tell it, as nothing else ran."""
    body = {"model": "tiny", "messages": opening(task="Tell me nothing."), "tools": TOOLS, "max_tokens": 80}
    for cached in (0, 7 * BLOCK):
        row, raw = await counted(tap, agent, "/v1/chat/completions", body | {"ignore_eos": True, "stream": True})
        assert b'"usage"' not in raw
        assert (row.cached_source, row.alone, row.usage) == ("metrics", True, {})
        assert (row.completion_tokens, row.finish_reason) == (80, "length")
        assert row.cached_tokens is not None and row.cached_tokens >= cached


async def running(agent: Agent) -> float:
    values = (await agent.scrape()).values
    return sum(value for (name, _), value in values.items() if name == "vllm:num_requests_running")


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_client_that_leaves_the_stream(tap: Tap, agent: Agent, how: str) -> None:
    body = {"model": "tiny", "prompt": f"For ever, {how}.", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    client = await Client.ask(tap.url, "/v1/completions", body)
    await client.until(b'"text"')
    await freed(agent, getattr(client, how))
    (row,) = await tap.turns(1)
    assert (row["state"], row["status"], row["record"]) == ("aborted", 200, "complete")
    assert (row["finish_reason"], row["prompt_tokens"], row["cached_tokens"]) == (None, None, None)
    assert row["ttft_s"] > 0


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_client_that_leaves_the_prefill(tap: Tap, agent: Agent, how: str) -> None:
    start = await agent.settled()
    prompt = [1000 + len(how), *range(1000, 7000), *range(1500, 7500)]
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "stream": True}
    client = await Client.ask(tap.url, "/v1/completions", body)
    await runs(agent)
    await freed(agent, getattr(client, how))
    window = between(start, await agent.settled(), 2.0).all
    assert window.cached.prompt_tokens == 0, "the prefill was over before the client left"
    (row,) = await tap.turns(1)
    assert (row["state"], row["record"], row["ttft_s"]) == ("aborted", "complete", None)


async def runs(agent: Agent) -> None:
    """Until the server runs a request."""
    async with asyncio.timeout(30):
        while True:
            if await running(agent):
                return
            await asyncio.sleep(0.02)


async def freed(agent: Agent, leave: Callable[[], None]) -> None:
    """The server is idle within a second."""
    assert await running(agent) == 1
    leave()
    left_at = time.monotonic()
    while True:
        looked_at = time.monotonic()
        if not await running(agent):
            break
        await asyncio.sleep(0.02)
    assert looked_at - left_at < 1.0


async def test_openai_client(tap: Tap) -> None:
    """Streams with a tool call: chat and responses."""
    ask = "Switch on the light on the stairs."
    async with openai.AsyncOpenAI(base_url=f"{tap.url}/v1", api_key="sk-the-secret") as client:
        chat = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": ask}],
            tools=[CHAT_TOOL],
            tool_choice={"type": "function", "function": {"name": "switch"}},
            temperature=0,
            max_tokens=60,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in chat]
        responses = await client.responses.create(
            model="tiny",
            input=ask,
            tools=[RESPONSES_TOOL],
            tool_choice={"type": "function", "name": "switch"},
            temperature=0,
            max_output_tokens=60,
            stream=True,
        )
        events = [event async for event in responses]
    calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert [call.function.name for call in calls if call.function and call.function.name] == ["switch"]
    (finish,) = filter(None, (choice.finish_reason for chunk in chunks for choice in chunk.choices))
    usage = chunks[-1].usage
    assert usage and usage.prompt_tokens_details
    end = events[-1].response
    assert [item.name for item in end.output if item.type == "function_call"] == ["switch"]
    first, second = await tap.turns(2)
    assert_says(
        first, Usage(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens), finish
    )
    said = Usage(end.usage.input_tokens, end.usage.input_tokens_details.cached_tokens, end.usage.output_tokens)
    assert_says(second, said, end.incomplete_details.reason if end.incomplete_details else end.status)
    for row in (first, second):
        assert (row["agent"], row["agent_version"]) == ("OpenAI Python", openai.__version__)
    assert_no_secret(tap, b"sk-the-secret")


async def test_anthropic_client(tap: Tap) -> None:
    """A stream with tool calls, and an answer in one piece."""
    ask: dict[str, Any] = {
        "model": "tiny",
        "system": "You switch lights.",
        "messages": [{"role": "user", "content": "Switch on the light in the cellar."}],
        "tools": [MESSAGES_TOOL],
        "max_tokens": 60,
        "extra_body": {"temperature": 0},
    }
    async with anthropic.AsyncAnthropic(base_url=tap.url, api_key="sk-ant-the-secret") as client:
        stream = await client.messages.create(**ask, tool_choice={"type": "tool", "name": "switch"}, stream=True)
        events = [event async for event in stream]
        whole = await client.messages.create(**ask)
    blocks = [event.content_block for event in events if event.type == "content_block_start"]
    assert [block.name for block in blocks if block.type == "tool_use"] == ["switch"]
    (end,) = (event for event in events if event.type == "message_delta")
    rows = await tap.turns(2)
    for row, usage, stop in zip(
        rows, (end.usage, whole.usage), (end.delta.stop_reason, whole.stop_reason), strict=True
    ):
        cached, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
        assert usage.input_tokens is not None and cached is not None and written is not None
        assert_says(row, Usage(usage.input_tokens + cached + written, cached, usage.output_tokens), stop or "")
        assert (row["agent"], row["agent_version"]) == ("Anthropic Python", anthropic.__version__)
    assert rows[0]["prompt_tokens"] == rows[1]["prompt_tokens"]
    assert_no_secret(tap, b"sk-ant-the-secret")


def assert_no_secret(tap: Tap, secret: bytes) -> None:
    for path in tap.home.rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes(), path


ENDLESS = {
    "model": "tiny",
    "messages": [{"role": "user", "content": TEXT[:2000]}],
    "max_tokens": 250,
    "ignore_eos": True,
    "stream": True,
    "temperature": 0,
    "seed": 1,
}


async def test_killed_tap(own_tap: Tap, agent: Agent) -> None:
    """An answer that it cuts never looks complete, and the server is free."""
    recorder = own_tap.recorder()
    client = await Client.ask(own_tap.url, "/v1/chat/completions", ENDLESS)
    await client.until(b'"content":"')
    os.kill(own_tap.pid, signal.SIGKILL)
    with pytest.raises(ConnectionResetError):
        await client.rest()
    assert b"[DONE]" not in client.data
    assert not client.data.endswith(b"0\r\n\r\n")
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.ConnectError):
            await http.post(f"{own_tap.url}/v1/chat/completions", json=ENDLESS)
    await agent.settled()
    await asyncio.to_thread(psutil.wait_procs, [recorder], timeout=30)
    assert not recorder.is_running()
    (row,) = await own_tap.turns(1)
    assert row["state"] != "done"
    assert own_tap.kvtop("tap", "--status").returncode == 1


async def test_killed_recorder(tap: Tap, server: Server) -> None:
    """The client notices nothing; that turn's record is truncated, and what comes after is whole."""
    old = tap.recorder()
    client = await Client.ask(tap.url, "/v1/chat/completions", ENDLESS)
    await client.until(b'"content":"')
    await tap.in_flight()
    old.kill()
    through = await client.rest()
    direct = await (await Client.ask(server.url, "/v1/chat/completions", ENDLESS)).rest()
    assert alike(through) == alike(direct)
    book = Book()
    async with Agent(Server(tap.url, server.pid)) as tapped:
        await tapped.stream(book, opening(task="Go on."))
        await tapped.chat(book, opening(task="And on."))
    cut, *whole = await tap.turns(3)
    assert (cut["state"], cut["record"], cut["finish_reason"]) == (None, "truncated", None)
    for row, usage in zip(whole, book.rows, strict=True):
        assert_says(row, usage, "length")
    assert tap.recorder().pid != old.pid
