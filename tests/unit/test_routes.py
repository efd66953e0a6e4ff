"""What a request asks: route, outline, digests and hints."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.api.routes import Asked, may_be_turn, read_request, route_of
from kvtop.capture.turn import Route


def read(body: object, path: str = "/v1/chat/completions", headers: tuple[tuple[str, str], ...] = ()) -> Asked:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request("POST", path, headers, data)


@pytest.mark.parametrize(
    ("options", "asked"),
    [({"include_usage": True}, True), ({"include_usage": False}, False), ({}, False), (None, False), ([1], False)],
)
def test_whether_its_client_asks_for_usage(options: object, asked: bool) -> None:
    assert read({"model": "m", "messages": [], "stream": True, "stream_options": options}).usage_asked is asked
    assert read(b"no json").usage_asked is None


def shape(asked: Asked) -> list[tuple[str, str, str]]:
    return [(part.kind, part.role, part.name) for part in asked.outline]


def digests(asked: Asked) -> list[str]:
    return [part.digest for part in asked.outline]


def user(content: object, **more: object) -> dict[str, object]:
    return {"role": "user", "content": content} | more


def chat(*messages: object, **more: object) -> Asked:
    return read({"model": "m", "messages": list(messages)} | more)


def tool(name: str = "read", **schema: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}


@pytest.mark.parametrize(
    "path, route",
    [
        ("/v1/chat/completions", Route.CHAT),
        ("/chat/completions", Route.CHAT),
        ("/gateway/a/v1/chat/completions/?x=1", Route.CHAT),
        ("/v1/completions", Route.COMPLETIONS),
        ("/v1/responses", Route.RESPONSES),
        ("/v1/messages?beta=true", Route.MESSAGES),
        ("/v1/embeddings", Route.EMBEDDINGS),
        ("/v1/messages/count_tokens", Route.OTHER),
        ("/v1/rerank", Route.OTHER),
        ("/v1/chat/completions/render", Route.OTHER),
        ("/v1/responses/resp_1/cancel", Route.OTHER),
        ("/", Route.OTHER),
    ],
)
def test_route(path: str, route: Route) -> None:
    assert route_of(path) is route


@pytest.mark.parametrize(
    "method, path, turn",
    [
        ("POST", "/v1/chat/completions", True),
        ("POST", "/v1/score", True),
        ("POST", "/tokenize", False),
        ("POST", "/v1/messages/count_tokens?beta=true", False),
        ("POST", "/v1/chat/completions/render", False),
        ("POST", "/reset_prefix_cache", False),
        ("GET", "/v1/models", False),
        ("HEAD", "/", False),
        ("GET", "/v1/chat/completions", False),
    ],
)
def test_what_may_be_a_turn(method: str, path: str, turn: bool) -> None:
    assert may_be_turn(method, path) is turn


def test_the_outline_of_chat_is_in_prompt_order() -> None:
    asked = read(
        {
            "messages": [{"role": "system", "content": "S"}, user("U"), {"role": "system", "content": "late"}],
            "response_format": {"type": "json_object"},
            "tools": [tool("b"), tool("a")],
            "model": "m",
            "stream": True,
        }
    )
    assert (asked.model, asked.stream, asked.is_json) == ("m", True, True)
    assert shape(asked) == [
        ("tool", "", "b"),
        ("tool", "", "a"),
        ("system", "system", ""),
        ("message", "user", ""),
        ("message", "system", ""),
        ("other", "", "response_format"),
    ]


def test_the_outline_of_messages() -> None:
    asked = read(
        {
            "messages": [user("U")],
            "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "x"}}],
            "tools": [{"name": "read", "input_schema": {"type": "object"}}],
        },
        "/v1/messages",
    )
    assert shape(asked) == [
        ("tool", "", "read"),
        ("system", "system", ""),
        ("system", "system", ""),
        ("message", "user", ""),
    ]


def test_the_outline_of_responses() -> None:
    asked = read(
        {
            "input": [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "D"}]},
                user([{"type": "input_text", "text": "U"}]),
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "call_id": "c", "name": "sh", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "ok"},
            ],
            "instructions": "I",
            "tools": [{"type": "function", "name": "sh", "parameters": {}}, {"type": "web_search"}],
        },
        "/v1/responses",
    )
    assert shape(asked) == [
        ("tool", "", "sh"),
        ("tool", "", "web_search"),
        ("system", "system", ""),
        ("system", "developer", ""),
        ("message", "user", ""),
        ("message", "assistant", ""),
        ("message", "assistant", ""),
        ("message", "tool", ""),
    ]


@pytest.mark.parametrize(
    "prompt, n", [("text", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2), (None, 0), ([], 1)]
)
def test_the_outline_of_completions_and_embeddings(prompt: object, n: int) -> None:
    for path, key in (("/v1/completions", "prompt"), ("/v1/embeddings", "input")):
        assert [part.kind for part in read({key: prompt}, path).outline] == ["prompt"] * n


def test_sizes_are_those_of_the_json_as_it_was_sent() -> None:
    body = b'{"messages": [ {"role": "user",  "content": "h\\u00e9"} ], "model":"m"}'
    assert [part.size for part in read(body).outline] == [len(b'{"role": "user",  "content": "h\\u00e9"}')]


@pytest.mark.parametrize(
    "one, two",
    [
        (user("a"), {"content": "a", "role": "user"}),
        (user("a"), user([{"type": "text", "text": "a"}])),
        (user("a"), user([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}])),
        (user("a"), user("a", name=None)),
        (
            user([{"type": "tool_result", "tool_use_id": "t", "content": "r"}]),
            user([{"content": [{"text": "r", "type": "text"}], "tool_use_id": "t", "type": "tool_result"}]),
        ),
        (user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), user(["a", "b"])),
    ],
)
def test_equal_content_has_equal_digests(one: object, two: object) -> None:
    assert digests(chat(one)) == digests(chat(two))


@pytest.mark.parametrize(
    "one, two",
    [
        (user("a"), user("b")),
        (user("a"), {"role": "assistant", "content": "a"}),
        (user("a"), user("a ")),
        (user("ab"), user(["a", "b"])),
        (user("a"), user("a", tool_calls=[{"id": "1"}])),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "input": {"a": 1, "b": 2}}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "input": {"b": 2, "a": 1}}]},
        ),
        (user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), user(["b", "a"])),
    ],
)
def test_other_content_has_other_digests(one: object, two: object) -> None:
    assert digests(chat(one)) != digests(chat(two))


def test_white_space_and_escapes_do_not_count() -> None:
    spaced = b'{"messages":[ {"content" : "\\u00e9\\/" , "role":"user"} ]}'
    assert digests(read(spaced)) == digests(chat(user("é/")))


def test_the_order_of_keys_inside_a_tools_parameters_counts() -> None:
    a, b = tool(type="object", required=[]), tool(required=[], type="object")
    assert digests(chat(tools=[a])) != digests(chat(tools=[b]))


def test_the_order_of_a_tools_own_keys_does_not_count() -> None:
    a = tool(type="object")
    b = {"function": dict(reversed(a["function"].items())), "type": "function"}
    assert digests(chat(tools=[a])) == digests(chat(tools=[b]))


def test_cache_control_inside_parameters_is_a_parameter() -> None:
    a, b = tool(properties={"cache_control": {"type": "string"}}), tool(properties={})
    assert digests(chat(tools=[a])) != digests(chat(tools=[b]))


def test_the_same_text_has_the_same_digest_on_each_route() -> None:
    text = "Hello there"
    one = digests(chat(user(text)))
    assert one == digests(read({"input": text}, "/v1/responses"))
    assert one == digests(read({"input": [user([{"type": "input_text", "text": text}])]}, "/v1/responses"))
    assert one == digests(
        read({"input": [user([{"type": "input_text", "text": text}], type="message")]}, "/v1/responses")
    )
    assert digests(chat({"role": "system", "content": "S"})) == digests(read({"system": "S"}, "/v1/messages"))
    assert digests(read({"system": [{"type": "text", "text": "S"}]}, "/v1/messages")) == digests(
        read({"instructions": "S"}, "/v1/responses")
    )


def test_hints() -> None:
    session = "3f2a0b1c-0000-4000-8000-123456789abc"
    headers = (
        ("X-Claude-Code-Session-Id", session),
        ("x-session-affinity", "s1"),
        ("Session-Id", "s2"),
        ("x-codex-window-id", "w"),
        ("originator", "codex_cli_rs"),
        ("traceparent", "00-ab-cd-01"),
        ("http-referer", "https://kilocode.ai"),
        ("x-session-token", "(removed)"),
        ("accept", "*/*"),
    )
    body = {
        "messages": [],
        "user": "u" * 500,
        "prompt_cache_key": "k\x1b[31m",
        "metadata": {"user_id": f"user_abc_account__session_{session}", "n": 3, "deep": {}, "api_key": "k"},
        "client_metadata": {"x-codex-installation-id": "i"},
    }
    hints = read(body, headers=headers).hints
    assert hints == {
        "x-claude-code-session-id": session,
        "x-session-affinity": "s1",
        "session-id": "s2",
        "x-codex-window-id": "w",
        "originator": "codex_cli_rs",
        "traceparent": "00-ab-cd-01",
        "http-referer": "https://kilocode.ai",
        "user": "u" * 199 + "…",
        "prompt_cache_key": "k\\x1b[31m",
        "metadata.user_id": f"user_abc_account__session_{session}",
        "metadata.user_id.session_id": session,
        "metadata.n": "3",
        "client_metadata.x-codex-installation-id": "i",
    }


def test_the_session_in_claude_codes_packed_user_id() -> None:
    packed = json.dumps({"device_id": "d" * 200, "account_uuid": "", "session_id": "s-1"})
    assert read({"metadata": {"user_id": packed}}, "/v1/messages").hints["metadata.user_id.session_id"] == "s-1"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'"a"',
        b"{",
        b'{"messages": 3, "tools": "x", "model": 5, "metadata": [], "system": 4}',
        b'{"messages": [1, null, "x", []]}',
        b'{"messages": [{"role": 5, "content": {"a": NaN}}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"messages": [' + b'{"content":[' * 5_000 + b"]}" * 5_000 + b"]}",
        b'{"tools": [{"function": 3}, {"name": null}, null]}',
        b'{"a": 1e999, "b": 123456789012345678901234567890}',
        b'{"model": "\\u001b[31m"}',
    ],
)
def test_odd_bodies(body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions", "/x"):
        asked = read(body, path)
        assert (asked.model or "").isprintable()


def test_a_lone_surrogate_keeps_the_outline() -> None:
    asked = read(b'{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "user", "content": "b"}]}')
    assert shape(asked) == [("message", "user", ""), ("message", "user", "")]
    assert asked.outline[1].digest == chat(user("b")).outline[0].digest


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
keys = st.sampled_from(
    ["messages", "tools", "system", "input", "instructions", "prompt", "metadata", "user", "model", "stream", "text"]
)
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "image"])},
    optional={"text": st.text(max_size=5), "content": json_values, "input": json_values, "cache_control": json_values},
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool"])},
    optional={"content": st.text(max_size=9) | st.lists(blocks, max_size=3), "tool_calls": json_values},
)


@given(st.dictionaries(keys, json_values | st.lists(messages, max_size=4), max_size=6), st.sampled_from(list(Route)))
@pytest.mark.fuzz
def test_any_json(body: dict[str, object], route: Route) -> None:
    read(body, {Route.CHAT: "/chat/completions", Route.MESSAGES: "/messages"}.get(route, f"/{route.value}"))


@pytest.mark.fuzz
@given(st.lists(messages, min_size=1, max_size=5))
def test_digests_do_not_depend_on_the_formatting(given: list[dict[str, object]]) -> None:
    plain = read(json.dumps({"messages": given}).encode())
    other = read(json.dumps({"messages": [dict(reversed(one.items())) for one in given]}, indent=1).encode())
    assert digests(plain) == digests(other)


@pytest.mark.fuzz
@given(st.binary(max_size=200))
def test_any_bytes(body: bytes) -> None:
    read(body)


def test_a_long_prompt_is_outlined_in_pieces_that_a_grown_one_shares() -> None:
    def shown(prompt: str | list[int]) -> list[str]:
        return digests(read({"prompt": prompt}, "/completions"))

    text = "".join(chr(97 + i % 26) for i in range(5_000))
    assert len(shown(text)) == 3
    assert shown(text + "more")[:2] == shown(text)[:2]
    assert shown(text + "more")[2] != shown(text)[2]
    ids = list(range(1_200))
    assert len(shown(ids)) == 3 and shown([*ids, 7])[:2] == shown(ids)[:2]
    assert len(shown("short")) == 1


def test_a_message_that_marks_itself_is_named_so() -> None:
    summary = "This session is being continued from a previous conversation that ran out of context."
    asked = read(
        {"messages": [user(summary), {"role": "user", "content": [{"type": "text", "text": "[SUGGESTION MODE: x"}]}]}
    )
    assert [part.name for part in asked.outline] == ["summary", "suggestion"]


def test_a_first_message_is_known_without_its_reminders() -> None:
    task, block = "Mend the build.", "<system-reminder>Today is Monday.</system-reminder>"
    forms: list[object] = [
        task,
        f"{task}\n{block}",
        [{"type": "text", "text": block}, {"type": "text", "text": task}],
    ]
    found = [read({"messages": [{"role": "user", "content": form}]}).outline[0].bare for form in forms]
    assert found[0] and len(set(found)) == 1
    other = [{"role": "user", "content": text} for text in ("Mend the door.", block)]
    bare = [part.bare for part in read({"messages": other}).outline]
    assert bare[0] not in ("", found[0]) and bare[1] == ""
    talk = [{"role": "user", "content": task}, {"role": "assistant", "content": "x"}, {"role": "user", "content": task}]
    assert [bool(part.bare) for part in read({"messages": talk}).outline] == [True, False, False]
