"""What the command line asks for: the tier, its connector, ranks, cards; and sizes in bytes, per GPU, in tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvtop.model.words import gib
from kvtop.profiles.cards import taken
from kvtop.profiles.check.seen import Card, Facts
from kvtop.profiles.launch import VISIBLE
from kvtop.sources.tier_size import tier_bytes

GIB = 1 << 30
MIB = 1 << 20
OWN_BYTES = 28 * GIB
"""What vLLM itself has been seen to want in a container, beside the tier."""
SPARE = 0.98
"""Of the room that a proposed tier fills."""
_DEPTH = 4
TRANSFER = "--kv-transfer-config"
OFFLOADING = "--kv-offloading-size"
TIERS = ("OffloadingConnector", "SimpleCPUOffloadConnector")
"""vLLM's own connectors with a tier in main memory."""
DEFAULT_UTILIZATION = 0.92
"""Of --gpu-memory-utilization; 0.9 before vLLM 0.20."""


@dataclass(frozen=True, slots=True)
class Tier:
    """The CPU tier that is asked for."""

    each_bytes: int
    """Of one engine."""
    flag: str
    connector: str
    """OffloadingConnector keeps it in /dev/shm since 0.20.2, SimpleCPUOffloadConnector in pinned memory."""

    engines: int = 1
    """On this machine: each makes one of its own."""

    @property
    def bytes(self) -> int:
        return self.each_bytes * self.engines

    @property
    def words(self) -> str:
        """`64.0 GiB`, `2 × 32.0 GiB`."""
        return f"{self.engines} × {gib(self.each_bytes)}" if self.engines > 1 else gib(self.each_bytes)

    def fits(self, size: int) -> bool:
        """Whether a tier of a whole GiB for each engine has room there."""
        return size >= GIB * self.engines

    def fix(self, size: int) -> str:
        """The flag with another size of all engines, to paste; rounded down to whole GiB."""
        whole = size // self.engines // GIB
        if self.flag == OFFLOADING:
            return f"{OFFLOADING} {whole}"
        return f"cpu_bytes_to_use {whole * GIB} ({whole} GiB)"


def connectors(facts: Facts) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, extra configuration) of each KV connector, those of a MultiConnector one by one."""
    if facts.flags.value(OFFLOADING) is not None:
        own = facts.flags.json(TRANSFER) or {}
        yield _offloading_connector(facts), _extra(own)
        return
    yield from _named(facts.flags.json(TRANSFER), _DEPTH)


def _offloading_connector(facts: Facts) -> str:
    if (facts.flags.value("kv-offloading-backend") or "native") == "lmcache":
        return "LMCacheMPConnector"
    simple = facts.env.get("VLLM_USE_SIMPLE_KV_OFFLOAD", "0")
    return "OffloadingConnector" if simple in ("", "0") else "SimpleCPUOffloadConnector"


def _named(config: object, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(config, dict) or depth == 0:
        return
    name = config.get("kv_connector")
    inner = _extra(config).get("connectors")
    if isinstance(inner, list):
        for one in inner:
            yield from _named(one, depth - 1)
    elif isinstance(name, str):
        yield name, _extra(config)


def _extra(config: dict[str, Any]) -> dict[str, Any]:
    found = config.get("kv_connector_extra_config")
    return found if isinstance(found, dict) else {}


def tier(facts: Facts) -> Tier | None:
    """The CPU tier of vLLM itself; None: none is asked for, or no size that can be read. LMCache keeps its own."""
    size = tier_bytes(facts.flags.value(OFFLOADING), facts.flags.value(TRANSFER))
    names = [name for name, _ in connectors(facts)]
    own = [name for name in names if name in TIERS]
    if size is None or not own:
        return None
    by_size = facts.flags.value(OFFLOADING) is not None
    return Tier(size, OFFLOADING if by_size else TRANSFER, own[0], facts.flags.engines())


def in_shm(facts: Facts) -> Tier | None:
    """The tier, where it is a file in /dev/shm (vLLM 0.32)."""
    found = tier(facts)
    old = facts.version is not None and facts.version < (0, 20)
    return found if found is not None and found.connector == "OffloadingConnector" and not old else None


def whole(facts: Facts, name: str, default: int) -> int:
    """A count of the command line; the default where none that makes sense is given."""
    found = facts.flags.number(name)
    return int(found) if found is not None and 1 <= found < 100_000 else default


def block_tokens(facts: Facts) -> int | None:
    """Of one KV block: that of the last start, which knows how hybrid models are unified, or a larger one that is asked
    for now; where the model is none, what is asked for. None: neither is known."""
    given = facts.flags.number("block-size")
    asked = int(given) if given is not None and 1 <= given < 1_000_000 else 0
    if asked and facts.last is not None and facts.last.hybrid is False:
        return asked
    return max(asked, (facts.last.block_tokens if facts.last is not None else None) or 0) or None


def ranks(facts: Facts) -> int:
    """GPUs of one engine."""
    return whole(facts, "tensor-parallel-size", 1) * whole(facts, "pipeline-parallel-size", 1)


def selectors(facts: Facts) -> list[str] | None:
    """The cards that it is told to use; None: not told."""
    gpus, visible, ids = facts.profile.gpus, facts.env.get(VISIBLE, ""), facts.flags.value("device-ids") or ""
    found = [card for card in taken(facts.profile.runner, gpus, visible, ids) if card != "all"]
    # a text that names no cards is none that is here: nothing is said of any
    return found or [text for text in (ids, visible) if text.strip()] or None


def cards(facts: Facts) -> tuple[Card, ...] | None:
    """The cards that it will use: the first of those that it may, as far as they are here. None: it is not known which
    cards this machine has, or which of them a file of its own names."""
    if facts.cards is None:
        return None
    here = sorted(facts.cards, key=lambda card: card.index)
    told = selectors(facts)
    if told is None and not facts.line_known:
        return None
    if told is not None:
        here = [card for one in told for card in here if _is(card, one)]
    return tuple(dict.fromkeys(here))[: ranks(facts) * whole(facts, "data-parallel-size", 1)]


def _is(card: Card, selector: str) -> bool:
    if selector.isdecimal():
        return len(selector) < 6 and int(selector) == card.index
    # CUDA takes the beginning of a UUID.
    return card.uuid is not None and len(selector) > 4 and card.uuid.lower().startswith(selector.lower())


def utilization(facts: Facts) -> float:
    """The share of each card that vLLM takes."""
    given = facts.flags.number("gpu-memory-utilization")
    if given is not None and 0 < given <= 1:
        return float(given)
    old = facts.version is not None and facts.version < (0, 20)
    return 0.9 if old else DEFAULT_UTILIZATION


def asked_bytes(facts: Facts, card: Card) -> int | None:
    """What vLLM must find free on that card to start at all (`request_memory`); None: not known."""
    if card.total_bytes is None or not facts.line_known:
        return None
    return math.ceil(card.total_bytes * utilization(facts))


def freed_bytes(facts: Facts, card: Card) -> int:
    """What the server that is stopped first gives back on that card."""
    going = [holder for holder in card.holders if facts.goes(holder.pid)]
    if any(holder.bytes is None for holder in going) and card.total_bytes is not None:
        return card.total_bytes - (card.free_bytes or 0)  # not told apart: all that is held
    return sum(holder.bytes or 0 for holder in going)


def freed_shm_bytes(facts: Facts) -> int:
    """What the server that is stopped first gives back of /dev/shm, and so of memory."""
    return sum(
        file.bytes
        for file in facts.offload_files or ()
        if file.mapped_by and all(facts.goes(pid) for pid in file.mapped_by)
    )


def tokens(facts: Facts, size: float) -> int | None:
    """About how many tokens of KV fit into so many bytes over all ranks; None: nothing is known of this model's KV."""
    each = facts.last.bytes_per_token if facts.last is not None else None
    return None if not each else int(size / each)


def memory_bytes(facts: Facts) -> int | None:
    """What is available of main memory once the server that is stopped first is gone; None: not known."""
    free = facts.memory_available_bytes
    return None if free is None else free + freed_shm_bytes(facts)


def room_bytes(facts: Facts) -> int | None:
    """The largest tier that can be proposed on this machine: what vLLM itself leaves, on a small one a quarter. None:
    not known."""
    free = memory_bytes(facts)
    return None if free is None else max(int(free * SPARE) - OWN_BYTES, free // 4)


def example_gib(facts: Facts, wanted: int) -> int | None:
    """A tier of each engine to propose, in GiB: the wanted one, or what there is room for; None: there is none."""
    room = room_bytes(facts)
    return (wanted if room is None else min(wanted, room // facts.flags.engines() // GIB)) or None


def meant_gib(facts: Facts, meant: int) -> int | None:
    """A tier to propose where a size tells what was meant: that one, if the machine has so much memory at all."""
    free = memory_bytes(facts)
    fits = free is None or meant * GIB * facts.flags.engines() <= free * SPARE
    return meant if fits else example_gib(facts, meant)


@dataclass(frozen=True, slots=True)
class Size:
    """One size of the command line, in every unit."""

    flag: str
    total_bytes: int
    per_gpu_bytes: int
    tokens: int | None


def sizes(facts: Facts) -> tuple[Size, ...]:
    """What the command line asks for, in every unit."""
    found = tier(facts)
    count, engines = ranks(facts), facts.flags.engines()
    out: list[Size] = []
    if found is not None:
        out.append(Size(found.flag, found.bytes, found.each_bytes // count, tokens(facts, found.bytes)))
    kv = facts.flags.number("kv-cache-memory-bytes")
    if kv is not None and 0 < kv < 1 << 50:
        total = int(kv) * count * engines
        out.append(Size("--kv-cache-memory-bytes", total, int(kv), tokens(facts, total)))
    weights = facts.flags.number("cpu-offload-gb")
    if weights is not None and 0 < weights < 1 << 20:
        out.append(Size("--cpu-offload-gb", int(weights * GIB) * count * engines, int(weights * GIB), None))
    return tuple(out)
