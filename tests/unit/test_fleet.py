"""Round-robin is suspected only where every sign of it is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtop.model import fleet
from kvtop.model.box import Cached, Config, EngineWindow, Latencies, Latency, Quantile, Requests, Window
from kvtop.model.fleet import Replica
from kvtop.model.view import ServerView
from kvtop.readings import Model, State

LIMIT = 0.60
"""share_poor of a config.toml that does not set it."""

POOR = Replica("qwen", True, 40, 40 * 60_000, 40 * 18_000, 16)


def suspicion(replicas: list[Replica]) -> str:
    return fleet.suspicion(replicas, LIMIT)


def test_even_load_with_low_shares_everywhere_is_called_out() -> None:
    said = suspicion([POOR, replace(POOR, turns=41), replace(POOR, turns=38, cached_tokens=40 * 12_600)])
    assert said.replace("\N{NO-BREAK SPACE}", " ") == (
        "3 replicas of qwen get the same load (n=40/41/38) and serve only 21 to 30 % from cache: "
        "looks like round-robin; keep a conversation on one replica"
    )


@pytest.mark.parametrize(
    ("why", "group"),
    [
        ("one server", [POOR]),
        ("one replica is well", [POOR, replace(POOR, cached_tokens=40 * 55_000)]),
        ("load is not even", [POOR, replace(POOR, turns=90, prompt_tokens=90 * 60_000, cached_tokens=90 * 18_000)]),
        ("too few requests", [replace(POOR, turns=6), replace(POOR, turns=6)]),
        ("prompts are short", [replace(POOR, prompt_tokens=40 * 900, cached_tokens=40 * 300)] * 2),
        ("the match unit is as large as the prompts", [replace(POOR, match_unit_tokens=20_000)] * 2),
        ("nothing repeats", [replace(POOR, cached_tokens=0)] * 2),
        ("another model", [POOR, replace(POOR, model="llama")]),
        ("the other one is down", [POOR, replace(POOR, up=False)]),
        ("no numbers", [replace(POOR, prompt_tokens=None, cached_tokens=None)] * 2),
        ("no name", [replace(POOR, model=None)] * 2),
    ],
)
def test_nobody_is_accused_without_every_sign(why: str, group: list[Replica]) -> None:
    assert suspicion(group) == "", why


def test_a_hostile_model_name_stays_a_name() -> None:
    said = suspicion([replace(POOR, model="a\x1b[31m" + "b" * 300)] * 2)
    assert "\x1b" not in said and len(said) < 220


def test_a_down_replica_does_not_hide_the_two_that_are_left() -> None:
    assert suspicion([POOR, POOR, replace(POOR, up=False)]).startswith("2 replicas")


def test_what_is_poor_is_what_the_user_calls_poor() -> None:
    well = replace(POOR, cached_tokens=40 * 45_000)
    assert well.share == 0.75 and suspicion([well, well]) == ""
    assert fleet.suspicion([well, well], 0.8).startswith("2 replicas")
    assert fleet.suspicion([POOR, POOR], 0.2) == ""


def engine(name: str) -> EngineWindow:
    return EngineWindow(
        engine=name,
        cached=Cached(40 * 60_000, 40 * 18_000, 0.3),
        latency=Latencies(ttft=Latency(40, 1.0, Quantile(0.9, 0.75, 1.0))),
        requests=Requests(running=1, waiting=2, kv_cache_usage_share=0.4),
        config=Config(match_unit_tokens=16),
    )


def test_lines_and_replicas_of_servers_and_engines() -> None:
    window = Window(State.UP, all=engine("0"), engines=(engine("0"), engine("1")))
    view = ServerView(
        "http://a:8000", "a", State.UP, last_good_at=90.0, models=(Model("qwen"),), window=window, hour=window
    )
    assert fleet.server_lines([view], 0, 100.0) == ()
    lines = fleet.server_lines([view, replace(view, url="http://b:8000", label="b")], 1, 100.0)
    assert [(x.key, x.label, x.selected, x.age_s, x.share, x.ttft_p50_s) for x in lines] == [
        ("http://a:8000", "a", False, 10.0, 0.3, 0.9),
        ("http://b:8000", "b", True, 10.0, 0.3, 0.9),
    ]
    assert suspicion(fleet.replicas([view, view])).startswith("2 replicas of qwen")
    assert suspicion(fleet.ranks(window, "qwen")).startswith("2 replicas of qwen")
    engines = fleet.engine_lines(window, State.UP, 0.5, "1")
    assert [(x.key, x.label, x.selected, x.waiting) for x in engines] == [
        ("0", "engine 0", False, 2),
        ("1", "engine 1", True, 2),
    ]
    assert fleet.engine_lines(replace(window, engines=()), State.UP, 0.5, None) == ()
    assert fleet.lines((), 0, 100.0) == () == fleet.lines([view], 0, 100.0)
    (one, two) = fleet.lines([replace(view, state_since=40.0, engines=engines)], 0, 100.0)
    assert (one.state_s, two.state_s, two.selected, two.share) == (60.0, 60.0, True, 0.3)


@pytest.mark.parametrize("state", [s for s in State if not s.good])
def test_a_server_that_is_not_well_has_no_figures_but_the_age_of_its_state(state: State) -> None:
    """What was read last is not what is: it was in this state for a shorter time than nothing was read."""
    window = Window(state, all=engine("0"), engines=(engine("0"), engine("1")))
    view = ServerView("http://a:8000", "a", state, last_good_at=10.0, state_since=30.0, window=window)
    lines = fleet.lines([view, view], 0, 100.0)
    engines = fleet.lines([replace(view, engines=fleet.engine_lines(window, state, 90.0, None))], 0, 100.0)
    for line in (*lines, *engines):
        figures = (line.share, line.running, line.waiting, line.ttft_p50_s, line.kv_cache_usage_share)
        assert figures == (None,) * 5 and (line.state_s, line.age_s) == (70.0, 90.0)
    assert len(lines) == len(engines) == 2
    assert fleet.lines([replace(view, state_since=None), view], 0, 100.0)[0].state_s is None
