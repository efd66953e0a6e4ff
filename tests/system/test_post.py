"""A POST over real sockets: what goes out, and what becomes of a connection that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from loopback import Exchange, Loopback, serving

from kvtop.readings import State
from kvtop.sources.http import HttpClient, HttpFailure
from kvtop.sources.url import parse

BODY = b'{"prompt": "' + b"x" * 500_000 + b'"}'


def client(box: Loopback, *, timeout_s: float = 5.0, max_bytes: int = 1_000_000) -> HttpClient:
    return HttpClient(parse(box.url), timeout_s=timeout_s, max_bytes=max_bytes)


async def echo(exchange: Exchange) -> None:
    """Answers with the body of the request."""
    await exchange.reply(exchange.body)


async def test_the_body_arrives_whole_and_the_connection_is_kept() -> None:
    async with serving(echo) as box:
        http = client(box)
        for body in (BODY, b"{}", b""):
            answer = await http.post("/tokenize", body, [("X-One", "1")], repeatable=True)
            assert (answer.status, answer.body) == (200, body)
        assert (await http.get("/health")).body == b""
        await http.aclose()
        assert box.connections == 1
        first = box.requests[0]
        assert (first.method, first.path) == ("POST", "/tokenize")
        assert first.headers["content-type"] == "application/json"
        assert (first.headers["content-length"], first.headers["x-one"]) == (str(len(BODY)), "1")
        assert box.requests[-1].method == "GET"
        assert "content-length" not in box.requests[-1].headers


def closing_after(answers: int) -> Callable[[Exchange], Awaitable[None]]:
    """Answers so often, each time as if it kept the connection, and then closes it without an answer once."""
    seen = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal seen
        seen += 1
        if seen == answers + 1:
            exchange.close()
        else:
            await exchange.reply(b"ok")

    return handle


async def test_what_may_be_asked_twice_is_asked_again_when_a_kept_connection_ends() -> None:
    async with serving(closing_after(1)) as box:
        http = client(box)
        for _ in range(2):
            assert (await http.post("/tokenize", b"{}", repeatable=True)).body == b"ok"
        await http.aclose()
        assert (len(box.requests), box.connections) == (3, 2)


async def test_what_may_not_is_sent_once_and_over_a_connection_of_its_own() -> None:
    async with serving(closing_after(2)) as box:
        http = client(box)
        for _ in range(2):
            assert (await http.post("/v1/completions", b"{}")).body == b"ok"
        with pytest.raises(HttpFailure, match="closes the connection without an answer"):
            await http.post("/v1/completions", b"{}")
        await http.aclose()
        assert (len(box.requests), box.connections) == (3, 3)


async def test_a_server_that_does_not_answer_meets_the_timeout() -> None:
    async with serving(Exchange.forever) as box:
        http = client(box, timeout_s=0.2)
        with pytest.raises(HttpFailure) as caught:
            await http.post("/tokenize", BODY)
        assert caught.value.state is State.TIMEOUT


async def test_one_that_reads_nothing_meets_it_too() -> None:
    stop = asyncio.Event()

    async def deaf(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await stop.wait()
        writer.transport.abort()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    http = HttpClient(parse(f"127.0.0.1:{port}"), timeout_s=0.3, max_bytes=1000)
    with pytest.raises(HttpFailure) as caught:
        await http.post("/tokenize", BODY * 40)
    assert caught.value.state is State.TIMEOUT
    stop.set()
    server.close()


async def test_a_too_large_answer_is_dropped() -> None:
    async with serving(echo) as box:
        http = client(box, max_bytes=1000)
        with pytest.raises(HttpFailure) as caught:
            await http.post("/tokenize", BODY)
        assert caught.value.state is State.TOO_LARGE
        assert (await http.post("/tokenize", b"{}")).body == b"{}"
        await http.aclose()


async def test_neither_body_nor_answer_stands_in_a_repr() -> None:
    async with serving(echo) as box:
        http = client(box)
        answer = await http.post("/tokenize", b'{"prompt": "geheim"}', [("Authorization", "Bearer geheim")])
        await http.aclose()
    assert "geheim" not in repr(answer)
