"""Which servers of others a switch would have to stop."""

from __future__ import annotations

from typing import Any

import check_box as box
import pytest

from kvtop.profiles.check.obstacles import in_the_way
from kvtop.profiles.check.seen import Listener


@pytest.mark.parametrize(
    ("known", "holds"),
    [
        ({}, []),
        ({"servers": (box.server(port=8001),)}, []),
        # it starts, or another process of it listens
        ({"servers": (box.server(port=8000),)}, ["port 8000"]),
        ({"servers": (box.server(port=8001),), "listeners": {8000: Listener(501)}}, ["port 8000"]),
        # somebody else listens: its own command line does not tell
        ({"servers": (box.server(port=8000),), "listeners": {8000: Listener(7)}}, []),
        ({"servers": (box.server(port=8001),), "cards": (box.card(0, {501: 20}), box.card(1))}, ["GPU 0"]),
        ({"servers": (box.server(port=8001),), "cards": (box.card(0, {7: 20}), box.card(1))}, []),
        ({"servers": (box.server(port=8001),), "cards": (box.card(0), box.card(1, {501: 20}))}, []),
        ({"servers": (box.server(),), "cards": (box.card(0, {501: 20}), box.card(1))}, ["port 8000 and GPU 0"]),
        ({"servers": (box.server(),), "cards": None}, ["port 8000"]),
        ({"servers": None}, []),
    ],
)
def test_by_port_and_card(known: dict[str, Any], holds: list[str]) -> None:
    assert [words for _, words in in_the_way(box.facts("m", **known))] == holds
