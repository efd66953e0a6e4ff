"""What trips a reader of vLLM's /metrics, one test a trap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from metrics_texts import made, raw, scrape

from kvtop.model import metrics
from kvtop.model.turns import TurnTracker
from kvtop.model.window import between, since_start
from kvtop.readings import State

E0 = '{engine="0",model_name="m"}'


def test_counters_gain_total_even_where_they_end_in_total_bytes(captures: Callable[[str], Path]) -> None:
    text = raw(captures("vllm-0.32.0-offload") / "08-A-return.txt")
    on_the_wire = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE vllm:")}
    assert "vllm:kv_offload_total_bytes_total" in on_the_wire & metrics.COUNTER_NAMES
    assert "vllm:iteration_tokens_total" in on_the_wire & metrics.HISTOGRAM_NAMES
    core = {
        s.name for q in (metrics.PROMPT, metrics.CACHED, metrics.SUCCESS, metrics.GENERATION, metrics.TTFT) for s in q
    }
    assert core <= on_the_wire


def test_the_vocabulary_names_nothing_that_0_32_does_not_have_unless_it_is_older_newer_or_optional(
    captures: Callable[[str], Path],
) -> None:
    """A misspelt name would read as 'not in this version' for ever."""
    seen: set[str] = set()
    for folder, name in (
        ("vllm-0.32.0-tier", "08-A-return.txt"),
        ("spec-ngram", "05-s-turn5.txt"),
        ("vllm-0.32.0-offload", "08-A-return.txt"),
    ):
        seen |= {
            line.split()[2] for line in raw(captures(folder) / name).splitlines() if line.startswith("# TYPE vllm:")
        }
    named = metrics.COUNTER_NAMES | metrics.HISTOGRAM_NAMES | metrics.GAUGE_NAMES | metrics.INFO_NAMES
    assert named - seen == {
        "vllm:gpu_cache_usage_perc",  # up to 0.9.1
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_queries_total",
        "vllm:time_per_output_token_seconds",  # up to 0.10
        "vllm:kv_offload_config_info",  # 0.33
        "vllm:simple_kv_offload_info",  # another connector
        "vllm:simple_kv_offload_load_blocks_total",
        "vllm:simple_kv_offload_save_outcomes_total",
    }


def test_created_gauges_are_times_and_no_quantity(captures: Callable[[str], Path]) -> None:
    text = raw(captures("vllm-0.32.0") / "05-append4.txt")
    assert "_created{" in text
    assert not any(name.endswith("_created") for name, _ in scrape(text).values)
    bare = "".join(line for line in text.splitlines(keepends=True) if "_created" not in line)
    assert since_start(scrape(bare)) == since_start(scrape(text))


def test_a_type_without_a_sample_is_zero_and_no_type_is_unknown(captures: Callable[[str], Path]) -> None:
    idle = since_start(scrape(raw(captures("vllm-0.32.0-offload") / "00-idle.txt"))).all.offload
    assert (idle.supported, idle.load_bytes, idle.store_bytes, idle.loads, idle.failed) == (True, 0, 0, 0, 0)
    plain = since_start(scrape(raw(captures("vllm-0.32.0") / "00-idle.txt"))).all.offload
    assert (plain.supported, plain.load_bytes, plain.store_bytes, plain.loads, plain.failed) == (False, *[None] * 4)


def test_the_old_and_new_offload_series_are_never_added(captures: Callable[[str], Path]) -> None:
    folder = captures("vllm-0.32.0-offload")
    a, b = (scrape(raw(folder / name)) for name in ("07-E-fill.txt", "08-A-return.txt"))
    assert b.values["vllm:kv_offload_load_bytes_total", (("engine", "0"), ("model_name", "tiny"))] == 1_048_576
    assert between(a, b, 1.0).all.offload.load_bytes == 1_048_576


def test_hash_block_size_reads_none_in_the_api_process(captures: Callable[[str], Path]) -> None:
    text = raw(captures("vllm-0.32.0-hybrid") / "00-idle.txt")
    assert 'hash_block_size="None"' in text
    config = since_start(scrape(text)).all.config
    assert (config.block_tokens, config.match_unit_tokens, config.mamba_mode) == (288, 288, "align")


def test_a_kv_load_is_in_the_queue_time_and_not_in_the_prefill_time(captures: Callable[[str], Path]) -> None:
    """2,048 of 2,768 tokens came back from the host: TTFT holds the load, prefill time does not."""
    folder = captures("vllm-0.32.0-offload")
    tracker = TurnTracker()
    tracker.add(scrape(raw(folder / "07-E-fill.txt")))
    (row,) = tracker.add(scrape(raw(folder / "08-A-return.txt")))
    load_s = between(
        *(scrape(raw(folder / n)) for n in ("07-E-fill.txt", "08-A-return.txt")), 1.0
    ).all.offload.load_time_s
    assert row.queue_s is not None and load_s is not None and row.queue_s >= load_s > 0
    assert row.ttft_s == (row.queue_s or 0) + (row.prefill_s or 0)


def test_queries_count_at_admission_and_prompt_tokens_at_the_first_token(captures: Callable[[str], Path]) -> None:
    """The share is cached over prompt, on one clock: a prompt that is still read must not lower it."""
    folder = captures("series-0.32.0")
    a, b = (scrape(raw(folder / f"{n}.txt")) for n in ("017", "018"))
    asked = metrics.QUERIES[0].name, (("engine", "0"), ("model_name", "tiny"))
    assert b.values[asked] - a.values[asked] == 4345
    cached = between(a, b, 0.5).all.cached
    assert (cached.prompt_tokens, cached.cached_tokens, cached.share) == (0, 0, None)


def test_statistics_off_leaves_a_series_of_the_web_server(captures: Callable[[str], Path]) -> None:
    text = raw(captures("odd") / "metrics-0.32.0-nologstats-idle.txt")
    assert "vllm:tool_call_parser_invocations_total" in text
    assert since_start(scrape(text)).state is State.NO_STATS


def test_num_gpu_blocks_is_the_sum_over_engines_repeated_on_each(captures: Callable[[str], Path]) -> None:
    text = raw(captures("odd") / "metrics-0.32.0-dp2-idle.txt")
    assert text.count('num_gpu_blocks="600"') == 2
    older = text.replace('kv_cache_size_tokens="38400",', "")
    for window in (since_start(scrape(text)), since_start(scrape(older))):
        assert window.all.config.kv_cache_tokens == 76_800
        assert [engine.config.kv_cache_tokens for engine in window.engines] == [38_400, 38_400]


def test_names_come_from_presence_and_never_from_a_version() -> None:
    """A server of a new version with a series missing (the Rust frontend) is read by what it has."""
    a = {f"prompt_tokens_total{E0}": 0, f"prompt_tokens_cached_total{E0}": 0, f"num_requests_running{E0}": 0}
    b = {f"prompt_tokens_total{E0}": 10, f"prompt_tokens_cached_total{E0}": 5, f"num_requests_running{E0}": 1}
    got = between(made(a), made(b), 1.0).all
    assert (got.cached.share, got.requests.running, got.cached.by_source.computed) == (0.5, 1, None)
    assert got.latency.queue.n is None and got.offload.supported is False
