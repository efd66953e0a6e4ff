"""Labelled pairs of requests: what the judge makes of them, and that they and their scorer are sound."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import triage_score
from kvtop.capture.turn import Route
from kvtop.triage.kinds import Kind, Varies
from kvtop.triage.result import Cause, Diff, Tokens
from triage_score import APPEND_ONLY, Expected, Outcome, Pair, Score, compare_bodies

FLOORS: dict[str, dict[str, int]] = {
    "open": {"right": 194, "accused": 0, "innocent_accused": 0},
    "open2": {"right": 14, "accused": 0, "innocent_accused": 0},
    "held": {"right": 181, "accused": 0, "innocent_accused": 0},
    "held2": {"right": 148, "accused": 0, "innocent_accused": 0},
    "talks": {"right": 253, "accused": 0, "innocent_accused": 0},
    "talks-held": {"right": 269, "accused": 0, "innocent_accused": 0},
    "talks-held2": {"right": 97, "accused": 0, "innocent_accused": 0},
}
"""At least so many pairs `right`, at most so many `accused`, and of the pairs that only append at most so many
`innocent_accused`. What each held set scored before anybody had looked at it stands in docs/triage.md."""

NOT_OF_TWO_BODIES = frozenset(
    {
        Kind.TOOLS_NOT_RENDERED,
        Kind.RENDER_NONDETERMINISTIC,
        Kind.SYSTEM_FLAPS,
        Kind.REASONING_DROPPED_BY_PROXY,
        Kind.REASONING_DROPPED_BY_TEMPLATE,
        Kind.REASONING_FIELD_IGNORED,
        Kind.EMPTY_THINK,
        Kind.SYSTEM_TURN_HOISTED,
        Kind.SERVER_DATE,
    }
)
"""They need a server, or a third turn."""


def diff(*causes: Cause) -> Diff:
    return Diff("old", "new", "text", False, Tokens(), causes)


def cause(kind: Kind, pointer: str = "", *values: Varies) -> Cause:
    return Cause(kind, pointer, "", "", "", values=values)


@functools.cache
def pairs(name: str) -> tuple[Pair, ...]:
    if name.startswith("talks"):
        return tuple(p for talk in triage_score.load_talks(name) for p in triage_score.pairs_of(talk))
    return tuple(triage_score.load(name))


# What the judge makes of them.


def test_every_given_pair_is_judged_right() -> None:
    assert list(triage_score.wrong(triage_score.score(pairs("given"), compare_bodies))) == []


@pytest.mark.parametrize("name", list(FLOORS))
def test_the_judge_keeps_its_floor(name: str) -> None:
    floor = FLOORS[name]
    scored = triage_score.score(pairs(name), compare_bodies)
    assert scored.count(Outcome.RIGHT) >= floor["right"]
    assert scored.count(Outcome.ACCUSED) <= floor["accused"]
    assert scored.innocent_accused <= floor["innocent_accused"]


# That they are sound.


@pytest.mark.parametrize("name", ["given", "open", "open2", "held", "held2"])
def test_names_are_unique_and_bodies_are_requests(name: str) -> None:
    assert max(Counter(pair.name for pair in pairs(name)).values()) == 1
    for pair in pairs(name):
        assert isinstance(json.loads(pair.old), dict), pair.name
        assert isinstance(json.loads(pair.new), dict), pair.name


def test_no_pair_is_open_and_held() -> None:
    assert not {p.name for p in pairs("open")} & {p.name for p in pairs("held")}
    assert not {p.new for p in pairs("open")} & {p.new for p in pairs("held")}


@pytest.mark.parametrize("name", [*FLOORS])
def test_places_exist_in_a_body(name: str) -> None:
    for pair in pairs(name):
        bodies = json.loads(pair.old), json.loads(pair.new)
        for choice in pair.wanted:
            for expected in choice:
                if expected.pointer:
                    assert any(holds(body, expected.pointer) for body in bodies), (pair.name, expected)


def holds(body: Any, pointer: str) -> bool:
    for part in pointer.split("/")[1:]:
        try:
            body = body[int(part) if isinstance(body, list) else part]
        except (KeyError, IndexError, TypeError, ValueError):
            return False
    return True


def test_each_kind_that_two_bodies_can_show_is_in_the_open_set() -> None:
    seen = {e.kind for p in pairs("open") for choice in p.wanted for e in choice}
    assert seen == set(Kind) - NOT_OF_TWO_BODIES


def test_a_third_only_appends() -> None:
    labels = Counter(pair.label == APPEND_ONLY for pair in pairs("open"))
    assert labels[True] * 3 >= labels.total()


def test_turns_of_a_talk_go_forward_and_name_what_comes_back() -> None:
    talks = triage_score.load_talks()
    assert sum(not talk.expect for talk in talks) >= 2
    for talk in talks:
        times = [at for at, _ in talk.turns]
        assert times == sorted(set(times)), talk.name
        for recurring in talk.expect:
            assert list(recurring.turns) == sorted(set(recurring.turns)), talk.name
            assert 0 < recurring.turns[0] <= recurring.turns[-1] < len(talk.turns), talk.name


# That the scorer is.


def told(pair: Pair) -> tuple[Cause, ...]:
    return tuple(cause(e.kind, e.pointer or "", *(e.values or ())) for e in pair.wanted[0])


def scored_as(answer: Callable[[Pair], tuple[Cause, ...]]) -> Score:
    by_body = {(p.old, p.new): p for p in pairs("open")}
    return triage_score.score(pairs("open"), lambda old, new, route: diff(*answer(by_body[old, new])))


def test_who_knows_all_is_right_everywhere() -> None:
    scored = scored_as(told)
    assert scored.count(Outcome.RIGHT) == scored.pairs == len(pairs("open"))
    right, known = scored.placed
    assert right == known > 100
    assert list(triage_score.wrong(scored)) == []


def test_who_names_nothing_is_right_only_where_nothing_is() -> None:
    scored = scored_as(lambda pair: ())
    assert scored.count(Outcome.RIGHT) == scored.innocent
    assert scored.count(Outcome.MISSED) == scored.pairs - scored.innocent
    assert scored.count(Outcome.ACCUSED) == 0


def test_who_only_says_that_a_text_was_edited_misses_or_accuses() -> None:
    scored = scored_as(lambda pair: (cause(Kind.TEXT_EDITED),))
    alone = sum(any([e.kind for e in choice] == [Kind.TEXT_EDITED] for choice in p.wanted) for p in pairs("open"))
    assert scored.count(Outcome.RIGHT) == alone > 0
    assert scored.innocent_accused == scored.innocent


def test_the_table_has_a_line_for_each_kind_and_adds_up() -> None:
    scored = scored_as(lambda pair: ())
    lines = triage_score.table(scored).splitlines()
    cells = {line.split("|")[1].strip(" `*"): [int(x) for x in line.split("|")[2:7]] for line in lines[2:-2]}
    totals = cells.pop("all")
    assert set(cells) == {pair.label for pair in pairs("open")}
    assert [sum(column) for column in zip(*cells.values(), strict=True)] == totals
    assert totals[0] == sum(totals[1:]) == scored.pairs


TWO = Pair(
    "two causes",
    Route.CHAT,
    b"{}",
    b"{}",
    wanted=(
        (
            Expected(Kind.TOOL_ADDED, (), "/tools/2"),
            Expected(Kind.VOLATILE_TEXT, (Varies.DATE_TIME, Varies.UUID), "/messages/0/content"),
        ),
        (Expected(Kind.TOOLS_CHANGED),),
    ),
    may=frozenset({Kind.OTHER_CONVERSATION}),
)
ADDED = cause(Kind.TOOL_ADDED, "/tools/2")
BOTH = cause(Kind.VOLATILE_TEXT, "/messages/0", Varies.DATE_TIME, Varies.UUID)


@pytest.mark.parametrize(
    ("named", "outcome"),
    [
        ((ADDED, BOTH), Outcome.RIGHT),
        ((cause(Kind.TOOLS_CHANGED),), Outcome.RIGHT),
        ((ADDED, BOTH, cause(Kind.OTHER_CONVERSATION)), Outcome.RIGHT),
        ((ADDED, cause(Kind.VOLATILE_TEXT, "", Varies.UUID), cause(Kind.VOLATILE_TEXT, "", Varies.DATE_TIME)), "right"),
        ((BOTH, ADDED), Outcome.PARTLY),
        ((ADDED,), Outcome.PARTLY),
        ((ADDED, cause(Kind.VOLATILE_TEXT, "", Varies.UUID)), Outcome.PARTLY),
        ((), Outcome.MISSED),
        ((cause(Kind.TEXT_EDITED),), Outcome.MISSED),
        ((ADDED, BOTH, cause(Kind.TEXT_EDITED)), Outcome.ACCUSED),
        ((cause(Kind.TOOL_KEY_ORDER),), Outcome.ACCUSED),
    ],
)
def test_outcomes(named: tuple[Cause, ...], outcome: Outcome) -> None:
    assert triage_score.judged(TWO, named).outcome == outcome


@pytest.mark.parametrize(
    ("named", "placed"),
    [
        ((ADDED, BOTH), True),
        ((cause(Kind.TOOL_ADDED, "/tools/2/function"),), True),
        ((cause(Kind.TOOL_ADDED, "/tools/20"),), False),
        ((cause(Kind.TEXT_EDITED, "/tools/2"),), None),
    ],
)
def test_places(named: tuple[Cause, ...], placed: bool | None) -> None:
    assert triage_score.judged(TWO, named).placed is placed
