"""JSON of any form in any field of a request or an answer: it is read as far as it goes, and nothing raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.api.answer_text import pieces
from kvtop.capture.api.answers import read_answer
from kvtop.capture.api.routes import read_request
from kvtop.capture.conversations.agents import name_of
from kvtop.capture.conversations.linked import linked
from kvtop.capture.turn import Captured, Route

PATHS = {
    Route.CHAT: "/v1/chat/completions",
    Route.COMPLETIONS: "/v1/completions",
    Route.RESPONSES: "/v1/responses",
    Route.MESSAGES: "/v1/messages",
    Route.EMBEDDINGS: "/v1/embeddings",
    Route.OTHER: "/v1/rerank",
}
ASKED = [
    "model",
    "messages",
    "stream",
    "tools",
    "functions",
    "metadata",
    "client_metadata",
    "user",
    "user_id",
    "system",
    "input",
    "instructions",
    "prompt",
    "suffix",
    "session_id",
    "previous_response_id",
    "conversation",
    "request_id",
    "prompt_cache_key",
    "safety_identifier",
    "text",
    "tool_choice",
    "response_format",
    "reasoning",
    "role",
    "content",
    "type",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "output",
    "annotations",
    "cache_control",
]
TOLD = [
    "id",
    "type",
    "model",
    "choices",
    "usage",
    "error",
    "message",
    "detail",
    "status",
    "metrics",
    "stop_reason",
    "output",
    "response",
    "delta",
    "loc",
    "msg",
    "item",
    "incomplete_details",
    "content",
    "index",
    "content_block",
    "finish_reason",
    "reason",
    "prompt_tokens",
    "prompt_tokens_details",
    "code",
    "cached_tokens",
    "input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "queue_time_ms",
    "text",
    "thinking",
    "partial_json",
    "input",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "reasoning",
    "summary",
    "output_index",
]
TYPES = [
    "text",
    "message",
    "tool_use",
    "thinking",
    "function_call",
    "error",
    "response.failed",
    "response.completed",
    "content_block_start",
    "content_block_delta",
    "input_json_delta",
    "message_stop",
    "response.output_item.added",
    "response.output_text.delta",
]
plain = st.one_of(
    st.sampled_from(
        [None, True, False, [], {}, "\ud800", 2**64, -(10**30), 1e300, float("nan"), float("inf"), "x" * 2_001]
    ),
    st.integers(-2, 2),
    st.text(max_size=6),
    st.sampled_from([*TYPES, "user", "assistant", "system", "developer", "failed"]),
)


def json_of(names: list[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        plain,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*names, "\ud800", ""]), inner, max_size=5)
        ),
        max_leaves=25,
    )


def objects(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), json_of(names), max_size=8)


def asked(route: Route, body: object) -> Captured:
    """The turn of a request with that body, as the linker takes it."""
    read = read_request("POST", PATHS[route], (), json.dumps(body).encode())
    agent, version = name_of((), read.hints, read.program)
    turn = Captured(route=route, model=read.model, agent=agent, agent_version=version, outline=read.outline)
    linked(turn)
    assert read.is_json
    return turn


@pytest.mark.fuzz
@given(st.sampled_from(list(Route)), objects(ASKED))
def test_a_request(route: Route, body: dict[str, Any]) -> None:
    asked(route, body)


@pytest.mark.fuzz
@given(st.sampled_from(list(Route)), st.sampled_from(["messages", "input", "system", "tools"]), st.data())
def test_what_a_prompt_consists_of(route: Route, key: str, data: st.DataObject) -> None:
    block = data.draw(objects(ASKED))
    message = {"role": "user", "content": [{"type": "text", "text": "x"} | block]} | data.draw(objects(ASKED))
    asked(route, {"model": "m", key: [message, {"role": "user", "content": [block]}, block]})


@pytest.mark.fuzz
@given(st.sampled_from(list(Route)), st.lists(objects(TOLD), max_size=3), st.sampled_from([None, 200, 500]))
def test_an_answer(route: Route, documents: list[dict[str, Any]], status: int | None) -> None:
    stream = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in documents)
    read_answer(route, status, [("content-type", "text/event-stream")], stream, True)
    pieces(route, stream)
    for one in documents:
        read_answer(route, status, [("content-type", "application/json")], json.dumps(one).encode(), False)
        pieces(route, json.dumps(one).encode())


@pytest.mark.parametrize("odd", [[], {}, [[]], {"a": []}, 5, True])
@pytest.mark.parametrize("route", [Route.CHAT, Route.RESPONSES, Route.MESSAGES])
def test_a_block_whose_type_is_no_text_is_a_part_of_its_own(route: Route, odd: object) -> None:
    key = "input" if route is Route.RESPONSES else "messages"
    one, two = (
        asked(route, {key: [{"role": "user", "content": [{"type": kind, "text": "x"}]}]}).outline
        for kind in (odd, "text")
    )
    assert [(part.kind, part.role) for part in one] == [(part.kind, part.role) for part in two] == [("message", "user")]
    assert one[0].digest != two[0].digest


def test_half_a_character_in_a_long_prompt_is_outlined_in_pieces() -> None:
    one, two = (asked(Route.COMPLETIONS, {"prompt": "a" * 2_000 + end}).outline for end in ("\ud800", "b"))
    assert (len(one), len(two)) == (2, 2)
    assert one[0].digest == two[0].digest
    assert one[1].digest != two[1].digest


def test_an_argument_that_is_no_utf8_is_told_with_its_call() -> None:
    call = {"content": [{"type": "tool_use", "name": "t", "input": {"a": "\ud800"}}]}
    (piece,) = pieces(Route.MESSAGES, json.dumps(call).encode())
    assert (piece.name, piece.text) == ("t", r'{"a":"\ud800"}')
