"""Several faults of one turn, and talks that go on although their last message stands elsewhere now."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_causes import assistant, kinds, system, talk, user

from kvtop.triage.kinds import Kind, Who

ROWS = json.dumps([{"row": n, "state": "open", "owner": f"desk {n}"} for n in range(12)])
STEPS = 9


def result(n: int) -> str:
    return ROWS.replace("desk", f"desk of step {n}, number")


def work(mark: str, results: dict[int, str] | None = None, arguments: str = '{{"row": {n}, "all": true}}') -> list[Any]:
    """Steps of an agent, each a call under an id that begins with this mark, and its result."""
    found: list[Any] = [system("You help with tickets."), user("Close what can be closed, one by one.")]
    for n in range(STEPS):
        call = {"name": "close", "arguments": arguments.format(n=n)}
        found.append(assistant(None, tool_calls=[{"id": f"call_{mark}{n}", "type": "function", "function": call}]))
        told = (results or {}).get(n, result(n))
        found.append({"role": "tool", "tool_call_id": f"call_{mark}{n}", "content": told})
    return found


@pytest.mark.parametrize(
    ("results", "kind"),
    [
        ({2: "[cleared: 200 tokens]", 3: "[cleared: 180 tokens]"}, Kind.TOOL_OUTPUT_CLEARED),
        ({n: "[cleared: 200 tokens]" for n in range(STEPS)}, Kind.TOOL_OUTPUT_CLEARED),
        (
            {4: json.dumps(json.loads(result(4)), indent=4)},
            Kind.RESULT_RESERIALISED,
        ),
        ({5: "Closed. Nothing more to say of it here."}, Kind.TEXT_EDITED),
    ],
)
@pytest.mark.parametrize("anew", [[], [user("go on")]])
def test_other_ids_hide_no_other_fault(results: dict[int, str], kind: Kind, anew: list[Any]) -> None:
    found = talk(work("a"), [*work("b", results), *anew])
    assert kinds(found) == [Kind.TOOL_CALL_IDS_CHANGED, kind]
    assert "9 tool calls" in found[0].says
    assert kinds(talk(work("a"), [*work("a", results), *anew])) == [kind]


def test_other_ids_and_arguments_and_a_result() -> None:
    new = work("b", {3: "[cleared: 200 tokens]"}, arguments='{{"all":true,"row":{n}}}')
    found = kinds(talk(work("a"), [*new, user("go on")]))
    assert found == [Kind.TOOL_CALL_IDS_CHANGED, Kind.ARGUMENTS_RESERIALISED, Kind.TOOL_OUTPUT_CLEARED]


def test_other_ids_of_other_calls_are_other_calls() -> None:
    old, new = work("a"), work("b", arguments='{{"line": {n}}}')
    assert Kind.TOOL_CALL_EDITED in kinds(talk(old, [*new, user("go on")]))


REMINDER = "\n\nAnswer with the name of each file that is to be changed, and with nothing else. " * 6
ASKS = "Look at the files of this folder and tell me what they are for."


def files(*names: str) -> list[Any]:
    return [
        system("You edit code."),
        user("These are files of my repository, do not change them:\n\n" + "\n\n".join(names)),
        assistant("Well, I shall ask before I change one of them."),
    ]


def test_a_question_that_has_its_answer_by_now_was_not_replaced() -> None:
    """A client repeats its rules behind the newest message, and rewrites the list of files."""
    old = [*files("read.me", "a.py", "b.py"), user(ASKS + REMINDER)]
    new = [*files("read.me"), user(ASKS), assistant("They parse tables."), user("I have added two files." + REMINDER)]
    found = talk(old, new)
    assert [(cause.kind, cause.pointer, cause.who) for cause in found] == [
        (Kind.TEXT_EDITED, "/messages/1/content", Who.CLIENT),
        (Kind.TEXT_EDITED, "/messages/3/content", Who.CLIENT),
    ]


def test_a_newest_message_that_is_another_one_was_not_replaced() -> None:
    """Its question is gone, and with it all by which it could be known again."""
    old = [*files("read.me", "a.py", "b.py"), user(ASKS + REMINDER)]
    new = [*files("read.me"), user("hm"), assistant("They parse tables."), user("Add two files." + REMINDER)]
    found = kinds(talk(old, new))
    assert Kind.LAST_MESSAGE_REPLACED not in found and Kind.TEXT_EDITED in found


def test_a_last_message_that_was_said_anew() -> None:
    old = [*files("read.me"), user(ASKS + REMINDER)]
    found = talk(old, [*files("read.me"), user("Look at the tests instead." + REMINDER)])
    assert [(cause.kind, cause.who) for cause in found] == [(Kind.LAST_MESSAGE_REPLACED, Who.NOBODY)]
