"""Every change of two prompts can be put back, alone and with the others."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from triage_prompts import CHAT, TEXT, pairs

from kvtop.triage.changes import What, compare
from kvtop.triage.judge import causes_of
from kvtop.triage.prompt import Prompt, from_chat
from kvtop.triage.values import key_of
from kvtop.triage.windows import stretches


def prompt(*messages: dict[str, Any], tools: Any = (), **inputs: Any) -> Prompt:
    return from_chat({"messages": list(messages), "tools": list(tools)}, inputs)


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {}, **more}}


@given(TEXT, TEXT)
def test_the_stretches_of_two_texts_are_both_texts(old: str, new: str) -> None:
    parts = stretches(old, new)
    assert "".join(part if isinstance(part, str) else part.old for part in parts) == old
    assert "".join(part if isinstance(part, str) else part.new for part in parts) == new
    assert all(isinstance(part, str) or part.old != part.new for part in parts)


@given(pairs())
def test_with_all_changes_put_back_it_begins_with_the_old_prompt(two: tuple[Prompt, Prompt]) -> None:
    old, new = two
    found = compare(old, new)
    untouched = found.restored(())
    assert key_of([*untouched.tools, *untouched.messages]) == key_of([*new.tools, *new.messages])
    back = found.restored({change.id for change in found.changes})
    assert key_of(list(back.tools)) == key_of(list(old.tools))
    assert key_of(list(back.messages[: len(old.messages)])) == key_of(list(old.messages))
    assert dict(back.inputs) == dict(old.inputs)


@given(pairs())
def test_each_change_is_explained_by_one_cause_at_most(two: tuple[Prompt, Prompt]) -> None:
    found = compare(*two)
    causes = causes_of(found)
    claimed = [id for cause in causes for id in cause.changes]
    assert len(claimed) == len(set(claimed))
    inputs = {change.id for change in found.of(What.INPUT)}
    assert {change.id for change in found.changes} - inputs <= set(claimed)
    assert all(cause.says and cause.fix and cause.pointer.startswith("/") for cause in causes)


@given(CHAT)
def test_a_prompt_and_itself_have_no_change(chat: dict[str, Any]) -> None:
    one = from_chat(chat, {})
    other = from_chat(json.loads(json.dumps(chat)), {})
    assert compare(one, other).changes == ()


@given(CHAT, st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=3))
def test_a_message_at_the_end_is_no_change(chat: dict[str, Any], roles: list[str]) -> None:
    more = [{"role": role, "content": f"something new, number {n}"} for n, role in enumerate(roles)]
    longer = {**chat, "messages": [*chat["messages"], *more]}
    found = compare(from_chat(chat, {}), from_chat(longer, {}))
    assert found.changes == ()
    assert len(found.appended) == len(more)


def test_one_change_alone_is_put_back() -> None:
    old = prompt({"role": "system", "content": "a 1\nb 1\nc"}, {"role": "user", "content": "x"}, model="q")
    new = prompt({"role": "system", "content": "a 2\nb 2\nc"}, {"role": "user", "content": "x"}, model="r")
    found = compare(old, new)
    first = next(change for change in found.of(What.TEXT) if change.region and change.region.new_at < 4)
    back = found.restored({first.id})
    assert back.messages[0]["content"] == "a 1\nb 2\nc"
    assert back.inputs == {"model": "r"}


def test_a_tool_that_was_added_can_be_taken_out_alone() -> None:
    old = prompt(tools=[tool("a"), tool("c", strict=True)])
    new = prompt(tools=[tool("b"), tool("c"), tool("a")])
    found = compare(old, new)
    by = {change.what: change.id for change in found.changes}
    assert set(by) == {What.TOOL_ADDED, What.TOOL_ORDER, What.FIELD}
    assert [one["name"] for one in found.restored({by[What.TOOL_ADDED]}).tools] == ["c", "a"]
    assert [one["name"] for one in found.restored({by[What.TOOL_ORDER]}).tools] == ["b", "a", "c"]
    assert found.restored({by[What.FIELD]}).tools[1] == {
        "name": "c",
        "description": "",
        "parameters": {},
        "strict": True,
    }


def test_a_message_that_left_comes_back_where_it_stood() -> None:
    a, b, c, d = ({"role": "user", "content": word * 9} for word in "abcd")
    found = compare(prompt(a, b, c), prompt(a, c, d))
    assert [change.what for change in found.changes] == [What.MESSAGE_REMOVED]
    assert found.appended == (2,)
    assert list(found.restored({found.changes[0].id}).messages) == [a, b, c, d]


def test_equal_calls_in_another_order_are_all_kept() -> None:
    a = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    b = {"id": "call_2", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    old, new = ({"role": "assistant", "content": "", "tool_calls": calls} for calls in ([a, b, a], [a, a, b]))
    found = compare(prompt(old), prompt(new))
    assert [change.what for change in found.changes] == [What.CALL_ORDER]
    assert list(found.restored({found.changes[0].id}).messages) == [old]
    assert list(found.restored(()).messages) == [new]


def test_the_completions_prompt_that_grows_is_no_change() -> None:
    from kvtop.capture.turn import Route

    one, other = ({"messages": [{"role": "", "content": text}]} for text in ("abc", "abcdef"))
    found = compare(from_chat(one, {}, route=Route.COMPLETIONS), from_chat(other, {}, route=Route.COMPLETIONS))
    assert found.changes == ()
