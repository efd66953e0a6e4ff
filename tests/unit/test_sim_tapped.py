"""The box's own capture: every turn of its agents, with what the counters count, and bodies that fit."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from kvtop.capture.api import answer_text
from kvtop.capture.turn import TurnState
from kvtop.sim.prompt import parts_of
from kvtop.sim.scenarios import SCENARIOS
from kvtop.sim.tapped import SINCE_S, Tapped
from kvtop.sim.world import World

NOW = 1_795_953_600.0


def played(name: str, live_s: float = 0.0) -> tuple[World, Tapped]:
    tapped = Tapped()
    tapped.upstream = "http://127.0.0.1:1"
    world = World(SCENARIOS[name], 7, NOW, tapped)
    world.play_past()
    world.run(NOW + live_s)
    return world, tapped


@pytest.fixture(scope="module")
def mix() -> Tapped:
    return played("mix")[1]


def test_all_since_its_beginning_and_nothing_before(mix: Tapped) -> None:
    rows = mix.turns()
    assert mix.since == NOW - SINCE_S
    assert [row.id for row in rows] == list(range(mix.count(), 0, -1))
    assert all(NOW - SINCE_S <= row.started_at <= NOW for row in rows)
    assert {row.agent for row in rows} == {"Claude Code", "opencode", "pi", "qwen-code"}


def test_its_tokens_are_those_of_its_body(mix: Tapped) -> None:
    for row in mix.turns(last=12):
        body = mix.request_body(row.id)
        assert body is not None and len(body) == row.request_bytes
        if row.state is TurnState.DONE:
            assert row.prompt_tokens == sum(len(part.ids) for part in parts_of(json.loads(body)))
            assert row.cached_tokens is not None and 0 <= row.cached_tokens < row.prompt_tokens
            assert row.usage["prompt_tokens"] == row.prompt_tokens
            assert row.ttft_s is not None and row.duration_s is not None and 0 < row.ttft_s < row.duration_s


def test_a_turn_in_full_has_its_outline_and_its_answer(mix: Tapped) -> None:
    row = next(row for row in mix.turns() if row.agent == "opencode" and row.state is TurnState.DONE)
    full = mix.turn(row.id)
    assert full is not None and [part.kind for part in full.outline[:15]] == ["tool"] * 14 + ["system"]
    answer = mix.response_body(row.id)
    assert answer is not None and len(answer) == row.response_bytes
    (piece,) = answer_text.pieces(row.route, answer)
    assert piece.text.startswith("I will look at the next file.")


def test_a_conversation_hangs_together(mix: Tapped) -> None:
    rows = [row for row in mix.turns() if row.agent == "opencode"][::-1]
    assert len({row.conversation for row in rows}) == 1 and rows[0].conversation == f"c{rows[0].id}"
    assert rows[0].relation == "first" and rows[0].parent is None
    assert all(later.parent == earlier.id for earlier, later in pairwise(rows))
    assert mix.turns(conversation=rows[0].conversation, last=3) == rows[:-4:-1]


def test_a_restart_cuts_what_was_under_way_and_it_is_asked_again() -> None:
    _, tapped = played("restart", 60.0)
    rows = tapped.turns()[::-1]
    lost = [row for row in rows if row.state in (TurnState.CUT, TurnState.FAILED)]
    assert lost and all(row.ended_at is not None and row.prompt_tokens is None for row in lost)
    again = [row for row in rows if row.parent == lost[0].id]
    assert [row.relation for row in again] == ["retry"]
    assert again[0].request_bytes == lost[0].request_bytes


def test_every_change_is_another_revision() -> None:
    world, tapped = played("mix")
    seen = {tapped.revision()}
    at, told, before = NOW, 1, tapped.turns()
    while at < NOW + 20:
        at += 0.25
        world.run(at)
        rows = tapped.turns()
        told += rows != before
        before = rows
        seen.add(tapped.revision())
    assert len(seen) == told > 3
