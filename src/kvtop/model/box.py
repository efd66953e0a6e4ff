"""What one vLLM server did between two scrapes: the groups of `snapshot --json`, as frozen values.

Field names are the JSON keys. None is 'not known', never 0: a series that this version does not have, that is
absent, NaN or infinite, or a quantity of a window in which nothing was observed.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.readings import State


@dataclass(frozen=True, slots=True)
class BySource:
    """Prompt tokens by where their KV came from. A tier that this version cannot name is None."""

    device: int | None = None
    host: int | None = None
    disk: int | None = None
    p2p: int | None = None
    external: int | None = None
    """From a connector, with no tier name known."""
    computed: int | None = None


@dataclass(frozen=True, slots=True)
class Cached:
    """Prompt tokens of the window and how many of them were served from cache."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    share: float | None = None
    """cached / prompt in this window; None where no prompt token was counted."""
    lifetime_share: float | None = None
    by_source: BySource = BySource()


@dataclass(frozen=True, slots=True)
class WaitingByReason:
    capacity: int | None = None
    deferred: int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    stop: int | None = None
    length: int | None = None
    abort: int | None = None
    error: int | None = None
    repetition: int | None = None

    @property
    def total(self) -> int | None:
        known = [n for n in (self.stop, self.length, self.abort, self.error, self.repetition) if n is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Requests:
    """Gauges are of the second scrape; preempted and finished are of the window."""

    running: int | None = None
    waiting: int | None = None
    waiting_by_reason: WaitingByReason = WaitingByReason()
    preempted: int | None = None
    preempted_total: int | None = None
    kv_cache_usage_share: float | None = None
    finished: Finished = Finished()


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile and the bucket that it fell into."""

    value_s: float | None
    """Linear inside the bucket, and never more than the mean allows; the mean where n is 1; None beyond the last
    bucket, and where the mean rules its bucket out."""
    above_s: float
    up_to_s: float | None
    """None: beyond the last bucket."""


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency histogram over the window. With n = 0 everything else is None, never the lifetime value."""

    n: int | None = None
    mean_s: float | None = None
    p50: Quantile | None = None
    p95: Quantile | None = None
    """Needs n >= 20."""
    p99: Quantile | None = None
    """Needs n >= 100."""


@dataclass(frozen=True, slots=True)
class Latencies:
    ttft: Latency = Latency()
    queue: Latency = Latency()
    prefill: Latency = Latency()
    decode: Latency = Latency()
    e2e: Latency = Latency()
    inter_token: Latency = Latency()


@dataclass(frozen=True, slots=True)
class Throughput:
    prompt_tokens_per_s: float | None = None
    computed_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    generation_tokens: int | None = None
    """Tokens generated in the window."""
    step_tokens_mean: float | None = None
    """Tokens an engine step (computed prompt + generated), mean over the window."""
    prefill_tokens_per_s: float | None = None
    """Computed prompt tokens of the finished requests over their prefill seconds: how fast this server reads."""


@dataclass(frozen=True, slots=True)
class Tier:
    tier: str
    read_bytes: int | None = None
    write_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Offload:
    """The KV offload tier. `store` is GPU to host, `load` is host to GPU."""

    supported: bool | None = None
    """A connector with offload series is there; None where no text was read."""
    unit: str = "bytes"
    """'bytes', or 'blocks' for SimpleCPUOffloadConnector: then the *_bytes keys are None and the counts are blocks."""
    load_bytes: int | None = None
    store_bytes: int | None = None
    load_bytes_per_s: float | None = None
    store_bytes_per_s: float | None = None
    load_bytes_total: int | None = None
    store_bytes_total: int | None = None
    load_time_s: float | None = None
    store_time_s: float | None = None
    loads: int | None = None
    stores: int | None = None
    loads_total: int | None = None
    stores_total: int | None = None
    failed: int | None = None
    """None where no series of this version tells."""
    tiers: tuple[Tier, ...] = ()


@dataclass(frozen=True, slots=True)
class SpecDecode:
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    acceptance_share: float | None = None
    mean_length_tokens: float | None = None
    per_position: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """What cache_config_info and the offload info series tell about the engine."""

    block_tokens: int | None = None
    match_unit_tokens: int | None = None
    """What cached tokens are a multiple of: the prefix match unit where set, else the block."""
    kv_cache_tokens: int | None = None
    prefix_caching: bool | None = None
    cpu_tier_bytes: int | None = None
    speculator: bool | None = None
    """True where spec_decode series are there."""
    mamba_mode: str | None = None
    retention: str | None = None
    """vLLM 0.29 or later: 0, a number of tokens, or 'none' where every boundary is kept."""
    prefix_match_unit_tokens: int | None = None
    sliding_window_tokens: int | None = None
    """Of a model whose layers all have one; of those that have it beside full attention the label tells nothing."""
    one_kv_group: bool | None = None
    """All layers keep their KV alike, in one group of blocks; None: it cannot be told (before 0.24)."""
    hash_algorithm: str | None = None
    """What blocks are known by: sha256, xxhash, ..."""


@dataclass(frozen=True, slots=True)
class EngineWindow:
    """The groups of one engine (data-parallel rank), or of all of them together."""

    engine: str | None = None
    cached: Cached = Cached()
    requests: Requests = Requests()
    latency: Latencies = Latencies()
    throughput: Throughput = Throughput()
    offload: Offload = Offload()
    spec_decode: SpecDecode | None = None
    config: Config = Config()


@dataclass(frozen=True, slots=True)
class Window:
    """Two scrapes of one server -> what happened between them."""

    state: State
    detail: str = ""
    at: float | None = None
    """Unix time of the second scrape."""
    window_s: float | None = None
    """Seconds between the two; None where nobody knows (two saved texts)."""
    all: EngineWindow = EngineWindow()
    engines: tuple[EngineWindow, ...] = ()
    """One a rank where there are several; empty for a single engine."""
    started_at: float | None = None
    """process_start_time_seconds of the API process; None in multiprocess mode."""
