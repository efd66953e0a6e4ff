"""The panel of the TTFT at 80x24: nothing in it is cut in the middle, whatever the numbers are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.model.box import Latencies, Latency, Quantile, Window
from kvtop.readings import State
from kvtop.ui.draw import width
from kvtop.ui.scene import Chooser, Scene
from kvtop.ui.widgets.ttft import TtftPanel

from . import boxes

W = 38
"""Cells of a line of the panel at 80x24."""
SECONDS = st.one_of(st.none(), st.floats(0, 1.5), st.floats(0, 120), st.floats(0, 8e6))
VALUE = r"(?:–|> ?\d+(?:\.\d+)? (?:ms|s)|~?\d+(?:\.\d)? (?:ms|s|m|h|d))"


def rows(latency: Latencies, w: int) -> list[str]:
    window = boxes.engine_window(latency=latency)
    whole = Window(State.UP, at=boxes.NOW, window_s=300.0, all=window)
    panel = TtftPanel()
    panel.scene = Chooser().choose(Scene(boxes.box(servers=(boxes.server(window=whole),))))
    lines = panel.body(w, 3)
    assert all(width(line) <= w for line in lines), lines
    return ["".join(text for text, _ in line) for line in lines]


def mean(seconds: float | None) -> Latency:
    return Latency(n=9, mean_s=seconds)


@given(queue=SECONDS, prefill=SECONDS, decode=SECONDS, w=st.integers(37, 60))
def test_the_phases_keep_their_units(queue: float | None, prefill: float | None, decode: float | None, w: int) -> None:
    phases = rows(Latencies(queue=mean(queue), prefill=mean(prefill), decode=mean(decode)), w)[2]
    decode = "decode" if w >= W + 3 else "dec"
    assert re.fullmatch(rf"queue {VALUE} +prefill {VALUE}(?: +{decode} {VALUE})?", phases.rstrip()), phases
    if w >= W:
        assert " dec" in phases, phases


@given(value=st.floats(0, 8e6), above=st.sampled_from([0.001, 0.25, 80.0, 1920.0]), open_=st.booleans())
def test_the_quantiles_are_whole(value: float, above: float, open_: bool) -> None:
    q = Quantile(None, above, None) if open_ else Quantile(value, 0.0, value + above)
    of = Latency(n=99, mean_s=value, p50=q, p95=q)
    first = rows(Latencies(ttft=of), W)[0]
    assert re.fullmatch(rf"p50 {VALUE}(?: \([^)]+\))?  p95 {VALUE}(?:  mean {VALUE})?", first.rstrip()), first


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ((0.655, 0.066, 1.6), "queue 655 ms prefill 66 ms  dec 1.6 s"),
        ((0.655, 0.655, 0.655), "queue 655 ms prefill 655 ms dec 655 ms"),
        ((0.7, 0.066, 12.0), "queue 700 ms prefill 66 ms  dec 12 s"),
        ((1.0, 1.2, 1.6), "queue 1.0 s  prefill 1.2 s  dec 1.6 s"),
    ],
)
def test_what_is_said_of_the_phases(seconds: tuple[float, float, float], said: str) -> None:
    queue, prefill, decode = map(mean, seconds)
    latency = Latencies(queue=queue, prefill=prefill, decode=decode)
    assert rows(latency, W)[2].rstrip() == said
