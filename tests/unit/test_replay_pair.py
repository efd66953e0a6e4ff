"""Two captured turns as a replay sends them: the causes are those that `why` names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from captured_turns import FULL
from msgspec.structs import replace
from triage_server import WordServer

from kvtop.capture.api.routes import read_request
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Record, Route, Source, TurnState
from kvtop.errors import UsageError
from kvtop.triage.casebook import Casebook, Known
from kvtop.triage.engine import Engine
from kvtop.triage.kinds import Kind
from kvtop.triage.replay_pair import kind_of, of_turns

A, B = "You write code. " * 40 + "Mode: plan.", "You write code. " * 40 + "Mode: act."
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "first": {"type": "integer"}}}
TURNED = SCHEMA | {"properties": dict(reversed(SCHEMA["properties"].items()))}  # type: ignore[attr-defined]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "turns.db", write=True) as made:
        yield made


def put(store: Store, system: str, said: int, parent: int | None = None, *, schema: object = SCHEMA) -> int:
    """A turn with so many messages behind its system prompt."""
    messages = [{"role": "system", "content": system}]
    messages += [{"role": "assistant" if i % 2 else "user", "content": f"message {i} " * 20} for i in range(said)]
    tools = [{"type": "function", "function": {"name": "read", "parameters": schema}}]
    body = json.dumps({"model": "q", "messages": messages, "tools": tools}).encode()
    at = FULL.started_at + 60 * said
    turn = replace(
        FULL, source=Source.TAP, state=TurnState.DONE, record=Record.COMPLETE, error=None, model="q",
        route=Route.CHAT, prompt_tokens=None, cached_tokens=None, started_at=at, sent_at=at, first_token_at=at + 1,
        ended_at=at + 5, conversation="c1", parent=parent, relation="next" if parent else "first", samples=[],
        prompt_unproven="", outline=read_request("POST", "/v1/chat/completions", [], body).outline,
    )  # fmt: skip
    return store.begin(turn, body)


def cases(store: Store) -> Casebook:
    return Casebook(store, WordServer(), Known(Engine(block=16)))


async def test_a_kind_that_only_the_conversation_tells_is_repaired(store: Store) -> None:
    """A, B, A: the last pair alone is an edited text."""
    ids: list[int] = []
    for n, system in enumerate((A, B, A)):
        ids.append(put(store, system, 2 * n + 1, ids[-1] if ids else None))
    book = cases(store)
    new, old = book.turn(ids[2]), book.turn(ids[1])
    why = await book.why(new)
    assert why.diff is not None
    pair = await of_turns(book, new, old, [Kind.SYSTEM_FLAPS])
    assert pair.kinds == (Kind.SYSTEM_FLAPS,)
    assert pair.repaired is not None and pair.repaired.says == "what comes and goes in the newest message"
    first, second = (made["messages"][0]["content"] for made in (pair.repaired.old, pair.repaired.new))
    assert first == second and "Mode" not in first
    assert (pair.old, pair.new) == (f"turn {ids[1]}", f"turn {ids[2]}")


async def test_two_kinds_one_after_the_other(store: Store) -> None:
    ids: list[int] = []
    for n, (system, schema) in enumerate(((A, SCHEMA), (B, SCHEMA), (A, TURNED))):
        ids.append(put(store, system, 2 * n + 1, ids[-1] if ids else None, schema=schema))
    book = cases(store)
    for kinds in ([Kind.TOOL_KEY_ORDER, Kind.SYSTEM_FLAPS], [Kind.SYSTEM_FLAPS, Kind.TOOL_KEY_ORDER]):
        pair = await of_turns(book, book.turn(ids[2]), book.turn(ids[1]), kinds)
        assert pair.repaired is not None
        old, new = pair.repaired.old, pair.repaired.new
        assert json.dumps(old["tools"]) == json.dumps(new["tools"])
        assert old["messages"][0] == new["messages"][0]
        assert " and " in pair.repaired.says


async def test_a_kind_that_is_none_of_them_is_refused_with_those_that_are(store: Store) -> None:
    first = put(store, A, 1)
    second = put(store, A, 3, first, schema=TURNED)
    book = cases(store)
    with pytest.raises(UsageError, match="reminder_moved is no cause of this pair") as refused:
        await of_turns(book, book.turn(second), None, [Kind.REMINDER_MOVED])
    assert "tool_key_order" in str(refused.value.fix)
    with pytest.raises(UsageError, match="no kind of cause"):
        kind_of("no_such_kind")


async def test_the_turn_that_it_went_on_from_is_known(store: Store) -> None:
    first = put(store, A, 1)
    second = put(store, A, 3, first)
    third = put(store, A, 5, second)
    book = cases(store)
    new = book.turn(third)
    beside = await of_turns(book, new, book.turn(first))
    assert beside.live.went_on_from == second and (beside.live.left_tokens or 0) > 0
    follows = await of_turns(book, new)
    assert (follows.live.went_on_from, follows.old) == (None, f"turn {second}")
    backwards = await of_turns(book, book.turn(first), new)
    assert backwards.live.cached_tokens is None and backwards.live.went_on_from is None
