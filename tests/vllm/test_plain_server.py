"""A plain server under an agent's traffic: kvtop's windows equal the sums of `usage`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from vllm_agent import TOOLS, Agent, Book, Server, assert_equal, opening, shuffled, tool_turn
from vllm_gate import gate

from kvtop.model.turns import TurnTracker
from kvtop.model.window import between

pytestmark = pytest.mark.vllm

BLOCK = 128


@pytest.fixture(scope="module")
def server(plain: Server) -> Server:
    return plain


async def test_configuration_is_read(agent: Agent) -> None:
    start = await agent.settled()
    config = between(start, start, 1.0).all.config
    assert (config.block_tokens, config.match_unit_tokens, config.prefix_caching) == (BLOCK, BLOCK, True)
    facts = await agent.source.facts()
    assert (facts.version, [m.id for m in facts.models]) == ("0.32.0", ["tiny"])


async def test_conversation(agent: Agent) -> None:
    """Appends, streamed and not; a repeat; shuffled schema keys; a clock at the head."""
    start, book = await agent.settled(), Book()
    messages = opening()
    cold = await agent.chat(book, messages)
    assert cold.cached == 0
    for n in range(4):
        messages = messages + tool_turn(n)
        turn = await (agent.stream if n % 2 else agent.chat)(book, messages)
        assert turn.cached > 0
    repeat = await agent.chat(book, messages)
    assert repeat.cached == (repeat.prompt - 1) // BLOCK * BLOCK
    broken = await agent.chat(book, messages, shuffled(TOOLS))
    assert broken.cached < repeat.cached / 2
    for second in (1, 9):
        clock = [{"role": "system", "content": f"It is 12:00:0{second}. {messages[0]['content']}"}, *messages[1:]]
        await agent.chat(book, clock)
    assert book.rows[-1].cached == 0
    end = await agent.settled()
    assert_equal(between(start, end, 10.0), book)


async def test_each_turn_by_itself(agent: Agent) -> None:
    """Windows that hold one request each are that request."""
    messages = opening("Someone else. ")
    for n in range(3):
        start, book = await agent.settled(), Book()
        await agent.chat(book, messages)
        window = between(start, await agent.settled(), 2.0)
        assert_equal(window, book)
        ttft = window.all.latency.ttft
        assert ttft.p50 is not None
        assert ttft.p50.value_s == pytest.approx(ttft.mean_s)
        messages = messages + tool_turn(n)


async def test_turns_from_counters(agent: Agent) -> None:
    """Requests that finish alone are rows of their own, exactly; two at once are one row of two."""
    tracker, messages = TurnTracker(), opening("A reader of rows. ")
    assert tracker.add(await agent.settled()) == ()
    for n in range(3):
        usage = await (agent.stream if n % 2 else agent.chat)(Book(), messages, max_tokens=5 + n)
        (row,) = tracker.add(await agent.settled())
        assert (row.n, row.state, row.finish_reason) == (1, "done", "length")
        assert (row.prompt_tokens, row.cached_tokens) == (usage.prompt, usage.cached)
        assert (row.new_tokens, row.completion_tokens) == (usage.computed, 5 + n)
        assert row.ttft_s is not None
        assert row.duration_s is not None
        assert 0 < row.ttft_s <= row.duration_s
        messages = messages + tool_turn(n)
    book = Book()
    await asyncio.gather(*(agent.chat(book, messages + tool_turn(4 + n)) for n in range(2)))
    rows = tracker.add(await agent.settled())
    assert [row.n for row in rows] == [2]
    assert (rows[0].prompt_tokens, rows[0].cached_tokens) == (book.prompt / 2, book.cached / 2)


async def test_client_that_hangs_up(agent: Agent) -> None:
    """Its prompt and first token are counted, its finish is not."""
    messages = opening("A third one. ")
    await agent.chat(Book(), messages)
    prompt = await agent.count(messages, TOOLS)
    start = await agent.settled()
    await agent.hang_up(messages)
    window = between(start, await agent.settled(), 2.0)
    cached = window.all.cached
    assert (cached.prompt_tokens, cached.cached_tokens) == (prompt, (prompt - 1) // BLOCK * BLOCK)
    assert window.all.latency.ttft.n == 1
    assert window.all.latency.e2e.n == 0
    assert window.all.requests.finished.total == 0
    assert window.all.requests.running == 0


async def test_burst_with_a_queue(agent: Agent) -> None:
    """Twelve at once on a server that runs eight: the queue is seen while it lasts, the sums hold after it."""
    start, book = await agent.settled(), Book()
    burst = [agent.stream(book, opening(f"Agent {n}. ") + tool_turn(n), max_tokens=24) for n in range(12)]
    sending = asyncio.gather(*burst)
    most, reasons = 0, set()
    while not sending.done():
        requests = between(start, await agent.scrape(), 1.0).all.requests
        if requests.waiting:
            most = max(most, requests.waiting)
            reasons.add((requests.waiting_by_reason.capacity, requests.waiting_by_reason.deferred))
        assert requests.running is not None
        assert requests.running <= 8
        await asyncio.sleep(0.02)
    await sending
    window = between(start, await agent.settled(), 5.0)
    assert_equal(window, book)
    assert len(book.rows) == 12
    assert most >= 4
    assert all(deferred == 0 and capacity for capacity, deferred in reasons)
    assert window.all.requests.preempted == 0


async def test_nothing_happened(agent: Agent) -> None:
    """An idle window is zeros where a counter stood still, and unknown where nothing was observed."""
    start = await agent.settled()
    window = between(start, await agent.settled(), 1.0)
    assert window.all.cached.prompt_tokens == 0
    assert window.all.cached.share is None
    assert window.all.latency.ttft.n == 0
    assert window.all.latency.ttft.mean_s is None


def assert_document(document: dict[str, Any], book: Book) -> None:
    """The JSON document says what the responses said."""
    cached = document["cached"]
    assert document["state"] == "up"
    assert (cached["prompt_tokens"], cached["cached_tokens"]) == (book.prompt, book.cached)
    assert cached["share"] == pytest.approx(book.cached / book.prompt)
    assert (cached["by_source"]["device"], cached["by_source"]["computed"]) == (book.cached, book.computed)
    assert document["latency"]["ttft"]["n"] == document["latency"]["e2e"]["n"] == len(book.rows)
    assert sum(filter(None, document["requests"]["finished"].values())) == len(book.rows)


async def test_snapshot_command_live(agent: Agent) -> None:
    """`kvtop snapshot URL --json` beside traffic that falls between its two scrapes."""
    book, messages = Book(), opening("Seen from outside. ")
    async with gate(agent.server.url) as (url, passed):
        command = [sys.executable, "-m", "kvtop", "snapshot", url, "--seconds", "6", "--json"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(30):
            await passed.wait()
        for n in range(3):
            await agent.chat(book, messages)
            messages = messages + tool_turn(n)
        await agent.settled()
        assert process.returncode is None, "the requests took longer than the window"
        said, _ = await process.communicate()
    document = json.loads(said)
    assert process.returncode == 0
    assert_document(document, book)
    assert document["vllm_version"] == "0.32.0"
    assert document["window_s"] == pytest.approx(6.0, abs=1.0)
    speed = document["throughput"]["prompt_tokens_per_s"]
    assert speed == pytest.approx(book.prompt / document["window_s"])


async def test_snapshot_command_on_saved_texts(agent: Agent, tmp_path: Path) -> None:
    """`kvtop snapshot --from A --to B --json` on texts saved before and after some requests."""
    before, after, book = tmp_path / "a.txt", tmp_path / "b.txt", Book()
    await agent.settled()
    before.write_text(await agent.text())
    messages = opening("On paper. ")
    await agent.chat(book, messages)
    await agent.stream(book, messages + tool_turn(1))
    await agent.settled()
    after.write_text(await agent.text())
    command = [sys.executable, "-m", "kvtop", "snapshot", "--from", str(before), "--to", str(after), "--json"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    document = json.loads(said)
    assert process.returncode == 0
    assert_document(document, book)
    assert document["window_s"] is None
    assert document["throughput"]["prompt_tokens_per_s"] is None
