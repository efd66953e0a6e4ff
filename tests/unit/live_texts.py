"""Small made-up scrapes, for what no capture shows: restarts, hours of silence, many engines."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtop.readings import Scrape, SeriesKey

BASE = 1_795_953_600.0

TYPES = {
    "vllm:prompt_tokens_total": "counter",
    "vllm:prompt_tokens_cached_total": "counter",
    "vllm:generation_tokens_total": "counter",
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_offload_store_bytes_total": "counter",
    "vllm:kv_offload_load_bytes_total": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_prefill_kv_computed_tokens": "histogram",
}


@dataclass
class Server:
    """Counters of a server that a test moves by hand."""

    started: float | None = BASE - 1_000
    prompt: float = 0
    cached: float = 0
    generated: float = 0
    running: float = 0
    waiting: float = 0
    store: float = 0
    load: float = 0
    first_tokens: int = 0
    engines: tuple[str, ...] = ("0",)
    extra: dict[SeriesKey, float] = field(default_factory=dict)

    def turn(self, prompt: float, cached: float) -> None:
        self.prompt += prompt
        self.cached += cached
        self.generated += 10
        self.first_tokens += 1

    def scrape(self, at: float) -> Scrape:
        values: dict[SeriesKey, float] = {}
        for engine in self.engines:
            labels = (("engine", engine), ("model_name", "m"))
            computed = self.prompt - self.cached
            for name, value in (
                ("vllm:prompt_tokens_total", self.prompt),
                ("vllm:prompt_tokens_cached_total", self.cached),
                ("vllm:generation_tokens_total", self.generated),
                ("vllm:num_requests_running", self.running),
                ("vllm:num_requests_waiting", self.waiting),
                ("vllm:kv_offload_store_bytes_total", self.store),
                ("vllm:kv_offload_load_bytes_total", self.load),
                ("vllm:time_to_first_token_seconds_count", self.first_tokens),
                ("vllm:time_to_first_token_seconds_sum", self.first_tokens * 0.5),
                ("vllm:request_prefill_time_seconds_count", self.first_tokens),
                ("vllm:request_prefill_time_seconds_sum", computed / 1_000),
                ("vllm:request_prefill_kv_computed_tokens_count", self.first_tokens),
                ("vllm:request_prefill_kv_computed_tokens_sum", computed),
            ):
                values[name, labels] = float(value)
            for bound, count in (("0.25", 0), ("1.0", self.first_tokens), ("+Inf", self.first_tokens)):
                key = ("vllm:time_to_first_token_seconds_bucket", tuple(sorted((*labels, ("le", bound)))))
                values[key] = float(count)
        values |= self.extra
        if self.started is not None:
            values["process_start_time_seconds", ()] = self.started
        return Scrape(values, TYPES, at)
