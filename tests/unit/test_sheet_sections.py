"""Where the parts of a prompt begin in the server's text, and how many there are."""

from __future__ import annotations

from typing import Any

import pytest
from triage_server import WordServer, sent

from kvtop.triage.differ import Cache, diverge
from kvtop.triage.places import places
from kvtop.triage.plain import lines
from kvtop.triage.prompt import Prompt, from_chat
from kvtop.triage.sheet import Sheet
from kvtop.triage.sheets import of_tokens, of_words
from kvtop.triage.values import ordered, text_of

CALL = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "You help people.\nBe brief."},
    {"role": "user", "content": "Mend the first test."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "content of a.py: nothing"},
]
MORE = [{"role": "assistant", "content": "It is mended.", "tool_calls": [CALL]}, {"role": "user", "content": "ok"}]


def chatml(prompt: Prompt) -> str:
    out = [
        f"<|im_start|>{message['role']}\n{text_of(message)}"
        + "".join(f"\n<tool_call>\n{ordered(call['function'])}\n</tool_call>" for call in message.get("tool_calls", ()))
        + "<|im_end|>\n"
        for message in prompt.messages
    ]
    return "".join(out) + "<|im_start|>assistant\n"


def llama(prompt: Prompt) -> str:
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    out = [
        head.format(message["role"])
        + text_of(message)
        + "".join(ordered(call["function"]) for call in message.get("tool_calls", ()))
        + "<|eot_id|>"
        for message in prompt.messages
    ]
    return "".join(out) + head.format("assistant")


async def sheet(old: list[dict[str, Any]], new: list[dict[str, Any]], template: Any = chatml) -> Sheet:
    server = WordServer(template)
    two = (from_chat({"messages": messages}, {}) for messages in (old, new))
    found = await diverge(*(sent(prompt) for prompt in two), server, Cache(unit=4))
    return await of_tokens(found, server, "turn 1", "turn 2")


@pytest.mark.parametrize(("template", "head"), [(chatml, "<|im_start|>"), (llama, "<|start_header_id|>")])
async def test_a_message_begins_with_what_the_template_prints_before_it(template: Any, head: str) -> None:
    made = await sheet(TALK, [*TALK, *MORE], template)
    names = dict((name, piece) for piece, name in made.sections)
    for n in (0, 1, 3, 4):
        assert "".join(made.new[names[f"messages[{n}]"] :]).startswith(head), n
    assert names["messages[1]"] < names["messages[2]"] < names["messages[3]"], "a call alone, without a word"


async def test_what_is_appended_stands_in_the_message_that_it_begins() -> None:
    made = await sheet(TALK, [*TALK, *MORE])
    where = places(made)
    assert where.first is not None and where.appended
    assert where.section(where.first.new.start) == "messages[4]"
    assert "".join(made.new[where.first.new.start :]).startswith("It is mended.")
    assert any(line.startswith("@@ token") and "messages[4], what follows is new" in line for line in lines(made, 120))


async def test_the_message_that_a_talk_went_back_to_has_one_number() -> None:
    old = [*TALK, *MORE, {"role": "assistant", "content": "Good."}, {"role": "user", "content": "The next one."}]
    made = await sheet(old, [*TALK, {"role": "user", "content": "Rather begin anew."}])
    where = places(made)
    assert where.first is not None and made.diff.causes[0].section == "messages[4]"
    assert where.section(where.first.new.start) == "messages[4]"
    said = list(lines(made, 120))
    assert "1  rolled_back  messages[4], nothing of this prompt is lost by that, nobody" in said


async def test_there_are_as_many_as_were_sent_whether_they_are_found_or_not() -> None:
    silent = [{"role": "user", "content": ""}] * 20
    made = await sheet(TALK, [*TALK, *silent, {"role": "user", "content": "Are you there?"}])
    assert dict(made.counts)["messages"] == 25
    assert places(made).sections(0, len(made.new) - 1) == "messages[0] to messages[24] of 25"
    two = [from_chat({"messages": messages}, {}) for messages in (TALK, [*TALK, *MORE])]
    words = of_words(await diverge(sent(two[0]), sent(two[1]), None), "turn 1", "turn 2")
    assert dict(words.counts)["messages"] == 6
