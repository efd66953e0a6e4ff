"""A pair of requests as it would have been without one kind of cause."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triage_prompts import CHAT

import triage_score
from kvtop.capture.api.canonical import encode
from kvtop.capture.turn import Route
from kvtop.errors import UsageError
from kvtop.triage.changes import compare
from kvtop.triage.fixes import FIXES, Repaired, repair
from kvtop.triage.judge import causes_of, read
from kvtop.triage.kinds import Kind
from kvtop.triage.render import render
from kvtop.triage.result import Cause
from kvtop.triage.windows import common_head


def kinds(old: bytes, new: bytes, route: Route) -> list[Kind]:
    found = causes_of(compare(read(old, route), read(new, route)))
    return list(dict.fromkeys(cause.kind for cause in found))


def shared(old: bytes, new: bytes, route: Route) -> tuple[int, int]:
    """Characters that both prompts begin with, and those of the old one, as a template that prints all shows them."""
    one, other = render(read(old, route)).text, render(read(new, route)).text
    return common_head(one, other), len(one)


def sent(fixed: Repaired) -> tuple[bytes, bytes, Route]:
    return encode(fixed.old), encode(fixed.new), fixed.route


def labelled() -> Iterator[Any]:
    for name in ("open", "given"):
        for pair in triage_score.load(name):
            for kind in kinds(pair.old, pair.new, pair.route):
                yield pytest.param(pair, kind, id=f"{pair.name}-{kind}")


def _in_the_newest_alone(kind: Kind, fixed: Repaired) -> bool:
    """Two conversations of one message each: there it costs nothing, and is still another text."""
    messages = [body.get("messages", ()) for body in (fixed.old, fixed.new)]
    last = f"/messages/{len(messages[1]) - 1}/"
    found = causes_of(compare(*(read(encode(body), fixed.route) for body in (fixed.old, fixed.new))))
    same = len(messages[0]) == len(messages[1]) and messages[0][:-1] == messages[1][:-1]
    return same and all(cause.pointer.startswith(last) for cause in found if cause.kind is kind)


@pytest.mark.parametrize(("pair", "kind"), list(labelled()))
def test_a_repaired_pair_has_that_cause_no_more(pair: triage_score.Pair, kind: Kind) -> None:
    if kind not in FIXES:
        with pytest.raises(UsageError, match="has no repair"):
            repair(kind, pair.old, pair.new, pair.route)
        return
    fixed = repair(kind, pair.old, pair.new, pair.route)
    left = kinds(*sent(fixed))
    assert kind not in left or _in_the_newest_alone(kind, fixed)
    if not left:
        common, whole = shared(*sent(fixed))
        assert common >= whole - 40, "nothing else differs: the old prompt is a beginning of the new one"


def chat(messages: list[dict[str, Any]], *tools: dict[str, Any], **more: Any) -> bytes:
    made: dict[str, Any] = {"model": "m", "messages": messages} | more
    if tools:
        made["tools"] = [{"type": "function", "function": tool} for tool in tools]
    return json.dumps(made).encode()


def tool(name: str, **properties: str) -> dict[str, Any]:
    return {"name": name, "parameters": {"type": "object", "properties": properties, "required": sorted(properties)}}


SAID = [{"role": "user", "content": "go on"}]


def test_sorted_schemas_are_those_of_both_turns() -> None:
    old = chat(SAID, {"name": "b", "parameters": {"z": 1, "a": {"y": 1, "b": 2}}}, temperature=0)
    new = chat(SAID, {"name": "b", "parameters": {"a": {"b": 2, "y": 1}, "z": 1}}, temperature=0)
    fixed = repair(Kind.TOOL_KEY_ORDER, old, new, Route.CHAT)
    assert json.dumps(fixed.old) == json.dumps(fixed.new)
    assert json.dumps(fixed.old["tools"][0]["function"]["parameters"]) == '{"a": {"b": 2, "y": 1}, "z": 1}'
    assert fixed.new["temperature"] == 0, "everything else is as it was sent"


def test_a_line_that_varies_goes_behind_the_history_and_stays_there() -> None:
    def turn(clock: str, *more: str) -> bytes:
        system = f"You are a programmer.\nThe time is {clock}.\nWork in small steps."
        talk = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(("begin", *more))]
        return chat([{"role": "system", "content": system}, *talk])

    fixed = repair(
        Kind.VOLATILE_TEXT,
        turn("2026-03-22 10:01:02"),
        turn("2026-03-22 10:04:40", "done", "and now the tests"),
        Route.CHAT,
    )
    assert fixed.old["messages"] == [
        {"role": "system", "content": "You are a programmer.\nWork in small steps."},
        {"role": "user", "content": "begin\nThe time is 2026-03-22 10:01:02."},
    ]
    assert fixed.new["messages"] == [
        *fixed.old["messages"],
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "and now the tests\nThe time is 2026-03-22 10:04:40."},
    ]


def test_a_clients_header_is_left_out() -> None:
    def turn(sum: str) -> bytes:
        head = f"x-anthropic-billing-header: cc_version=2.1; cch={sum};\n"
        return chat([{"role": "system", "content": f"{head}You are Claude Code."}, *SAID])

    fixed = repair(Kind.CLIENT_HEADER, turn("a1b2c"), turn("d3e4f"), Route.CHAT)
    assert fixed.old["messages"] == fixed.new["messages"]
    assert fixed.new["messages"][0]["content"] == "You are Claude Code."


def test_an_inserted_message_stands_at_the_end() -> None:
    old = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    put_in = {"role": "user", "content": "<environment>tests pass</environment>"}
    new = [old[0], put_in, old[1], {"role": "user", "content": "three"}]
    fixed = repair(Kind.MESSAGE_INSERTED, chat(old), chat(new), Route.CHAT)
    assert fixed.new["messages"] == [*old, new[3], put_in]


def test_added_tools_are_there_from_the_first_turn_on() -> None:
    old = chat(SAID, tool("read"), tool("write"))
    new = chat(SAID, tool("fetch"), tool("read"), tool("write"))
    fixed = repair(Kind.TOOL_ADDED, old, new, Route.CHAT)
    names = [[one["function"]["name"] for one in body["tools"]] for body in (fixed.old, fixed.new)]
    assert names == [["read", "write", "fetch"]] * 2


def test_a_request_of_another_route_is_repaired_as_the_chat_request_that_it_is() -> None:
    def turn(properties: dict[str, Any]) -> bytes:
        schema = {"type": "object", "properties": properties}
        tools = [{"name": "read", "description": "Read.", "input_schema": schema}]
        body = {"model": "m", "max_tokens": 9, "system": "Be short.", "messages": SAID, "tools": tools}
        return json.dumps(body | {"tool_choice": {"type": "auto"}}).encode()

    old, new = turn({"path": {}, "first": {}}), turn({"first": {}, "path": {}})
    fixed = repair(Kind.TOOL_KEY_ORDER, old, new, Route.MESSAGES)
    assert fixed.route is Route.CHAT
    assert [message["role"] for message in fixed.new["messages"]] == ["system", "user"]
    assert json.dumps(fixed.old["tools"]) == json.dumps(fixed.new["tools"])
    assert fixed.new.get("tool_choice") in (None, "auto")


def test_a_completion_stays_one() -> None:
    old = json.dumps({"model": "m", "prompt": "It is 10:01:02.\nbegin"}).encode()
    new = json.dumps({"model": "m", "prompt": "It is 10:01:09.\nbegin and go on"}).encode()
    (kind, *_) = kinds(old, new, Route.COMPLETIONS)
    fixed = repair(kind, old, new, Route.COMPLETIONS)
    assert fixed.route is Route.COMPLETIONS
    assert fixed.new["prompt"].startswith(fixed.old["prompt"])


def test_inputs_of_the_template_are_those_of_the_old_turn() -> None:
    old = chat(SAID, chat_template_kwargs={"enable_thinking": False}, seed=1)
    new = chat(SAID, chat_template_kwargs={"enable_thinking": True}, reasoning_effort="high", seed=2)
    fixed = repair(Kind.TEMPLATE_INPUTS_CHANGED, old, new, Route.CHAT)
    assert fixed.new["chat_template_kwargs"] == {"enable_thinking": False}
    assert "reasoning_effort" not in fixed.new


def test_what_only_a_conversation_tells_is_an_edit_of_the_system_prompt() -> None:
    def turn(mode: str) -> bytes:
        return chat([{"role": "system", "content": f"Be short.\nThe plan is {mode}.\nGo on."}, *SAID])

    fixed = repair(Kind.SYSTEM_FLAPS, turn("to read the parser"), turn("that we write tests"), Route.CHAT)
    assert fixed.new["messages"][0]["content"] == "Be short.\nGo on."
    assert fixed.new["messages"][-1]["content"] == "go on\nThe plan is that we write tests."


def test_causes_that_are_known_are_taken() -> None:
    old, new = chat([{"role": "user", "content": "a b"}]), chat([{"role": "user", "content": "a c"}, *SAID])
    changes = compare(read(old, Route.CHAT), read(new, Route.CHAT)).changes
    known = Cause(Kind.PATH_CHANGED, "", "", "", "", changes=frozenset(change.id for change in changes))
    fixed = repair(Kind.PATH_CHANGED, old, new, Route.CHAT, causes=[known])
    assert fixed.new["messages"][0] == {"role": "user", "content": "a b"}


def test_what_cannot_be_repaired_says_what_can() -> None:
    same = chat(SAID)
    with pytest.raises(UsageError, match=r"compaction has no repair.*\n.*tool_key_order, .*volatile_text"):
        repair(Kind.COMPACTION, same, same, Route.CHAT)
    with pytest.raises(UsageError, match="whitespace is no cause of this pair\n  found: nothing that differs"):
        repair(Kind.WHITESPACE, same, same, Route.CHAT)
    said, other = (chat([{"role": "user", "content": f"go on with{gap}the work"}, *SAID]) for gap in (" ", "\n"))
    with pytest.raises(UsageError, match="tool_added is no cause of this pair\n  found: whitespace"):
        repair(Kind.TOOL_ADDED, said, other, Route.CHAT)
    for wrong in (b"[]", b"{", b"[" * 100_000, b"\xff"):
        with pytest.raises(UsageError, match="cannot be read"):
            repair(Kind.WHITESPACE, wrong, same, Route.CHAT)


@pytest.mark.fuzz
@given(CHAT, CHAT, st.sampled_from([Route.CHAT, Route.MESSAGES, Route.RESPONSES]))
def test_whatever_two_requests_hold(old: Any, new: Any, route: Route) -> None:
    one, other = (json.dumps(body).encode() for body in (old, new))
    for kind in kinds(one, other, route):
        if kind in FIXES:
            fixed = repair(kind, one, other, route)
            encode(fixed.old)
            encode(fixed.new)
