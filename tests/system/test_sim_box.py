"""The embedded box over HTTP: its answers, its ways to fail, and that the counters are the sums of `usage`."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from kvtop.model.window import between
from kvtop.readings import Scrape, State
from kvtop.sim.http import MAX_BODY
from kvtop.sim.scenarios import BOX, NO_TIER, Scenario
from kvtop.sim.server import Mode, SimBox
from kvtop.sim.text import passage
from kvtop.sources.exposition import Reader

SPEC = replace(BOX, tier_bytes=2 * 2**30, blocks=128, max_model_len=16_384)
EMPTY = Scenario("empty", "nobody but the test", SPEC, 1.0, lambda stage: [])


@pytest.fixture
async def box() -> AsyncIterator[SimBox]:
    one = SimBox(EMPTY, speed=400.0)
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
async def client(box: SimBox) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=box.url, timeout=10.0, trust_env=False) as one:
        yield one


async def until(there: Callable[[], bool]) -> None:
    """Wait for what the box does by its own clock; there is no event for it."""
    async with asyncio.timeout(10.0):
        while not there():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def scrape(client: httpx.AsyncClient) -> Scrape:
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return Reader().read(answer.text)


def talk(seed: int, tokens: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    system = {"role": "system", "content": passage(rng, tokens, f"Conversation {seed}.")}
    return [system, {"role": "user", "content": "Begin."}]


async def chat(client: httpx.AsyncClient, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    answer = await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 20} | more)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert isinstance(found, dict)
    return found


async def test_facts(box: SimBox, client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/version")).json() == {"version": "0.32.0"}
    (model,) = (await client.get("/v1/models")).json()["data"]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == (SPEC.model, "vllm", 16_384)
    assert (await client.get("/nowhere")).status_code == 404
    assert (await client.post("/metrics")).status_code == 404
    assert (await client.head("/metrics")).content == b""
    assert box.calls["/health"] == 1


async def test_windows_are_the_sums_of_usage(client: httpx.AsyncClient) -> None:
    """Three conversations that evict one another from a small pool, with a tier behind it, some of it at once."""
    start = await scrape(client)
    histories = [talk(i, 5_000) for i in range(3)]
    usages = []
    for turn in range(3):
        for history in histories:
            answer = await chat(client, history)
            usages.append(answer["usage"])
            history.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            history.append({"role": "tool", "content": passage(random.Random(turn), 300)})
    together = await asyncio.gather(*(chat(client, history) for history in histories))
    usages += [one["usage"] for one in together]
    w = between(start, await scrape(client), None).all
    prompt = sum(u["prompt_tokens"] for u in usages)
    cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
    assert cached > 20_000
    assert (w.cached.prompt_tokens, w.cached.cached_tokens) == (prompt, cached)
    assert w.cached.by_source.computed == prompt - cached
    assert w.cached.by_source.host and w.cached.by_source.device
    assert w.cached.by_source.host + w.cached.by_source.device == cached
    assert w.offload.load_bytes == w.cached.by_source.host * SPEC.bytes_per_token
    assert w.offload.store_bytes and w.offload.store_bytes % SPEC.block_bytes == 0
    assert w.throughput.generation_tokens == sum(u["completion_tokens"] for u in usages)
    assert w.latency.ttft.n == w.latency.e2e.n == w.requests.finished.total == len(usages) == 12
    assert (w.requests.running, w.requests.waiting) == (0, 0)


async def test_stream_and_whole_say_the_same(client: httpx.AsyncClient) -> None:
    messages = talk(1, 1_000)
    whole = await chat(client, messages, cache_salt="a")
    events = []
    body = {"messages": messages, "max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/chat/completions", json=body | {"cache_salt": "b"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line:
                assert line.startswith("data: ")
                events.append(line.removeprefix("data: "))
    assert events[-1] == "[DONE]"
    chunks = [json.loads(e) for e in events[:-1]]
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 20


async def test_tokenize_gives_the_ids_that_were_served(client: httpx.AsyncClient) -> None:
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
    body = {"messages": talk(2, 400), "tools": tools}
    answer = await chat(client, body["messages"], tools=tools, return_token_ids=True)
    ids = (await client.post("/tokenize", json=body)).json()
    assert ids["tokens"] == answer["prompt_token_ids"]
    assert ids["count"] == answer["usage"]["prompt_tokens"]
    assert (await client.post("/tokenize", json={"prompt": "a b c"})).json()["count"] == 3


async def test_detokenize_gives_the_text_again(client: httpx.AsyncClient) -> None:
    text = "def read(path):\n    return 1 + 2  # späße\n\n<done>"
    ids = (await client.post("/tokenize", json={"prompt": text})).json()["tokens"]
    assert (await client.post("/detokenize", json={"tokens": ids})).json() == {"prompt": text}
    assert (await client.post("/detokenize", json={"tokens": [1, 2, 255]})).json()["prompt"].endswith("<|im_end|>�")
    for wrong in ({}, {"tokens": "a"}, {"tokens": ["a"]}, []):
        assert (await client.post("/detokenize", json=wrong)).status_code == 400
    assert (await client.get("/detokenize")).status_code == 405


async def test_reply_is_reused_by_the_next_turn(client: httpx.AsyncClient) -> None:
    messages = talk(3, 1_000)
    first = await chat(client, messages, max_tokens=400)
    assert first["choices"][0]["finish_reason"] == "stop"
    messages.append({"role": "assistant", "content": first["choices"][0]["message"]["content"]})
    messages.append({"role": "user", "content": passage(random.Random(1), 200)})
    second = await chat(client, messages)
    total = first["usage"]["total_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == (total - 1) // 128 * 128


async def test_details_are_null_where_they_were_not_asked_for() -> None:
    box = SimBox(EMPTY, speed=400.0, prompt_tokens_details=False)
    async with httpx.AsyncClient(base_url=await box.start(), trust_env=False) as client:
        assert (await chat(client, talk(1, 100)))["usage"]["prompt_tokens_details"] is None
    await box.stop()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"messages": []}', 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": true}', 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "cache_salt": 3}', 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "model": "another"}', 404),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 20000}', 400),
        (b"[" * 100_000, 400),
    ],
)
async def test_bad_requests_are_refused_in_words(client: httpx.AsyncClient, body: bytes, status: int) -> None:
    answer = await client.post("/v1/chat/completions", content=body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert (await client.get("/health")).status_code == 200


async def test_too_large_body_is_refused(box: SimBox, client: httpx.AsyncClient) -> None:
    answer = await client.post("/tokenize", content=b" " * (MAX_BODY + 1))
    assert answer.status_code == 413
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET /" + b"x" * 40_000])
async def test_what_is_no_http_is_answered_with_400_and_closed(box: SimBox, raw: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", box.port)
    writer.write(raw)
    answer = await asyncio.wait_for(reader.read(), 5.0)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
    writer.close()


async def test_client_that_hangs_up_frees_the_engine() -> None:
    slow = SimBox(replace(EMPTY, spec=NO_TIER), speed=5.0)
    async with httpx.AsyncClient(base_url=await slow.start(), trust_env=False) as client:
        body = {"messages": talk(1, 100), "max_tokens": 8_000, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for _ in answer.aiter_lines():
                break
            assert len(slow.world.engine.running) == 1
        await until(lambda: not slow.world.engine.running)
        w = between(await scrape(client), await scrape(client), None).all
        assert w.requests.running == 0
        assert slow.world.engine.cache.room == NO_TIER.blocks
    await slow.stop()


async def test_down_and_up_on_the_same_port(box: SimBox, client: httpx.AsyncClient) -> None:
    await client.get("/health")
    await box.be(Mode.DOWN)
    with pytest.raises(httpx.TransportError):
        await client.get("/health")
    async with httpx.AsyncClient(base_url=box.url, trust_env=False) as other:
        with pytest.raises(httpx.ConnectError):
            await other.get("/health")
        await box.be(Mode.UP)
        assert (await other.get("/health")).status_code == 200


async def test_hang_unavailable_dead_and_asleep(box: SimBox) -> None:
    async with httpx.AsyncClient(base_url=box.url, timeout=0.2, trust_env=False) as client:
        await box.be(Mode.HANG)
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/metrics")
        await box.be(Mode.UNAVAILABLE)
        assert (await client.get("/metrics")).status_code == 503
        await box.be(Mode.SLEEPING)
        assert between(await scrape(client), await scrape(client), None).state is State.SLEEPING
        await box.be(Mode.DEAD_ENGINE)
        first = (await client.get("/metrics")).text
        assert (await client.get("/health")).status_code == 503
        failed = await client.post("/v1/chat/completions", json={"messages": talk(1, 10)})
        assert failed.status_code == 500
        assert (await client.get("/metrics")).text == first


async def test_restart_refuses_then_counts_from_zero(box: SimBox, client: httpx.AsyncClient) -> None:
    await chat(client, talk(1, 500))
    before = await scrape(client)
    await box.restart(200.0)
    async with httpx.AsyncClient(base_url=box.url, trust_env=False) as other:
        with pytest.raises(httpx.ConnectError):
            await other.get("/health")
        await until(lambda: box.listening)
        after = await scrape(other)
    window = between(before, after, None)
    assert window.state is State.RESET
    assert window.all.cached.prompt_tokens == 0


async def test_request_in_flight_at_a_restart_fails() -> None:
    slow = SimBox(replace(EMPTY, spec=NO_TIER), speed=1.0)
    async with httpx.AsyncClient(base_url=await slow.start(), trust_env=False) as client:
        asked = asyncio.create_task(client.post("/v1/chat/completions", json={"messages": talk(1, 9_000)}))
        await until(lambda: not slow.world.engine.idle)
        await slow.restart(60.0)
        with pytest.raises(httpx.TransportError):
            await asked
    await slow.stop()


async def test_default_play_is_served_while_it_goes_on() -> None:
    box = SimBox(speed=60.0)
    async with httpx.AsyncClient(base_url=await box.start(), trust_env=False) as client:
        before, began = await scrape(client), box.world.now
        await until(lambda: box.world.now - began >= 60.0)
        w = between(before, await scrape(client), None).all
        assert w.requests.finished.total and w.requests.finished.total >= 3
        assert w.cached.share is not None
        assert box.vitals.up and 0.0 < box.vitals.busy_share <= 1.0
    await box.stop()
