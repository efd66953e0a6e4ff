"""The cards of this machine that the vLLM of a container sees."""

from __future__ import annotations

import pytest
from check_box import card, facts, profile

from kvtop.profiles import cards
from kvtop.profiles.check import sizes


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
