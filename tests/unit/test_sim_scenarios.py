"""Each play shows what it is for, the same way every time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvtop.model.shown_turn import Turn
from kvtop.model.turns import TurnTracker
from kvtop.model.window import between, since_start
from kvtop.readings import Scrape, State
from kvtop.sim.scenarios import DEFAULT, SCENARIOS
from kvtop.sim.world import World

NOW = 1_795_953_600.0


def play(name: str, live_s: float, seed: int = 7) -> tuple[World, list[Turn]]:
    """The past and `live_s` seconds of a play; its turns as the counters tell them."""
    world = World(SCENARIOS[name], seed, NOW)
    world.play_past()
    seen: list[Scrape] = list(world.past)
    at = NOW
    while at < NOW + live_s:
        at += 0.5
        world.run(at)
        if world.up:
            world.engine.gauges()
            seen.append(world.engine.metrics.scrape(at))
    tracker = TurnTracker()
    turns = [turn for one in seen for turn in tracker.add(one)]
    return world, turns


def last(world: World) -> Scrape:
    world.engine.gauges()
    return world.engine.metrics.scrape(world.now)


@pytest.fixture(scope="module")
def mix() -> tuple[World, list[Turn]]:
    return play("mix", 330.0)


def test_default_has_half_an_hour_behind_it(mix: tuple[World, list[Turn]]) -> None:
    world, _ = mix
    life = since_start(world.past[-1]).all
    assert world.past[-1].at == NOW
    assert NOW - world.started_at > 1_800
    assert life.requests.finished.total is not None and life.requests.finished.total > 100
    assert life.cached.share is not None and 0.8 < life.cached.share < 0.97
    assert life.offload.store_bytes_total and life.offload.store_bytes_total > 10e9


def test_default_shows_one_slow_turn_early_and_is_well_for_long(mix: tuple[World, list[Turn]]) -> None:
    _, turns = mix
    slow = [t for t in turns if t.ttft_s and t.ttft_s >= 10.0 and t.ended_at and t.ended_at > NOW]
    assert len(slow) == 1
    (turn,) = slow
    assert turn.ended_at is not None and 2.0 < turn.ended_at - NOW < 20.0
    assert turn.cached_share is not None and turn.cached_share < 0.1
    assert turn.ttft_s is not None and 60.0 < turn.ttft_s < 110.0
    assert turn.new_tokens == pytest.approx(turn.ttft_s * SCENARIOS["mix"].spec.prefill_tokens_per_s, rel=0.15)


def test_default_moves_every_few_seconds(mix: tuple[World, list[Turn]]) -> None:
    _, turns = mix
    ends = [t.ended_at for t in turns if t.ended_at and t.ended_at > NOW + 20]
    gaps = [b - a for a, b in pairwise(ends)]
    assert max(gaps) < 40.0
    assert sum(gaps) / len(gaps) < 10.0


@pytest.mark.parametrize("seed", range(6))
def test_default_has_its_incident_under_other_seeds(seed: int) -> None:
    _, turns = play("mix", 40.0, seed)
    assert any(t.ttft_s and t.ttft_s > 55.0 and t.ended_at and NOW < t.ended_at < NOW + 40.0 for t in turns)


def test_same_seed_same_play_and_another_seed_another() -> None:
    a, b, c = (World(SCENARIOS["healthy"], seed, NOW) for seed in (3, 3, 4))
    for world in (a, b, c):
        world.play_past()
    assert [s.values for s in a.past] == [s.values for s in b.past]
    assert a.past[-1].values != c.past[-1].values


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_play_overruns_model_or_pool(name: str) -> None:
    world, turns = play(name, 60.0)
    spec = world.scenario.spec
    assert spec.blocks * spec.block_tokens >= spec.max_model_len
    assert all((t.prompt_tokens or 0) + (t.completion_tokens or 0) <= spec.max_model_len for t in turns)
    assert 0 <= world.engine.cache.usage <= 1
    assert len(turns) > 10


def test_healthy_appends() -> None:
    _, turns = play("healthy", 60.0)
    compacted = [t for t in turns[10:] if (t.cached_share or 0) <= 0.85]
    assert len(compacted) <= 4


def test_shuffled_keys_cost_a_whole_context() -> None:
    _, turns = play("shuffled", 60.0)
    lost = [t for t in turns[3:] if (t.cached_share or 0) < 0.3]
    assert [t for t in lost if t.ended_at and t.ended_at > NOW]
    assert 1 <= len(lost) <= 3


def test_a_clock_leaves_nothing() -> None:
    world, _ = play("clock", 30.0)
    assert since_start(last(world)).all.cached.cached_tokens == 0


def test_eviction_is_the_engine_losing_an_unchanged_prompt() -> None:
    world, turns = play("eviction", 60.0)
    assert world.engine.cache.stats.evicted > 1_000
    assert [t for t in turns[4:] if (t.cached_share or 1) < 0.6]


def test_tier_that_is_never_read() -> None:
    world, _ = play("tier-unread", 60.0)
    life = since_start(last(world)).all.offload
    assert life.store_bytes_total and life.store_bytes_total > 10e9
    assert not life.load_bytes_total
    assert not life.loads_total


def test_tier_that_restores() -> None:
    world, turns = play("tier-restores", 60.0)
    life = since_start(last(world)).all
    assert life.offload.load_bytes_total and life.offload.load_bytes_total > 10e9
    assert life.cached.by_source.host and life.cached.by_source.host > 100_000
    assert sum((t.cached_share or 0) > 0.9 for t in turns[-20:]) >= 15


def test_restart_begins_again_and_refuses_for_a_while() -> None:
    world = World(SCENARIOS["restart"], 7, NOW)
    world.play_past()
    world.run(NOW + 19)
    before = last(world)
    world.run(NOW + 23)
    assert not world.up
    world.run(NOW + 150)
    assert world.up and world.restarts == 1
    window = between(before, last(world), 131.0)
    assert window.state is State.RESET
    assert window.started_at is not None and NOW + 20 < window.started_at < NOW + 27
    assert window.all.cached.prompt_tokens


def test_burst_queues() -> None:
    world = World(SCENARIOS["burst"], 7, NOW)
    world.play_past()
    waiting = []
    for second in range(130):
        world.run(NOW + second)
        waiting.append(since_start(last(world)).all.requests.waiting or 0)
    assert max(waiting) >= 2
    assert 0 in waiting


def test_default_is_one_of_them() -> None:
    assert DEFAULT in SCENARIOS
    assert all(one.words and one.past_s >= 600 for one in SCENARIOS.values())
