"""What answers say, on each route, whole, as a stream and broken off."""

from __future__ import annotations

import re
from itertools import groupby

import pytest
from capture_fakes import body_of, event, recorded
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.api import answers
from kvtop.capture.api.answers import Answered, error_of, read_answer
from kvtop.capture.api.canonical import MAX_VALUES, encode
from kvtop.capture.turn import Route

JSON = (("content-type", "application/json"),)
EVENTS = (("Content-Type", "text/event-stream; charset=utf-8"),)


def real(name: str, route: Route) -> Answered:
    answer = recorded(name)
    stream = "stream" in name
    return read_answer(route, int(answer[9:12]), EVENTS if stream else JSON, body_of(answer), stream)


def stream(*events: object, route: Route = Route.CHAT) -> Answered:
    data = b"".join(one if isinstance(one, bytes) else event(one) for one in events)
    return read_answer(route, 200, EVENTS, data, True)


def tokens(told: Answered) -> tuple[int | None, ...]:
    return told.prompt_tokens, told.cached_tokens, told.completion_tokens, told.reasoning_tokens


@pytest.mark.parametrize(
    "name, route, want, finish",
    [
        ("chat", Route.CHAT, (427, 384, 6, None), "length"),
        ("chat-stream-usage", Route.CHAT, (427, 0, 6, None), "length"),
        ("chat-stream-continuous", Route.CHAT, (427, 384, 3, None), "length"),
        ("chat-stream", Route.CHAT, (None, None, None, None), "length"),
        ("chat-tool", Route.CHAT, (531, 512, 24, None), "length"),
        ("chat-tool-stream", Route.CHAT, (531, 384, 24, None), "length"),
        ("completions", Route.COMPLETIONS, (402, 384, 5, None), "length"),
        ("completions-stream", Route.COMPLETIONS, (402, 0, 5, None), "length"),
        ("responses", Route.RESPONSES, (425, 384, 6, 0), "max_output_tokens"),
        ("responses-stream", Route.RESPONSES, (425, 0, 6, 0), "max_output_tokens"),
        ("messages", Route.MESSAGES, (425, 384, 6, None), "max_tokens"),
        ("messages-stream", Route.MESSAGES, (425, 384, 6, None), "max_tokens"),
    ],
)
def test_real_answers(name: str, route: Route, want: tuple[int | None, ...], finish: str) -> None:
    told = real(name, route)
    assert (tokens(told), told.finish_reason, told.error, told.whole) == (want, finish, None, True)
    assert told.response_id


def test_vllms_own_times_of_a_request() -> None:
    """Its time to first token starts at scheduling: it is the prefill."""
    told = real("chat-stream-usage", Route.CHAT)
    assert told.queue_s == pytest.approx(0.0000498, rel=0.01)
    assert told.prefill_s == pytest.approx(0.129838, rel=0.001)
    assert real("responses-stream", Route.RESPONSES).prefill_s == pytest.approx(0.191474, rel=0.001)
    assert real("messages", Route.MESSAGES).prefill_s is None


@pytest.mark.parametrize(
    "name, route, error",
    [
        ("error-404", Route.CHAT, "The model `nope` does not exist. Valid aliases: tiny."),
        ("error-messages", Route.MESSAGES, "The model `nope` does not exist. Valid aliases: tiny."),
        ("error-responses", Route.RESPONSES, "The model `nope` does not exist. Valid aliases: tiny."),
        ("embeddings", Route.EMBEDDINGS, "Not Found"),
    ],
)
def test_real_errors(name: str, route: Route, error: str) -> None:
    assert real(name, route).error == error


@pytest.mark.parametrize(
    "usage, want",
    [
        ({"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": None}, (10, None, 2, None)),
        ({"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {}}, (10, None, 2, None)),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0}}, (10, 0, None, None)),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": None}}, (10, None, None, None)),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 11}}, (10, None, None, None)),
        ({"prompt_tokens": 10, "completion_tokens_details": {"reasoning_tokens": 4}}, (10, None, None, 4)),
        ({"prompt_tokens": "10", "completion_tokens": True}, (None, None, None, None)),
        ({"prompt_tokens": -1, "completion_tokens": 1e300}, (None, None, None, None)),
        ([], (None, None, None, None)),
        (  # LiteLLM: Anthropic's keys beside OpenAI's, whose prompt holds what was cached
            {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8},
             "cache_read_input_tokens": 8, "cache_creation_input_tokens": 0},
            (10, 8, 2, None),
        ),
    ],
)  # fmt: skip
def test_usage_of_chat(usage: object, want: tuple[int | None, ...]) -> None:
    assert tokens(read_answer(Route.CHAT, 200, JSON, encode({"usage": usage}), False)) == want


@pytest.mark.parametrize(
    "usage, want",
    [
        ({"input_tokens": 41, "output_tokens": 6}, (41, None, 6, None)),
        ({"input_tokens": 41, "cache_read_input_tokens": 384, "output_tokens": 6}, (425, 384, 6, None)),
        (
            {"input_tokens": 1, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 9, "output_tokens": 6},
            (10, 0, 6, None),
        ),
        ({"input_tokens": 41, "cache_read_input_tokens": None, "output_tokens": 6}, (41, None, 6, None)),
    ],
)
def test_usage_of_messages_leaves_the_cached_out(usage: object, want: tuple[int | None, ...]) -> None:
    assert tokens(read_answer(Route.MESSAGES, 200, JSON, encode({"usage": usage}), False)) == want


def test_usage_of_messages_stands_in_two_events() -> None:
    """As Anthropic sends it: the end tells the output alone."""
    start = {
        "type": "message_start",
        "message": {"id": "m", "usage": {"input_tokens": 3, "cache_read_input_tokens": 7}},
    }
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}
    told = stream(start, *({"type": "ping"},) * 60, end, {"type": "message_stop"}, route=Route.MESSAGES)
    assert (tokens(told), told.finish_reason, told.response_id, told.whole) == ((10, 7, 9, None), "end_turn", "m", True)


def test_messages_that_are_broken_off_tell_no_output() -> None:
    """vLLM 0.32 and Anthropic write `output_tokens` into the start, before there are any."""
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 0}}}
    words = [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}] * 155
    assert tokens(stream(start, *words, route=Route.MESSAGES)) == (3, None, None, None)


def test_what_the_end_of_messages_leaves_open_stays() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 7}}}
    end = {"type": "message_delta", "usage": {"output_tokens": 9, "cache_read_input_tokens": None}}
    assert tokens(stream(start, end, route=Route.MESSAGES)) == (10, 7, 9, None)


def test_usage_of_embeddings_has_a_prompt_alone() -> None:
    told = read_answer(Route.EMBEDDINGS, 200, JSON, b'{"usage":{"prompt_tokens":5,"completion_tokens":0}}', False)
    assert tokens(told) == (5, None, None, None)


def test_the_last_usage_of_a_stream_counts() -> None:
    def part(n: int) -> dict[str, object]:
        usage = {"prompt_tokens": 3, "completion_tokens": n}
        return {"choices": [{"delta": {"content": "x"}}], "usage": usage}

    assert tokens(stream(*(part(n) for n in range(1, 80))))[2] == 79


@pytest.mark.parametrize(
    "events, route",
    [
        ([{"error": {"message": "engine died", "code": 500}}, b"data: [DONE]\n\n"], Route.CHAT),
        ([event({"type": "error", "error": {"type": "api_error", "message": "engine died"}}, "error")], Route.MESSAGES),
        (
            [{"type": "response.failed", "response": {"status": "failed", "error": {"message": "engine died"}}}],
            Route.RESPONSES,
        ),
        ([{"type": "error", "message": "engine died"}], Route.RESPONSES),
    ],
)
def test_an_error_in_a_stream(events: list[object], route: Route) -> None:
    assert stream({"type": "ping"}, *events, route=route).error == "engine died"


@pytest.mark.parametrize(
    "last, said",
    [
        ({"type": "response.failed", "response": {"status": "failed", "error": None}}, "response.failed"),
        ({"type": "error"}, "error"),
        ({"error": ["?"]}, "error"),
    ],
)
def test_a_failure_without_words_is_one(last: object, said: str) -> None:
    assert stream({"type": "ping"}, last, route=Route.RESPONSES).error == said
    whole = read_answer(Route.RESPONSES, 200, JSON, b'{"status": "failed", "error": null}', False)
    assert whole.error == "failed"


@pytest.mark.parametrize(
    "name, route",
    [("chat-stream", Route.CHAT), ("messages-stream", Route.MESSAGES), ("responses-stream", Route.RESPONSES)],
)
def test_a_stream_that_breaks_off_is_not_whole(name: str, route: Route) -> None:
    body = body_of(recorded(name))
    whole = body.rstrip().rfind(b"\n\n") + 2
    for end in range(whole, 0, -97):
        assert not read_answer(route, 200, EVENTS, body[:end], True).whole
    assert read_answer(route, 200, EVENTS, body.rstrip() + b"\n", True).whole


def test_a_stream_with_other_line_ends() -> None:
    told = stream(b'data: {"choices":[{"finish_reason":"stop"}]}\r\n\r\ndata: [DONE]\r\n\r\n')
    assert (told.finish_reason, told.whole) == ("stop", True)


@pytest.mark.parametrize(
    "document, said",
    [
        ({"error": {"message": "a\nb\x1b[31m"}}, "a b\\x1b[31m"),
        ({"error": "plain"}, "plain"),
        ({"error": {"type": "overloaded_error"}}, "overloaded_error"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"loc": ["body", "messages"], "msg": "Field required"}]}, "body.messages: Field required"),
        ({"object": "error", "message": "old vLLM"}, "old vLLM"),
        ({"error": {"message": "key sk-abcdefgh12345678 is wrong"}}, "key (removed) is wrong"),
        ({"error": {"message": "x" * 1000}}, "x" * 299 + "…"),
        ({"detail": [{"loc": 5, "msg": "Field required"}]}, "Field required"),
        ({"detail": [{"loc": 5}]}, ""),
        ({}, None),
        ({"error": []}, None),
    ],
)
def test_what_an_error_says(document: dict[str, object], said: str | None) -> None:
    assert error_of(document) == said


@pytest.mark.parametrize("body", [b"Internal Server Error", b"<html>\n<h1>502</h1>", b"", b"[1]", b"3"])
def test_an_error_that_is_no_document(body: bytes) -> None:
    told = read_answer(Route.CHAT, 502, (("content-type", "text/html"),), body, True)
    assert told.error == (" ".join(body.decode().split()) or None)


@given(st.binary(max_size=300), st.sampled_from(list(Route)), st.booleans(), st.sampled_from([None, 200, 500]))
def test_any_bytes(body: bytes, route: Route, stream: bool, status: int | None) -> None:
    read_answer(route, status, EVENTS if stream else JSON, body, stream)
    read_answer(route, status, (), b"data: " + body + b"\n\n", True)


keys = st.sampled_from(
    ["type", "usage", "error", "response", "message", "choices", "delta", "metrics", "id", "status", "detail",
     "finish_reason", "prompt_tokens", "prompt_tokens_details", "cached_tokens", "incomplete_details", "reason"]
)  # fmt: skip
values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=10,
)


@given(st.lists(st.dictionaries(keys, values, max_size=5), max_size=4), st.sampled_from(list(Route)))
def test_any_documents(documents: list[dict[str, object]], route: Route) -> None:
    stream(*(encode(one) and event(encode(one)) for one in documents), route=route)
    for one in documents:
        read_answer(route, 400, JSON, encode(one), False)


@given(st.lists(st.sampled_from([b"data:", b'{"n":1}', b'{"n":2}', b" ", b"x", b"\r", b"\n", b"\n\n", b": ping\n"])))
def test_data_is_the_same_from_both_ends(parts: list[bytes]) -> None:
    body = b"".join(parts)
    *ended, last = re.split(rb"\r\n|\r|\n", body)
    assert list(answers._forwards(body)) == as_specified([*ended, last])
    assert list(answers._backwards(body)) == as_specified(ended)[::-1]


def as_specified(lines: list[bytes]) -> list[bytes]:
    """The data of each event; its lines one by one where they are no JSON object together."""
    found: list[bytes] = []
    for blank, group in groupby(lines, lambda line: not line):
        data = [line[5:].strip() for line in group if line.startswith(b"data:")]
        whole = b"\n".join(data)
        found += [] if blank else [whole] if answers.event_of(whole) is not None else data
    return found


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("name", ["chat-stream-usage", "messages-stream", "responses-stream"])
def test_a_stream_says_the_same_with_each_line_end(name: str, end: bytes) -> None:
    route = Route.CHAT if name.startswith("chat") else Route(name.partition("-")[0])
    body = body_of(recorded(name))
    told = read_answer(route, 200, EVENTS, body.replace(b"\n", end), True)
    assert told == read_answer(route, 200, EVENTS, body, True)
    assert told.whole and told.completion_tokens


def test_an_event_over_several_data_lines() -> None:
    usage = b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":7,\n: note\ndata:"completion_tokens":2}}\n\n'
    assert tokens(stream(usage, b"data: [DONE]\n\n")) == (7, None, 2, None)
    assert [event["n"] for event in answers.events(b'data: {"n":\rdata: 1}\r\rdata: {"n":2}\r\r')] == [1, 2]


def test_lines_that_tell_nothing_are_not_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def count(data: bytes) -> None:
        nonlocal looked
        looked += 1

    monkeypatch.setattr(answers, "event_of", count)
    headers = [("content-type", "text/event-stream")]
    answers.read_answer(Route.CHAT, 200, headers, b": ping\n\n" * 200_000, True)
    assert looked == 0
    answers.read_answer(Route.CHAT, 200, headers, b"data: x\n\n" * 200_000, True)
    assert looked == 20_000


def test_of_an_answer_of_very_many_values_the_few_are_read() -> None:
    numbers = b"0," * MAX_VALUES + b"0"
    usage = b'"usage":{"prompt_tokens":7,"total_tokens":7}'
    told = read_answer(Route.EMBEDDINGS, 200, JSON, b'{"id":"e","data":[%s],%s}' % (numbers, usage), False)
    assert (told.prompt_tokens, told.response_id, told.whole) == (7, "e", True)
    assert read_answer(Route.CHAT, 200, JSON, b"[%s]" % numbers, False) == Answered()
    late = read_answer(Route.CHAT, 200, EVENTS, b"data: [%s]\n\ndata: {%s}\n\n" % (numbers, usage), True)
    assert late.prompt_tokens == 7


def test_an_error_shows_no_named_secret() -> None:
    body = b'{"error":{"message":"no way to https://bob:PW@h/x?api_key=SECRETQ1"}}'
    assert read_answer(Route.CHAT, 500, JSON, body, False).error == "no way to https://(removed)@h/x?api_key=(removed)"
    told = stream({"error": {"message": 'login {"password": "SECRETPW2"} failed'}})
    assert told.error == 'login {"password": "(removed)"} failed'
    assert read_answer(Route.CHAT, 502, (), b"bad: password=SECRETQ3", False).error == "bad: password=(removed)"
