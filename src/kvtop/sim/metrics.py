"""The series of vLLM 0.32.0 as the embedded box feeds them: names, labels, buckets and the moments at which they move.

`prefix_cache_*` and `prompt_tokens_cached_by_source` move at admission, `prompt_tokens*` and time to first token with
the first token, `request_*`, queue, prefill, decode and end-to-end time at the finish. A flat `kv_offload_*` series has
no sample before its first event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvtop.readings import Scrape
from kvtop.sim.exposition import Family, HistogramChild, Line, Registry

TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
PHASE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
COPY = (1e6, 5e6, 1e7, 2e7, 4e7, 6e7, 8e7, 1e8, 1.5e8, 2e8)
CHUNKS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
LOOKUP = (1e-05, 5e-05, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1)
SMALL = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

FINISHES = ("stop", "length", "abort", "error", "repetition")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
TO_GPU, TO_CPU = ("transfer_type", "CPU_to_GPU"), ("transfer_type", "GPU_to_CPU")


def token_bounds(max_model_len: int) -> tuple[float, ...]:
    """The 1-2-5 series up to the longest prompt."""
    out: list[float] = []
    power = 1
    while True:
        for m in (1, 2, 5):
            if m * power > max_model_len:
                return tuple(out)
            out.append(float(m * power))
        power *= 10


@dataclass(frozen=True, slots=True)
class Finish:
    """The numbers of one finished request."""

    reason: str
    prompt_tokens: int
    computed_tokens: int
    generated_tokens: int
    max_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    e2e_s: float
    preemptions: int


class ServerMetrics:
    """All counters of one server process; a restart makes a new one."""

    def __init__(
        self, model: str, started_at: float, max_model_len: int, cache_config: Mapping[str, str], *, offload: bool
    ) -> None:
        self.registry = Registry()
        self._started_at = started_at
        self._model = ("model_name", model)
        self._common = (("engine", "0"), self._model)
        self.offload = offload
        self._process()
        if offload:
            self._offload_families()
        self._engine_families(token_bounds(max_model_len))
        info = self._family("cache_config_info", "gauge", "Configuration of the KV cache.", common=(("engine", "0"),))
        info.child(*sorted(cache_config.items())).set(1)
        self._http()

    def text(self) -> str:
        """The whole /metrics text."""
        return self.registry.text()

    def scrape(self, at: float) -> Scrape:
        """The same as values, for a moment that nobody asked at."""
        return self.registry.scrape(at)

    def _family(
        self,
        name: str,
        kind: str,
        words: str,
        *,
        bounds: tuple[float, ...] = (),
        common: tuple[tuple[str, str], ...] | None = None,
    ) -> Family:
        created = None if kind == "gauge" else self._started_at
        common = self._common if common is None else common
        return self.registry.add(Family(f"vllm:{name}", kind, words, common, created, bounds))

    def _counter(self, name: str, words: str) -> Line:
        return self._family(name, "counter", words).child()

    def _gauge(self, name: str, words: str) -> Line:
        return self._family(name, "gauge", words).child()

    def _histogram(self, name: str, words: str, bounds: tuple[float, ...]) -> HistogramChild:
        return self._family(name, "histogram", words, bounds=bounds).histogram()

    def _process(self) -> None:
        start = Family(
            "process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", ()
        )
        start.child().set(self._started_at)
        self.registry.add(start)

    def _http(self) -> None:
        http = Family("http_requests", "counter", "Requests by method, status and handler.", (), self._started_at)
        self.registry.add(http)
        self._http_requests = http

    def http_request(self, handler: str, method: str, status: int, at: float) -> None:
        """A request that was answered. Probes (/metrics, /health, /version) are not counted, as in vLLM."""
        labels = (("handler", handler), ("method", method), ("status", f"{status // 100}xx"))
        self._http_requests.child(*labels, at=at).add(1)

    def _offload_families(self) -> None:
        family = self._family
        self._moved_bytes = family("kv_offload_total_bytes", "counter", "Bytes moved by the KV connector.")
        self._moved_time = family("kv_offload_total_time", "counter", "Seconds of all KV offload copies.")
        self._moved_size = family("kv_offload_size", "histogram", "Size of KV offload copies, in bytes.", bounds=COPY)
        for way in (TO_GPU, TO_CPU):
            self._moved_bytes.child(way)
            self._moved_time.child(way)
            self._moved_size.histogram(way)
        self._pinned = [
            family(
                f"kv_offload_cpu_cache_{word}usage_perc", "gauge", "Share of the CPU tier pinned by copies under way."
            )
            for word in ("", "write_", "read_")
        ]
        self._allocation = family(
            "kv_offload_cpu_allocation_size", "histogram", "Chunks asked for by a store.", bounds=CHUNKS
        )
        self._load = [
            family("kv_offload_load_bytes", "counter", "Bytes loaded from offload storage to the GPU."),
            family("kv_offload_load_time", "counter", "Seconds of loads to the GPU."),
            family("kv_offload_load_size", "histogram", "Size of a load, in bytes.", bounds=COPY),
        ]
        self._store = [
            family("kv_offload_store_bytes", "counter", "Bytes stored from the GPU."),
            family("kv_offload_store_time", "counter", "Seconds of stores from the GPU."),
            family("kv_offload_store_size", "histogram", "Size of a store, in bytes.", bounds=COPY),
        ]
        self._lookup = family("kv_offload_lookup_sync_delay_seconds", "histogram", "Time of one lookup.", bounds=LOOKUP)
        family(
            "kv_offload_lookup_async_delay_seconds",
            "histogram",
            "Time until a deferred lookup is answered.",
            bounds=LOOKUP,
        )
        family("kv_offload_allocation_failure", "counter", "Stores that found no room.")

    def _engine_families(self, tokens: tuple[float, ...]) -> None:
        counter, gauge, histogram, family = self._counter, self._gauge, self._histogram, self._family
        for unit in ("flops", "read_bytes", "write_bytes"):
            counter(f"estimated_{unit}_per_gpu", "Moves only with --enable-mfu-metrics.")
        self.running = gauge("num_requests_running", "Requests in the running batch.")
        self.waiting = gauge("num_requests_waiting", "Requests that wait.")
        reason = family("num_requests_waiting_by_reason", "gauge", "Requests that wait, by reason.")
        self.waiting_capacity = reason.child(("reason", "capacity"))
        self.waiting_deferred = reason.child(("reason", "deferred"))
        if self.offload:
            stage = family("num_requests_kv_fetch_by_stage", "gauge", "Requests that wait for a KV load, by its stage.")
            stage.child(("stage", "waiting_to_start"))
            self._fetching = stage.child(("stage", "in_progress"))
            stage.child(("stage", "completed_waiting"))
        sleep = family("engine_sleep_state", "gauge", "1 for the state that the engine is in.")
        self._sleep = {state: sleep.child(("sleep_state", state)) for state in SLEEP_STATES}
        self._sleep["awake"].set(1)
        self.kv_usage = gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
        self._queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._external_queries = counter(
            "external_prefix_cache_queries", "Prompt tokens looked up through the KV connector."
        )
        self._external_hits = counter("external_prefix_cache_hits", "Prompt tokens found through the KV connector.")
        counter("mm_cache_queries", "Multi-modal items looked up.")
        counter("mm_cache_hits", "Multi-modal items found.")
        self._preemptions = counter("num_preemptions", "Requests thrown out of the batch for want of blocks.")
        self._prompt = counter("prompt_tokens", "Prompt tokens, cached or not.")
        by_source = family("prompt_tokens_by_source", "counter", "Prompt tokens by where their KV came from.")
        self._by_source = [
            by_source.child(("source", s)) for s in ("local_compute", "local_cache_hit", "external_kv_transfer")
        ]
        self._cached = counter("prompt_tokens_cached", "Prompt tokens whose KV was cached, here or outside.")
        tiers = family(
            "prompt_tokens_cached_by_source", "counter", "Cached prompt tokens by tier, counted at admission."
        )
        self._tiers = {s: tiers.child(("source", s)) for s in ("device", "host", "p2p", "disk", "external_unspecified")}
        self._generated = counter("generation_tokens", "Tokens generated.")
        finished = family("request_success", "counter", "Finished requests by reason.")
        self._finished = {r: finished.child(("finished_reason", r)) for r in FINISHES}
        refused = family("admission_rejections", "counter", "Requests refused by a queue limit.", common=(self._model,))
        for limit in ("max_num_queued_reqs", "max_num_queued_tokens"):
            refused.child(("reason", limit))
        self._h_prompt = histogram("request_prompt_tokens", "Prompt tokens of a finished request.", tokens)
        self._h_generated = histogram("request_generation_tokens", "Generated tokens of a finished request.", tokens)
        self._h_step = histogram("iteration_tokens_total", "Tokens of an engine step.", STEP)
        self._h_max_generated = histogram(
            "request_max_num_generation_tokens", "Longest of a request's outputs, in tokens.", tokens
        )
        self._h_n = histogram("request_params_n", "The parameter n.", SMALL)
        self._h_max_tokens = histogram("request_params_max_tokens", "The parameter max_tokens.", tokens)
        self._h_ttft = histogram("time_to_first_token_seconds", "Arrival to first token.", TTFT)
        self._h_gap = histogram("inter_token_latency_seconds", "Gap between two tokens.", GAP)
        self._h_per_token = histogram("request_time_per_output_token_seconds", "Mean gap of a request.", GAP)
        self._h_e2e = histogram("e2e_request_latency_seconds", "Arrival to last token.", PHASE)
        self._h_queue = histogram("request_queue_time_seconds", "Time waited before the first step.", PHASE)
        self._h_inference = histogram("request_inference_time_seconds", "First step to last token.", PHASE)
        self._h_prefill = histogram("request_prefill_time_seconds", "First step to first token.", PHASE)
        self._h_decode = histogram("request_decode_time_seconds", "First token to last token.", PHASE)
        self._h_preemptions = histogram("request_num_preemptions", "How often a request was thrown out.", PREEMPTIONS)
        self._h_computed = histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens computed, cached ones left out.", tokens
        )

    def gauges(self, *, running: int, capacity: int, deferred: int, usage: float) -> None:
        """The state of the last step."""
        self.running.set(running)
        self.waiting.set(capacity + deferred)
        self.waiting_capacity.set(capacity)
        self.waiting_deferred.set(deferred)
        self.kv_usage.set(usage)
        if self.offload:
            self._fetching.set(deferred)

    def sleep_state(self, state: str) -> None:
        """One of SLEEP_STATES."""
        for name, one in self._sleep.items():
            one.set(float(name == state))

    def admitted(self, prompt: int, device: int, host: int) -> None:
        """First admission: what the lookup found, in tokens."""
        self._queries.add(prompt)
        self._hits.add(device)
        self._tiers["device"].add(device)
        if self.offload:
            self._external_queries.add(prompt - device)
            self._external_hits.add(host)
            self._tiers["host"].add(host)
            self._lookup.histogram().observe(2e-5 + 2e-9 * (prompt - device))

    def first_token(self, prompt: int, device: int, host: int, ttft_s: float) -> None:
        """The prefill gave its first token."""
        self._prompt.add(prompt)
        self._cached.add(device + host)
        for one, n in zip(self._by_source, (prompt - device - host, device, host), strict=True):
            one.add(n)
        self._h_ttft.observe(ttft_s)

    def step(self, tokens: int, generated: int, times: int = 1) -> None:
        """`times` equal engine steps: tokens computed, and tokens generated."""
        self._h_step.observe(tokens, times)
        self._generated.add(generated * times)

    def gap(self, seconds: float, times: int = 1) -> None:
        """Tokens that came `seconds` after the one before them."""
        self._h_gap.observe(seconds, times)

    def preempted(self) -> None:
        """A request lost its blocks."""
        self._preemptions.add(1)

    def finish(self, one: Finish) -> None:
        """A request gave its last token."""
        self._finished[one.reason].add(1)
        self._h_prompt.observe(one.prompt_tokens)
        self._h_generated.observe(one.generated_tokens)
        self._h_max_generated.observe(one.generated_tokens)
        self._h_n.observe(1)
        self._h_max_tokens.observe(one.max_tokens)
        if one.generated_tokens > 1:
            self._h_per_token.observe(one.decode_s / (one.generated_tokens - 1))
        self._h_e2e.observe(one.e2e_s)
        self._h_queue.observe(one.queue_s)
        self._h_inference.observe(one.prefill_s + one.decode_s)
        self._h_prefill.observe(one.prefill_s)
        self._h_decode.observe(one.decode_s)
        self._h_preemptions.observe(one.preemptions)
        self._h_computed.observe(one.computed_tokens)

    def loaded(self, size: int, seconds: float, at: float) -> None:
        """A copy from the CPU tier to the device."""
        self._moved(TO_GPU, self._load, size, seconds, at)

    def stored(self, size: int, seconds: float, blocks: int, at: float) -> None:
        """A copy from the device to the CPU tier."""
        self._moved(TO_CPU, self._store, size, seconds, at)
        self._allocation.histogram(at=at).observe(blocks)

    def _moved(self, way: tuple[str, str], flat: list[Family], size: int, seconds: float, at: float) -> None:
        self._moved_bytes.child(way).add(size)
        self._moved_time.child(way).add(seconds)
        self._moved_size.histogram(way).observe(size)
        flat[0].child(at=at).add(size)
        flat[1].child(at=at).add(seconds)
        flat[2].histogram(at=at).observe(size)
        for share in self._pinned:
            share.child()
