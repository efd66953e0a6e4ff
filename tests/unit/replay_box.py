"""A server in memory that keeps prompts by their salt, and counts as vLLM does."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from metrics_texts import made

from kvtop.errors import KvtopError
from kvtop.readings import Scrape, SourceDown, State
from kvtop.sources.http import Answer

BLOCK = 16


@dataclass
class Box:
    """One character is one token."""

    details: bool = True
    """Usage tells cached tokens."""
    stats: bool = True
    salted: bool = True
    caches: bool = True
    running: int = 0
    beside: int = 0
    """Requests of others that end with each of ours."""
    creeping: int = 0
    """Prompt tokens of others that come with each look."""
    offload: bool = False
    status: int = 200
    counts_all_the_same: bool = False
    """A request that fails was prefilled."""
    pool: int = 10_000
    down: bool = False
    usage: dict[str, Any] = field(default_factory=dict)
    """Told in place of what is true."""
    url: str = "http://127.0.0.1:8000"
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)
    prompt: int = 0
    hits: int = 0
    done: int = 0

    async def scrape(self) -> Scrape | SourceDown:
        if self.down:
            return SourceDown(State.REFUSED, "connection refused", 1.0)
        if not self.stats:
            return made({"num_requests_running": 0})
        self.prompt += self.creeping
        labels = f'block_size="{BLOCK}",num_gpu_blocks="{self.pool // BLOCK}",kv_cache_size_tokens="{self.pool}"'
        series = {
            "num_requests_running": self.running,
            "num_requests_waiting": 0,
            "prompt_tokens_total": self.prompt,
            "prompt_tokens_cached_total": self.hits,
            'request_success_total{finished_reason="length"}': self.done,
            "request_prefill_kv_computed_tokens_sum": 1000 + self.prompt - self.hits,
            "request_prefill_kv_computed_tokens_count": 1 + self.done,
            "request_prefill_time_seconds_sum": 2.0,
            f"cache_config_info{{{labels}}}": 1,
        }
        if self.offload:
            series["kv_offload_load_bytes_total"] = series["kv_offload_store_bytes_total"] = 0
        return made(series)

    async def post(self, path: str, body: bytes) -> Answer:
        asked = json.loads(body)
        self.asked.append((path, asked))
        if self.status != 200 and not self.counts_all_the_same:
            return Answer(self.status, {}, b'{"error": {"message": "secret prompt"}}')
        text = str(asked["cache_salt"]) + "|" if self.salted else "|"
        prompt = json.dumps([asked.get("tools"), asked.get("messages"), asked.get("prompt")])
        ends = range(BLOCK, len(prompt), BLOCK)
        cached = 0
        for end in ends:
            if text + prompt[:end] not in self.kept:
                break
            cached = end
        if self.caches:
            self.kept |= {text + prompt[:end] for end in [*ends, len(prompt)]}
        self.prompt += len(prompt) + 100 * self.beside
        self.hits += cached
        self.done += 1 + self.beside
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": 1}
        if self.details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        usage |= self.usage
        return Answer(self.status, {"content-type": "application/json"}, json.dumps({"usage": usage}).encode())

    def failed(self, path: str, answer: Answer) -> KvtopError:
        return KvtopError(f"{path} answers {answer.status}")
