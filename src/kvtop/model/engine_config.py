"""What the info series tell about an engine: labels that are strings, 'None' where unset."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kvtop.model import metrics as m
from kvtop.model.box import Config
from kvtop.model.growth import Growth

GIB = 1 << 30


def config(g: Growth) -> Config:
    """The config group. `kv_cache_tokens` of all engines together is their sum.

    `hash_block_size` and `cache_hit_alignment_tokens` read 'None' in the API process, and `mamba_block_size` can be
    stale: only `block_size` and the prefix match unit are used.
    """
    labels = g.engine.info.get(m.CACHE_CONFIG, {})
    block = _positive(labels.get("block_size"))
    # prefix_match_unit since 0.26, hash_block_size in 0.20 to 0.25
    unit = _positive(labels.get("prefix_match_unit")) or _positive(labels.get("hash_block_size"))
    return Config(
        block_tokens=block,
        match_unit_tokens=unit or block,
        kv_cache_tokens=_kv_cache_tokens(g, labels, block),
        prefix_caching=_truth(labels.get("enable_prefix_caching")),
        cpu_tier_bytes=_cpu_tier_bytes(g, labels),
        speculator=_speculator(g, known=bool(labels)),
        mamba_mode=_text(labels.get("mamba_cache_mode")),
        retention=_retention(labels.get("prefix_cache_retention_interval")),
        prefix_match_unit_tokens=unit,
        sliding_window_tokens=_positive(labels.get("sliding_window")),
        one_kv_group=_one_group(labels, block, len(g.after.engines)),
        hash_algorithm=_text(labels.get("prefix_caching_hash_algo")),
    )


def _speculator(g: Growth, *, known: bool) -> bool | None:
    """Whether drafts are counted. Their absence says so only in a text that has all families from the start."""
    if g.has(m.DRAFTS):
        return True
    return False if known and not g.after.multiprocess and not g.after.scrape.truncated else None


def _kv_cache_tokens(g: Growth, labels: Mapping[str, str], block: int | None) -> int | None:
    members = g.engine.members
    tokens = _positive(labels.get("kv_cache_size_tokens"))  # 0.24; of one engine
    if tokens is not None:
        return tokens * members
    blocks = _positive(labels.get("num_gpu_blocks"))  # the sum over data-parallel engines, repeated on each
    if blocks is None or block is None:
        return None
    if _text(labels.get("sliding_window")) or _text(labels.get("mamba_cache_mode")) not in (None, "none"):
        return None  # several groups of blocks share the pool: blocks times tokens would be too many
    together = blocks * block
    return together if g.engine is g.after.all else together // max(1, len(g.after.engines))


def _one_group(labels: Mapping[str, str], block: int | None, engines: int) -> bool | None:
    """Whether a request of the longest length takes as many blocks as one group needs (0.24): several groups draw from
    one pool, and take more together."""
    tokens = _positive(labels.get("kv_cache_size_tokens"))
    blocks = _positive(labels.get("num_gpu_blocks"))
    requests = _number(labels.get("kv_cache_max_concurrency"))
    if not (tokens and blocks and block and requests and requests > 0):
        return None
    longest = tokens / requests
    taken = blocks / max(1, engines) / requests
    if not (math.isfinite(longest) and math.isfinite(taken)):
        return None
    return abs(taken - math.ceil(round(longest) / block)) < 0.5


def _cpu_tier_bytes(g: Growth, labels: Mapping[str, str]) -> int | None:
    told = _positive(g.engine.info.get(m.OFFLOAD_CONFIG, {}).get("cpu_kv_cache_size_bytes"))  # 0.33
    if told is not None:
        return told
    gib = _number(labels.get("kv_offloading_size"))  # the flag's own value, GiB
    return round(gib * GIB) if gib is not None and 0 < gib < 1e9 else None


def _text(label: str | None) -> str | None:
    return None if label in (None, "", "None") else label


def _retention(label: str | None) -> str | None:
    """From 0.29: '0', a number of tokens, or 'none', which is a setting of its own: every boundary is kept."""
    return "none" if label == "None" else _text(label)


def _number(label: str | None) -> float | None:
    if label is None or len(label) > 32:
        return None
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _positive(label: str | None) -> int | None:
    value = _number(label)
    return round(value) if value is not None and 0 < value < 1e18 else None


def _truth(label: str | None) -> bool | None:
    return {"True": True, "False": False}.get(label or "")
