"""What cannot be true is not shown as a number."""

from __future__ import annotations

from kvtop.cli.words import _latency
from kvtop.model.box import Latency, Quantile
from kvtop.ui.keys import resolve
from kvtop.ui.scene import Scene
from kvtop.ui.widgets.head import contexts
from kvtop.ui.widgets.ttft import bounds, value

from . import boxes


def test_a_server_that_started_after_now_is_up_for_an_unknown_time() -> None:
    """A clock was set back."""
    keymap, _ = resolve({})
    later = boxes.box(servers=[boxes.server(started_at=boxes.NOW + 3_600)])
    assert " up – " in f" {' '.join(contexts(Scene(later), keymap)[0].split())} "
    usual = boxes.box(servers=[boxes.server(started_at=boxes.NOW - 3_600)])
    assert "up 1 h 00 m" in contexts(Scene(usual), keymap)[0]


def test_a_quantile_without_a_value_shows_its_bucket() -> None:
    torn = Quantile(None, 0.0, 0.001)
    assert (value(torn), bounds(torn)) == ("–", "0–0.001")
    assert _latency(Latency(n=1, mean_s=0.2, p50=torn)) == "mean 200 ms  p50 – (0–0.001)  n=1"
    assert value(Quantile(None, 1920.0, None)) == "> 1920 s"
