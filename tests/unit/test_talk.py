"""Conversations turn by turn: what several pairs tell, and that nothing in them is an error."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from triage_prompts import CHAT, INPUTS, pairs

from kvtop.triage.kinds import Kind
from kvtop.triage.prompt import Prompt, from_chat
from kvtop.triage.talk import Talk

LONG = "Read a file before you change it, and say what a command printed. "


def messages(n: int, system: str = LONG) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "system", "content": system}]
    for i in range(n):
        found += [{"role": "user", "content": f"Step {i}: {LONG}"}, {"role": "assistant", "content": f"Done {i}."}]
    return found


def prompt(messages: list[dict[str, Any]]) -> Prompt:
    return from_chat({"messages": messages}, {})


def test_a_clock_that_is_put_in_while_the_history_goes_back() -> None:
    """The removed messages have places that the new prompt does not have."""
    talk = Talk()
    clock = LONG + "It is 2026-11-30 10:01:02."
    for i, one in enumerate((messages(8), messages(9), messages(2, clock))):
        found = talk.add(float(i), prompt(one))
    assert {cause.kind for cause in found} & {Kind.ROLLED_BACK, Kind.MESSAGE_REMOVED, Kind.WINDOW_TRUNCATED}
    assert {cause.kind for cause in found} & {Kind.TEXT_EDITED, Kind.VOLATILE_TEXT, Kind.LIVE_STATUS}


def test_a_system_prompt_that_goes_back_and_forth() -> None:
    talk = Talk()
    forms = (LONG, LONG + "Plan first.")
    for i in range(4):
        found = talk.add(float(i), prompt(messages(2 + i, forms[i % 2])))
    assert [cause.kind for cause in found] == [Kind.SYSTEM_FLAPS]
    assert found[0].seen is not None


@given(st.lists(pairs(), min_size=1, max_size=3), st.lists(st.tuples(CHAT, INPUTS), max_size=2))
def test_nothing_is_raised(
    some: list[tuple[Prompt, Prompt]], more: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    talk = Talk()
    turns = [one for two in some for one in two] + [from_chat(chat, inputs) for chat, inputs in more]
    for i, one in enumerate(turns):
        talk.add(float(i), one)
    assert len(talk.steps) == len(turns) - 1
