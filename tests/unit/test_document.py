"""The JSON documents hold every key of their contract, and JSON only."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from metrics_texts import raw, scrape

from kvtop.model import document
from kvtop.model.box import EngineWindow, Throughput, Window
from kvtop.model.shown_turn import Turn
from kvtop.model.window import between, since_start
from kvtop.readings import Gpu, GpuProcess, GpuReading, HostReading, Model, OffloadFile, ServerFacts, State


def words(*lines: str) -> set[str]:
    return {word for line in lines for word in line.split()}


TOP = words(
    "url at window_s state detail age_s vllm_version models cached requests latency throughput offload spec_decode",
    "config engines gpus gpu_error host",
)
KEYS = {
    "cached": words("prompt_tokens cached_tokens share lifetime_share by_source"),
    "requests": words("running waiting waiting_by_reason preempted kv_cache_usage_share finished"),
    "latency": words("ttft queue prefill decode e2e inter_token"),
    "throughput": words("prompt_tokens_per_s computed_tokens_per_s generation_tokens_per_s"),
    "offload": words(
        "supported load_bytes store_bytes load_bytes_per_s store_bytes_per_s load_bytes_total store_bytes_total",
        "load_time_s store_time_s tiers loads stores failed unit",
    ),
    "config": words(
        "block_tokens match_unit_tokens kv_cache_tokens prefix_caching cpu_tier_bytes speculator mamba_mode retention",
        "prefix_match_unit_tokens",
    ),
}
GPU = words(
    "index name util_share memory_used_bytes memory_total_bytes power_w power_limit_w temperature_c",
    "pcie_tx_bytes_per_s pcie_rx_bytes_per_s throttle processes",
)
HOST = words(
    "memory_total_bytes memory_available_bytes shm_total_bytes shm_used_bytes offload_files swap_used_bytes pressure"
)
TURN = words(
    "id started_at route model conversation agent upstream state status finish_reason prompt_tokens cached_tokens",
    "cached_share new_tokens completion_tokens queue_s ttft_s duration_s inter_token_p50_s request_bytes",
    "response_bytes source verdict record cached_source",
)


def test_every_key_is_there_in_every_state() -> None:
    for state in State:
        made = document.snapshot(Window(state))
        assert made.keys() >= TOP
        for group, keys in KEYS.items():
            assert made[group].keys() >= keys, group
        assert made["state"] == state.value
        assert set(made["cached"]["by_source"]) == {"device", "host", "disk", "p2p", "external", "computed"}
        assert set(made["requests"]["finished"]) >= {"stop", "length", "abort", "error"}
        assert made["cached"]["share"] is None and made["latency"]["ttft"]["n"] is None
        assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_a_real_window(captures: Callable[[str], Path]) -> None:
    folder = captures("vllm-0.32.0")
    a, b = (scrape(raw(folder / f"{step}.txt"), 1_796_000_000.0) for step in ("02-append1", "03-append2"))
    made = document.snapshot(
        between(a, b, 2.0),
        url="http://127.0.0.1:8000",
        facts=ServerFacts("0.32.0", (Model("tiny", 32768, "vllm"),)),
        age_s=0.5,
    )
    assert (made["at"], made["window_s"], made["age_s"]) == ("2026-11-30T00:53:20Z", 2.0, 0.5)
    assert made["models"] == [{"id": "tiny", "max_model_len": 32768}]
    assert (made["cached"]["prompt_tokens"], made["cached"]["cached_tokens"]) == (2110, 1664)
    assert made["latency"]["ttft"]["n"] == 1
    assert set(made["latency"]["ttft"]["p50"]) == {"value_s", "above_s", "up_to_s"}
    assert made["latency"]["ttft"]["p95"] is None
    assert made["spec_decode"] is None and made["engines"] == [] and made["host"] is None
    assert type(made["cached"]["prompt_tokens"]) is int


def test_engines_have_the_same_groups(captures: Callable[[str], Path]) -> None:
    made = document.snapshot(since_start(scrape(raw(captures("odd") / "metrics-0.32.0-dp2-api2-after.txt"))))
    assert [one["engine"] for one in made["engines"]] == ["0", "1"]
    assert all(KEYS.keys() | {"spec_decode"} <= one.keys() for one in made["engines"])


def test_cards_and_host() -> None:
    card = Gpu(0, "card", 0.9, power_w=math.nan, throttle=("power cap",), processes=(GpuProcess(7, 5, "vllm"),))
    host = HostReading(1, 2, 3, 4, 5, None, (OffloadFile("/dev/shm/x", 9, (7,)),))
    made = document.snapshot(Window(State.REFUSED, "refused"), gpu=GpuReading((card,), "half of it"), host=host)
    assert made["gpus"][0].keys() >= GPU and made["host"].keys() >= HOST
    assert made["gpus"][0]["power_w"] is None and made["gpus"][0]["throttle"] == ["power cap"]
    assert made["host"]["offload_files"][0]["mapped_by"] == [7]
    assert (made["gpu_error"], made["detail"]) == ("half of it", "refused")
    json.dumps(made, allow_nan=False)


def test_nan_and_infinity_are_null() -> None:
    window = Window(State.UP, all=EngineWindow(throughput=Throughput(prompt_tokens_per_s=math.inf)), window_s=math.nan)
    made = document.snapshot(window)
    assert made["throughput"]["prompt_tokens_per_s"] is None and made["window_s"] is None


def test_a_turn() -> None:
    turn = Turn(3, 1_796_000_000.0, prompt_tokens=100, cached_tokens=75, new_tokens=25, started_at=1_795_999_990.0)
    made = document.turn(turn)
    assert made.keys() >= TURN
    assert (made["source"], made["cached_source"], made["cached_share"]) == ("metrics", "metrics", 0.75)
    assert (made["started_at"], made["n"], made["state"]) == ("2026-11-30T00:53:10Z", 1, "done")
    unknown = document.turn(replace(turn, cached_tokens=None))
    assert (unknown["cached_source"], unknown["cached_share"]) == (None, None)
    json.dumps([made, unknown], allow_nan=False)
