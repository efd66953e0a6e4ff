"""Ids that came with an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.turn import Route
from kvtop.triage.ids import pack
from kvtop.triage.served import Served, served


def stream(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def test_chat() -> None:
    choices = [{"index": 0, "token_ids": [3, 4], "message": {}}, {"index": 1, "token_ids": [9]}]
    answer = json.dumps({"choices": choices, "prompt_token_ids": [1, 2], "usage": {}}).encode()
    assert served(Route.CHAT, answer) == Served(pack([1, 2]), pack([3, 4]))


def test_chat_stream() -> None:
    answer = stream(
        {"choices": [{"index": 0, "delta": {"role": "assistant"}}], "prompt_token_ids": [1, 2]},
        {"choices": [{"index": 0, "delta": {"content": "token"}, "token_ids": [3]}], "prompt_token_ids": None},
        {"choices": [{"index": 1, "delta": {}, "token_ids": [9]}]},
        {"choices": [{"index": 0, "delta": {}, "token_ids": [4, 5]}]},
        {"choices": [], "usage": {"prompt_tokens": 2}},
    )
    assert served(Route.CHAT, answer) == Served(pack([1, 2]), pack([3, 4, 5]))
    assert served(Route.CHAT, answer.replace(b"\n", b"\r\n")) == Served(pack([1, 2]), pack([3, 4, 5]))
    cut = answer[: answer.index(b"[4, 5]")]
    assert served(Route.CHAT, cut) == Served(pack([1, 2]), pack([3]))


def test_completions() -> None:
    answer = json.dumps({"choices": [{"index": 0, "prompt_token_ids": [1], "token_ids": [2]}]}).encode()
    assert served(Route.COMPLETIONS, answer) == Served(pack([1]), pack([2]))
    pieces = stream(
        {"choices": [{"index": 0, "prompt_token_ids": [1], "token_ids": [2]}]},
        {"choices": [{"index": 0, "token_ids": [3]}]},
    )
    assert served(Route.COMPLETIONS, pieces) == Served(pack([1]), pack([2, 3]))


def test_responses_with_their_messages() -> None:
    def told(*messages: list[int]) -> dict[str, Any]:
        return {
            "input_messages": [{"type": "raw_message_tokens", "message": "", "tokens": ids} for ids in messages],
            "output_messages": [{"type": "raw_message_tokens", "message": "", "tokens": [7]}],
        }

    assert served(Route.RESPONSES, json.dumps(told([1, 2])).encode()) == Served(pack([1, 2]), pack([7]))
    whole = stream({"type": "response.created", "response": {}}, {"type": "response.completed", "response": told([1])})
    assert served(Route.RESPONSES, whole) == Served(pack([1]), pack([7]))
    assert served(Route.RESPONSES, json.dumps(told([1], [2])).encode()).prompt is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"token_ids",
        b'{"prompt_token_ids": null, "choices": [{"token_ids": null}]}',
        b'{"prompt_token_ids": [], "choices": []}',
        b'{"prompt_token_ids": [1, -2]}',
        b'{"prompt_token_ids": [1, 99999999999]}',
        b'{"prompt_token_ids": ["1"]}',
        b'{"prompt_token_ids": [1',
        b'{"choices": 3, "token": 1}',
        b'data: {"token_ids": [1]}\n\n',
    ],
)
def test_answers_without_them(answer: bytes) -> None:
    for route in Route:
        assert served(route, answer) == Served()


def test_ids_beside_what_is_not_quite_json() -> None:
    answer = b'{"choices": [{"index": 0, "message": {"content": "\\ud800"}}], "prompt_token_ids": [1]}'
    assert served(Route.CHAT, answer).prompt == pack([1])


@given(st.binary(max_size=200) | st.builds(lambda a, b: a + b"token" + b, st.binary(), st.binary()))
def test_any_bytes(answer: bytes) -> None:
    for route in (Route.CHAT, Route.RESPONSES):
        served(route, b"data: {" + answer)
        served(route, b"{" + answer)
