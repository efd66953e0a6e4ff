"""The cards of this machine that the vLLM of a container sees."""

from __future__ import annotations

import pytest
from check_box import card, facts, profile

from kvtop.profiles import cards
from kvtop.profiles.check import sizes
from kvtop.profiles.launch import environment, launch
from kvtop.profiles.running.setup import setup


@pytest.mark.parametrize(
    ("given", "visible", "seen"),
    [
        ([], "", []),
        ([], "1,0", ["1", "0"]),
        (["all"], "", ["all"]),
        (["all"], "1", ["1"]),
        (["3", "2"], "", ["3", "2"]),
        (["3", "2"], "0", ["2"]),
        (["3", "2"], "1,7", ["3"]),
        (["GPU-a", "GPU-b"], "1", ["GPU-b"]),
        (["0", "1"], "GPU-b", ["GPU-b"]),
        (["1"], "none", ["1"]),
    ],
)
def test_cards_are_counted_anew_in_a_container(given: list[str], visible: str, seen: list[str]) -> None:
    assert cards.seen(given, visible) == seen


@pytest.mark.parametrize(("gpus", "visible", "used"), [(["all"], "1", 1), (["1", "2"], "1", 2), (["2"], "", 2)])
def test_check_looks_at_the_cards_that_a_container_uses(gpus: list[str], visible: str, used: int) -> None:
    env = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    here = tuple(card(index) for index in range(3))
    known = facts("m", like=profile(runner="docker", gpus=gpus), env=env, cards=here)
    assert sizes.cards(known) == (here[used],)


@pytest.mark.parametrize("runner", ["venv", "docker", "compose"])
@pytest.mark.parametrize(
    ("gpus", "visible", "ids", "of"),
    [
        ([], "", "", {"": []}),
        ([], "", "1, 0", {"": ["1", "0"]}),
        (["3", "2"], "", "", {"": ["3", "2"]}),
        (["3", "2"], "", "0", {"": ["3"], "docker": ["2"]}),
        (["3", "2"], "", "7", {"": ["3", "2"]}),
        (["3", "2"], "1,0", "0", {"venv": ["1"], "docker": ["3"], "compose": ["3"]}),
        ([], "5,4", "1", {"": ["4"]}),
        (["3"], "", "GPU-a", {"": ["GPU-a"]}),
        (["all"], "", "1", {"": ["1"]}),
        ([], "none", "", {"": []}),
    ],
)
def test_a_list_and_check_name_the_same_cards(
    runner: str, gpus: list[str], visible: str, ids: str, of: dict[str, list[str]]
) -> None:
    expected = of.get(runner, of.get("", []))
    assert cards.taken(runner, gpus, visible, ids) == expected
    made = profile(
        runner=runner,
        gpus=gpus,
        env={"set": {"CUDA_VISIBLE_DEVICES": visible} if visible else {}},
        serve={"args": ["--device-ids", ids] if ids else []},
        docker={"image": "i"},
        compose={"service": "s"},
    )
    run = launch("p", made)
    assert setup(made, run).gpus == tuple(expected)
    known = facts(f"m --device-ids '{ids}'" if ids else "m", like=made, env=environment(made))
    if visible != "none":
        assert sizes.selectors(known) == ([one for one in expected if one != "all"] or None)
    else:
        assert sizes.cards(known) == ()
