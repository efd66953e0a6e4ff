"""KV events as an engine sends them, in both wire formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvtop.triage.kv_events import Batch, decode

PLACES = [
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"),
    *("group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
]


def stored(hashes: Sequence[int | bytes], tokens: Sequence[int] = (), parent: int | None = None, **more: Any) -> Any:
    """A map, as from 0.24 on. The size of a block is what the numbers give."""
    size = len(tokens) // len(hashes) if hashes else 0
    told = {"type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": parent}
    told |= {"token_ids": list(tokens), "block_size": size, "lora_id": None, "medium": "GPU", "lora_name": None}
    return told | more


def removed(hashes: Sequence[int | bytes], medium: str = "GPU", **more: Any) -> Any:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium, **more}


CLEARED = {"type": "AllBlocksCleared"}


def positional(event: dict[str, Any], length: int = len(PLACES)) -> list[Any]:
    """The same as up to 0.23, as long as that version's."""
    places = PLACES if event["type"] == "BlockStored" else ["block_hashes", "medium", "group_idx"]
    return [event["type"], *(event.get(place) for place in places)][: length + 1]


def payload(at: float, *events: Any, rank: int | None = None) -> bytes:
    return msgspec.msgpack.encode([at, list(events), rank] if rank is not None else [at, list(events)])


def batch(seq: int, at: float, *events: Any) -> Batch:
    return decode(seq, payload(at, *events))
