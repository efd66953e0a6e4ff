"""A request of each route as the chat request that vLLM makes of it, and where each piece of it stands."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.turn import Route
from kvtop.triage.convert import Converted, Dropped, Path, convert, render_inputs
from kvtop.triage.prompt import pointer

Json = dict[str, Any]

HEADER = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch=0a1b2;"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
MESSAGES: Json = {
    "model": "tiny",
    "max_tokens": 100,
    "system": [
        {"type": "text", "text": HEADER},
        {"type": "text", "text": "One. "},
        {"type": "text", "text": "Two.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I read."},
                {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a.py"}},
                {"type": "tool_use", "id": "c2", "name": "read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "A"}] * 2},
                {"type": "tool_result", "tool_use_id": "c2", "content": "B", "is_error": True},
                {"type": "text", "text": "and now?"},
            ],
        },
        {"role": "system", "content": [{"type": "text", "text": "A reminder."}]},
    ],
    "tools": [{"name": "read", "description": "Reads.", "input_schema": SCHEMA}, {"name": "bare", "input_schema": {}}],
    "tool_choice": {"type": "any"},
    "output_config": {"effort": "high"},
}
RESPONSES: Json = {
    "model": "tiny",
    "instructions": "You are.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I read."}]},
        {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path":"a.py"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "A"},
        {"type": "function_call", "call_id": "c2", "name": "read", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": 'say "hi"'},
    ],
    "tools": [
        {"type": "web_search"},
        {"type": "function", "name": "read", "description": "Reads.", "parameters": SCHEMA, "strict": False},
        {"type": "custom", "name": "patch", "description": "Patches."},
        {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "list", "parameters": SCHEMA}]},
    ],
    "reasoning": {"effort": "low"},
}


def chat_of(made: Converted) -> Json:
    assert made.chat is not None
    return made.chat


def at(document: Any, pointer: str) -> Any:
    """What a JSON pointer names; KeyError or IndexError where nothing is."""
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def paths(value: Any, path: Path = ()) -> list[Path]:
    """Every path into a document."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, member in members for found in paths(member, (*path, key)))]


def test_messages() -> None:
    before = copy.deepcopy(MESSAGES)
    made = convert(Route.MESSAGES, MESSAGES, merge_system=False)
    chat = chat_of(made)
    assert before == MESSAGES
    assert made.approximate == ()
    call = {"type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}}
    assert chat["messages"] == [
        {"role": "system", "content": "One. Two."},
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "reasoning": "hm",
            "tool_calls": [{"id": "c1", **call}, {"id": "c2", **call, "function": {"name": "read", "arguments": "{}"}}],
            "content": "I read.",
        },
        {"role": "tool", "tool_call_id": "c1", "content": "A\nA"},
        {"role": "tool", "tool_call_id": "c2", "content": "B"},
        {"role": "user", "content": "and now?"},
        {"role": "system", "content": "A reminder."},
    ]
    read = {"name": "read", "description": "Reads.", "parameters": SCHEMA}
    bare = {"name": "bare", "parameters": {"type": "object"}}
    assert chat["tools"] == [{"type": "function", "function": read}, {"type": "function", "function": bare}]
    assert (chat["tool_choice"], chat["reasoning_effort"]) == ("required", "high")
    assert made.dropped == (
        Dropped("/system/0", "attribution header"),
        Dropped("/system/2/cache_control", "cache_control"),
    )


@pytest.mark.parametrize(
    ("path", "character", "pointer"),
    [
        (("messages", 0), None, "/system"),
        (("messages", 0, "content"), None, "/system/1/text"),
        (("messages", 0, "content"), 4, "/system/1/text"),
        (("messages", 0, "content"), 5, "/system/2/text"),
        (("messages", 0, "content"), 999, "/system/2/text"),
        (("messages", 1, "content"), None, "/messages/0/content"),
        (("messages", 2, "reasoning"), None, "/messages/1/content/0/thinking"),
        (("messages", 2, "content"), None, "/messages/1/content/1/text"),
        (("messages", 2, "tool_calls", 0), None, "/messages/1/content/2"),
        (("messages", 2, "tool_calls", 0, "type"), None, "/messages/1/content/2"),
        (("messages", 2, "tool_calls", 0, "id"), None, "/messages/1/content/2/id"),
        (("messages", 2, "tool_calls", 1, "function", "name"), None, "/messages/1/content/3/name"),
        (("messages", 2, "tool_calls", 0, "function", "arguments"), None, "/messages/1/content/2/input"),
        (("messages", 2, "tool_calls", 0, "function", "arguments", "path"), None, "/messages/1/content/2/input/path"),
        (("messages", 3, "content"), 1, "/messages/2/content/0/content/0/text"),
        (("messages", 3, "content"), 2, "/messages/2/content/0/content/1/text"),
        (("messages", 3, "tool_call_id"), None, "/messages/2/content/0/tool_use_id"),
        (("messages", 4, "content"), None, "/messages/2/content/1/content"),
        (("messages", 5, "content"), None, "/messages/2/content/2/text"),
        (("messages", 6, "content"), None, "/messages/3/content/0/text"),
        (("tools", 0, "function"), None, "/tools/0"),
        (("tools", 0, "function", "parameters"), None, "/tools/0/input_schema"),
        (("tools", 0, "function", "parameters", "properties", "path"), None, "/tools/0/input_schema/properties/path"),
        (("tools", 1, "function", "parameters", "type"), None, "/tools/1/input_schema"),
        (("reasoning_effort",), None, "/output_config/effort"),
    ],
)
def test_pointers_of_messages(path: Path, character: int | None, pointer: str) -> None:
    made = convert(Route.MESSAGES, MESSAGES, merge_system=False)
    assert made.pointer(path, character) == pointer
    at(MESSAGES, pointer)


def test_later_system_turns_go_into_the_first_where_the_template_wants_it() -> None:
    made = convert(Route.MESSAGES, MESSAGES, merge_system=True)
    messages = chat_of(made)["messages"]
    assert messages[0] == {"role": "system", "content": "One. Two.A reminder."}
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert made.pointer(("messages", 0, "content"), len("One. Two.")) == "/messages/3/content/0/text"
    (doubt,) = convert(Route.MESSAGES, MESSAGES).approximate
    assert "chat template" in doubt
    without = MESSAGES | {"messages": MESSAGES["messages"][:3]}
    assert convert(Route.MESSAGES, without).approximate == ()


@pytest.mark.parametrize(
    ("version", "system", "last", "effort"),
    [
        ("0.17.1", HEADER + "One. Two.", None, None),
        ("0.18.1", "One. Two.", None, None),
        ("0.23.0", "One. Two.A reminder.", "and now?", "high"),
        ("0.24.0", "One. Two.", "A reminder.", "high"),
        ("0.33.0rc1", "One. Two.", "A reminder.", "high"),
        ("0.1.dev7+gabc", "One. Two.", "A reminder.", "high"),
        ("unknown", "One. Two.", "A reminder.", "high"),
    ],
)
def test_versions(version: str, system: str, last: str | None, effort: str | None) -> None:
    made = convert(Route.MESSAGES, MESSAGES, version=version, merge_system=False)
    chat = chat_of(made)
    assert chat["messages"][0]["content"] == system
    assert chat.get("reasoning_effort") == effort
    if last is None:
        assert any("role system" in doubt for doubt in made.approximate)
    else:
        assert chat["messages"][-1]["content"] == last
        assert made.approximate == ()


def test_thinking_and_results_before_0_17() -> None:
    chat = chat_of(convert(Route.MESSAGES, MESSAGES, version="0.16.0"))
    assert "reasoning" not in chat["messages"][2]
    assert chat["messages"][3] == {
        "role": "tool",
        "tool_call_id": "",
        "content": "[{'type': 'text', 'text': 'A'}, {'type': 'text', 'text': 'A'}]",
    }


def test_thinking_of_type_disabled() -> None:
    body = {"messages": [], "thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}
    made = convert(Route.MESSAGES, body, disabled_effort="low")
    assert chat_of(made)["reasoning_effort"] == "low"
    assert made.pointer(("reasoning_effort",)) == "/thinking/type"
    assert chat_of(convert(Route.MESSAGES, body, version="0.30.0"))["reasoning_effort"] == "high"


def test_tools_that_come_and_go_on_the_way() -> None:
    def change(kind: str, **tool: Any) -> Json:
        return {"role": "system", "content": [{"type": kind, "tool": tool}]}

    late = {"name": "late", "input_schema": SCHEMA}
    body = {
        "tools": [
            {"name": "a", "input_schema": SCHEMA, "defer_loading": True},
            {"name": "b", "input_schema": SCHEMA},
        ],
        "messages": [
            change("tool_addition", type="tool_reference", name="a"),
            change("tool_addition", type="tool_definition", definition=late),
            change("tool_removal", type="tool_reference", name="b"),
        ],
    }
    made = convert(Route.MESSAGES, body, merge_system=False)
    tools = chat_of(made)["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["a", "late"]
    assert "defer_loading" not in tools[0]["function"]
    assert made.pointer(("tools", 1, "function", "parameters")) == "/messages/1/content/0/tool/definition/input_schema"
    assert chat_of(made)["messages"] == []


def test_responses() -> None:
    before = copy.deepcopy(RESPONSES)
    made = convert(Route.RESPONSES, RESPONSES)
    chat = chat_of(made)
    assert before == RESPONSES
    assert made.approximate == ()

    def call(id: str, name: str, arguments: str) -> Json:
        return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

    assert chat["messages"] == [
        {"role": "system", "content": "You are."},
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {
            "role": "assistant",
            "reasoning": "hm",
            "content": "I read.",
            "tool_calls": [call("c1", "read", '{"path":"a.py"}')],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "A"},
        {
            "role": "assistant",
            "tool_calls": [call("c2", "read", "{}"), call("c3", "patch", '{"input": "say \\"hi\\""}')],
        },
    ]
    functions = [tool["function"] for tool in chat["tools"]]
    assert functions[0] == {"name": "read", "description": "Reads.", "parameters": SCHEMA, "strict": False}
    assert functions[1]["parameters"]["required"] == ["input"]
    assert functions[2]["name"] == "files__list"
    assert (chat["tool_choice"], chat["reasoning_effort"]) == ("auto", "low")
    assert made.dropped == (Dropped("/tools/0", "a tool that is not shown to the model"),)


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        (("messages", 0, "content"), "/instructions"),
        (("messages", 1, "content", 0, "text"), "/input/0/content/0/text"),
        (("messages", 2, "reasoning"), "/input/1/content/0/text"),
        (("messages", 2, "content"), "/input/2/content/0/text"),
        (("messages", 2, "tool_calls", 0, "function", "arguments"), "/input/3/arguments"),
        (("messages", 3, "content"), "/input/4/output"),
        (("messages", 4), "/input/5"),
        (("messages", 4, "tool_calls", 0, "function", "arguments"), "/input/5/arguments"),
        (("messages", 4, "tool_calls", 1, "function", "arguments"), "/input/6/input"),
        (("tools", 0, "function", "parameters", "properties"), "/tools/1/parameters/properties"),
        (("tools", 1, "function", "parameters"), "/tools/2"),
        (("tools", 2, "function", "name"), "/tools/3/tools/0/name"),
        (("reasoning_effort",), "/reasoning/effort"),
    ],
)
def test_pointers_of_responses(path: Path, pointer: str) -> None:
    assert convert(Route.RESPONSES, RESPONSES).pointer(path) == pointer
    at(RESPONSES, pointer)


def test_items_stood_alone_before_0_22() -> None:
    roles = [message["role"] for message in chat_of(convert(Route.RESPONSES, RESPONSES, version="0.21.0"))["messages"]]
    assert roles == ["system", "user", "assistant", "assistant", "assistant", "tool", "assistant", "assistant"]


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "encrypted"),
        ({"input": None}, "no input"),
        ({"prompt": {"id": "p"}}, "prompt templates"),
    ],
)
def test_what_responses_cannot_be_converted_is_told(change: Json, doubt: str) -> None:
    assert doubt in " ".join(convert(Route.RESPONSES, RESPONSES | change).approximate)


def test_an_unfinished_last_message_is_continued() -> None:
    item = {"role": "assistant", "status": "incomplete", "content": [{"type": "output_text", "text": "I"}]}
    chat = chat_of(convert(Route.RESPONSES, {"input": ["go", {"type": "message", **item}]}))
    assert (chat["add_generation_prompt"], chat["continue_final_message"]) == (False, True)


def test_chat_stays_what_it_is() -> None:
    body = {"model": "m", "messages": [{"role": "system", "content": f"{HEADER}\nYou are."}], "temperature": 0}
    made = convert(Route.CHAT, body)
    assert made.chat is body
    assert made.dropped == (Dropped("/messages/0/content", "attribution header"),)
    assert convert(Route.CHAT, body, version="0.31.0").dropped == ()
    assert made.pointer(("messages", 0, "content")) == "/messages/0/content"
    assert made.pointer(("a/b", "c~d")) == "/a~1b/c~0d"


@pytest.mark.parametrize(
    ("given", "prompt", "pointer", "doubts"),
    [
        ("a text", "a text", "/prompt", 0),
        (["a text"], "a text", "/prompt/0", 0),
        ([1, 2], [1, 2], "/prompt", 0),
        ([[1, 2]], [1, 2], "/prompt/0", 0),
        (["a", "b"], "a", "/prompt/0", 1),
        ([1, -2], None, "", 2),
        ([], None, "", 1),
        (None, None, "", 1),
        ([True], None, "", 1),
    ],
)
def test_completions(given: Any, prompt: Any, pointer: str, doubts: int) -> None:
    made = convert(Route.COMPLETIONS, {"prompt": given})
    assert (made.chat, made.prompt, made.pointer(())) == (None, prompt, pointer)
    assert len(made.approximate) == doubts


def test_what_else_reaches_the_prompt() -> None:
    assert render_inputs(Route.CHAT, {"model": "m", "documents": [], "temperature": 0, "cache_salt": None}) == {
        "model": "m",
        "documents": [],
    }
    assert render_inputs(Route.MESSAGES, MESSAGES | {"cache_salt": "s"}) == {
        "model": "tiny",
        "cache_salt": "s",
        "reasoning_effort": "high",
        "tool_choice": {"type": "any"},
    }
    wanted = RESPONSES | {"text": {"format": {"type": "json_object"}}}
    assert render_inputs(Route.RESPONSES, wanted) == {
        "model": "tiny",
        "reasoning_effort": "low",
        "response_format": {"type": "json_object"},
    }


WORDS = st.sampled_from(
    [
        *["model", "messages", "system", "tools", "input", "instructions", "prompt", "role", "content", "type", "text"],
        *["thinking", "tool_use", "tool_result", "tool_reference", "image", "source", "url", "data", "base64", "name"],
        *["id", "tool_use_id", "tool_name", "input_schema", "description", "user", "assistant", "function_call"],
        *["call_id", "arguments", "output", "function_call_output", "reasoning", "summary", "message", "input_text"],
        *["output_text", "input_image", "image_url", "function", "namespace", "custom", "custom_tool_call", "tool"],
        *["tool_addition", "tool_removal", "definition", "output_config", "format", "schema", "effort", "tool_choice"],
        *["disabled", "status", "incomplete", "redacted_thinking", "parameters", "cache_control", "encrypted_content"],
        HEADER,
    ]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.text(max_size=3)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=6), max_leaves=40
)
ROUTES = st.sampled_from(list(Route))
VERSIONS = st.sampled_from([None, "0.16.0", "0.17.1", "0.18.1", "0.21.0", "0.23.0", "0.31.0", "0.32.0", "x"])


def block(kinds: list[str]) -> st.SearchStrategy[Any]:
    return st.builds(lambda kind, rest: {**rest, "type": kind}, st.sampled_from(kinds), st.dictionaries(WORDS, JSON))


BLOCKS = block(["text", "thinking", "tool_use", "tool_result", "image", "tool_addition", "tool_reference", "odd"])
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.lists(BLOCKS, max_size=4) | JSON}
)
ITEMS = block(["message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "item_reference"])
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(TURNS | JSON, max_size=5),
        "system": JSON | st.lists(BLOCKS, max_size=3),
        "input": st.lists(ITEMS | TURNS, max_size=5) | JSON,
        "tools": st.lists(block(["function", "custom", "namespace", "web_search"]) | JSON, max_size=3),
        "prompt": JSON,
        "instructions": JSON,
        "tool_choice": JSON,
        "output_config": JSON,
        "thinking": JSON,
        "reasoning": JSON,
        "chat_template_kwargs": JSON,
    },
)


@given(route=ROUTES, body=JSON | BODIES, version=VERSIONS, merge=st.sampled_from([None, True, False]))
def test_any_json_is_converted_and_each_piece_has_a_place(
    route: Route, body: Any, version: str | None, merge: bool | None
) -> None:
    before = copy.deepcopy(body)
    made = convert(route, body, version=version, merge_system=merge)
    render_inputs(route, body)
    assert body == before
    if made.chat is None and made.prompt is None:
        assert made.approximate
    for path in paths(made.chat) if made.chat is not None else ():
        if "arguments" not in path[:-1]:
            at(body, made.pointer(path))
            at(body, made.pointer(path, 2))
    for dropped in made.dropped:
        at(body, dropped.pointer)


def test_deep_nesting_does_not_raise() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": deep}}
    result = {"type": "tool_result", "content": deep}
    body = {
        "messages": [
            {"role": "assistant", "content": [call, result]},
            {"role": "user", "content": [{"type": "tool_result", "content": deep}]},
        ],
        "input": deep,
        "prompt": deep,
        "system": deep,
        "tools": deep,
    }
    for route in Route:
        for version in ("0.16.0", None):
            made = convert(route, body, version=version)
            render_inputs(route, body)
            assert made.approximate or route in (Route.CHAT, Route.EMBEDDINGS)
    while isinstance(deep, list):  # level by level: a recursive end of it would be the test's own
        deep = deep[0]


def test_pointers_are_escaped() -> None:
    assert pointer(("a/b", 0, "c~d")) == "/a~1b/0/c~0d"
