"""Prompts of the embedded box: what is shared is shared, and both ways to a prompt give the same tokens."""

from __future__ import annotations

import json
import random
from array import array
from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.sim.agents import OPENCODE, Conversation, make_tools, shuffled
from kvtop.sim.cache import extend_chain, root_hash
from kvtop.sim.prompt import Part, Prompter, parts_of
from kvtop.sim.text import IM_END, passage, pieces, tokenize

few = settings(derandomize=True, max_examples=80, deadline=None)


def joined(parts: list[Part]) -> array[int]:
    out = array("I")
    for part in parts:
        out.extend(part.ids)
    return out


def common(a: array[int], b: array[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@few
@given(st.text(), st.text())
def test_text_is_cut_without_loss_and_joins_at_a_blank_line(a: str, b: str) -> None:
    assert "".join(pieces(a)) == a
    assert len(tokenize(a)) == len(pieces(a))
    assert tokenize(f"{a}\n\n{b}") == tokenize(a) + tokenize("\n\n") + tokenize(b)
    assert all(i >= 256 for i in tokenize(a))


def test_a_passage_has_about_the_asked_length() -> None:
    rng = random.Random(1)
    for wanted in (100, 1_000, 20_000):
        assert wanted - 120 <= len(tokenize(passage(rng, wanted))) <= wanted + 120


def conversation() -> Conversation:
    talk = Conversation(16, "x", passage(random.Random(1), 300), make_tools(random.Random(2), 6, 120))
    talk.user("Look at this.\n\nNow.")
    return talk


def test_conversation_sends_what_its_body_says() -> None:
    talk = conversation()
    assert talk.prompt().ids == joined(parts_of(json.loads(json.dumps(talk.body()))))
    assert talk.tokens == len(talk.prompt().ids)
    talk.answer("I will.")
    talk.result("it is there")
    assert talk.prompt().ids == joined(parts_of(json.loads(json.dumps(talk.body()))))


def test_the_next_prompt_extends_prompt_and_reply() -> None:
    talk = conversation()
    before, reply = talk.prompt().ids, "One.\n\nTwo."
    served = before + tokenize(reply) + array("I", [IM_END])
    talk.answer(reply)
    talk.result("more")
    assert talk.prompt().ids[: len(served)] == served


def test_shared_parts_give_the_hashes_of_the_whole() -> None:
    talk = conversation()
    for turn in range(6):
        prompt = talk.prompt()
        assert prompt.chain == extend_chain([], prompt.ids, 16)
        talk.answer(f"turn {turn}")
        talk.result(passage(random.Random(turn), 90))
        if turn == 3:
            talk.tools = shuffled(talk.tools, random.Random(9), 2)
        if turn == 4:
            talk.compact("what was")


def test_a_salt_changes_every_hash() -> None:
    parts = parts_of(conversation().body())
    prompter = Prompter(16)
    plain, salted, again = prompter.join(parts), prompter.join(parts, "s"), prompter.join(parts)
    assert plain.chain == again.chain and plain.ids == salted.ids
    assert not set(plain.chain) & set(salted.chain)
    assert salted.chain == extend_chain([], salted.ids, 16, root_hash("s"))


def test_shuffled_keys_break_the_prompt_in_the_first_shuffled_tool() -> None:
    talk = conversation()
    parts = parts_of(talk.body())
    before = talk.prompt().ids
    tools = talk.tools
    talk.tools = shuffled(tools, random.Random(4), 3)
    assert talk.tools[:3] == tools[:3]
    assert [json.loads(json.dumps(t, sort_keys=True)) for t in talk.tools] == tools
    at = common(before, talk.prompt().ids)
    third = 2 + 3  # behind the system text and the opening of the tools
    assert len(joined(parts[:third])) < at < len(joined(parts[: third + 1]))


def test_characters_share_system_and_tools() -> None:
    assert OPENCODE.head() is OPENCODE.head()
    _, tools = OPENCODE.head()
    assert len(tools) == OPENCODE.tools
    assert 8_000 < sum(len(tokenize(json.dumps(t))) for t in tools) < 14_000


def test_odd_bodies_have_tokens_too() -> None:
    odd = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}, 3]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}, 7]},
            "nonsense",
        ],
        "tools": ["nonsense"],
    }
    assert len(joined(parts_of(odd))) > 10
