"""Which turn a turn is compared with."""

from __future__ import annotations

from msgspec.structs import replace

from kvtop.capture.turn import Captured, Part, Route, TurnState
from kvtop.triage.baseline import (
    LOOKED_AT,
    admitted,
    before,
    by_ids,
    by_outlines,
    common_head,
    earlier,
    older,
    was_read,
)
from kvtop.triage.ids import pack


def turn(id: int, at: float = 0.0, **more: object) -> Captured:
    """One that was read a second after it came, and ended two seconds later."""
    at = at or id * 10.0
    made = Captured(
        id=id, upstream="u", model="m", route=Route.CHAT, state=TurnState.DONE, stream=True, started_at=at, sent_at=at,
        first_token_at=at + 1, ended_at=at + 3, conversation="c1",
    )  # fmt: skip
    return replace(made, **more)


def part(digest: str, size: int = 100, kind: str = "message", role: str = "user") -> Part:
    return Part(kind, size, digest, role=role)


HEAD = [part("tools", 4_000, "tool", ""), part("system", 2_000, "system", "")]


def test_not_the_one_before_it_but_the_one_that_shares_the_longest_beginning() -> None:
    talk = turn(1, outline=[*HEAD, part("a")])
    title = turn(2, conversation="c2", outline=[part("title"), part("a")])
    new = turn(3, outline=[*HEAD, part("a"), part("b")])
    found = by_outlines(new, [title, talk])
    assert found is not None and found.id == 1
    ids = {1: pack([1, 2, 3]), 2: pack([7, 8])}
    found = by_ids(new, pack([1, 2, 3, 4]), ids, [title, talk])
    assert found is not None and found.id == 1


def test_of_equals_the_same_conversation_and_then_the_newest() -> None:
    ids = {1: pack([1, 2, 3]), 2: pack([1, 2, 3, 4]), 3: pack([1, 2, 3, 4]), 4: pack([1, 2, 3, 4, 5])}
    turns = [turn(1), turn(2), turn(3, conversation="c2"), turn(4, conversation="c3", model="other")]
    new = turn(9, outline=HEAD)
    found = by_ids(new, pack([1, 2, 3, 4, 5]), ids, turns)
    assert found is not None and found.id == 2
    found = by_ids(new, pack([1, 2, 3, 9]), ids, turns)
    assert found is not None and found.id == 2, "the newest of its own"
    found = by_ids(new, pack([1, 2, 3, 4, 5]), ids, [turns[0], turns[2]], 4)
    assert found is not None and found.id == 3, "a whole unit more"
    found = by_ids(new, pack([1, 2, 3, 4, 5]), ids, [turns[0], turns[2]], 16)
    assert found is not None and found.id == 1, "less than a unit more decides nothing"


def test_of_other_conversations_the_longest_beginning_is_compared_also_within_a_unit() -> None:
    ids = {1: pack([1, 2, 3, 4, 5]), 2: pack([1, 2, 3, 4]), 3: pack([1, 2, 3])}
    turns = [turn(1, conversation="c7"), turn(2, conversation="c8"), turn(3)]
    new = turn(9, outline=HEAD, conversation="c9")
    found = by_ids(new, pack([1, 2, 3, 4, 5, 6]), ids, turns, 16)
    assert found is not None and found.id == 1
    own = by_ids(replace(new, conversation="c1"), pack([1, 2, 3, 4, 5, 6]), ids, turns, 16)
    assert own is not None and own.id == 3, "its own comes before what others share within a unit"


def test_only_the_same_model_and_upstream_before_it() -> None:
    new = turn(100)
    others = [
        turn(1, model="m-lora"),
        turn(2, upstream="v"),
        turn(3, route=Route.EMBEDDINGS),
        turn(100),
        turn(101),
    ]
    assert before(new, others) == []
    many = [turn(i) for i in range(1, 60)]
    assert [one.id for one in before(new, reversed(many), LOOKED_AT)] == list(range(60 - LOOKED_AT, 60))
    assert [one.id for one in before(new, reversed(many))] == list(range(1, 60))
    assert by_ids(new, pack([1]), {1: pack([2])}, [turn(1)]) is None
    assert by_outlines(new, [turn(1)]) is None


def test_older_turns_of_its_agent_that_begin_the_most_like_it() -> None:
    new = turn(100, agent="pi", outline=[part("a"), part("b"), part("c")])
    old = {
        one.id: one
        for one in (
            turn(1, agent="pi", outline=[part("a"), part("b")]),
            turn(2, agent="pi", outline=[part("a")]),
            turn(3, agent="pi"),
            turn(4, agent="pi", outline=[part("x")]),
            turn(5, agent="pi", outline=[part("a"), part("b"), part("d")]),
            turn(6, agent="vibe", outline=new.outline),
            turn(7, agent="pi", model="m-lora", outline=new.outline),
            turn(8, agent="pi", outline=new.outline),
        )
    }
    rows = [replace(one, outline=[]) for one in old.values()]
    assert [one.id for one in older(new, rows, [rows[7]], old.get)] == [5, 1, 2]
    many = {i: turn(i, agent="pi", outline=new.outline) for i in range(1, 99)}
    assert [one.id for one in older(new, many.values(), [many[98]], many.get)] == [97, 96, 95, 94]


def test_one_that_was_never_read_is_compared_with_and_counts_for_nothing() -> None:
    ids = {1: pack([1, 2]), 2: pack([1, 2, 3])}
    new, old = turn(3), turn(1)
    for gone in (
        turn(2, state=TurnState.ABORTED, first_token_at=None),
        turn(2, state=TurnState.FAILED, first_token_at=None, stream=None),
        turn(2, state=TurnState.IN_FLIGHT, first_token_at=None, ended_at=None),
        turn(2, state=None, first_token_at=None, ended_at=None),
        turn(2, first_token_at=31.0, ended_at=40.0),  # it was still being read
    ):
        found = by_ids(new, pack([1, 2, 3, 4]), ids, [old, gone])
        assert found is not None and found.id == 2
        assert earlier(gone, ids[2], new).whole is False


def test_whether_a_prompt_was_read() -> None:
    assert was_read(turn(1)) is True
    assert (was_read(turn(1), 10.5), was_read(turn(1), 11.0)) == (False, True)
    whole = turn(1, first_token_at=None, stream=False)
    assert (was_read(whole), was_read(whole, 12.0), was_read(whole, 13.0)) == (True, None, True)
    assert was_read(turn(1, state=TurnState.ABORTED)) is True, "it was writing"
    assert was_read(replace(whole, state=TurnState.ABORTED)) is None
    assert was_read(replace(whole, state=TurnState.CUT, completion_tokens=4)) is True


def test_the_common_head_of_two_prompts() -> None:
    other = Part("other", 50, "format")
    assert common_head([], HEAD) == 0
    assert common_head([other, *HEAD], HEAD) == 6_000, "what is no prompt stands anywhere"
    assert common_head([*HEAD, part("a"), part("b")], [*HEAD, part("x"), part("b")]) == 6_000
    assert common_head([part("a")], [part("a", role="assistant")]) == 0


def test_where_the_system_prompt_is_printed_before_the_tools() -> None:
    """Turned keys of a tool behind an equal system prompt, and equal tools behind another clock: both may be longer."""
    turned = [part("turned", 4_000, "tool", ""), HEAD[1]]
    clock = [HEAD[0], part("other clock", 2_000, "system", "")]
    assert common_head(HEAD, turned) == 2_000
    assert common_head(HEAD, clock) == 4_000
    in_chat = [part("tools", 4_000, "tool", ""), part("system", 2_000, "message", "system")]
    assert common_head([*in_chat, part("a")], [turned[0], in_chat[1], part("a")]) == 2_000


def test_an_old_turn_for_the_law() -> None:
    new = turn(9)
    done = turn(1, completion_tokens=7, cached_tokens=3)
    one = earlier(done, pack([1]), new, pack([2, 3]))
    assert (one.key, one.reply, one.reply_tokens, one.cached, one.whole) == (1, pack([2, 3]), 7, 3, True)
    writes = earlier(turn(1, ended_at=200.0, completion_tokens=7), pack([1]), new, pack([2, 3]))
    assert (writes.whole, writes.reply, writes.reply_tokens) == (True, None, None), "how far it has come is not known"


def test_the_order_of_admission() -> None:
    slow_upload = turn(1, sent_at=50.0)
    assert [one.id for one in admitted([slow_upload, turn(2), turn(3)])] == [2, 3, 1]
