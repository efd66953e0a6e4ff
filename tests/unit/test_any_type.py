"""Every member of a request or an answer may be of any type: nothing raises, whoever reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.capture.api.answers import read_answer
from kvtop.capture.api.routes import read_request
from kvtop.capture.turn import Route
from kvtop.triage import document, plain, sheets
from kvtop.triage.differ import Sent, diverge
from kvtop.triage.judge import read

_TEXT = "The time is 2026-11-30 10:01:02. <system-reminder>one</system-reminder> <think>a</think>"
_CALL = {"id": "c1", "type": "function", "function": {"name": "t", "arguments": '{"a": 1}'}}
_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A"}}
_RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]}
_TOOL = {"name": "t", "description": "d", "parameters": {"type": "object", "required": ["a"], "properties": {"a": {}}}}
BODIES: dict[Route, dict[str, Any]] = {
    Route.CHAT: {
        "model": "m", "cache_salt": "s", "chat_template_kwargs": {"a": 1}, "reasoning_effort": "low",
        "messages": [
            {"role": "system", "content": _TEXT},
            {"role": "user", "name": "n", "content": [{"type": "text", "text": "hello"}, _PICTURE]},
            {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [_CALL, {**_CALL, "id": "c2"}]},
            {"role": "tool", "tool_call_id": "c1", "content": '{"b": 2}'},
            {"role": "tool", "tool_call_id": "c2", "content": "x" * 50},
            {"role": "user", "content": "go on"},
        ],
        "tools": [{"type": "function", "function": _TOOL}, {"type": "function", "function": {**_TOOL, "name": "u"}}],
        "tool_choice": "auto", "response_format": {"type": "json_object"},
    },
    Route.MESSAGES: {
        "model": "m", "max_tokens": 1, "system": [{"type": "text", "text": _TEXT, "cache_control": {"type": "e"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello"}, _IMAGE]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "h", "signature": "s"},
                {"type": "tool_use", "id": "c", "name": "t", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [_RESULT]},
            {"role": "system", "content": [{"type": "tool_removal", "tool": {"name": "t"}}]},
        ],
        "tools": [{"name": "t", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "t"}, "thinking": {"type": "disabled"},
    },
    Route.RESPONSES: {
        "model": "m", "instructions": _TEXT, "previous_response_id": None, "text": {"format": {"type": "text"}},
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}]},
            {"type": "function_call", "call_id": "c", "name": "t", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "o"},
            {"type": "message", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "a"}]},
        ],
        "tools": [{"type": "function", **_TOOL}], "reasoning": {"effort": "low"},
    },
    Route.COMPLETIONS: {"model": "m", "prompt": _TEXT, "echo": False, "suffix": None, "stream_options": {"a": 1}},
}  # fmt: skip
ANSWERS: dict[Route, dict[str, Any]] = {
    Route.CHAT: {
        "id": "i", "choices": [{"index": 0, "finish_reason": "stop", "delta": {"content": "a"},
                                "message": {"role": "assistant", "content": "a", "tool_calls": [_CALL]}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}},
        "error": None, "prompt_token_ids": [1, 2],
    },
    Route.MESSAGES: {
        "type": "message_start", "message": {"id": "i", "usage": {"input_tokens": 1}, "stop_reason": None},
        "content": [{"type": "text", "text": "a"}], "delta": {"stop_reason": "end_turn"}, "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3}, "error": {"message": "m"},
    },
    Route.RESPONSES: {
        "type": "response.completed", "id": "i", "status": "completed", "incomplete_details": {"reason": "r"},
        "response": {"id": "i", "status": "completed", "output": [{"type": "message", "content": []}],
                     "usage": {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 1}}},
        "usage": {"input_tokens": 1, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}},
    },
}  # fmt: skip

_SCALARS = [None, True, 0, -1, 1.5, 1e308, 10**30, "", " ", "text", "\ud800", "image_url", "tool", "{", "[1]"]
values = st.recursive(
    st.sampled_from(_SCALARS),
    lambda one: st.lists(one, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "a"]), one, max_size=2),
    max_leaves=4,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of all members."""
    if at:
        yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in pairs:
        yield from paths(one, (*at, key))


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value in one place; lists may also hold it besides."""
    out = deepcopy(value)
    holder = out
    for step in at[:-1]:
        holder = holder[step]
    holder[at[-1]] = new
    return out


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode()


@st.composite
def edits(draw: st.DrawFn, whole: dict[str, Any]) -> dict[str, Any]:
    """One or two members hold something else; or a list holds one element more."""
    body = whole
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.sampled_from(list(paths(body))))
        found = body
        for step in at:
            found = found[step]
        new = draw(values)
        body = put(body, at, [*found, new] if isinstance(found, list) and draw(st.booleans()) else new)
    return body


def compared(one: bytes, other: bytes, route: Route) -> None:
    async def work() -> None:
        try:
            old, new = (Sent(name, route, read(body, route), body) for name, body in (("1", one), ("2", other)))
        except ValueError:
            return  # it says so
        found = await diverge(old, new, None)
        assert list(plain.lines(sheets.of_words(found, "1", "2"), 80))
        json.dumps(document.diff(found.diff), allow_nan=False)

    asyncio.run(work())


@pytest.mark.parametrize("route", BODIES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_requests_are_read_and_compared_whatever_their_members_are(route: Route, data: st.DataObject) -> None:
    one, other = (encoded(data.draw(edits(BODIES[route]))) for _ in range(2))
    compared(one, other, route)


@pytest.mark.parametrize("route", BODIES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_recorder_reads_requests_whatever_their_members_are(route: Route, data: st.DataObject) -> None:
    target = {
        Route.CHAT: "/v1/chat/completions", Route.MESSAGES: "/v1/messages",
        Route.RESPONSES: "/v1/responses", Route.COMPLETIONS: "/v1/completions",
    }[route]  # fmt: skip
    assert read_request("POST", target, [], encoded(data.draw(edits(BODIES[route])))).route is route


@pytest.mark.parametrize("route", ANSWERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_recorder_reads_answers_whatever_their_members_are(route: Route, data: st.DataObject) -> None:
    document_ = encoded(data.draw(edits(ANSWERS[route])))
    read_answer(route, 200, (("content-type", "application/json"),), document_, False)
    read_answer(route, 200, (("content-type", "text/event-stream"),), b"data: " + document_ + b"\n\n", True)


@pytest.mark.parametrize("kind", [{}, {"a": 1}, [], ["image_url"], 1, None, True])
def test_the_type_of_a_block_that_came_may_be_anything(kind: Any) -> None:
    old = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
    for block in ({"type": kind}, {"type": kind, "text": "x"}):
        new = put(old, ("messages", 0, "content"), [{"type": "text", "text": "hi"}, block])
        compared(encoded(old), encoded(new), Route.CHAT)
        compared(encoded(new), encoded(old), Route.CHAT)
