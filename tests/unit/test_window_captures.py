"""On every step of every capture the window is the growth that was noted beside it, exactly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from metrics_texts import raw, scrape, texts_of

from kvtop.model.box import EngineWindow, Latency
from kvtop.model.window import between
from kvtop.readings import State

FOLDERS = (
    "vllm-0.32.0",
    "vllm-0.28.0",
    "vllm-0.32.0-offload",
    "vllm-0.32.0-tier",
    "vllm-0.32.0-hybrid",
    "vllm-0.32.0-hybrid-offload",
    "ev-qwen3",
    "spec-ngram",
)

LATENCY = {
    "ttft": "time_to_first_token_seconds",
    "inter_token": "inter_token_latency_seconds",
    "queue": "request_queue_time_seconds",
    "prefill": "request_prefill_time_seconds",
    "decode": "request_decode_time_seconds",
    "e2e": "e2e_request_latency_seconds",
}


def steps(folder: Path) -> Iterator[tuple[dict[str, Any], Path, Path]]:
    files = {path.stem: path for path in texts_of(folder)}
    names = list(files)
    for row in json.loads((folder / "summary.json").read_text())["rows"]:
        yield row, files[names[names.index(row["step"]) - 1]], files[row["step"]]


@pytest.mark.parametrize("name", FOLDERS)
def test_every_step(name: str, captures: Callable[[str], Path]) -> None:
    seen = 0
    for row, before, after in steps(captures(name)):
        window = between(scrape(raw(before)), scrape(raw(after)), 2.0)
        assert (window.state, window.detail, window.engines) == (State.UP, "", ())
        check(window.all, row["delta"])
        usage = row["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"] if usage["prompt_tokens_details"] else 0
        assert window.all.cached.prompt_tokens == usage["prompt_tokens"]
        assert window.all.cached.cached_tokens == cached
        assert window.all.cached.share == pytest.approx(cached / usage["prompt_tokens"])
        seen += 1
    assert seen > 8


def check(got: EngineWindow, delta: dict[str, float]) -> None:
    def grew(name: str, **labels: str) -> float:
        inner = ",".join(f'{k}="{v}"' for k, v in labels.items())
        return delta.get(f"vllm:{name}{{{inner}}}" if inner else f"vllm:{name}", 0)

    source = got.cached.by_source
    assert got.cached.prompt_tokens == grew("prompt_tokens_total")
    assert got.cached.cached_tokens == grew("prompt_tokens_cached_total")
    assert source.device == grew("prompt_tokens_by_source_total", source="local_cache_hit")
    assert source.computed == grew("prompt_tokens_by_source_total", source="local_compute")
    external = grew("prompt_tokens_by_source_total", source="external_kv_transfer")
    assert sum(n or 0 for n in (source.host, source.disk, source.p2p, source.external)) == external
    if source.host is not None:  # 0.32 and later
        for tier in ("host", "disk", "p2p"):
            assert getattr(source, tier) == grew("prompt_tokens_cached_by_source_total", source=tier)

    assert got.requests.finished.length == grew("request_success_total", finished_reason="length")
    assert got.requests.finished.stop == grew("request_success_total", finished_reason="stop")
    assert got.requests.preempted == grew("num_preemptions_total")
    assert got.throughput.generation_tokens == grew("generation_tokens_total")
    assert got.throughput.generation_tokens_per_s == grew("generation_tokens_total") / 2.0
    assert got.throughput.prompt_tokens_per_s == grew("prompt_tokens_total") / 2.0
    assert got.throughput.step_tokens_mean == pytest.approx(
        grew("iteration_tokens_total_sum") / grew("iteration_tokens_total_count")
    )
    assert got.throughput.prefill_tokens_per_s == pytest.approx(
        grew("request_prefill_kv_computed_tokens_sum") / grew("request_prefill_time_seconds_sum")
    )
    for key, family in LATENCY.items():
        latency: Latency = getattr(got.latency, key)
        assert latency.n == grew(f"{family}_count")
        if latency.n:
            assert latency.mean_s is not None
            assert latency.mean_s * latency.n == pytest.approx(grew(f"{family}_sum"))
            assert latency.p50 is not None
        if latency.n == 1:
            assert latency.p50 is not None and latency.p50.value_s == latency.mean_s

    if got.offload.supported:
        assert got.offload.load_bytes == grew("kv_offload_load_bytes_total")
        assert got.offload.store_bytes == grew("kv_offload_store_bytes_total")
        assert got.offload.loads == grew("kv_offload_load_size_count")
        assert got.offload.stores == grew("kv_offload_store_size_count")
        assert got.offload.load_time_s == pytest.approx(grew("kv_offload_load_time_total"))
        assert got.offload.store_time_s == pytest.approx(grew("kv_offload_store_time_total"))
        for tier in got.offload.tiers:
            assert tier.read_bytes == grew("kv_offload_tiering_read_bytes_total", tier=tier.tier)
            assert tier.write_bytes == grew("kv_offload_tiering_write_bytes_total", tier=tier.tier)
    else:
        assert not any("kv_offload" in key for key in delta)
        assert got.offload.load_bytes is None

    if got.spec_decode is None:
        assert not any("spec_decode" in key for key in delta)
    else:
        spec = got.spec_decode
        assert spec.drafts == grew("spec_decode_num_drafts_total")
        assert spec.draft_tokens == grew("spec_decode_num_draft_tokens_total")
        assert spec.accepted_tokens == grew("spec_decode_num_accepted_tokens_total")
        assert spec.per_position == tuple(
            grew("spec_decode_num_accepted_tokens_per_pos_total", position=str(p)) for p in range(3)
        )


def test_the_folders_hold_what_the_checks_need(captures: Callable[[str], Path]) -> None:
    """Each branch of `check` is walked by at least one step: loads, a disk tier, speculation."""
    last = {name: texts_of(captures(name)) for name in FOLDERS}
    tier = between(*(scrape(raw(p)) for p in (last["vllm-0.32.0-tier"][0], last["vllm-0.32.0-tier"][-1])), None).all
    assert [t.tier for t in tier.offload.tiers] and tier.offload.load_bytes
    assert tier.cached.by_source.disk
    spec_files = [p for p in last["spec-ngram"] if p.name[0].isdigit()]
    spec = between(scrape(raw(spec_files[0])), scrape(raw(spec_files[-1])), None).all.spec_decode
    assert spec is not None and spec.drafts and len(spec.per_position) == 3
    assert spec.mean_length_tokens == pytest.approx(1 + spec.accepted_tokens / spec.drafts)
    assert spec.acceptance_share == pytest.approx(spec.accepted_tokens / spec.draft_tokens)


def test_prefill_decode_pair(captures: Callable[[str], Path]) -> None:
    folder = captures("pd")
    for row in json.loads((folder / "summary.json").read_text()):
        turn, side = row["turn"], row["side"]
        before = folder / (f"{turn - 1:02d}-{side}.txt" if turn > 1 else f"00-idle-{side}.txt")
        got = between(scrape(raw(before)), scrape(raw(folder / f"{turn:02d}-{side}.txt")), None).all
        assert got.cached.prompt_tokens == row["prompt"]
        assert got.cached.cached_tokens == row["cached"]
        source = got.cached.by_source
        assert (source.computed, source.device) == (row["local_compute"], row["local_hit"])
        assert source.external == row["external"]  # ExampleConnector: no tier name is known
        assert (source.host, source.disk, source.p2p) == (0, 0, 0)
        assert got.throughput.prompt_tokens_per_s is None
        assert got.offload.supported is False


def test_two_engines_add_up(captures: Callable[[str], Path]) -> None:
    files = texts_of(captures("dp2"))
    events = json.loads((captures("dp2") / "events.json").read_text())
    requests = [event for event in events if "prompt" in event]
    first, last = scrape(raw(files[0])), scrape(raw(files[-1]))
    window = between(first, last, 15.0)
    assert [engine.engine for engine in window.engines] == ["0", "1"]
    assert window.started_at is None
    for group, key in (("cached", "prompt_tokens"), ("cached", "cached_tokens"), ("throughput", "generation_tokens")):
        parts = [getattr(getattr(engine, group), key) for engine in window.engines]
        assert all(parts) and sum(parts) == getattr(getattr(window.all, group), key)
    life = between(scrape(raw(files[0])), last, None)
    assert life.all.cached.prompt_tokens is not None
    assert life.all.cached.prompt_tokens <= sum(event["prompt"] for event in requests)
    assert window.all.config.kv_cache_tokens == sum(e.config.kv_cache_tokens or 0 for e in window.engines)
    busy = between(scrape(raw(files[9])), scrape(raw(files[10])), 0.5)
    shares = [engine.requests.kv_cache_usage_share for engine in busy.engines]
    assert busy.all.requests.kv_cache_usage_share == pytest.approx(sum(s or 0 for s in shares) / 2)
    assert busy.all.requests.running == sum(engine.requests.running or 0 for engine in busy.engines) == 1


def test_starved_queue(captures: Callable[[str], Path]) -> None:
    files = texts_of(captures("starve288"))
    got = between(scrape(raw(files[-2])), scrape(raw(files[-1])), 1.0).all
    assert (got.requests.running, got.requests.waiting) == (1, 2)
    assert (got.requests.waiting_by_reason.capacity, got.requests.waiting_by_reason.deferred) == (2, 0)
    assert got.requests.kv_cache_usage_share is not None and got.requests.kv_cache_usage_share < 0.01
    assert got.config.block_tokens == 288
