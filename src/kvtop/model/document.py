"""The JSON documents of `snapshot --json` and `turns --json`. Unknown is null; no NaN, no infinity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from kvtop.clock import iso
from kvtop.model.box import EngineWindow, Window
from kvtop.model.shown_turn import Turn
from kvtop.readings import GpuReading, HostReading, ServerFacts

_GROUPS = ("cached", "requests", "latency", "throughput", "offload", "spec_decode", "config")
_GPU_KEYS = (
    "index",
    "name",
    "util_share",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_w",
    "power_limit_w",
    "temperature_c",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "throttle",
    "processes",
    "lost",
)
_HOST_KEYS = (
    "memory_total_bytes",
    "memory_available_bytes",
    "shm_total_bytes",
    "shm_used_bytes",
    "offload_files",
    "swap_used_bytes",
    "pressure",
)

_UNSHOWN = frozenset({"shell_path", "place"})
"""Fields that only kvtop itself has a use for."""


def _as_it_is(text: str) -> str:
    return text


def plain(
    value: Any, text: Callable[[str], str] = _as_it_is, named: Mapping[str, Callable[[Any], Any]] | None = None
) -> Any:
    """Frozen values as JSON types: dataclass -> object, tuple -> list, NaN and infinity -> null.

    Every text goes through `text`; `named` says, for fields of these names, what else is done to the JSON value.
    """
    named = named or {}
    if isinstance(value, str):  # a StrEnum too: its value, without its class
        return text(str(value))
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value):
        made = {f.name: plain(getattr(value, f.name), text, named) for f in fields(value) if f.name not in _UNSHOWN}
        return {name: named[name](one) if name in named else one for name, one in made.items()}
    if isinstance(value, Mapping):
        return {str(k): plain(v, text, named) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, text, named) for v in value]
    return text(str(value))


def groups(engine: EngineWindow) -> dict[str, Any]:
    """The groups of one engine, or of all together."""
    return {name: plain(getattr(engine, name)) for name in _GROUPS}


def snapshot(
    window: Window,
    *,
    url: str | None = None,
    facts: ServerFacts | None = None,
    gpu: GpuReading | None = None,
    host: HostReading | None = None,
    age_s: float | None = None,
) -> dict[str, Any]:
    """`snapshot --json`."""
    gpus = gpu.gpus if gpu else ()
    return {
        "url": url,
        "at": iso(window.at),
        "window_s": plain(window.window_s),
        "state": str(window.state),
        "detail": window.detail,
        "age_s": plain(age_s),
        "started_at": iso(window.started_at),
        "vllm_version": facts.version if facts else None,
        "models": [{"id": row.id, "max_model_len": row.max_model_len} for row in facts.models] if facts else [],
        **groups(window.all),
        "engines": [{"engine": one.engine, **groups(one)} for one in window.engines],
        "gpus": [{key: plain(getattr(card, key)) for key in _GPU_KEYS} for card in gpus],
        "gpu_error": gpu.error if gpu else None,
        "host": {key: plain(getattr(host, key)) for key in _HOST_KEYS} if host else None,
    }


def turn(t: Turn) -> dict[str, Any]:
    """One element of `turns --json`, worked out from counters alone: what they cannot tell is null.

    `n` is 1 for an exact row; else n requests finished between two scrapes and every number is their mean.
    """
    return {
        "id": t.id,
        "n": t.n,
        "started_at": iso(t.started_at),
        "ended_at": iso(t.ended_at),
        "route": None,
        "model": None,
        "conversation": None,
        "agent": t.agent,
        "upstream": None,
        "engine": t.engine,
        "state": t.state,
        "phase": t.phase,
        "status": None,
        "finish_reason": t.finish_reason,
        "prompt_tokens": plain(t.prompt_tokens),
        "cached_tokens": plain(t.cached_tokens),
        "cached_share": plain(t.cached_share),
        "new_tokens": plain(t.new_tokens),
        "completion_tokens": plain(t.completion_tokens),
        "queue_s": plain(t.queue_s),
        "prefill_s": plain(t.prefill_s),
        "decode_s": plain(t.decode_s),
        "ttft_s": plain(t.ttft_s),
        "duration_s": plain(t.duration_s),
        "inter_token_mean_s": plain(t.inter_token_s),
        "inter_token_p50_s": None,
        "request_bytes": None,
        "response_bytes": None,
        "slow": t.waited,
        "verdict": t.verdict,
        "source": "metrics",
        "record": "complete",
        "cached_source": "metrics" if t.cached_tokens is not None else None,
    }
