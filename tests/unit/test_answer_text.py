"""The words of an answer, on each route, whole and as a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.api.answer_text import Piece, pieces
from kvtop.capture.turn import Route


def stream(*events: Any) -> bytes:
    return (
        b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    )


WANTED = [Piece("reasoning", "hm, so"), Piece("text", "Hello"), Piece("call", '{"a": 1}', "edit")]

CHAT = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"reasoning": "hm, "}}]},
    {"choices": [{"delta": {"reasoning_content": "so"}}]},
    {"choices": [{"delta": {"content": "Hel"}}]},
    {"choices": [{"delta": {"content": "lo"}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "edit", "arguments": ""}}]}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]}}]},
    {"choices": [], "usage": {}},
]
MESSAGES = [
    {"type": "message_start", "message": {"content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm, so"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hello"}},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "name": "edit", "input": {}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}},
]
RESPONSES = [
    {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "hm, so"},
    {"type": "response.output_text.delta", "output_index": 1, "delta": "Hello"},
    {"type": "response.output_item.added", "output_index": 2, "item": {"type": "function_call", "name": "edit"}},
    {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"a": 1}'},
    {"type": "response.completed", "response": {"output": [{"type": "message"}]}},
]
DOCUMENTS = {
    Route.CHAT: {
        "choices": [
            {
                "message": {
                    "reasoning": "hm, so",
                    "content": "Hello",
                    "tool_calls": [{"function": {"name": "edit", "arguments": '{"a": 1}'}}],
                }
            }
        ]
    },
    Route.RESPONSES: {
        "output": [
            {"id": "r", "type": "reasoning", "summary": [], "content": [{"text": "hm, so"}]},
            {"id": "m", "type": "message", "content": [{"type": "output_text", "text": "Hello"}]},
            {"id": "f", "type": "function_call", "name": "edit", "arguments": '{"a": 1}'},
        ]
    },
}


@pytest.mark.parametrize(
    ("route", "events"), [(Route.CHAT, CHAT), (Route.MESSAGES, MESSAGES), (Route.RESPONSES, RESPONSES)]
)
def test_a_stream(route: Route, events: list[dict[str, Any]]) -> None:
    assert pieces(route, stream(*events)) == WANTED


@pytest.mark.parametrize("route", DOCUMENTS)
def test_a_document(route: Route) -> None:
    assert pieces(route, json.dumps(DOCUMENTS[route]).encode()) == WANTED


def test_messages_as_a_document_and_completions() -> None:
    content = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "name": "edit", "input": {"a": 1}},
    ]
    body = json.dumps({"content": content}).encode()
    assert pieces(Route.MESSAGES, body) == [
        Piece("reasoning", "hm"),
        Piece("text", "Hi"),
        Piece("call", '{"a":1}', "edit"),
    ]
    assert pieces(Route.COMPLETIONS, b'{"choices": [{"text": "four"}]}') == [Piece("text", "four")]
    assert pieces(Route.COMPLETIONS, stream({"choices": [{"text": "fo"}]}, {"choices": [{"text": "ur"}]})) == [
        Piece("text", "four")
    ]


def test_two_calls_are_two_and_a_cut_stream_is_read_as_far_as_it_goes() -> None:
    calls = [{"index": i, "function": {"name": f"t{i}", "arguments": "{}"}} for i in range(2)]
    body = stream({"choices": [{"delta": {"tool_calls": calls}}]})
    assert [piece.name for piece in pieces(Route.CHAT, body)] == ["t0", "t1"]
    whole = stream(*CHAT)
    assert pieces(Route.CHAT, whole[: whole.index(b'"lo"')]) == [Piece("reasoning", "hm, so"), Piece("text", "Hel")]


@given(
    st.sampled_from(list(Route)),
    st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(lambda b: b"data: {" + b)),
)
def test_anything_else_is_no_error(route: Route, body: bytes) -> None:
    assert isinstance(pieces(route, body), list)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "message", "content", "tool_calls", "function", "type", "item", "output"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.sampled_from(list(Route)), st.lists(_JSON, max_size=4))
def test_json_of_any_form_is_no_error(route: Route, events: list[Any]) -> None:
    for body in (stream(*events), *(json.dumps(event).encode() for event in events)):
        assert all(isinstance(piece.text, str) for piece in pieces(route, body))


def test_a_character_that_was_cut_in_two_is_whole() -> None:
    halves = [
        b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}',
        b'{"choices":[{"delta":{"content":"\\ude00b\\ud83d"}}]}',
    ]
    body = b"".join(b"data: " + half + b"\n\n" for half in halves)
    assert pieces(Route.CHAT, body) == [Piece("text", "a\U0001f600b\ufffd")]
