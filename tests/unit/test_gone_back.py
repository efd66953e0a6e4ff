"""To which turn a conversation went back."""

from __future__ import annotations

from captured_turns import FULL
from msgspec.structs import replace

from kvtop.capture.turn import Captured, Part
from kvtop.triage.gone_back import named, said
from kvtop.triage.kinds import Kind
from kvtop.triage.result import Cause

BACK = Cause(Kind.ROLLED_BACK, "/messages/9", "messages[9]", "it went back", "nothing")
CLOCK = Cause(Kind.VOLATILE_TEXT, "/messages/0", "messages[0]", "a clock", "put it last")


def turn(id: int, *messages: str, conversation: str = "c1") -> Captured:
    parts = (
        Part("tool", 9, f"t{id}"),
        Part("system", 9, "s"),
        *(Part("message", 9, digest, "user") for digest in messages),
    )
    return replace(FULL, id=id, conversation=conversation, outline=parts)


def test_the_last_turn_whose_whole_prompt_it_begins_with() -> None:
    before = [turn(1, "a"), turn(2, "a", "b"), turn(3, "a", "b", "c"), turn(4, "a", "b", conversation="c4")]
    says = [cause.says for cause in named((CLOCK, BACK), turn(5, "a", "b", "x"), before)]
    assert says == ["a clock", "the conversation went back to turn 2, and on from there"]


def test_where_none_is_kept_it_is_not_guessed() -> None:
    assert named((BACK,), turn(5, "a", "x"), [turn(3, "a", "b"), turn(4, "b")]) == (BACK,)
    assert named((BACK,), turn(5, "a", "b", "c", "d", "x"), [turn(2, "a", "b")]) == (BACK,), "too long ago"
    assert named((CLOCK,), turn(5, "a"), [turn(3, "a")]) == (CLOCK,)


def test_it_is_told_as_what_costs_nothing() -> None:
    made = named((CLOCK, BACK), turn(5, "a", "b", "x"), [turn(2, "a", "b")])
    assert said(made) == [
        "the conversation went back to turn 2, and on from there: nothing of this prompt is lost by that"
    ]
    assert said([CLOCK]) == []
