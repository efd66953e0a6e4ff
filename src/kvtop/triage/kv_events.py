"""One message of vLLM's KV event stream -> what it says. Pure; both wire formats.

A message has three frames: topic, sequence number (8 bytes, big-endian), and msgpack of `[time, [event, ...], rank]`.
Up to 0.23 an event is a positional array that begins with its name, from 0.24 on a map with a `type`. Names and
positions that are not known are ignored, and so are events of another type.

Token ids are prompts: they are in no repr here, and whoever takes them keeps them in memory alone.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from kvtop.errors import printable

GPU = "GPU"
CPU = "CPU"
STORAGE = "STORAGE"

BlockHash = int | bytes
"""64-bit int, or the bytes of the hash (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0)."""

SALT = "salt:"

_MAX_HASH = 64
"""Bytes; SHA-256 has 32."""

# What stands at which place of a positional event, after its name. Each version only added to the end: medium from
# 0.11, lora_name from 0.16, extra_keys from 0.18.1, group_idx from 0.20.2, the spec from 0.22.1.
_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_REMOVED = ("block_hashes", "medium", "group_idx")
_TELLS_KEYS = 1 + _STORED.index("extra_keys")


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that lie in a tier from now on."""

    hashes: tuple[BlockHash, ...]
    """In the order of the prompt. Fewer than `token_ids` has blocks where some are not kept (Mamba, sliding window)."""
    parent: BlockHash | None
    """Of the first of them; None where the prompt begins with it, and of a tier that tells no tokens."""
    token_ids: Sequence[int] = field(repr=False)
    """Empty where the tier does not tell them (`self_describing_kv_events`, 0.24, makes it)."""
    block_tokens: int
    """0 where `token_ids` is empty."""
    tier: str = GPU
    owner: str = ""
    """Which of several secondary tiers (`ownership`, 0.29)."""
    group: int = 0
    kind: str | None = None
    """`full_attention`, `mamba`, `sliding_window` and others (0.22.1); None where it is not told."""
    window: int | None = None
    """Tokens of a sliding window."""
    adapter: str | None = field(default=None, repr=False)
    keys: tuple[str | None, ...] = field(default=(), repr=False)
    """What the hash of each block covers beside its tokens and the adapter, as text: of the first one `SALT` and
    its cache salt, of a picture and the like a digest; None for nothing. Empty where no block has any."""
    tells_keys: bool = True
    """This version tells extra keys: no salt here means that there was none."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that do not lie in a tier any more. Of a block that lay there twice, once."""

    hashes: tuple[BlockHash, ...]
    tier: str = GPU
    owner: str = ""
    group: int | None = None
    """None where it is not told (0.20.1 and older): there one group is all that there is."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """The prefix cache on the device was reset. Which tiers behind it were emptied with it is not told (0.32)."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step of the scheduler did."""

    seq: int
    at: float
    """Unix time, by the server's clock."""
    rank: int
    events: tuple[Event, ...]
    unread: int = 0
    """Stores and removals that could not be read."""


def decode(seq: int, payload: bytes, rank: int = 0) -> Batch:
    """What the third frame of a message says. `rank` holds where it names none. Raises ValueError for what is none."""
    try:
        told = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, RecursionError, TypeError, OverflowError, MemoryError) as error:
        raise ValueError(f"not msgpack: {type(error).__name__}") from None
    if not isinstance(told, list) or len(told) < 2 or not isinstance(told[1], list):
        raise ValueError("not a batch of KV events")
    at = told[0]
    if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
        raise ValueError("a batch without a time")
    named = told[2] if len(told) > 2 else None
    read = [_event(one) for one in told[1]]
    events = tuple(event for event in read if isinstance(event, Stored | Removed | Cleared))
    number = _count(named, 1 << 20)
    return Batch(seq, float(at), rank if number is None else number, events, read.count(_UNREAD))


_UNREAD = "unread"


def _event(raw: object) -> Event | str | None:
    """None for another type."""
    if isinstance(raw, dict):
        return _read(raw.get("type"), raw, 1 << 10)  # whatever a map leaves out is as always
    if not isinstance(raw, list) or not raw:
        return None
    names = {"BlockStored": _STORED, "BlockRemoved": _REMOVED}.get(raw[0] if isinstance(raw[0], str) else "", ())
    return _read(raw[0], dict(zip(names, raw[1:], strict=False)), len(raw))


def _read(name: object, told: Mapping[str, object], length: int) -> Event | str | None:
    if name == "AllBlocksCleared":
        return Cleared()
    if name not in ("BlockStored", "BlockRemoved"):
        return None
    hashes = _hashes(told.get("block_hashes"))
    if hashes is None:
        return _UNREAD
    tier, owner = _name(told.get("medium")) or GPU, _name(told.get("ownership")) or ""
    group = _count(told.get("group_idx"), 1 << 16)
    if name == "BlockRemoved":
        return Removed(hashes, tier.upper(), owner, group)
    tokens, size = _tokens(told.get("token_ids")), _count(told.get("block_size"), 1 << 30)
    parent, adapter = told.get("parent_block_hash"), _name(told.get("lora_name"))
    if tokens is None or size is None or not (parent is None or _is_hash(parent)):
        return _UNREAD
    if adapter is None and told.get("lora_id") is not None:
        return _UNREAD  # an adapter without a name: its blocks cannot be told from another's
    return Stored(
        hashes,
        parent,  # type: ignore[arg-type]
        tokens,
        size,
        tier.upper(),
        owner,
        group or 0,
        _name(told.get("kv_cache_spec_kind")),
        _count(told.get("kv_cache_spec_sliding_window"), 1 << 40),
        adapter,
        _keys(told.get("extra_keys"), parent is None, adapter),
        length > _TELLS_KEYS,
    )


def _is_hash(value: object) -> bool:
    if isinstance(value, bytes):
        return 0 < len(value) <= _MAX_HASH
    return isinstance(value, int) and not isinstance(value, bool)


def _hashes(value: object) -> tuple[BlockHash, ...] | None:
    return tuple(value) if isinstance(value, list) and all(map(_is_hash, value)) else None


def _tokens(value: object) -> array[int] | None:
    if not isinstance(value, list):
        return None
    try:
        return array("q", value)
    except (TypeError, OverflowError):
        return None


def _count(value: object, most: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def _name(value: object) -> str | None:
    return printable(value) if isinstance(value, str) and value else None


def _keys(value: object, root: bool, adapter: str | None) -> tuple[str | None, ...]:
    if not isinstance(value, list):
        return ()
    keys = tuple(_key(one, root and at == 0, adapter) for at, one in enumerate(value))
    return keys if any(keys) else ()


def _key(value: object, first: bool, adapter: str | None) -> str | None:
    """In the order of the server: adapter, pictures, salt, prompt embeddings."""
    if not isinstance(value, list):
        return None
    if adapter is not None and value[:1] == [adapter]:
        value = value[1:]
    if not value:
        return None
    if first and len(value) == 1 and isinstance(value[0], str):
        return SALT + value[0]
    return "other:" + blake2b(msgspec.msgpack.encode(value), digest_size=16).hexdigest()
