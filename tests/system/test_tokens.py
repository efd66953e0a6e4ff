"""Where the tokens of a prompt come from, against a stand-in server that shows what it was asked."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopback import Exchange, Loopback, serving
from tokenserver import TokenServer, in_place, merged

from kvtop.capture.turn import Route
from kvtop.errors import KvtopError, UsageError
from kvtop.triage import ids as packed
from kvtop.triage import pieces
from kvtop.triage.tokens import Media, Memory, Tokenizer

CHAT = "/v1/chat/completions/render"
SECRET = "sk-geheim-123"
TALK = [{"role": "system", "content": "You are."}, {"role": "user", "content": "go ä€😀"}]


@asynccontextmanager
async def asking(server: TokenServer, **options: Any) -> AsyncIterator[tuple[Tokenizer, Loopback]]:
    async with serving(server) as box:
        tokenizer = Tokenizer(box.url, **options)
        yield tokenizer, box
        await tokenizer.aclose()


def chat(**more: Any) -> bytes:
    return json.dumps({"model": "tiny", "messages": TALK, "temperature": 0} | more).encode()


def messages(**more: Any) -> bytes:
    body = {"model": "tiny", "max_tokens": 9, "system": "You are.", "messages": [{"role": "user", "content": "go"}]}
    return json.dumps(body | more).encode()


TURNS = [*TALK[1:], {"role": "system", "content": "A reminder."}, {"role": "user", "content": "on"}]


async def test_ids_that_came_with_the_answer_need_no_server() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        tokenizer = Tokenizer(f"127.0.0.1:{nobody.getsockname()[1]}")
        answer = json.dumps({"prompt_token_ids": [1, 2, 3], "choices": [{"index": 0, "token_ids": [4, 5]}]}).encode()
        found = await tokenizer.ids(Route.CHAT, b"no JSON", answer, 3)
        assert (found.ids, found.reply) == (packed.pack([1, 2, 3]), packed.pack([4, 5]))
        assert (found.method, found.exact, found.notes, tokenizer.calls) == ("served_ids", True, (), 0)
        off = await tokenizer.ids(Route.CHAT, b"no JSON", answer, 9)
        assert (off.exact, off.notes) == (False, ("approximate: the server counted 9, these are 3",))
        asked = await tokenizer.ids(Route.COMPLETIONS, b'{"prompt": [7, 8]}')
        assert (asked.ids, asked.method, asked.exact, tokenizer.calls) == (packed.pack([7, 8]), "served_ids", True, 0)


async def test_the_render_route_is_asked_first_with_the_request_as_it_was() -> None:
    server = TokenServer(renders={"chat"})
    async with asking(server) as (tokenizer, box):
        found = await tokenizer.ids(Route.CHAT, chat(reasoning_effort="high"))
        expected = server.prompt({"messages": TALK, "reasoning_effort": "high"})
        assert found.ids == packed.pack(list(expected))
        assert (found.method, found.exact) == ("server_tokens", True)
        assert found.notes == ("tokens not checked, its usage is not known",)
        checked = await tokenizer.ids(Route.CHAT, chat(reasoning_effort="high"), usage_tokens=len(expected))
        assert (checked.exact, checked.notes) == (True, ())
        assert (box.paths, tokenizer.calls) == ([CHAT], 1)
        assert server.sent[CHAT] == [json.loads(chat(reasoning_effort="high"))]


@pytest.mark.parametrize("status", [403, 404, 405, 401, 501])
async def test_a_closed_render_route_is_remembered(status: int) -> None:
    server = TokenServer(closed=status)
    async with asking(server) as (tokenizer, box):
        for n in range(3):
            found = await tokenizer.ids(Route.CHAT, chat(seed=n, cache_salt=str(n)))
            assert found.ids == packed.pack(list(server.prompt({"messages": TALK})))
        assert box.paths == [CHAT, "/version", "/tokenize", "/tokenize", "/tokenize"]
        tokenizer.forget()
        await tokenizer.ids(Route.CHAT, chat())
        assert box.paths[5:] == [CHAT, "/version", "/tokenize"]


@pytest.mark.parametrize("older", [False, True])
async def test_both_shapes_of_a_render(older: bool) -> None:
    server = TokenServer(renders={"chat", "completions"}, older=older)
    async with asking(server) as (tokenizer, box):
        found = await tokenizer.ids(Route.CHAT, chat())
        assert found.ids == packed.pack(list(server.prompt({"messages": TALK})))
        text = await tokenizer.ids(Route.COMPLETIONS, b'{"model": "tiny", "prompt": "one"}')
        assert (text.ids, text.exact) == (packed.pack(list(b"one")), True)
        assert box.paths == [CHAT, "/v1/completions/render"]


async def test_what_tokenize_does_not_know_goes_into_the_templates_arguments() -> None:
    server = TokenServer()
    async with asking(server) as (tokenizer, _):
        thought = {"role": "assistant", "reasoning_content": "hm", "content": "yes"}
        body = chat(
            messages=[*TALK, thought],
            reasoning_effort="low",
            documents=[{"text": "d"}],
            add_generation_prompt=False,
            response_format={"type": "text"},
            tools=[{"type": "function", "function": {"name": "f"}}],
            chat_template_kwargs={"x": 1, "reasoning_effort": "high"},
        )
        found = await tokenizer.ids(Route.CHAT, body)
        assert server.sent["/tokenize"] == [
            {
                "model": "tiny",
                "messages": [*TALK, {"role": "assistant", "content": "yes", "reasoning": "hm"}],
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "add_generation_prompt": False,
                "chat_template_kwargs": {
                    "x": 1,
                    "reasoning_effort": "low",
                    "enable_thinking": True,
                    "documents": [{"text": "d"}],
                },
            }
        ]
        assert found.exact


async def test_an_older_server_is_asked_as_its_chat_route_would() -> None:
    server = TokenServer(version="0.21.0")
    async with asking(server) as (tokenizer, _):
        thought = {"role": "assistant", "reasoning_content": "hm", "content": "yes"}
        await tokenizer.ids(Route.CHAT, chat(messages=[*TALK, thought], reasoning_effort="none"))
        (sent,) = server.sent["/tokenize"]
        assert sent["messages"][-1] == thought
        assert sent["chat_template_kwargs"] == {"reasoning_effort": "none"}


async def test_a_count_that_differs_is_told() -> None:
    async with asking(TokenServer(renders={"chat"})) as (tokenizer, _):
        found = await tokenizer.ids(Route.CHAT, chat(), usage_tokens=7)
        assert not found.exact
        assert found.notes == (f"approximate: the server counted 7, these are {found.count}",)


async def test_prompts_are_remembered_by_what_reaches_them() -> None:
    async with asking(TokenServer(renders={"chat"})) as (tokenizer, box):
        first = await tokenizer.ids(Route.CHAT, chat(seed=1, stream=True))
        again = await tokenizer.ids(Route.CHAT, chat(temperature=1))
        assert (first.ids, tokenizer.calls) == (again.ids, 1)
        await tokenizer.ids(Route.CHAT, chat(reasoning_effort="high"))
        await tokenizer.ids(Route.CHAT, chat(), fresh=True)
        assert tokenizer.calls == 3
        await tokenizer.ids(Route.CHAT, chat(), usage_tokens=first.count + 1)
        assert tokenizer.calls == 3, "a render is the server's last word"
        await tokenizer.ids(Route.RESPONSES, b'{"model": "tiny", "input": "go"}')
        calls = tokenizer.calls
        await tokenizer.ids(Route.CHAT, b'{"model": "tiny", "messages": [{"role": "user", "content": "go"}]}')
        assert tokenizer.calls > calls, "routes may render the same messages in different ways"
        other = Tokenizer(box.url.replace("127.0.0.1", "localhost"))
        await other.ids(Route.CHAT, chat())
        assert other.calls == 1
        await other.aclose()


def test_memory_is_bounded_by_bytes() -> None:
    memory = Memory(most_bytes=100)
    for n in range(5):
        memory.put("u", bytes([n]), n, 30)
        memory.get("u", b"\0")
    assert [memory.get("u", bytes([n])) for n in range(5)] == [0, None, None, 3, 4]
    memory.put("u", b"\0", "smaller", 10)
    memory.put("u", b"big", "larger than all", 101)
    memory.put("v", b"\0", "other", 5)
    assert (memory.bytes, memory.get("u", b"big"), len(memory)) == (75, None, 4)
    memory.drop("u")
    assert (memory.bytes, memory.get("v", b"\0")) == (5, "other")


@pytest.mark.parametrize("merges", [True, False])
@pytest.mark.parametrize("refuses", [True, False])
async def test_where_later_system_turns_go_is_found_out_once(merges: bool, refuses: bool) -> None:
    server = TokenServer(merges=merges, refuses_system=refuses and merges)
    async with asking(server) as (tokenizer, box):
        for n in range(2):
            body = messages(messages=TURNS, cache_salt=str(n))
            found = await tokenizer.ids(Route.MESSAGES, body)
            chat = (merged if merges else in_place)(json.loads(body))
            assert found.ids == packed.pack(list(server.prompt(chat)))
            assert found.exact
        assert box.paths.count("/v1/messages/count_tokens") == (0 if refuses and merges else 1)
        assert box.paths.count("/tokenize") == 4


async def test_without_a_way_to_find_out_the_count_decides() -> None:
    server = TokenServer(merges=True)
    server.statuses["/v1/messages/count_tokens"] = (404, b"{}")
    async with asking(server) as (tokenizer, _):
        body = messages(messages=TURNS)
        guess = await tokenizer.ids(Route.MESSAGES, body)
        assert not guess.exact
        assert "chat template" in guess.notes[0]
        expected = server.prompt(merged(json.loads(body)))
        found = await tokenizer.ids(Route.MESSAGES, body, usage_tokens=len(expected))
        assert (found.ids, found.exact) == (packed.pack(list(expected)), True)


async def test_messages_are_rendered_as_chat_where_only_that_is_open() -> None:
    server = TokenServer(renders={"chat"}, closed=404, version="0.28.0")
    async with asking(server) as (tokenizer, box):
        header = {"type": "text", "text": "x-anthropic-billing-header: cch=1;"}
        body = messages(system=[header, {"type": "text", "text": "You are."}], tools=[])
        found = await tokenizer.ids(Route.MESSAGES, body)
        assert found.ids == packed.pack(list(server.prompt(in_place(json.loads(messages())))))
        assert box.paths == ["/v1/messages/render", "/version", CHAT]
        assert "tools" not in server.sent[CHAT][0]


@pytest.mark.parametrize(("shows", "effort"), [(True, "none"), (False, "low")])
async def test_thinking_of_type_disabled(shows: bool, effort: str) -> None:
    server = TokenServer(shows_none=shows, renders={"messages"})
    async with asking(server) as (tokenizer, box):
        found = await tokenizer.ids(Route.MESSAGES, messages(thinking={"type": "disabled"}))
        chat = in_place(json.loads(messages())) | {"reasoning_effort": effort}
        assert found.ids == packed.pack(list(server.prompt(chat)))
        assert "/v1/messages/render" not in box.paths, "0.32 renders it otherwise than it serves it"


async def test_tools_that_the_server_leaves_out() -> None:
    server = TokenServer(drops_tools=True)
    async with asking(server) as (tokenizer, _):
        body = chat(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none")
        served = server.prompt(json.loads(body))
        found = await tokenizer.ids(Route.CHAT, body, usage_tokens=len(served))
        assert (found.ids, found.exact) == (packed.pack(list(served)), True)


@pytest.mark.parametrize(("version", "exact"), [("0.32.0", False), ("0.33.0", True)])
async def test_gpt_oss_through_tokenize_is_marked(version: str, exact: bool) -> None:
    server = TokenServer(version=version, model="openai/gpt-oss-20b")
    async with asking(server) as (tokenizer, _):
        found = await tokenizer.ids(Route.CHAT, chat(model=server.model))
        assert found.exact is exact
        assert any("gpt-oss" in note for note in found.notes) is not exact


async def test_gpt_oss_on_the_responses_route_is_marked_unless_its_own_render_is_open() -> None:
    body = b'{"model": "gpt-oss-20b", "input": "go"}'
    for renders in ({"chat"}, {"responses"}):
        server = TokenServer(version="0.33.0", model="gpt-oss-20b", renders=renders)
        async with asking(server) as (tokenizer, _):
            assert (await tokenizer.ids(Route.RESPONSES, body)).exact is ("responses" in renders)


@pytest.mark.parametrize("renders", [{"chat"}, set()])
async def test_another_models_tokens_are_marked(renders: set[str]) -> None:
    server = TokenServer(renders=renders)
    async with asking(server) as (tokenizer, _):
        found = await tokenizer.ids(Route.CHAT, chat(model="gateway/name"))
        assert found.ids == packed.pack(list(server.prompt({"messages": TALK})))
        assert not found.exact
        assert "model" in found.notes[0]


async def test_pictures_are_named_beside_their_tokens() -> None:
    def body(data: str) -> bytes:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return chat(messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, part]}])

    server = TokenServer(renders={"chat"})
    async with asking(server) as (tokenizer, _):
        found = await tokenizer.ids(Route.CHAT, body("AAAA"))
        assert found.media == (Media("abc", 3, 2),)
        assert server.sent[CHAT][0]["mm_payload"] == "none"
    async with asking(TokenServer()) as (tokenizer, _):
        one, other = [(await tokenizer.ids(Route.CHAT, body(data))).media for data in ("AAAA", "BBBB")]
        assert (len(one), one[0].first) == (1, None)
        assert one != other


async def test_the_key_goes_with_each_request_and_nowhere_else() -> None:
    server = TokenServer()
    async with asking(server, key=lambda: SECRET) as (tokenizer, box):
        await tokenizer.ids(Route.CHAT, chat())
        assert [exchange.headers["authorization"] for exchange in box.requests] == [f"Bearer {SECRET}"] * 3
        assert SECRET not in repr(tokenizer)


TOO_LONG = (
    b'{"error":{"message":"This model\'s maximum context length is 32768 tokens. However, your prompt contains at '
    b'least 32769 input tokens, which exceeds this limit. geheim","type":"BadRequestError","code":400}}'
)
QUOTED = b'{"error":{"message":"geheim is not a role","type":"BadRequestError","code":400}}'


@pytest.mark.parametrize(
    ("path", "status", "answer", "says"),
    [
        (CHAT, 400, TOO_LONG, "too long: 32,769 tokens or more, and the server takes 32,768"),
        (CHAT, 503, b"", "503: no engine"),
        ("/tokenize", 400, QUOTED, "does not take this prompt (HTTP 400, BadRequestError)"),
        ("/tokenize", 422, b"geheim", "does not take this prompt (HTTP 422)"),
        ("/tokenize", 401, QUOTED, "answers 401\n  set api_key_env"),
        ("/tokenize", 404, b'{"detail":"Not Found"}', "there is no /tokenize here"),
        ("/tokenize", 500, b"geheim", "HTTP 500"),
        ("/tokenize", 503, b"geheim", "503: no engine"),
        ("/tokenize", 200, b"<html>geheim</html>", "does not answer as vLLM does"),
        ("/tokenize", 200, b'{"tokens":[1,-5]}', "does not answer as vLLM does"),
        ("/tokenize", 200, b'{"tokens":["geheim"]}', "does not answer as vLLM does"),
    ],
)
async def test_errors_say_what_and_where_and_nothing_of_the_prompt(
    path: str, status: int, answer: bytes, says: str
) -> None:
    server = TokenServer(statuses={path: (status, answer)})
    async with asking(server, key=lambda: SECRET) as (tokenizer, box):
        with pytest.raises(KvtopError) as caught:
            await tokenizer.ids(Route.CHAT, chat(messages=[{"role": "user", "content": "geheim"}]))
        said = str(caught.value)
        assert says in said
        assert box.url in said
        assert "geheim" not in said
        assert said.count("\n") == 1
        assert caught.value.__cause__ is None


async def test_a_server_that_is_not_there_or_does_not_answer() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(KvtopError, match="nothing listens on"):
            await Tokenizer(f"127.0.0.1:{nobody.getsockname()[1]}").ids(Route.CHAT, chat())
    async with serving(Exchange.forever) as box:
        with pytest.raises(KvtopError, match=r"gives no answer within 0\.1 s"):
            await Tokenizer(box.url, timeout_s=0.1).ids(Route.CHAT, chat())
    with pytest.raises(UsageError):
        Tokenizer("http://")


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (Route.CHAT, b"geheim"),
        (Route.CHAT, b'{"messages": "geheim"}'),
        (Route.CHAT, b'{"messages": [' + b"[" * 5000 + b"]" * 5000 + b"]}"),
        (Route.COMPLETIONS, b'{"prompt": {"geheim": 1}}'),
        (Route.OTHER, b'{"query": "geheim"}'),
    ],
)
async def test_a_request_without_a_prompt_is_asked_of_nobody(route: Route, body: bytes) -> None:
    async with asking(TokenServer()) as (tokenizer, _):
        with pytest.raises(KvtopError) as caught:
            await tokenizer.ids(route, body)
        assert "geheim" not in str(caught.value)
        assert tokenizer.calls == 0


async def test_lone_surrogates_go_out_as_they_came() -> None:
    async with asking(TokenServer()) as (tokenizer, _):
        body = b'{"model": "tiny", "messages": [{"role": "user", "content": "a\\ud800b"}]}'
        assert (await tokenizer.ids(Route.CHAT, body)).exact


TEXT = "x = 'ä€😀日本語'\n fn(1)�" * 4


async def test_texts_of_tokens() -> None:
    async with asking(TokenServer(renders={"completions"})) as (tokenizer, _):
        body = json.dumps({"model": "tiny", "prompt": TEXT}).encode()
        found = await tokenizer.ids(Route.COMPLETIONS, body)
        raw = TEXT.encode()
        whole = await tokenizer.text(found.ids, 0, found.count)
        assert whole == (TEXT, 0)
        before = tokenizer.calls
        single = await tokenizer.pieces(found.ids, 0, found.count)
        assert tokenizer.calls - before < 12
        assert "".join(piece.text for piece in single) == TEXT
        assert len(single) == len(raw)
        for first in range(0, len(raw), 3):
            for last in (first, first + 1, first + 5, len(raw) + 9):
                span = await tokenizer.text(found.ids, first, last)
                assert raw[span.byte :].startswith(span.text.encode())
                assert span.text == "".join(piece.text for piece in single[first:last])
                assert await tokenizer.pieces(found.ids, first, last) == single[first:last]


@given(text=st.text(alphabet="aä€😀\u241e\ufffd \n", max_size=30), data=st.data())
async def test_pieces_of_any_text_add_up(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    ids = packed.pack(list(raw))
    first = data.draw(st.integers(0, len(raw)))
    last = data.draw(st.integers(first, len(raw)))

    async def say(tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")

    async def words(mark: str) -> list[int]:
        return list(mark.encode())

    span = await pieces.text(say, ids, first, last)
    single = await pieces.pieces(say, words, ids, first, last)
    assert raw[span.byte :].startswith(span.text.encode())
    assert "".join(piece.text for piece in single) == span.text
    assert len(single) == last - first
    at = span.byte
    for piece in single:
        assert piece.byte == at
        at += len(piece.text.encode())


async def test_a_tokenizer_that_says_less_of_a_lists_beginning() -> None:
    """As sentencepiece does: the space before a list's first word is not said."""
    words_of = ["▁one", "▁two", "three", "▁", "▁four"]

    async def say(tokens: list[int]) -> str:
        return "".join("␞" if token == 9 else words_of[token] for token in tokens).replace("▁", " ").removeprefix(" ")

    async def words(mark: str) -> list[int]:
        return [9]

    ids = packed.pack([0, 1, 2, 3, 4] * 8)
    for first in range(0, 40, 3):
        for last in range(first, 41, 4):
            span = await pieces.text(say, ids, first, last)
            single = await pieces.pieces(say, words, ids, first, last)
            whole = await say(packed.unpack(ids))
            assert whole.encode()[span.byte :].startswith(span.text.encode())
            assert "".join(piece.text for piece in single) == span.text
