"""What the embedded box writes under /metrics, against what vLLM 0.32.0 wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvtop.model.window import since_start
from kvtop.sim.exposition import Family, HistogramChild, Registry, line
from kvtop.sim.metrics import ServerMetrics
from kvtop.sim.scenarios import SCENARIOS
from kvtop.sim.world import World
from kvtop.sources.exposition import Reader

NOW = 1_795_953_600.0


def shape(text: str) -> tuple[dict[str, str], dict[str, set[tuple[str, ...]]], dict[str, set[str]]]:
    """Family -> type; family -> sets of label names; family -> bucket bounds."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    labels: dict[str, set[tuple[str, ...]]] = {}
    bounds: dict[str, set[str]] = {}
    for name, inside in re.findall(r"^([\w:]+)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        family = name
        for ending in ("_bucket", "_sum", "_count"):
            if name.endswith(ending) and name.removesuffix(ending) in kinds:
                family = name.removesuffix(ending)
        pairs = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', inside))
        if "le" in pairs:
            bounds.setdefault(family, set()).add(pairs["le"])
        labels.setdefault(family, set()).add(tuple(sorted(pairs.keys() - {"le"})))
    return kinds, labels, bounds


@pytest.fixture(scope="module")
def played() -> World:
    world = World(SCENARIOS["tier-restores"], 7, NOW)
    world.play_past()
    return world


@pytest.mark.parametrize(
    ("scenario", "capture", "text"),
    [
        ("healthy", "vllm-0.32.0", "05-append4.txt"),
        ("tier-restores", "vllm-0.32.0-offload", "10-A-shuffled.txt"),
    ],
)
def test_families_types_labels_and_buckets_are_those_of_the_real_server(
    scenario: str, capture: str, text: str, captures: Callable[[str], Path]
) -> None:
    world = World(SCENARIOS[scenario], 7, NOW)
    world.play_past()
    kinds, labels, bounds = shape(world.engine.metrics.text())
    real_kinds, real_labels, real_bounds = shape((captures(capture) / text).read_text())
    ours = {k: v for k, v in kinds.items() if k.startswith("vllm:")}
    assert ours.items() <= real_kinds.items()
    missing = {k for k in real_kinds if k.startswith("vllm:")} - ours.keys()
    assert all("tool_call_parser" in name for name in missing), missing
    for family in ours:
        assert labels.get(family, set()) <= real_labels.get(family, set()), family
    for family, found in bounds.items():
        longer = {b for b in found - real_bounds[family] if float(b) > max(map(float, real_bounds[family] - {"+Inf"}))}
        assert found - longer == real_bounds[family], family  # token counts go up to this model's length


def test_offload_series_have_no_sample_before_the_first_event() -> None:
    metrics = ServerMetrics("m", NOW, 4_096, {"block_size": "16"}, offload=True)
    kinds, labels, _ = shape(metrics.text())
    assert kinds["vllm:kv_offload_load_bytes_total"] == "counter"
    assert "vllm:kv_offload_load_bytes_total" not in labels
    assert "vllm:kv_offload_total_bytes_total" in labels
    metrics.loaded(1_000, 0.5, NOW)
    _, labels, bounds = shape(metrics.text())
    assert "vllm:kv_offload_load_bytes_total" in labels
    assert "vllm:kv_offload_load_size" in bounds
    assert "vllm:kv_offload_store_bytes_total" not in labels


def test_official_parser_reads_the_same_numbers(played: World) -> None:
    played.engine.gauges()
    text = played.engine.metrics.text()
    official = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    values = played.engine.metrics.scrape(NOW).values
    assert len(values) > 400
    assert {key: official[key] for key in values} == dict(values)


def test_a_scrape_without_text_is_what_reading_the_text_gives(played: World) -> None:
    played.engine.gauges()
    read = Reader().read(played.engine.metrics.text(), NOW)
    assert played.engine.metrics.scrape(NOW) == read
    assert since_start(read).all.config.kv_cache_tokens == SCENARIOS["tier-restores"].spec.blocks * 128


def test_only_lines_that_moved_are_written_again_and_the_text_stays_right() -> None:
    registry = Registry()
    family = registry.add(Family("x", "counter", "Words.", (), 5.0))
    family.child(("a", "1")).add(2)
    first = registry.text()
    family.child(("a", "1")).add(1)
    assert registry.text() == first.replace('x_total{a="1"} 2.0', 'x_total{a="1"} 3.0')


def test_hostile_label_values_are_escaped() -> None:
    text = line("x", (("a", 'say "hi"\n\\'),), 1.0).text
    (family,) = text_string_to_metric_families(f"# TYPE x gauge\n{text}")
    assert family.samples[0].labels == {"a": 'say "hi"\n\\'}


def test_histogram_counts_a_stretch_of_observations_at_once() -> None:
    one, many = HistogramChild("h", (), (0.1, 1.0)), HistogramChild("h", (), (0.1, 1.0))
    for _ in range(5):
        one.observe(0.25)
    one.observe(0.1)
    many.observe(0.25, 5)
    many.observe(0.1)
    assert [x.value for x in one.lines()] == pytest.approx([x.value for x in many.lines()])
    assert [x.value for x in many.lines()] == pytest.approx([1, 6, 6, 6, 1.35])
