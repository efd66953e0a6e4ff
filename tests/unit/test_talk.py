"""Conversations turn by turn: what several pairs tell, and that nothing in them is an error."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from triage_prompts import CHAT, INPUTS, pairs

from kvtop.triage.kinds import Kind
from kvtop.triage.prompt import Prompt, from_chat
from kvtop.triage.recurrence import Step
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


def test_what_was_inserted_is_said_with_what_of_it_varies() -> None:
    talk = Talk()
    talk.add(0.0, prompt(messages(2)))
    (found,) = talk.add(1.0, prompt(messages(3, LONG + "It is 2026-11-30 10:01:02.")))
    assert found.kind is Kind.TEXT_EDITED and found.says == (
        "text of the system prompt was inserted: “It is 2026-11-30 10:01:02.”, with a date or time that may be another "
        "one each time"
    )
    (gone,) = talk.add(2.0, prompt(messages(4)))
    assert "was removed: “It is 2026" in gone.says or gone.kind is Kind.SYSTEM_FLAPS
    other = Talk()
    other.add(0.0, prompt(messages(2)))
    (long,) = other.add(1.0, prompt(messages(3, LONG + "Plan first, and say it. " * 9)))
    assert long.says == f"text of the system prompt was inserted: “{('Plan first, and say it. ' * 9)[:60]}…”"


def test_a_system_prompt_that_goes_back_and_forth() -> None:
    talk = Talk()
    forms = (LONG, LONG + "Plan first.")
    for i in range(4):
        found = talk.add(float(i), prompt(messages(2 + i, forms[i % 2])))
    assert [cause.kind for cause in found] == [Kind.SYSTEM_FLAPS]
    assert found[0].seen is not None


def told(*systems: str) -> str | None:
    """How often the change of the last of these turns was seen."""
    talk = Talk()
    for i, system in enumerate(systems):
        found = talk.add(float(i), prompt(messages(2 + i, system)))
    return found[0].seen


A, B, C = LONG, LONG + "Plan first.", LONG + "Answer in verse."


def test_a_change_that_is_taken_back_is_one_change() -> None:
    assert told(A, A, A, A, B) is None
    assert told(A, A, B, B, A) == "once in the last 4 turns of this agent, there and back"
    assert told(A, B, A) == "once in the last 2 turns of this agent, there and back"
    assert told(A, A, B, A, A, B, A) == "2 of the last 6 turns of this agent (33 %), there and back"
    assert told(A, B, A, B, A) == "in each of the last 4 turns of this agent", "each costs the cache"


def test_another_form_each_time_is_another_change() -> None:
    assert told(A, A, B, C) == "2 of the last 3 turns of this agent (67 %)"
    assert told(A, B, B, C, A) == "2 of the last 4 turns of this agent (50 %), there and back"


def test_a_clock_whose_digits_come_again_does_not_go_back() -> None:
    times = [f"{LONG}It is 2026-11-30 10:{minute}:00." for minute in ("05", "06", "16", "15")]
    assert told(times[0], times[0], *times[1:]) == "3 of the last 4 turns of this agent (75 %)"


def test_going_back_is_told_of_one_conversation_alone() -> None:
    steps: list[Step] = []
    one, other = Talk(steps), Talk(steps)
    for i, (talk, system) in enumerate(((one, A), (other, B), (one, B), (other, A))):
        found = talk.add(float(i), prompt(messages(2 + i, system)))
    assert found[0].seen == "in each of the last 2 turns of this agent", "no conversation went back"


def test_tools_that_are_put_back_in_order_are_one_change() -> None:
    talk = Talk()
    tools = [{"name": name, "parameters": {"type": "object"}} for name in ("read", "edit")]
    for i, order in enumerate((tools, tools, tools[::-1], tools)):
        found = talk.add(float(i), from_chat({"messages": messages(2 + i), "tools": _functions(order)}, {}))
    assert [(cause.kind, cause.seen) for cause in found] == [
        (Kind.TOOLS_REORDERED, "once in the last 3 turns of this agent, there and back")
    ]


def _functions(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": tool} for tool in tools]


@given(st.lists(pairs(), min_size=1, max_size=3), st.lists(st.tuples(CHAT, INPUTS), max_size=2))
def test_nothing_is_raised(
    some: list[tuple[Prompt, Prompt]], more: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    talk = Talk()
    turns = [one for two in some for one in two] + [from_chat(chat, inputs) for chat, inputs in more]
    for i, one in enumerate(turns):
        talk.add(float(i), one)
    assert len(talk.steps) == len(turns) - 1


def test_a_block_that_is_rewritten_is_no_edit_of_another_message() -> None:
    """Of messages each kind is counted for itself: only of the system prompt one is told under another's name."""
    clock = "<env>time: 2026-12-01 00:10:0{} git: main</env>\nPlease mend the build. " + LONG * 4
    talk = Talk()

    def turn(first: str, answer: str) -> list[dict[str, Any]]:
        return [*messages(0), {"role": "user", "content": first}, {"role": "assistant", "content": answer}]

    found = ()
    for i, (second, answer) in enumerate(((1, LONG), (1, LONG + "Mended."), (2, LONG + "Mended."))):
        found = talk.add(float(i), prompt([*turn(clock.format(second), answer), *messages(i)[1:]]))
    (cause,) = found
    assert (cause.kind, cause.seen) == (Kind.LIVE_STATUS, None)


def test_a_conversation_that_begins_with_a_long_text_is_no_compaction_of_the_one_before() -> None:
    long = {"role": "user", "content": "Here is the file. " + "def one(): return 1\n" * 200}
    summary = {"role": "user", "content": "This session is being continued from a previous conversation. " + LONG * 5}
    talk = Talk()
    before = prompt(messages(8))
    assert Kind.COMPACTION not in {one.kind for one in talk.add(0.0, prompt([messages(0)[0], long]), before)}
    other = Talk()
    (found,) = other.add(1.0, prompt([messages(0)[0], summary]), before)
    assert (found.kind, found.seen) == (Kind.COMPACTION, None)
