"""What two conversations differ in: their messages as one, their heads by cause."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from triage_prompts import pairs

from kvtop.triage.apart import two_conversations
from kvtop.triage.changes import compare
from kvtop.triage.judge import causes_of
from kvtop.triage.kinds import Kind, Who
from kvtop.triage.prompt import Prompt, from_chat

RULES = "Read a file before you change it. " * 20


def prompt(task: str, clock: str, *more: dict[str, Any]) -> Prompt:
    system = f"{RULES}It is 2026-11-30 {clock}. {RULES}"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": task}, *more]
    return from_chat({"messages": messages}, {})


def test_only_the_clock_of_the_shared_head_is_told_apart() -> None:
    steps = [{"role": "assistant", "content": f"Step {n}. {RULES}"} for n in range(6)]
    found = compare(prompt("Mend the test.", "10:01:02", *steps), prompt("Name all files. " * 90, "10:07:45"))
    causes = two_conversations(causes_of(found), found)
    assert [cause.kind for cause in causes] == [Kind.VOLATILE_TEXT, Kind.OTHER_CONVERSATION]
    assert causes[1].who is Who.NOBODY and causes[1].section.startswith("messages[1]")
    assert frozenset().union(*(cause.changes for cause in causes)) == {change.id for change in found.changes}


@given(pairs())
def test_no_change_is_lost_and_none_is_told_twice(two: tuple[Prompt, Prompt]) -> None:
    found = compare(*two)
    before = causes_of(found)
    after = two_conversations(before, found)
    assert sorted(id for cause in after for id in cause.changes) == sorted(
        id for cause in before for id in cause.changes
    )
    assert sum(cause.kind is Kind.OTHER_CONVERSATION for cause in after) <= 1
