"""What a window says of texts that no capture holds: other versions, resets, damage, multiprocess mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_texts import made, raw, scrape, text, texts_of

from kvtop.model.box import BySource, Config
from kvtop.model.window import between, since_start, swapped
from kvtop.readings import State

E0 = '{engine="0",model_name="m"}'


def row(family: str, label: str, value: str, engine: str = "0") -> str:
    return f'{family}{{engine="{engine}",model_name="m",{label}="{value}"}}'


def sources(compute: float, local: float, external: float) -> dict[str, float]:
    family = "prompt_tokens_by_source_total"
    return {
        row(family, "source", "local_compute"): compute,
        row(family, "source", "local_cache_hit"): local,
        row(family, "source", "external_kv_transfer"): external,
    }


def tiers(device: float = 0, host: float = 0, disk: float = 0, p2p: float = 0, other: float = 0) -> dict[str, float]:
    family = "prompt_tokens_cached_by_source_total"
    named = {"device": device, "host": host, "disk": disk, "p2p": p2p, "external_unspecified": other}
    return {row(family, "source", name): value for name, value in named.items()}


class TestVersions:
    def test_0_9_0_has_the_gpu_names(self) -> None:
        a = {f"gpu_prefix_cache_queries_total{E0}": 100, f"gpu_prefix_cache_hits_total{E0}": 50}
        a |= {f"prompt_tokens_total{E0}": 100, f"gpu_cache_usage_perc{E0}": 0.25}
        b = {f"gpu_prefix_cache_queries_total{E0}": 300, f"gpu_prefix_cache_hits_total{E0}": 200}
        b |= {f"prompt_tokens_total{E0}": 290, f"gpu_cache_usage_perc{E0}": 0.5}
        got = between(made(a), made(b), 1.0).all
        assert (got.cached.prompt_tokens, got.cached.cached_tokens) == (190, 150)
        assert got.cached.share == 150 / 200, "hits over queries: both count at admission"
        assert got.cached.lifetime_share == 200 / 300
        assert got.cached.by_source == BySource(device=150)
        assert got.requests.kv_cache_usage_share == 0.5

    def test_below_0_16_external_hits_join_and_computed_is_not_known(self) -> None:
        names = ("prefix_cache_queries_total", "prefix_cache_hits_total", "external_prefix_cache_hits_total")
        a = {f"{name}{E0}": 0.0 for name in (*names, "prompt_tokens_total")}
        b = dict(zip(a, (1000, 600, 200, 1000), strict=True))
        cached = between(made(a), made(b), 2.0).all.cached
        assert (cached.cached_tokens, cached.share) == (800, 0.8)
        assert cached.by_source == BySource(device=600, external=200)

    def test_0_16_knows_computed_and_no_tier_name(self) -> None:
        a = sources(0, 0, 0) | {f"prompt_tokens_total{E0}": 0, f"prompt_tokens_cached_total{E0}": 0}
        b = sources(30, 50, 20) | {f"prompt_tokens_total{E0}": 100, f"prompt_tokens_cached_total{E0}": 70}
        cached = between(made(a), made(b), 2.0).all.cached
        assert cached.share == 0.7
        assert cached.by_source == BySource(device=50, external=20, computed=30)

    def test_0_32_splits_the_external_part_only(self) -> None:
        """Tier series count at admission: a prompt still prefilling is in them and not yet in prompt_tokens."""
        a, b = sources(0, 0, 0) | tiers(), sources(30, 50, 20) | tiers(device=900, host=150, disk=50)
        assert between(made(a), made(b), 2.0).all.cached.by_source == BySource(50, 15, 5, 0, 0, 30)

    def test_0_32_external_tokens_always_sum_up(self) -> None:
        for external in range(8):
            for host, disk, p2p, other in ((1, 1, 1, 0), (3, 0, 1, 0), (1, 1, 1, 1), (0, 0, 0, 5), (0, 0, 0, 0)):
                b = sources(0, 0, external) | tiers(host=host, disk=disk, p2p=p2p, other=other)
                got = between(made(sources(0, 0, 0) | tiers()), made(b), 1.0).all.cached.by_source
                parts = (got.host, got.disk, got.p2p, got.external)
                assert sum(n or 0 for n in parts) == external
                if not other and host + disk + p2p:
                    assert got.external == 0

    def test_0_32_admitted_before_the_window_goes_to_the_only_tier_there_is(self) -> None:
        a, b = sources(0, 0, 0) | tiers(host=40), sources(0, 0, 40) | tiers(host=40)
        assert between(made(a), made(b), 1.0).all.cached.by_source.host == 40
        a, b = sources(0, 0, 0) | tiers(host=40, disk=40), sources(0, 0, 40) | tiers(host=40, disk=40)
        got = between(made(a), made(b), 1.0).all.cached.by_source
        assert (got.host, got.disk, got.external) == (0, 0, 40), "which of the two is not known"

    def test_offload_0_16_to_0_23_by_transfer_type(self) -> None:
        def moved(load: float, store: float, loads: float) -> dict[str, float]:
            kind = "transfer_type"
            return {
                row("kv_offload_total_bytes_total", kind, "CPU_to_GPU"): load,
                row("kv_offload_total_bytes_total", kind, "GPU_to_CPU"): store,
                row("kv_offload_total_time_total", kind, "CPU_to_GPU"): load / 1e3,
                row("kv_offload_size_count", kind, "CPU_to_GPU"): loads,
            }

        got = between(made(moved(10, 20, 1)), made(moved(110, 520, 3)), 2.0).all.offload
        assert (got.supported, got.load_bytes, got.store_bytes) == (True, 100, 500)
        assert (got.load_bytes_per_s, got.load_bytes_total, got.store_bytes_total) == (50.0, 110, 520)
        assert got.load_time_s == pytest.approx(0.1)
        assert got.loads == 2
        assert got.failed is None, "no version below 0.26 tells"

    def test_offload_0_24_reads_the_new_names_and_never_adds_the_old(self) -> None:
        old = {
            row("kv_offload_total_bytes_total", "transfer_type", "CPU_to_GPU"): 100.0,
            row("kv_offload_total_bytes_total", "transfer_type", "GPU_to_CPU"): 900.0,
        }
        b = old | {f"kv_offload_load_bytes_total{E0}": 100.0, f"kv_offload_store_bytes_total{E0}": 900.0}
        a = {name: 0.0 for name in b}
        got = between(made(a), made(b), 1.0).all.offload
        assert (got.load_bytes, got.store_bytes) == (100, 900)

    def test_offload_series_without_a_sample_are_zero_until_the_first_event(self) -> None:
        types = ("kv_offload_load_bytes_total", "kv_offload_store_bytes_total", "kv_offload_allocation_failure_total")
        a = made({f"prompt_tokens_total{E0}": 0}, types=types)
        b = made({f"prompt_tokens_total{E0}": 9, f"kv_offload_store_bytes_total{E0}": 77}, types=(types[0], types[2]))
        got = between(a, b, 1.0).all.offload
        assert (got.supported, got.load_bytes, got.store_bytes, got.failed) == (True, 0, 77, 0)
        assert between(a, a, 1.0).all.offload.store_bytes == 0

    def test_no_connector_is_unsupported_and_unknown_is_not_zero(self) -> None:
        got = since_start(made({f"prompt_tokens_total{E0}": 9})).all.offload
        assert got.supported is False
        assert (got.load_bytes, got.store_bytes, got.loads, got.failed, got.tiers) == (None, None, None, None, ())

    def test_tiers_and_their_failures(self) -> None:
        base = {f"kv_offload_load_bytes_total{E0}": 0.0, f"kv_offload_store_bytes_total{E0}": 0.0}
        a = base | {row("kv_offload_tiering_write_bytes_total", "tier", "fs"): 10.0}
        b = base | {
            row("kv_offload_tiering_write_bytes_total", "tier", "fs"): 30.0,
            row("kv_offload_tiering_read_bytes_total", "tier", "fs"): 5.0,
            row("kv_offload_tiering_write_bytes_total", "tier", "obj"): 7.0,
            row("kv_offload_tiering_cascade_job_failures_total", "tier", "fs"): 2.0,
        }
        types = ("kv_offload_tiering_read_bytes_total", "kv_offload_tiering_cascade_job_failures_total")
        got = between(made(a, types=types), made(b), 1.0).all.offload
        assert [(t.tier, t.read_bytes, t.write_bytes) for t in got.tiers] == [("fs", 5, 20), ("obj", 0, 7)]
        assert got.failed == 2

    def test_the_simple_connector_counts_blocks(self) -> None:
        def counts(loads: float, stored: float, full: float) -> dict[str, float]:
            return {
                f"simple_kv_offload_load_blocks_total{E0}": loads,
                row("simple_kv_offload_save_outcomes_total", "outcome", "stored"): stored,
                row("simple_kv_offload_save_outcomes_total", "outcome", "dropped_cpu_full"): full,
                row("simple_kv_offload_save_outcomes_total", "outcome", "skipped_already_cached"): 99,
            }

        got = between(made(counts(1, 2, 0)), made(counts(4, 9, 1)), 1.0).all.offload
        assert (got.supported, got.unit, got.loads, got.stores, got.failed) == (True, "blocks", 3, 7, 1)
        assert (got.load_bytes, got.store_bytes, got.load_bytes_per_s) == (None, None, None)
        assert (got.loads_total, got.stores_total) == (4, 9)

    def test_the_old_name_of_the_token_gap(self) -> None:
        family = "time_per_output_token_seconds"
        a = {f"{family}_count{E0}": 0, f"{family}_sum{E0}": 0}
        b = {f"{family}_count{E0}": 4, f"{family}_sum{E0}": 0.2}
        assert between(made(a), made(b), 1.0).all.latency.inter_token.mean_s == 0.05

    def test_sleeping(self) -> None:
        states = {
            row("engine_sleep_state", "sleep_state", "awake"): 0,
            row("engine_sleep_state", "sleep_state", "weights_offloaded"): 1,
            row("engine_sleep_state", "sleep_state", "discard_all"): 0,
        }
        assert since_start(made(states)).state is State.SLEEPING
        awake = dict(zip(states, (1, 0, 0), strict=True))
        assert since_start(made(awake)).state is State.UP


class TestConfig:
    def of(self, **labels: str) -> Config:
        inner = ",".join(f'{name}="{value}"' for name, value in labels.items())
        return since_start(made({f'cache_config_info{{engine="0",{inner}}}': 1})).all.config

    def test_the_word_none_is_not_known(self) -> None:
        got = self.of(block_size="16", prefix_match_unit="None", kv_cache_size_tokens="None", mamba_cache_mode="None")
        assert (got.block_tokens, got.match_unit_tokens, got.prefix_match_unit_tokens) == (16, 16, None)
        assert (got.kv_cache_tokens, got.mamba_mode, got.prefix_caching) == (None, None, None)
        assert got.retention is None, "no such label before 0.29"

    @pytest.mark.parametrize(("label", "retention"), [("0", "0"), ("512", "512"), ("None", "none"), ("", None)])
    def test_no_retention_is_a_setting_and_no_label_is_none(self, label: str, retention: str | None) -> None:
        assert self.of(block_size="16", prefix_cache_retention_interval=label).retention == retention

    def test_the_match_unit(self) -> None:
        got = self.of(block_size="528", prefix_match_unit="16", mamba_block_size="16", hash_block_size="None")
        assert (got.block_tokens, got.match_unit_tokens, got.prefix_match_unit_tokens) == (528, 16, 16)
        assert self.of(block_size="64", hash_block_size="32").match_unit_tokens == 32, "its name in 0.20 to 0.25"

    @pytest.mark.parametrize(
        ("block", "tokens", "blocks", "requests", "one"),
        [
            ("128", "2097152", "16384", "64.0", True),  # plain attention
            ("128", "38400", "300", "1.171875", True),
            ("16", "99959", "6250", "9.9960", True),  # the longest request, 10,000 tokens, is no whole block too long
            ("288", "3976669", "14563", "121.35833333333333", False),  # a hybrid: 120 blocks for 32,768 tokens
            ("16", "None", "6250", "None", None),
            ("16", "0", "0", "0", None),
            ("16", "99959", "6250", "nan", None),
            ("None", "99959", "6250", "9.996", None),
        ],
    )
    def test_one_group_of_blocks(self, block: str, tokens: str, blocks: str, requests: str, one: bool | None) -> None:
        labels = {"kv_cache_size_tokens": tokens, "num_gpu_blocks": blocks, "kv_cache_max_concurrency": requests}
        assert self.of(block_size=block, **labels).one_kv_group is one

    def test_the_window_of_a_model_that_has_no_other_layers(self) -> None:
        assert self.of(block_size="16", sliding_window="4096").sliding_window_tokens == 4096
        assert self.of(block_size="16", sliding_window="None").sliding_window_tokens is None

    def test_pool_size_below_0_24_from_blocks(self) -> None:
        assert self.of(block_size="16", num_gpu_blocks="100").kv_cache_tokens == 1600
        assert self.of(block_size="16", num_gpu_blocks="100", mamba_cache_mode="align").kv_cache_tokens is None
        assert self.of(block_size="16", num_gpu_blocks="100", sliding_window="512").kv_cache_tokens is None

    def test_the_cpu_tier(self) -> None:
        assert self.of(kv_offloading_size="4.0").cpu_tier_bytes == 4 << 30
        assert self.of(kv_offloading_size="None").cpu_tier_bytes is None
        told = {'kv_offload_config_info{engine="0",cpu_kv_cache_size_bytes="268435456"}': 1}
        assert since_start(made(told)).all.config.cpu_tier_bytes == 268435456

    def test_hostile_labels(self) -> None:
        got = self.of(block_size="9" * 400, kv_cache_size_tokens="-5", kv_offloading_size="inf", num_gpu_blocks="NaN")
        assert got == Config(speculator=False)


class TestResets:
    a = made({f"prompt_tokens_total{E0}": 1000, f"generation_tokens_total{E0}": 50}, start=1_700_000_000.0)

    def test_another_start_time(self) -> None:
        b = made({f"prompt_tokens_total{E0}": 2000, f"generation_tokens_total{E0}": 60}, start=1_700_000_500.0)
        window = between(self.a, b, 2.0)
        assert window.state is State.RESET and window.state.good
        assert "restarted" in window.detail and "from zero" in window.detail
        assert window.all.cached.prompt_tokens == 2000
        assert window.all.throughput.generation_tokens_per_s == 30.0

    @pytest.mark.parametrize("start", [1_700_000_000.0, None])
    def test_a_counter_that_fell(self, start: float | None) -> None:
        a = made({f"prompt_tokens_total{E0}": 1000, f"generation_tokens_total{E0}": 50}, start=start)
        b = made({f"prompt_tokens_total{E0}": 40, f"generation_tokens_total{E0}": 60}, start=start)
        window = between(a, b, 2.0)
        assert window.state is State.RESET
        assert "vllm:prompt_tokens_total from 1000 to 40" in window.detail
        assert (window.all.cached.prompt_tokens, window.all.throughput.generation_tokens) == (40, 60)

    def test_a_row_that_fell_while_another_grew(self) -> None:
        a, b = sources(100, 0, 0), sources(10, 500, 0)
        assert between(made(a), made(b), 1.0).state is State.RESET

    def test_what_may_fall(self) -> None:
        """Gauges, and sums: a clock set back makes a negative observation."""
        a = {f"num_requests_running{E0}": 5, f"time_to_first_token_seconds_sum{E0}": 1.0}
        a |= {f"time_to_first_token_seconds_count{E0}": 3, f"kv_cache_usage_perc{E0}": 0.9}
        b = dict(zip(a, (1, 0.5, 4, 0.1), strict=True))
        assert between(made(a), made(b), 1.0).state is State.UP

    def test_a_window_never_shows_a_negative_number_after_a_restart(self) -> None:
        b = made({f"prompt_tokens_total{E0}": 1}, start=1_700_000_900.0)
        assert between(self.a, b, 1.0).all.throughput.prompt_tokens_per_s == 1.0
        assert between(self.a, b, 1.0).all.throughput.generation_tokens is None, "it is absent in the second text"

    def test_replicas_behind_one_address_do_not_pass_for_restarts(self) -> None:
        """Texts of two processes that take turns: what the other one counted before is not of this window."""
        a = made({f"prompt_tokens_total{E0}": 1000}, at=1_700_009_000.0, start=1_700_000_000.0)
        b = made({f"prompt_tokens_total{E0}": 90_000}, at=1_700_009_001.0, start=1_700_000_400.0)
        for first, second in ((a, b), (b, a)):
            window = between(first, second, 1.0)
            assert window.state is State.RESET and "another server process" in window.detail
            assert window.all.cached.prompt_tokens is None
            assert window.all.cached.by_source.computed is None
        again = made({f"prompt_tokens_total{E0}": 9}, at=1_700_009_001.0, start=1_700_009_000.0)
        assert between(a, again, 1.0).all.cached.prompt_tokens == 9

    def test_one_engine_fell(self) -> None:
        a = {'prompt_tokens_total{engine="0"}': 100, 'prompt_tokens_total{engine="1"}': 100}
        b = {'prompt_tokens_total{engine="0"}': 400, 'prompt_tokens_total{engine="1"}': 10}
        window = between(made(a, start=None), made(b, start=None), 1.0)
        assert window.state is State.RESET
        assert window.all.cached.prompt_tokens == 410


class TestDamage:
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_nan_and_infinity_are_not_known(self, bad: float) -> None:
        good = {f"prompt_tokens_total{E0}": 10.0, f"generation_tokens_total{E0}": 4.0, f"num_requests_running{E0}": 1.0}
        for name in good:
            for a, b in ((good, good | {name: bad}), (good | {name: bad}, good)):
                window = between(made(a), made(b), 1.0)
                assert window.state is State.UP
                assert no_odd_number(asdict(window))
        broken = between(made(good), made(good | {f"prompt_tokens_total{E0}": bad}), 1.0)
        assert broken.all.cached.prompt_tokens is None
        assert broken.all.throughput.generation_tokens == 0

    def test_absent_in_b_is_not_known_and_absent_in_a_is_no_lifetime_value(self) -> None:
        a, b = {f"generation_tokens_total{E0}": 5}, {f"prompt_tokens_total{E0}": 10_000}
        got = between(made(a), made(b), 1.0).all
        assert got.throughput.generation_tokens is None
        assert got.cached.prompt_tokens is None
        assert got.cached.lifetime_share is None

    def test_a_row_that_is_missing_is_not_known(self) -> None:
        name = row("request_success_total", "finished_reason", "stop")
        got = between(made({name: 1}), made({name: 3}), 1.0).all.requests.finished
        assert (got.stop, got.length, got.repetition, got.total) == (2, None, None, 2)

    def test_a_cut_text_says_so_and_loses_no_more_than_its_last_line(self, captures: Callable[[str], Path]) -> None:
        folder = captures("vllm-0.32.0")
        a, whole = scrape(raw(folder / "01-cold.txt")), raw(folder / "02-append1.txt")
        at = whole.index("vllm:prompt_tokens_cached_total{") + 30
        window = between(a, scrape(whole[:at]), 2.0)
        assert window.state is State.UP and "cut" in window.detail
        assert window.all.cached.prompt_tokens == 1710
        assert window.all.cached.by_source.computed == 302
        assert (window.all.cached.cached_tokens, window.all.throughput.generation_tokens) == (None, None)
        assert window.all.latency.ttft.n is None
        assert "first text was cut" in between(scrape(whole[:at]), a, 2.0).detail

    def test_a_cut_between_engines_gives_no_half_sum(self, captures: Callable[[str], Path]) -> None:
        first, last = (raw(captures("dp2") / name) for name in ("000.txt", "last.txt"))
        at = last.index('vllm:prompt_tokens_total{engine="1"') + 10
        window = between(scrape(first), scrape(last[:at]), 2.0)
        assert window.all.cached.prompt_tokens is None
        assert [engine.cached.prompt_tokens for engine in window.engines] == [None, None]
        assert window.engines[0].requests.running is not None

    def test_a_first_text_without_an_engine_gives_no_growth(self, captures: Callable[[str], Path]) -> None:
        b = made({f"prompt_tokens_total{E0}": 10_000, f"num_requests_running{E0}": 2})
        window = between(scrape("<html>\n"), b, 1.0)
        assert window.state is State.UP and "first text" in window.detail
        assert (window.all.cached.prompt_tokens, window.all.requests.running) == (None, 2)

    def test_an_engine_whose_statistics_are_off(self) -> None:
        tools = 'vllm:tool_call_parser_invocations_total{mode="streaming"} 0.0\n'
        assert since_start(scrape("http_requests_total 1\n" + tools)).state is State.NO_STATS
        assert since_start(scrape("http_requests_total 1\n")).state is State.NO_STATS
        assert since_start(scrape("go_goroutines 1\nprocess_start_time_seconds 5\n")).state is State.NOT_VLLM
        off = between(made({f"prompt_tokens_total{E0}": 5}), scrape("http_requests_total 1\n"), 1.0)
        assert off.state is State.NO_STATS and "--disable-log-stats" in off.detail
        assert off.all.cached.prompt_tokens is None


class TestMultiprocess:
    def test_a_series_that_appears_has_begun_at_zero(self) -> None:
        a = made({'prompt_tokens_total{engine="0"}': 5}, start=None)
        b = made(
            {'prompt_tokens_total{engine="0"}': 9, "generation_tokens_total{engine='0'}".replace("'", '"'): 7},
            start=None,
        )
        window = between(a, b, 1.0)
        assert window.started_at is None
        assert window.all.throughput.generation_tokens == 7

    def test_an_engine_without_its_first_write_is_at_zero(self) -> None:
        a = {'prompt_tokens_total{engine="0"}': 5, 'generation_tokens_total{engine="1"}': 1}
        b = {'prompt_tokens_total{engine="0"}': 9, 'generation_tokens_total{engine="1"}': 2}
        window = between(made(a, start=None), made(b, start=None), 1.0)
        assert [engine.cached.prompt_tokens for engine in window.engines] == [4, 0]
        assert window.all.cached.prompt_tokens == 4

    def test_gauges_with_a_type_alone_are_zero(self, captures: Callable[[str], Path]) -> None:
        window = since_start(scrape(raw(captures("odd") / "metrics-0.32.0-dp2-idle.txt")))
        assert (window.all.requests.running, window.all.requests.waiting) == (0, 0)
        assert [engine.requests.running for engine in window.engines] == [0, 0]


class TestTime:
    a, b = made({f"prompt_tokens_total{E0}": 0}), made({f"prompt_tokens_total{E0}": 10})

    @pytest.mark.parametrize("seconds", [None, 0.0, -1.0, math.nan])
    def test_no_rate_without_time(self, seconds: float | None) -> None:
        assert between(self.a, self.b, seconds).all.throughput.prompt_tokens_per_s is None
        assert between(self.a, self.b, seconds).all.cached.prompt_tokens == 10

    def test_since_start(self) -> None:
        b = made({f"prompt_tokens_total{E0}": 500}, at=1_700_000_100.0)
        window = since_start(b)
        assert (window.window_s, window.started_at) == (100.0, 1_700_000_000.0)
        assert (window.all.cached.prompt_tokens, window.all.throughput.prompt_tokens_per_s) == (500, 5.0)
        assert since_start(self.b).window_s is None

    def test_nothing_happened_is_nothing_and_no_lifetime_value(self, captures: Callable[[str], Path]) -> None:
        b = scrape(raw(captures("vllm-0.32.0") / "05-append4.txt"))
        got = between(b, b, 1.0).all
        assert (got.cached.prompt_tokens, got.cached.share, got.throughput.step_tokens_mean) == (0, None, None)
        assert got.cached.lifetime_share is not None
        assert (got.latency.ttft.n, got.latency.ttft.mean_s, got.latency.ttft.p50) == (0, None, None)
        assert got.throughput.prefill_tokens_per_s is None


ODD = {
    "metrics-0.32.0-dp2-idle.txt": (State.UP, 0, 2, True),
    "metrics-0.32.0-dp2-api2-after.txt": (State.UP, 44682, 2, True),
    "metrics-0.32.0-example-after.txt": (State.UP, 4832, 0, True),
    "metrics-0.32.0-noprefixcache.txt": (State.UP, 26, 0, False),
    "metrics-0.32.0-nologstats-idle.txt": (State.NO_STATS, None, 0, None),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_servers(name: str, captures: Callable[[str], Path]) -> None:
    window = since_start(scrape(raw(captures("odd") / name)))
    got = (window.state, window.all.cached.prompt_tokens, len(window.engines), window.all.config.prefix_caching)
    assert got == ODD[name]


def test_example_connector_gives_external_hits_without_offload_series(captures: Callable[[str], Path]) -> None:
    got = since_start(scrape(raw(captures("odd") / "metrics-0.32.0-example-after.txt"))).all
    assert got.offload.supported is False and got.offload.load_bytes is None


OLD: dict[str, dict[str, Any]] = {
    "0.11.0": {"computed": None, "external": None, "capacity": None, "error": None, "cached_tokens": 0},
    "0.16.0": {"computed": 0, "external": 0, "capacity": None, "error": 0, "cached_tokens": 0},
    "0.24.0": {"computed": 0, "external": 0, "capacity": 0, "error": 0, "cached_tokens": 0},
    "0.26.0": {"computed": 0, "external": 0, "capacity": 0, "error": 0, "cached_tokens": 0},
}


@pytest.mark.parametrize("version", OLD)
def test_old_versions_at_rest(version: str, captures: Callable[[str], Path]) -> None:
    one = scrape(raw(captures("old") / f"metrics-{version}-logger-only.txt"))
    for window in (since_start(one), between(one, one, 1.0)):
        got = window.all
        assert window.state is State.UP
        assert {
            "computed": got.cached.by_source.computed,
            "external": got.cached.by_source.external,
            "capacity": got.requests.waiting_by_reason.capacity,
            "error": got.requests.finished.error,
            "cached_tokens": got.cached.cached_tokens,
        } == OLD[version]
        assert got.cached.by_source.host is None, "below 0.32 no tier has a name"
        assert (got.cached.share, got.cached.lifetime_share) == (None, None)
        assert got.latency.ttft.n == 0 and got.latency.queue.n == 0
        assert got.offload.supported is False and got.spec_decode is None
        assert (got.config.block_tokens, got.config.kv_cache_tokens) == (16, 65536)


ALL = ("vllm-0.32.0-tier", "vllm-0.28.0", "odd", "old", "dp2", "pd", "spec-ngram", "starve288", "series-0.32.0")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_prefix_of_any_text_breaks_a_window(data: st.DataObject, captures: Callable[[str], Path]) -> None:
    files = texts_of(captures(data.draw(st.sampled_from(ALL))))
    first, second = (raw(data.draw(st.sampled_from(files))) for _ in range(2))
    cut = second[: data.draw(st.integers(0, len(second)))]
    a, b = scrape(first), scrape(cut)
    for window in (between(a, b, 1.0), between(b, a, 1.0), between(b, b, None), since_start(b)):
        assert no_odd_number(asdict(window))
    if cut and not cut.endswith("\n"):
        assert "cut" in between(a, b, 1.0).detail


def test_line_ends_of_one_text_break_nothing(captures: Callable[[str], Path]) -> None:
    folder = captures("vllm-0.32.0-tier")
    whole = raw(texts_of(folder)[-1])
    a = scrape(raw(texts_of(folder)[0]))
    full = between(a, scrape(whole), 1.0).all
    at = -1
    for _ in range(whole.count("\n")):
        at = whole.index("\n", at + 1)
        window = between(a, scrape(whole[: at + 1]), 1.0)
        assert window.state in (State.UP, State.NO_STATS, State.NOT_VLLM)
        assert window.all.cached.prompt_tokens in (None, full.cached.prompt_tokens)
        assert window.all.offload.load_bytes in (None, full.offload.load_bytes)


def no_odd_number(value: object) -> bool:
    """No NaN and no infinity anywhere but in what the caller said (window_s)."""
    if isinstance(value, dict):
        return all(no_odd_number(v) for v in value.values())
    if isinstance(value, list | tuple):
        return all(no_odd_number(v) for v in value)
    return not isinstance(value, float) or math.isfinite(value)


def test_helper_sees_odd_numbers() -> None:
    assert not no_odd_number({"a": [1.0, (math.nan,)]})
    assert "prompt_tokens_total" in text({f"prompt_tokens_total{E0}": 1})


START = 1_700_000_000.0


@pytest.mark.parametrize(
    ("old", "new", "starts", "asked"),
    [
        ((9, 5), (4, 5), (START, START), True),
        ((9, 5), (4, 2), (START, START), True),
        ((4, 2), (9, 5), (START, START), False),
        ((4, 5), (4, 5), (START, START), False),
        ((9, 2), (4, 5), (START, START), False),
        ((9, 5), (4, 2), (START, START + 60), False),
        ((9, 5), (4, 2), (START + 60, START), False),
        ((9, 5), (4, 2), (None, None), False),
    ],
)
def test_texts_are_swapped_where_one_process_counted_nothing_up_and_something_down(
    old: tuple[int, int], new: tuple[int, int], starts: tuple[float | None, float | None], asked: bool
) -> None:
    names = ('prompt_tokens_total{engine="0"}', 'generation_tokens_total{engine="0"}')
    a, b = (
        made(dict(zip(names, map(float, values), strict=True)), start=start)
        for values, start in zip((old, new), starts, strict=True)
    )
    assert swapped(a, b) is asked
