"""Turns of several agents in one store: what is held against the first turn of each, and whose turns are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_shop import OTHER, RULES, Agent, Box, said

from kvtop import paths
from kvtop.capture.store.store import Store
from kvtop.triage.kinds import Kind, Verdict, Who
from kvtop.triage.result import Cause

pytestmark = pytest.mark.asyncio

MAIN = Agent()
SUB = Agent("Searcher", OTHER, ("grep", "glob"))


@pytest.fixture
def box(own_home: Path) -> Box:
    return Box(Store.open(paths.turns_file(), write=True))


async def causes(box: Box, id: int) -> tuple[Cause, ...]:
    cases = box.book()
    return (await cases.diff(cases.turn(id))).diff.causes


def kinds(found: tuple[Cause, ...]) -> list[Kind]:
    return [cause.kind for cause in found]


def talk(box: Box, agent: Agent, turns: int, name: str, **odd: Any) -> int:
    """A conversation of so many turns; the last one's id."""
    parent = None
    for n in range(1, turns + 1):
        parent = box.turn(agent, said(n), talk=name, relation="next" if n > 1 else "first", parent=parent, **odd)
    assert parent is not None
    return parent


@pytest.mark.parametrize(
    "other",
    [
        SUB,
        Agent("Searcher", OTHER, ("grep", "glob"), {"reasoning_effort": "high"}),
        Agent("Searcher", [*RULES[:20], *OTHER[:20]], ("grep", "glob", "edit")),
        Agent("Searcher", [*RULES[:20], *OTHER[:20]], ("read",)),
        Agent("Searcher", OTHER, (), {"reasoning_effort": "high"}),
    ],
)
@pytest.mark.parametrize("task", ["Summarize what the parser does. " * 30, "Which files hold it? " * 200])
@pytest.mark.parametrize("relation", ["first", "subagent"])
async def test_the_first_turn_of_another_agent_has_one_cause(box: Box, other: Agent, task: str, relation: str) -> None:
    """Its task may speak of a summary, or be longer than all that was asked before: it replaced no history."""
    talk(box, MAIN, 4, "c1")
    first = box.turn(other, [{"role": "user", "content": task}], talk="c2", relation=relation, clock="11:22:33")
    (cause,) = await causes(box, first)
    assert (cause.kind, cause.who, cause.seen, cause.values) == (Kind.OTHER_CONVERSATION, Who.NOBODY, None, ())


async def test_a_subagent_that_is_given_the_same_task(box: Box) -> None:
    talk(box, MAIN, 4, "c1")
    like = Agent("Searcher", [*RULES[:20], *OTHER[:20]], ("grep", "glob", "edit"))
    first = box.turn(like, said(1), talk="c2", relation="subagent", clock="11:22:33")
    assert kinds(await causes(box, first)) == [Kind.OTHER_CONVERSATION]


async def test_an_agent_that_goes_on_with_other_tools_and_rules_is_no_other_one(box: Box) -> None:
    parent = talk(box, MAIN, 2, "c1")
    acts = Agent("Main", [*RULES[:20], *OTHER[:20]], ("grep", "glob", "edit"))
    found = kinds(await causes(box, box.turn(acts, said(3), talk="c1", relation="next", parent=parent)))
    assert set(found) == {Kind.TOOLS_CHANGED, Kind.TEXT_EDITED}


async def test_the_first_turn_of_the_same_agent_keeps_what_its_head_should_say_alike(box: Box) -> None:
    talk(box, MAIN, 4, "c1")
    first = box.turn(MAIN, said(1, "the lexer"), talk="c2", clock="11:22:33")
    assert kinds(await causes(box, first)) == [Kind.VOLATILE_TEXT, Kind.OTHER_CONVERSATION]


SUMMARY = [{"role": "user", "content": "The conversation grew too long; this is what it came to.\n<summary>\n"
            + "The parser fails on odd parts. " * 20 + "\n</summary>\nGo on."}]  # fmt: skip


async def test_a_compaction_that_no_hint_ties_to_its_conversation(box: Box) -> None:
    talk(box, MAIN, 6, "c1")
    first = box.turn(MAIN, SUMMARY, talk="c2")
    (cause,) = await causes(box, first)
    assert (cause.kind, cause.who) == (Kind.COMPACTION, Who.NOBODY)
    mended = box.turn(MAIN, SUMMARY, talk="c3", turned=True)
    assert kinds(await causes(box, mended)) in ([Kind.TOOL_KEY_ORDER, Kind.COMPACTION], [Kind.TOOL_KEY_ORDER])


@pytest.mark.parametrize("task", ["Summarize the README for me, please. " * 12, "Which files hold what? " * 100])
async def test_a_new_task_is_no_compaction(box: Box, task: str) -> None:
    talk(box, MAIN, 6, "c1")
    first = box.turn(MAIN, [{"role": "user", "content": task}], talk="c2")
    assert kinds(await causes(box, first)) == [Kind.OTHER_CONVERSATION]


@pytest.mark.parametrize("named", [True, False])
async def test_a_rhythm_is_counted_in_turns_of_the_conversation(box: Box, named: bool) -> None:
    """A clock that is set anew every third turn, with a subagent's turns between, whose clock differs, too."""
    parent = None
    for n in range(1, 14):
        clock = f"10:{(n - 1) // 3 * 7:02}:00"
        relation = "next" if n > 1 else "first"
        parent = box.turn(MAIN, said(n), talk="c1", relation=relation, parent=parent, clock=clock)
        for k in range(1, 1 + n % 4):
            relation = "next" if k > 1 else "subagent" if named else "first"
            box.turn(SUB, said(k, f"find {n}"), talk=f"s{n}", clock=clock, relation=relation)
    assert parent is not None
    (cause,) = await causes(box, parent)
    assert (cause.kind, cause.seen) == (
        Kind.VOLATILE_TEXT, "4 of the last 12 turns of this agent (33 %), every 3 turns",
    )  # fmt: skip


async def test_a_subagent_has_a_count_of_its_own(box: Box) -> None:
    """It has the head of its agent, and is known by its relation alone."""
    talk(box, MAIN, 5, "c1")
    parent = None
    for n in range(1, 5):
        relation = "next" if n > 1 else "subagent"
        clock = f"10:0{n}:00"
        parent = box.turn(MAIN, said(n, "a search"), talk="s1", relation=relation, parent=parent, clock=clock)
    assert parent is not None
    (cause,) = await causes(box, parent)
    assert cause.seen == "in each of the last 3 turns of this agent"
    after = box.turn(MAIN, said(6), talk="c1", relation="next", parent=5, clock="10:20:00")
    (once,) = await causes(box, after)
    assert (once.kind, once.seen) == (Kind.VOLATILE_TEXT, None), "the subagent's are not the conversation's"


async def test_what_differs_at_the_start_of_each_session_is_counted_in_sessions(box: Box) -> None:
    """The same task each time, and a clock that stands as long as its session."""
    seen = []
    for n, clock in enumerate(("10:00:00", "10:15:20", "10:15:20", "11:30:40", "12:45:50")):
        first = box.turn(MAIN, said(1), talk=f"c{n}", clock=clock)
        if n:
            found = [cause for cause in await causes(box, first) if cause.kind is Kind.VOLATILE_TEXT]
            seen.append(found[0].seen if found else "the same")
        box.turn(MAIN, said(3), talk=f"c{n}", clock=clock, relation="next", parent=first)
    assert seen == [
        None,
        "the same",
        "at the start of 2 of the last 3 sessions of this agent (67 %)",
        "at the start of 3 of the last 4 sessions of this agent (75 %)",
    ]


async def test_two_sessions_in_a_row(box: Box) -> None:
    for n in range(3):
        first = box.turn(MAIN, said(1), talk=f"c{n}", clock=f"1{n}:15:20")
        if n < 2:
            box.turn(MAIN, said(3), talk=f"c{n}", clock=f"1{n}:15:20", relation="next", parent=first)
    clock = next(cause for cause in await causes(box, first) if cause.kind is Kind.VOLATILE_TEXT)
    assert clock.seen == "in each of the last 2 sessions of this agent"


async def test_sessions_of_one_question_each(box: Box) -> None:
    for n in range(4):
        first = box.turn(MAIN, said(1, f"matter {n}"), talk=f"c{n}", clock=f"1{n}:15:20")
    clock = next(cause for cause in await causes(box, first) if cause.kind is Kind.VOLATILE_TEXT)
    assert clock.seen == "in each of the last 3 sessions of this agent"


async def test_a_conversation_that_began_long_ago_is_no_new_session(box: Box) -> None:
    """Of two that go on side by side only the last turns are looked at; the clock of one was set anew once."""
    last = talk(box, MAIN, 3, "old")
    for n in range(70):
        about = [{"role": "user", "content": "\n".join(OTHER)}]
        box.turn(MAIN, about, talk="c1", relation="next" if n else "first", clock="10:30:00")
    box.turn(MAIN, said(4), talk="old", relation="next", parent=last)
    for n in range(2):
        first = box.turn(MAIN, said(1, f"matter {n}"), talk=f"new {n}", clock=f"1{n}:45:00")
    clock = next(cause for cause in await causes(box, first) if cause.kind is Kind.VOLATILE_TEXT)
    assert clock.seen == "in each of the last 2 sessions of this agent"


async def test_the_verdict_on_a_compaction_that_no_hint_ties(box: Box) -> None:
    summary = [{"role": "user", "content": SUMMARY[0]["content"].replace("odd parts. ", "odd parts. " * 20)}]
    talk(box, MAIN, 40, "b1", upstream="elsewhere")
    cases = box.book()
    alike = (await cases.diff(cases.turn(box.turn(MAIN, summary, talk="b2", upstream="elsewhere")))).diff.tokens
    talk(box, MAIN, 40, "c1")
    cached = alike.reusable
    first = box.turn(MAIN, summary, talk="c2", prompt_tokens=alike.new, cached_tokens=cached, completion_tokens=9)
    made = await cases.why(cases.turn(first))
    assert made.diff is not None
    assert (made.verdict, made.reason) == (Verdict.PROMPT_DIVERGED, "compaction")
    assert "its history was compacted, by design" in made.sentence
    assert [(cause.kind, cause.who) for cause in made.diff.causes] == [(Kind.COMPACTION, Who.NOBODY)]
