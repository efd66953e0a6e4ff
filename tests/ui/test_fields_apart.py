"""No two fields of a panel touch, whatever stands in them and however wide the panel is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from kvtop.model.box import (
    BySource,
    Cached,
    Config,
    EngineWindow,
    Finished,
    Latencies,
    Latency,
    Offload,
    Quantile,
    Requests,
    SpecDecode,
    Throughput,
    Tier,
    WaitingByReason,
    Window,
)
from kvtop.model.shown_turn import Turn
from kvtop.model.view import BoxView, Savings
from kvtop.readings import GpuReading, State
from kvtop.ui.draw import SUPER, Line
from kvtop.ui.keys import Keymap
from kvtop.ui.scene import Chooser, Scene
from kvtop.ui.widgets.box import BoxPanel
from kvtop.ui.widgets.cache import CachePanel
from kvtop.ui.widgets.facts import Facts
from kvtop.ui.widgets.gpu import GpuPanel
from kvtop.ui.widgets.offload import OffloadPanel
from kvtop.ui.widgets.preview import Preview
from kvtop.ui.widgets.queue import QueuePanel
from kvtop.ui.widgets.strip import Strip
from kvtop.ui.widgets.ttft import TtftPanel
from kvtop.ui.widgets.turns import TurnsPanel

from . import boxes

GIB = 2**30
BARS = "━─▄┄┈·"
SECONDS = ((0.0823, 0.08, 0.1), (0.3, 0.25, 0.5), (0.8, 0.5, 0.75), (118.0, 80.0, 160.0), (988.0, 640.0, 2560.0))
"""A quantile and its bucket, of each width that they are written in."""
BEYOND = (None, 2560.0, None)
"""Above the last bucket."""


def quantile(value: tuple[float | None, float, float | None]) -> Quantile:
    return Quantile(*value)


def longest(at: tuple[float | None, float, float | None]) -> EngineWindow:
    q, mean = quantile(at), at[0] or 5_000.0
    of = Latency(99_999, mean, q, q, q)
    tokens = 999_499_999
    return EngineWindow(
        cached=Cached(tokens, tokens, 1.0, 1.0, BySource(tokens, tokens, tokens, tokens, None, tokens)),
        requests=Requests(9_999, 9_999, WaitingByReason(9_999, 9_999), 9_999, 12_345_678, 1.0,
                          Finished(99_999, 9_999, 9_999, 9_999, 9_999)),
        latency=Latencies(ttft=of, queue=of, prefill=of, decode=of, e2e=of, inter_token=of),
        throughput=Throughput(123_456.0, 99_949.0, 99_949.0, tokens, 99_949.0, 99_949.0),
        offload=Offload(
            True, store_bytes=10**15, load_bytes=10**15, store_bytes_per_s=99.9e9, load_bytes_per_s=99.9e9,
            load_bytes_total=10**14, store_bytes_total=10**14, load_time_s=1e4, store_time_s=1e4, loads=9_999_999,
            stores=9_999_999, loads_total=123_456_789, stores_total=9_999_999, failed=123_456,
            tiers=(Tier("a-tier-of-a-long-name", 10**14, 10**14),),
        ),
        spec_decode=SpecDecode(acceptance_share=1.0, mean_length_tokens=99.9),
        config=Config(12_345, 12_345, 99_900_000, True, 999 * GIB, False),
    )  # fmt: skip


def scenes() -> Iterator[tuple[str, Scene]]:
    cards = tuple(
        replace(
            boxes.card(i), util_share=1.0, memory_used_bytes=int(287.9 * GIB), memory_total_bytes=288 * GIB,
            power_w=1_400.0, power_limit_w=1_400.0, temperature_c=105, pcie_tx_bytes_per_s=int(63e9),
            pcie_rx_bytes_per_s=int(63e9),
        )
        for i in (0, 7)
    )  # fmt: skip
    host = replace(
        boxes.HOST, memory_total_bytes=2048 * GIB, memory_available_bytes=0, shm_total_bytes=1024 * GIB,
        shm_used_bytes=1024 * GIB, swap_used_bytes=999 * GIB, pressure=1.0,
    )  # fmt: skip
    rows = tuple(
        Turn(9_999 - i, boxes.NOW - i, started_at=boxes.NOW - 999, prompt_tokens=1_048_576, cached_tokens=1_048_576,
             new_tokens=999_499, completion_tokens=99_949, queue_s=998.0, prefill_s=998.0, decode_s=998.0, ttft_s=998.0,
             duration_s=998.0, inter_token_s=1e-5, finish_reason="length", verdict="queued", engine="123456")
        for i in range(12)
    )  # fmt: skip
    windows = (("5m", 300.0), ("10s", 10.0), ("1h", 32 * 60.0), ("start", 38_220.0), ("1h", 3_600.0), ("5m", 119.0))
    for at, (key, seen) in zip((*SECONDS, BEYOND), windows, strict=True):
        whole = Window(State.UP, at=boxes.NOW, window_s=seen, all=longest(at))
        server = boxes.server(
            window_key=key, window=whole, hour=replace(whole, window_s=max(seen, 3_540.0)), life=whole,
            config=whole.all.config, savings=Savings(999_499_999, 3_599.0, 99_949.0), turns=rows,
        )  # fmt: skip
        view = boxes.box(servers=(server,), gpu=GpuReading(cards, None, "580.65", boxes.NOW), host=host)
        yield f"{at} {key} {seen}", Chooser().choose(Scene(view))


def touching(line: Line) -> list[str]:
    """Where a field ends in the cell before the one in which the next begins."""
    found = []
    for (a, _), (b, _) in pairwise(line):
        if not a or not b:
            continue
        left, right = a[-1], b[0]
        bars = (left in BARS) + (right in BARS)
        if left in SUPER or bars == 2:
            continue
        if (left.isalnum() or left in "%…–" or left in BARS) and (right.isalnum() or right in "~<>–" or right in BARS):
            found.append(f"{a}|{b}")
    return found


def test_what_touches_is_seen() -> None:
    assert touching([("prefill saved", "d"), ("~23 m 31 s", "t")]) == ["prefill saved|~23 m 31 s"]
    assert touching([(" 0.3 s", "t"), ("0.25–0.5", "d")]) and touching([("━━", "gauge"), ("100 %", "t")])
    assert not touching([("━━", "gauge"), ("──", "f")])
    assert not touching([("¹", "d"), ("Cache", "t"), (" ", "t"), ("──", "f")])


PANELS = (CachePanel, OffloadPanel, QueuePanel, TtftPanel, GpuPanel, Facts, TurnsPanel, partial(Strip, Keymap()),
          partial(Preview, Keymap()))  # fmt: skip


@pytest.mark.parametrize("kind", PANELS)
def test_fields_of_a_panel_stand_apart(kind: Callable[[], BoxPanel]) -> None:
    panel = kind()
    wrong: dict[str, str] = {}
    for name, scene in scenes():
        panel.scene = scene if not isinstance(panel, Strip) else replace(scene, view=_several(scene.view))
        if isinstance(panel, GpuPanel):
            panel._held = {(card.index, "power cap"): boxes.NOW for card in scene.view.gpu.gpus}
        for w in (*range(36, 60), *range(60, 200, 13)):
            for h in (4, 6, 7, 10, 14):
                for line in panel.all_lines(w, h):
                    for found in touching(line):
                        wrong.setdefault(found, f"{w}x{h} {name}")
    assert not wrong


def _several(view: BoxView) -> BoxView:
    server = view.servers[0]
    lines = tuple(
        replace(line, share=1.0, running=999, waiting=999, ttft_p50_s=998.0, kv_cache_usage_share=1.0,
                state_s=118.0 if not line.state.good else 1.0)
        for line in boxes.several(3).lines
    )  # fmt: skip
    return replace(view, servers=(server,), lines=lines)


def test_a_quantile_stands_whole_beside_its_bucket() -> None:
    panel = TtftPanel()
    for _, scene in scenes():
        panel.scene = scene
        for w in range(37, 120):
            said = ["".join(text for text, _ in line) for line in panel.all_lines(w, 7)[1:4]]
            assert not any("…" in row for row in said), (w, said)
