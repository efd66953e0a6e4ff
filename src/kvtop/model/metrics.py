"""The one vocabulary: which /metrics series of vLLM 0.9 to 0.33 hold which quantity.

A quantity lists its series by generation, newest first; the first one that the text has is read, and two are never
added. What a server can tell follows from its `# TYPE` lines, never from its version.

    TYPE, and a sample       the sample
    TYPE, and no sample      0: children that are made on the first event (kv_offload_*), or multiprocess mode at rest
    no TYPE                  None: not in this version, or not configured

Names are those on the wire: a counter has `_total` unless its source name already ended so
(`kv_offload_total_bytes` -> `kv_offload_total_bytes_total`; `iteration_tokens_total` is a histogram).
"""

from __future__ import annotations

from dataclasses import dataclass

START_TIME = "process_start_time_seconds"
"""Of the API process; absent in multiprocess mode (more than one API server)."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of one generation: the family's name on the wire and, where it is one row of it, that row's label."""

    name: str
    row: str = ""
    """Value of the family's own label (source, reason, transfer_type ...); empty: all rows together."""


def _series(*names: str) -> tuple[Series, ...]:
    return tuple(Series(f"vllm:{name}") for name in names)


def _transfer(new: str, old: str, kind: str) -> tuple[Series, ...]:
    """Offload: flat series since 0.24, `transfer_type` rows 0.16 to 0.23 (still fed later, so never both)."""
    return Series(f"vllm:{new}"), Series(f"vllm:{old}", kind)


LOAD, STORE = "CPU_to_GPU", "GPU_to_CPU"

# gauges
RUNNING = _series("num_requests_running")
WAITING = _series("num_requests_waiting")
WAITING_BY_REASON = _series("num_requests_waiting_by_reason")  # 0.20.2
KV_USAGE = _series("kv_cache_usage_perc", "gpu_cache_usage_perc")  # new name 0.9.2; cached but free blocks are free
SLEEP = _series("engine_sleep_state")  # 0.11.2

# counters of tokens
PROMPT = _series("prompt_tokens_total")  # the whole prompt, at its first token
PROMPT_BY_SOURCE = _series("prompt_tokens_by_source_total")  # 0.16, at the first token
CACHED = _series("prompt_tokens_cached_total")  # 0.16, local + external
CACHED_BY_TIER = _series("prompt_tokens_cached_by_source_total")  # 0.32, at admission
QUERIES = _series("prefix_cache_queries_total", "gpu_prefix_cache_queries_total")  # new names 0.9.2; at admission
HITS = _series("prefix_cache_hits_total", "gpu_prefix_cache_hits_total")
EXTERNAL_QUERIES = _series("external_prefix_cache_queries_total")  # 0.11.2
EXTERNAL_HITS = _series("external_prefix_cache_hits_total")
GENERATION = _series("generation_tokens_total")

# counters of requests
PREEMPTIONS = _series("num_preemptions_total")
SUCCESS = _series("request_success_total")  # every finish, despite its name; error 0.13, repetition 0.17.1

# histograms
TTFT = _series("time_to_first_token_seconds")  # at the first token
INTER_TOKEN = _series("inter_token_latency_seconds", "time_per_output_token_seconds")  # new name 0.10.2; per step
QUEUE = _series("request_queue_time_seconds")  # this and all below: at the finish; holds the KV load of a tier
PREFILL = _series("request_prefill_time_seconds")
DECODE = _series("request_decode_time_seconds")
E2E = _series("e2e_request_latency_seconds")
REQUEST_PROMPT = _series("request_prompt_tokens")
REQUEST_GENERATION = _series("request_generation_tokens")
REQUEST_COMPUTED = _series("request_prefill_kv_computed_tokens")  # 0.13; prompt - cached
ITERATION = _series("iteration_tokens_total")  # tokens an engine step

# the offload tier
LOAD_BYTES = _transfer("kv_offload_load_bytes_total", "kv_offload_total_bytes_total", LOAD)
STORE_BYTES = _transfer("kv_offload_store_bytes_total", "kv_offload_total_bytes_total", STORE)
LOAD_TIME = _transfer("kv_offload_load_time_total", "kv_offload_total_time_total", LOAD)
STORE_TIME = _transfer("kv_offload_store_time_total", "kv_offload_total_time_total", STORE)
LOAD_SIZE = _transfer("kv_offload_load_size", "kv_offload_size", LOAD)
STORE_SIZE = _transfer("kv_offload_store_size", "kv_offload_size", STORE)
ALLOCATION_FAILURES = _series("kv_offload_allocation_failure_total")  # 0.26
TIER_READ = _series("kv_offload_tiering_read_bytes_total")  # 0.28
TIER_WRITE = _series("kv_offload_tiering_write_bytes_total")
TIER_FAILURES = (
    _series("kv_offload_tiering_promotion_job_failures_total"),
    _series("kv_offload_tiering_cascade_job_failures_total"),
    _series("kv_offload_tiering_promotion_allocation_failures_total"),
)
SIMPLE_LOADS = _series("simple_kv_offload_load_blocks_total")  # 0.31, blocks
SIMPLE_SAVES = _series("simple_kv_offload_save_outcomes_total")

# speculative decoding: only where it is configured
DRAFTS = _series("spec_decode_num_drafts_total")
DRAFT_TOKENS = _series("spec_decode_num_draft_tokens_total")
ACCEPTED = _series("spec_decode_num_accepted_tokens_total")
ACCEPTED_PER_POSITION = _series("spec_decode_num_accepted_tokens_per_pos_total")

# labels that say how the engine is set up; the values are strings, 'None' where unset
CACHE_CONFIG = "vllm:cache_config_info"
OFFLOAD_CONFIG = "vllm:kv_offload_config_info"  # 0.33, after the first scheduler step
SIMPLE_CONFIG = "vllm:simple_kv_offload_info"

LATENCIES = (TTFT, INTER_TOKEN, QUEUE, PREFILL, DECODE, E2E)
"""Histograms whose buckets are read; of the others only count and sum."""

COUNT_AND_SUM = (
    *LATENCIES,
    REQUEST_PROMPT,
    REQUEST_GENERATION,
    REQUEST_COMPUTED,
    ITERATION,
    LOAD_SIZE,
    STORE_SIZE,
)

COUNTERS = (
    PROMPT,
    PROMPT_BY_SOURCE,
    CACHED,
    CACHED_BY_TIER,
    QUERIES,
    HITS,
    EXTERNAL_QUERIES,
    EXTERNAL_HITS,
    GENERATION,
    PREEMPTIONS,
    SUCCESS,
    LOAD_BYTES,
    STORE_BYTES,
    LOAD_TIME,
    STORE_TIME,
    ALLOCATION_FAILURES,
    TIER_READ,
    TIER_WRITE,
    *TIER_FAILURES,
    SIMPLE_LOADS,
    SIMPLE_SAVES,
    DRAFTS,
    DRAFT_TOKENS,
    ACCEPTED,
    ACCEPTED_PER_POSITION,
)

GAUGES = (RUNNING, WAITING, WAITING_BY_REASON, KV_USAGE, SLEEP)

ROW_LABEL = {
    "vllm:num_requests_waiting_by_reason": "reason",
    "vllm:engine_sleep_state": "sleep_state",
    "vllm:prompt_tokens_by_source_total": "source",
    "vllm:prompt_tokens_cached_by_source_total": "source",
    "vllm:request_success_total": "finished_reason",
    "vllm:kv_offload_total_bytes_total": "transfer_type",
    "vllm:kv_offload_total_time_total": "transfer_type",
    "vllm:kv_offload_size": "transfer_type",
    "vllm:kv_offload_tiering_read_bytes_total": "tier",
    "vllm:kv_offload_tiering_write_bytes_total": "tier",
    "vllm:kv_offload_tiering_promotion_job_failures_total": "tier",
    "vllm:kv_offload_tiering_cascade_job_failures_total": "tier",
    "vllm:kv_offload_tiering_promotion_allocation_failures_total": "tier",
    "vllm:simple_kv_offload_save_outcomes_total": "outcome",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": "position",
}
"""The label by which a family is split, besides engine and model_name. Any other label is summed over."""

GROWING = frozenset(
    name for name, label in ROW_LABEL.items() if label in ("tier", "outcome", "transfer_type", "position")
)
"""Families whose rows are made on first use; the rows of the others are all there from the start."""

COUNTER_NAMES = frozenset(series.name for quantity in COUNTERS for series in quantity)
HISTOGRAM_NAMES = frozenset(series.name for quantity in COUNT_AND_SUM for series in quantity)
BUCKET_NAMES = frozenset(series.name for quantity in LATENCIES for series in quantity)
GAUGE_NAMES = frozenset(series.name for quantity in GAUGES for series in quantity)
LASTING_NAMES = COUNTER_NAMES | HISTOGRAM_NAMES | GAUGE_NAMES
"""Families that a server process tells from its start to its end."""
SHARE_NAMES = frozenset(series.name for series in KV_USAGE)
BYTE_NAMES = frozenset(
    series.name
    for quantity in (LOAD_BYTES, STORE_BYTES, LOAD_SIZE, STORE_SIZE, TIER_READ, TIER_WRITE)
    for series in quantity
)
INFO_NAMES = frozenset((CACHE_CONFIG, OFFLOAD_CONFIG, SIMPLE_CONFIG))

SAMPLE_NAMES = frozenset(
    {START_TIME, *COUNTER_NAMES, *GAUGE_NAMES, *INFO_NAMES}
    | {f"{name}_{part}" for name in HISTOGRAM_NAMES for part in ("count", "sum")}
    | {f"{name}_bucket" for name in BUCKET_NAMES}
)
"""Every sample name that a window reads."""

FALLING_NAMES = frozenset(COUNTER_NAMES | {f"{name}_count" for name in HISTOGRAM_NAMES})
"""Samples that never fall while a server lives. Not `_sum`: a clock set back makes a negative observation."""

API_SERVER_PREFIXES = ("vllm:tool_call_parser_", "vllm:sleep_mode_operation")
"""Families of the web server, not of the engine: these stay with --disable-log-stats."""


def wanted(sample_name: str) -> bool:
    """Whether the vocabulary reads samples of this name."""
    return sample_name in SAMPLE_NAMES
