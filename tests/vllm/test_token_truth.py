"""Tokens as kvtop has them, against those that a real server used: by its render routes and by /tokenize alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from vllm_agent import TEXT, TOOLS, Server, opening, shuffled, tool_turn
from vllm_gate import gate
from vllm_requests import Json, Maker

from kvtop.capture.api.answers import read_answer
from kvtop.capture.turn import Route
from kvtop.errors import KvtopError
from kvtop.triage import ids as packed
from kvtop.triage.tokens import Prompted, Tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.long]

PATHS = {
    Route.CHAT: "/v1/chat/completions",
    Route.COMPLETIONS: "/v1/completions",
    Route.MESSAGES: "/v1/messages",
    Route.RESPONSES: "/v1/responses",
}
TEMPLATE = Path(__file__).with_name("talkative.jinja")


@pytest.fixture(scope="module")
def talkative(serving: Callable[..., AbstractContextManager[Server]]) -> Iterator[Server]:
    """A server with all render routes, whose template prints what a request may hold and wants system first."""
    with serving("small", "--enable-scale-out", "--chat-template", str(TEMPLATE)) as running:
        yield running


JSON = {"content-type": "application/json"}


class Both:
    """One server, asked both ways, beside what it served."""

    def __init__(self, server: Server, rendered: Tokenizer, tokenised: Tokenizer) -> None:
        self.rendered = rendered
        self.tokenised = tokenised
        self._http = httpx.AsyncClient(base_url=server.url, timeout=60.0)

    async def serve(self, route: Route, body: Json) -> httpx.Response:
        return await self._http.post(PATHS[route], content=json.dumps(body), headers=JSON)

    async def agree(self, route: Route, body: Json, answer: httpx.Response) -> Prompted:
        """Both ways give the same ids, as many as were used; what was served, if the answer tells."""
        assert answer.status_code == 200, answer.text
        raw = json.dumps(body).encode()
        headers = list(answer.headers.items())
        usage = read_answer(route, 200, headers, answer.content, stream=bool(body.get("stream"))).prompt_tokens
        assert usage
        one, other = [await each.ids(route, raw, usage_tokens=usage) for each in (self.rendered, self.tokenised)]
        unchecked = await self.tokenised.ids(route, raw, fresh=True)
        assert (one.exact, other.exact, unchecked.exact) == (True, True, True), (one, other, unchecked, raw)
        assert one.ids == other.ids == unchecked.ids, raw
        assert one.count == usage
        told = await self.rendered.ids(route, raw, answer.content, usage)
        assert told.ids == one.ids
        return told

    async def aclose(self) -> None:
        await self._http.aclose()
        await self.rendered.aclose()
        await self.tokenised.aclose()


@pytest.fixture
async def both(talkative: Server) -> AsyncIterator[Both]:
    # As one without --enable-scale-out: a render route is asked for by a name that the server does not know.
    async with gate(talkative.url, swap=(b"/render HTTP/", b"/closed HTTP/")) as (url, _):
        pair = Both(talkative, Tokenizer(talkative.url), Tokenizer(url))
        yield pair
        await pair.aclose()


def talk() -> list[Json]:
    messages = opening() + tool_turn(0) + tool_turn(1)
    messages[2] = messages[2] | {"reasoning_content": "First\nI think."}
    return messages


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tools": TOOLS},
        {"tools": shuffled(TOOLS)},
        {"tools": TOOLS, "tool_choice": "none"},
        {"reasoning_effort": "high"},
        {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
        {"chat_template_kwargs": {"reasoning_effort": "low"}},
        {"documents": [{"title": "a", "text": "A document."}]},
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
        {"cache_salt": "x", "n": 2},
        {"stream": True, "stream_options": {"include_usage": True}},
    ],
    ids=lambda more: " ".join(more) or "plain",
)
async def test_chat(both: Both, more: Json) -> None:
    body = {"model": "tiny", "messages": talk(), "max_tokens": 6, "return_token_ids": True} | more
    told = await both.agree(Route.CHAT, body, await both.serve(Route.CHAT, body))
    assert told.method == "served_ids"
    assert told.reply is not None
    assert packed.count(told.reply) == 6


@pytest.mark.parametrize("prompt", ["a text ä€😀\n", ["one"], [5, 6, 7], [[5, 6]]], ids=str)
async def test_completions(both: Both, prompt: Any) -> None:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 3, "return_token_ids": True}
    told = await both.agree(Route.COMPLETIONS, body, await both.serve(Route.COMPLETIONS, body))
    assert told.reply is not None
    assert packed.count(told.reply) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_that_show_their_messages(both: Both, stream: bool) -> None:
    body = {"model": "tiny", "input": "go", "max_output_tokens": 3, "store": False, "stream": stream}
    body["enable_response_messages"] = True
    told = await both.agree(Route.RESPONSES, body, await both.serve(Route.RESPONSES, body))
    assert told.method == "served_ids"


async def test_random_messages_and_responses(both: Both) -> None:
    """Thinking, calls, results, several system blocks, later system turns, tools of all kinds, efforts."""
    maker = Maker(seed=7, pictures=False)
    served = 0
    for n in range(160):
        route = (Route.MESSAGES, Route.RESPONSES)[n % 2]
        body = maker.messages_body() if route is Route.MESSAGES else maker.responses_body()
        body |= {"max_tokens": 1} if route is Route.MESSAGES else {"max_output_tokens": 1, "store": False}
        answer = await both.serve(route, body)
        if answer.status_code != 200:
            assert answer.status_code in (400, 422, 500), answer.text
            continue
        await both.agree(route, body, answer)
        served += 1
    assert served > 100


async def test_a_server_whose_template_takes_later_system_turns(plain: Server) -> None:
    tokenizer = Tokenizer(plain.url)
    async with httpx.AsyncClient(base_url=plain.url, timeout=60.0) as http:
        turns = [{"role": "user", "content": "go"}, {"role": "system", "content": "now"}, *opening()[1:]]
        for more in ({}, {"system": "You are."}, {"thinking": {"type": "disabled"}}):
            body = {"model": "tiny", "max_tokens": 1, "messages": turns} | more
            answer = (await http.post("/v1/messages", json=body)).raise_for_status()
            usage = read_answer(Route.MESSAGES, 200, [], answer.content, stream=False).prompt_tokens
            found = await tokenizer.ids(Route.MESSAGES, json.dumps(body).encode())
            assert (found.count, found.exact) == (usage, True)
    await tokenizer.aclose()


async def test_a_growing_conversation_without_render(plain: Server) -> None:
    tokenizer = Tokenizer(plain.url)
    messages = opening()
    async with httpx.AsyncClient(base_url=plain.url, timeout=60.0) as http:
        for n in range(4):
            body = {"model": "tiny", "messages": messages, "tools": TOOLS, "max_tokens": 4, "return_token_ids": True}
            answer = (await http.post("/v1/chat/completions", json=body)).raise_for_status()
            found = await tokenizer.ids(Route.CHAT, json.dumps(body).encode())
            told = await tokenizer.ids(Route.CHAT, b"", answer.content)
            assert (found.ids, found.method, found.exact) == (told.ids, "server_tokens", True)
            messages = messages + tool_turn(n)
    await tokenizer.aclose()


async def test_errors(both: Both) -> None:
    def chat(**more: Any) -> bytes:
        return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]} | more).encode()

    long = chat(messages=[{"role": "user", "content": "geheim " * 20_000}])
    with pytest.raises(KvtopError, match="too long: 16,385 tokens or more, and the server takes 16,384"):
        await both.rendered.ids(Route.CHAT, long)
    assert (await both.tokenised.ids(Route.CHAT, long)).count > 16_384
    with pytest.raises(KvtopError) as caught:
        await both.tokenised.ids(Route.CHAT, chat(messages=[{"role": "geheim"}], tools=[{"type": "geheim"}]))
    assert "does not take this prompt (HTTP 400" in str(caught.value)
    assert "geheim" not in str(caught.value)
    named = await both.tokenised.ids(Route.CHAT, chat(model="other"))
    assert named.ids == (await both.tokenised.ids(Route.CHAT, chat())).ids
    assert not named.exact


async def test_texts_of_tokens(both: Both) -> None:
    text = "x = 'ä€😀日本語'\n  fn(1234)\n<|im_end|>日本 " * 6 + TEXT[:1500]
    found = await both.rendered.ids(Route.COMPLETIONS, json.dumps({"model": "tiny", "prompt": text}).encode())
    assert await both.rendered.text(found.ids, 0, found.count) == (text, 0)
    single = await both.rendered.pieces(found.ids, 0, found.count)
    assert "".join(piece.text for piece in single) == text
    raw = text.encode()
    for first in range(0, found.count, 7):
        last = min(first + 23, found.count)
        span = await both.rendered.text(found.ids, first, last)
        assert raw[span.byte :].startswith(span.text.encode())
        assert await both.rendered.pieces(found.ids, first, last) == single[first:last]
        assert span.text == "".join(piece.text for piece in single[first:last])
