"""The divergence of two turns with a server's tokens: what each cause costs, and what the template did."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from triage_prompts import pairs
from triage_server import Template, WordServer, sent, system_first, tools_first

from kvtop.triage.differ import Cache, Counted, Divergence, Sent, diverge
from kvtop.triage.kinds import Kind, Who
from kvtop.triage.prompt import Prompt, from_chat
from kvtop.triage.sheets import of_tokens, of_words
from kvtop.triage.values import salt

pytestmark = pytest.mark.asyncio

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}
TURNED = {"properties": {"limit": {"type": "integer"}, "path": {"type": "string"}}, "type": "object"}


def tool(name: str, parameters: Any = PARAMETERS) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": f"does {name} " * 9, "parameters": parameters},
    }


def talk(system: str = "You help. It is 10:01:02 now.", n: int = 6, **last: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"{system}\n" + "rule after rule, " * 40}]
    messages += [
        {"role": "user" if i % 2 == 0 else "assistant", "content": f"message number {i} " * 12} for i in range(n)
    ]
    return [*messages, last] if last else messages


def prompt(messages: list[dict[str, Any]], tools: Any = (), **inputs: Any) -> Prompt:
    return from_chat({"messages": messages, "tools": list(tools)}, inputs)


async def diff(old: Prompt, new: Prompt, template: Template = system_first) -> Divergence:
    return await diverge(sent(old, "1"), sent(new, "2"), WordServer(template), Cache(unit=16))


TOOLS = [tool("read"), tool("grep"), tool("bash")]
MORE = [{"role": "assistant", "content": "done"}, {"role": "user", "content": "go on"}]


async def test_what_is_appended_costs_nothing_and_the_head_of_the_answer_is_no_cause() -> None:
    found = (await diff(prompt(talk(), TOOLS), prompt([*talk(), *MORE], TOOLS))).diff
    assert found.causes == () and found.append_only and found.first is None
    assert found.exact and found.method == "server_tokens"
    assert found.tokens.lost == 0 and found.tokens.reread == 0


async def test_a_note_on_tokens_says_of_which_turn() -> None:
    class Server(WordServer):
        async def counted(self, sent: Sent) -> Counted:
            found = await super().counted(sent)
            return replace(found, notes=("tokens not checked",)) if sent.name == "1" else found

    made = await diverge(sent(prompt(talk()), "1"), sent(prompt([*talk(), *MORE]), "2"), Server(system_first))
    assert made.diff.notes == ("turn 1: tokens not checked",)


@pytest.mark.parametrize("template", [system_first, tools_first])
async def test_the_prices_of_all_causes_are_what_was_lost(template: Template) -> None:
    old = prompt(talk(n=6), TOOLS)
    edited = talk("You help. It is 10:05:44 now.", n=6)
    edited[3] = {**edited[3], "content": edited[3]["content"].replace("number", "NUMBER", 1)}
    new = prompt([*edited, *MORE], [TOOLS[0], tool("grep", TURNED), TOOLS[2]])
    found = (await diff(old, new, template)).diff
    assert {cause.kind for cause in found.causes} == {Kind.VOLATILE_TEXT, Kind.TOOL_KEY_ORDER, Kind.TEXT_EDITED}
    assert sum(cause.lost_tokens or 0 for cause in found.causes) == found.tokens.lost
    prices = [cause.lost_tokens or 0 for cause in found.causes]
    assert prices == sorted(prices, reverse=True) and min(prices) > 0
    assert found.first is not None
    first = "tools[1].function.parameters" if template is tools_first else "messages[0].content"
    assert found.first.section == first


async def test_a_second_cause_right_behind_the_first_leaves_little_for_the_first() -> None:
    old = prompt(talk(), [tool("read"), tool("grep")])
    new = prompt([*talk(), *MORE], [tool("read", TURNED), tool("grep", {"type": "object", "x": 1})])
    found = (await diff(old, new, tools_first)).diff
    prices = {cause.kind: cause.lost_tokens or 0 for cause in found.causes}
    assert prices[Kind.TOOL_SCHEMA_CHANGED] > prices[Kind.TOOL_KEY_ORDER] > 0


async def test_what_the_template_does_not_print_is_no_cause() -> None:
    calls = [{"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}]
    again = [{**calls[0], "id": "call_2"}]

    def without_ids(prompt: Prompt) -> str:
        return system_first(prompt).replace('"id":"call_1"', "").replace('"id":"call_2"', "")

    old = prompt([*talk(), {"role": "assistant", "content": "", "tool_calls": calls}])
    new = prompt([*talk(), {"role": "assistant", "content": "", "tool_calls": again}, *MORE])
    found = (await diff(old, new, without_ids)).diff
    assert found.causes == () and found.append_only
    told = (await diverge(sent(old), sent(new), None)).diff
    assert [cause.kind for cause in told.causes] == [Kind.TOOL_CALL_IDS_CHANGED]


async def test_a_salt_costs_all_and_changes_no_token() -> None:
    old, new = prompt(talk(), cache_salt="a"), prompt([*talk(), *MORE], cache_salt="b")
    found = (await diff(old, new)).diff
    assert [cause.kind for cause in found.causes] == [Kind.CACHE_SALT_CHANGED]
    assert found.causes[0].lost_tokens == found.tokens.old
    assert found.append_only is False
    assert found.first is not None and found.first.pointer == "/cache_salt"
    assert (found.first.old, found.first.new, found.first.token) == (salt("a"), salt("b"), None)
    assert f"from {salt('a')} to {salt('b')}" in found.causes[0].says, "told apart, and nothing of them is shown"
    without = (await diff(prompt(talk()), new)).diff
    assert f"from none to {salt('b')}" in without.causes[0].says


async def test_reasoning_that_the_template_drops_at_a_new_user_message() -> None:
    def forgets(prompt: Prompt) -> str:
        last = max(i for i, message in enumerate(prompt.messages) if message["role"] == "user")
        return system_first(prompt, thoughts=lambda _, i: i > last)

    thinking = {"role": "assistant", "content": "found it", "reasoning": "first I look at the files, then I decide"}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "a line of output " * 30}
    old = prompt([*talk(n=5), thinking, result])
    found = (await diff(old, prompt([*talk(n=5), thinking, result, *MORE]), forgets)).diff
    assert [(cause.kind, cause.who) for cause in found.causes] == [(Kind.REASONING_DROPPED_BY_TEMPLATE, Who.TEMPLATE)]
    assert found.causes[0].lost_tokens == found.tokens.lost
    assert found.causes[0].section == "messages[6]"


async def test_a_later_system_message_that_is_printed_into_the_head() -> None:
    def hoists(prompt: Prompt) -> str:
        heads = [m for m in prompt.messages if m["role"] == "system"]
        head = {"role": "system", "content": "\n".join(m["content"] for m in heads)}
        return system_first(Prompt(messages=(head, *(m for m in prompt.messages if m["role"] != "system"))))

    note = {"role": "system", "content": "Available agent types for this task are these."}
    found = (await diff(prompt(talk()), prompt([*talk(), note, *MORE]), hoists)).diff
    assert [(cause.kind, cause.who) for cause in found.causes] == [(Kind.SYSTEM_TURN_HOISTED, Who.SERVER)]
    assert found.causes[0].pointer == "/messages/7"


async def test_a_date_that_only_the_template_prints() -> None:
    days = iter(["22 Mar 2026", "23 Mar 2026"])

    class Dated(WordServer):
        async def counted(self, sent):  # type: ignore[no-untyped-def]
            self.day = next(days)
            return await super().counted(sent)

    server = Dated(lambda prompt: f"Today Date: {server.day}\n{system_first(prompt)}")
    found = (await diverge(sent(prompt(talk())), sent(prompt([*talk(), *MORE])), server, Cache(unit=16))).diff
    assert [cause.kind for cause in found.causes] == [Kind.SERVER_DATE]


async def test_a_request_that_is_rendered_otherwise_each_time() -> None:
    turns = iter(range(99))

    def shuffles(prompt: Prompt) -> str:
        return system_first(prompt).replace("rule after", f"rule{next(turns)} after", 1)

    found = (await diff(prompt(talk()), prompt([*talk(), *MORE]), shuffles)).diff
    assert [(cause.kind, cause.who) for cause in found.causes] == [(Kind.RENDER_NONDETERMINISTIC, Who.SERVER)]


async def test_tools_that_tool_choice_takes_out_of_the_prompt() -> None:
    def excludes(prompt: Prompt) -> str:
        none = prompt.inputs.get("tool_choice") == "none"
        return system_first(Prompt(messages=prompt.messages) if none else prompt)

    old, new = prompt(talk(), TOOLS), prompt([*talk(), *MORE], TOOLS, tool_choice="none")
    found = (await diff(old, new, excludes)).diff
    assert [(cause.kind, cause.who) for cause in found.causes] == [(Kind.TOOLS_NOT_RENDERED, Who.TEMPLATE)]
    printed = (await diff(old, new)).diff
    assert printed.causes == () and printed.append_only


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"reasoning_content": 1}', Kind.REASONING_FIELD_IGNORED),
        (b'{"reasoning": 1}', Kind.REASONING_DROPPED_BY_PROXY),
    ],
)
async def test_reasoning_that_is_sent_and_not_counted(body: bytes, kind: Kind) -> None:
    thinking = {"role": "assistant", "content": "found it", "reasoning": "first I look, then I decide"}
    old, new = prompt([*talk(), thinking]), prompt([*talk(), thinking, *MORE])
    server = WordServer()
    counted = len(await server.of(prompt([*talk(), {**thinking, "reasoning": ""}, *MORE]))) // 4
    told = Sent(name="2", route=new.route, prompt=new, body=body, prompt_tokens=counted)
    found = (await diverge(sent(old), told, server, Cache(unit=16))).diff
    assert [cause.kind for cause in found.causes] == [kind]
    agrees = Sent(name="2", route=new.route, prompt=new, body=body, prompt_tokens=len(await server.of(new)) // 4)
    assert (await diverge(sent(old), agrees, server, Cache(unit=16))).diff.causes == ()


async def test_a_think_block_that_only_the_answer_s_head_holds() -> None:
    def opens(prompt: Prompt) -> str:
        return system_first(prompt) + "<think>\n\n</think>\n"

    old, new = prompt(talk()), prompt([*talk(), *MORE])
    small = (await diff(old, new, opens)).diff
    assert small.causes == () and small.append_only
    found = (await diverge(sent(old), sent(new), WordServer(opens), Cache(unit=2))).diff
    assert [(cause.kind, cause.who) for cause in found.causes] == [(Kind.EMPTY_THINK, Who.TEMPLATE)]


async def test_what_nothing_explains_is_said_and_not_blamed() -> None:
    def noisy(prompt: Prompt) -> str:
        return system_first(prompt).replace("rule after", f"rule{len(prompt.messages)} after", 1)

    found = (await diff(prompt(talk()), prompt([*talk(), *MORE]), noisy)).diff
    assert found.causes == () and not found.append_only
    assert any("no change of the request explains them" in note for note in found.notes)


async def test_a_clean_pair_asks_for_no_prompt_and_one_cause_for_few() -> None:
    server = WordServer()
    await diverge(sent(prompt(talk(), TOOLS)), sent(prompt([*talk(), *MORE], TOOLS)), server, Cache(unit=16))
    assert server.asked == 0
    found = await diverge(
        sent(prompt(talk(), TOOLS)),
        sent(prompt([*talk("You help. It is 11:00:00 now."), *MORE], TOOLS)),
        server,
        Cache(unit=16),
    )
    assert found.calls == 1 and server.asked == 2
    assert found.diff.causes[0].lost_s is None, "seconds are a turn's, and these are none"


async def test_the_first_difference_is_where_the_texts_part_to_the_byte() -> None:
    old, new = talk("Grüße. It is 10:01:02 now."), talk("Grüße. It is 10:01:07 now.")
    made = await diff(prompt(old), prompt([*new, *MORE]))
    first = made.diff.first
    assert first is not None and first.token == made.diff.tokens.common
    one, other = (system_first(p).encode() for p in (prompt(old), prompt([*new, *MORE])))
    at = next(i for i in range(len(one)) if one[i] != other[i])
    assert (first.byte is not None and other[first.byte : first.byte + 2] == b"07") or first.byte == at
    assert "02 now" in first.old and "07 now" in first.new and len(first.old) <= 80


@given(pairs())
async def test_nothing_is_raised_and_prices_never_exceed_what_was_lost(two: tuple[Prompt, Prompt]) -> None:
    server = WordServer()
    made = await diverge(sent(two[0]), sent(two[1]), server, Cache(unit=4))
    keys = {Kind.CACHE_SALT_CHANGED, Kind.MODEL_CHANGED, Kind.PROMPT_LOGPROBS_SET}
    prices = [cause.lost_tokens for cause in made.diff.causes if cause.kind not in keys]
    assert all(price is not None and price >= 0 for price in prices)
    assert sum(price or 0 for price in prices) <= (made.diff.tokens.lost or 0)
    sheet = await of_tokens(made, server, "1", "2")
    assert sum(len(hunk.new) for hunk in sheet.hunks) == len(sheet.new)
    words = of_words(await diverge(sent(two[0]), sent(two[1]), None), "1", "2")
    assert sum(len(hunk.old) for hunk in words.hunks) == len(words.old)
