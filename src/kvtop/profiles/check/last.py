"""What the log of the last start tells of the KV cache (vLLM 0.9 to 0.33)."""

from __future__ import annotations

import re
from pathlib import Path

from kvtop.files import read_end
from kvtop.profiles.check.seen import LastStart
from kvtop.profiles.running.progress import BLOCK, KV_ROOM, KV_SIZE, MAMBA, UNIT

_MOST_BYTES = 64_000_000
_FIRST = re.compile(rb"non-default args: |API server version ")
"""One of them stands at the head of each start."""
_POOL, _MEMORY, _BLOCK, _MAMBA, _UNIT = (
    re.compile(one.pattern.encode()) for one in (KV_SIZE, KV_ROOM, BLOCK, MAMBA, UNIT)
)
_MODEL = re.compile(rb"non-default args: \{.{0,4000}?'model(?:_tag)?': '([^']{1,1000})'")


def of_log(log: bytes, ranks: int, model: str | None = None) -> LastStart | None:
    """Of the newest start in it, of that model, that came as far as its KV cache; None: there is none.

    `ranks`: GPUs of one engine, each with memory of its own.
    """
    end = len(log)
    for begin in reversed([0, *(first.start() for first in _FIRST.finditer(log))]):
        found = _of_start(log[begin:end], ranks)
        named = _MODEL.search(log, begin, end)
        other = model is not None and named is not None and named[1] != model.encode("utf-8", "replace")
        if found is not None and not other:
            return found
        end = begin
    return None


def _of_start(text: bytes, ranks: int) -> LastStart | None:
    pool = _POOL.findall(text)
    if not pool:
        return None
    memory, fitted = _MEMORY.findall(text), _BLOCK.findall(text)
    block = _UNIT.findall(text) or fitted
    tokens = int(pool[-1].replace(b",", b"") or 0)
    return LastStart(
        kv_cache_tokens=tokens or None,
        block_tokens=int(block[-1]) if block else None,
        kv_cache_bytes=int(float(memory[-1]) * (1 << 30)) * ranks if memory else None,
        hybrid=bool(fitted) or _MAMBA.search(text) is not None,
    )


def read(file: Path, ranks: int, model: str | None = None) -> LastStart | None:
    """Of a log on disk, its last 64 MB; None where it cannot be read, or tells nothing."""
    try:
        return of_log(read_end(file, _MOST_BYTES), ranks, model)
    except (OSError, ValueError):
        return None
