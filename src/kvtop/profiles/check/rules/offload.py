"""Rules of the offload tier and of KV connectors."""

from __future__ import annotations

import difflib
from typing import Any

from kvtop.errors import keyless
from kvtop.model.words import gib
from kvtop.profiles.check import sizes
from kvtop.profiles.check.edits import no_variable, variable
from kvtop.profiles.check.rules.values import is_number
from kvtop.profiles.check.seen import NO_ENV, Facts, Lacks, Saying, Says
from kvtop.profiles.check.sizes import GIB, MIB, OFFLOADING, TRANSFER

_LEAST_TIER = 256 * MIB
"""A smaller one is a mistake of units: GiB where bytes are meant."""
_MOST_GIB = 16 * 1024
"""A larger number of GiB is a mistake of units: bytes or MiB where GiB are meant."""
_NO_SIZE = 1 << 80
"""No number of bytes or tokens; JSON holds ones that are no float."""
_LMCACHE_CHUNK = 256
_ROLES = ("kv_both", "kv_producer", "kv_consumer")
_CONNECTORS = (
    "CPUOffloadingConnector", "DecodeBenchConnector", "ExampleConnector", "ExampleHiddenStatesConnector",
    "FlexKVConnectorV1", "HF3FSKVConnector", "HiSparseConnector", "LMCacheConnector", "LMCacheConnectorV1",
    "LMCacheMPConnector", "MoRIIOConnector", "MooncakeConnector", "MooncakeStoreConnector", "MultiConnector",
    "NixlConnector", "NixlPullConnector", "NixlPushConnector", "OffloadingConnector", "P2pNcclConnector",
    "SharedStorageConnector", "SimpleCPUOffloadConnector",
)  # fmt: skip
"""Those of vLLM 0.32 (kv_connector/factory.py), and of versions before it."""
_NO_TIER = "no tier: there is no memory for a larger one"


def two_offload_interfaces(facts: Facts) -> Saying:
    """--kv-offloading-size replaces connector, role and size of --kv-transfer-config (vLLM 0.32, config/vllm.py)."""
    if facts.flags.value(OFFLOADING) is None:
        return
    own = facts.flags.json(TRANSFER) or {}
    extra = own.get("kv_connector_extra_config")
    size = isinstance(extra, dict) and "cpu_bytes_to_use" in extra
    if own.get("kv_connector") or size:
        what = "connector" if own.get("kv_connector") else "size"
        yield Says(
            "warning", OFFLOADING, f"it replaces the {what} of {TRANSFER}", f"one of the two; {TRANSFER} tells more"
        )


def units_suspicious(facts: Facts) -> Saying:
    """GiB, bytes, a GPU's or all: each size flag has its own unit."""
    size = facts.flags.number(OFFLOADING)
    if size is not None and is_number(facts.flags.value(OFFLOADING) or "", "any"):
        yield from _gibs(facts, size)
    for name, extra in sizes.connectors(facts) if size is None else ():
        yield from _bytes(facts, name, extra)
    kv = facts.flags.number("kv-cache-memory-bytes")
    if kv is not None and 0 < kv < _LEAST_TIER:
        most = min((card.total_bytes or 0 for card in sizes.cards(facts) or ()), default=0) or None
        meant = _meant(kv)
        wanted = meant if most is None or meant * GIB <= most else min(8, most // GIB)
        fix = f"--kv-cache-memory-bytes {wanted * GIB} for {wanted} GiB" if wanted else "take it out"
        says = f"{keyless(facts.flags.value('kv-cache-memory-bytes') or '', 40)} are bytes of each GPU: {gib(kv)}"
        yield Says("warning", "--kv-cache-memory-bytes", says, fix)
    total = max((card.total_bytes or 0 for card in sizes.cards(facts) or ()), default=0)
    if kv is not None and total and kv > total:
        says = f"{gib(kv)} of each GPU, which has {gib(total)}"
        yield Says("error", "--kv-cache-memory-bytes", says, "it is bytes of one GPU: divide by their number")
    for flag in ("cpu-offload-gb", "swap-space"):
        given = facts.flags.number(flag)
        if given:
            does = "moves weights, not KV" if flag == "cpu-offload-gb" else "keeps nothing of the prefix cache"
            yield Says("note", f"--{flag}", f"--{flag} {does}", f"{OFFLOADING} GIB makes a tier for the KV cache")


def _gibs(facts: Facts, size: float) -> Saying:
    """Of --kv-offloading-size."""
    typed = keyless(facts.flags.value(OFFLOADING) or "", 40)
    if size > _MOST_GIB:
        wanted = sizes.meant_gib(facts, max(1, round(size / GIB)) if size >= GIB else max(1, round(size / 1024)))
        fix = f"{OFFLOADING} {wanted}" if wanted else "take it out"
        yield Says("error", OFFLOADING, f"{typed} are GiB here, for all GPUs together", fix)
    elif size <= 0:
        wanted = sizes.example_gib(facts, 32)
        fix = f"{OFFLOADING} {wanted}, or take it out" if wanted else "take it out"
        yield Says("error", OFFLOADING, f"{typed} GiB is no tier", fix)
    elif size * GIB < _LEAST_TIER:
        wanted = sizes.example_gib(facts, 32)
        says = f"{typed} are GiB here: {gib(size * GIB)} for all GPUs together"
        yield Says("warning", OFFLOADING, says, f"{OFFLOADING} {wanted}" if wanted else "take it out")


def _bytes(facts: Facts, name: str, extra: dict[str, Any]) -> Saying:
    wanted = sizes.example_gib(facts, 32)
    size = f"cpu_bytes_to_use {wanted * GIB} ({wanted} GiB)" if wanted else "take the connector out"
    value = extra.get("cpu_bytes_to_use")
    if isinstance(value, bool) or not isinstance(value, int | float):
        if value is not None:
            yield Says("error", TRANSFER, "cpu_bytes_to_use is no number", size)
        elif name == "OffloadingConnector" and "cpu_bytes_to_use" not in extra:
            yield Says("error", TRANSFER, "cpu_bytes_to_use is missing", size)
    elif not value > 0:
        yield Says("error", TRANSFER, "cpu_bytes_to_use is not more than 0", size)
    elif value < _LEAST_TIER:
        wanted = sizes.meant_gib(facts, _meant(value))
        fix = f"cpu_bytes_to_use {wanted * GIB} for {wanted} GiB" if wanted else "take the connector out"
        yield Says("warning", TRANSFER, f"{value} are bytes, for all GPUs together: {gib(value)}", fix)
    elif value > _MOST_GIB * GIB:
        many = f"{value / GIB:,.0f} GiB" if value < _NO_SIZE else "more than any machine has"
        says = f"cpu_bytes_to_use is bytes: this is {many}"
        yield Says("error", TRANSFER, says, "write bytes: GiB times 1073741824")


def _meant(value: float) -> int:
    """The GiB that are meant by so few bytes."""
    return int(value) if 1 <= value <= _MOST_GIB else 8


def tier_smaller_than_gpu_cache(facts: Facts) -> Saying:
    """A tier that holds less than the GPU's own cache rarely has what the GPU lost: the sizes of the last start. Not
    one that has a larger tier behind it."""
    found = sizes.tier(facts)
    if found is None or any(map(_is_staged, (extra for _, extra in sizes.connectors(facts)))):
        return
    held = sizes.tokens(facts, found.each_bytes)
    pool = facts.last.kv_cache_tokens if facts.last is not None else None
    if pool is None:
        yield Lacks("the KV cache size of this profile's last start")
    elif held is None:
        yield Lacks("what a token takes in the KV cache: the last start of this profile did not tell its size in bytes")
    elif held < pool:
        need = int(2 * found.bytes * pool / max(held, 1)) + GIB - 1
        says = f"the tier holds about {held:,} tokens, the GPU itself {pool:,}"
        free = sizes.memory_bytes(facts)
        fits = free is None or need <= free
        yield Says("warning", found.flag, says, f"{found.fix(need)}, twice the GPU's, or no tier" if fits else _NO_TIER)


def _is_staged(extra: dict[str, Any]) -> bool:
    return bool(extra.get("secondary_tiers")) or extra.get("kv_offload_backend") == "disk"


def block_size_not_multiple(facts: Facts) -> Saying:
    """The tokens of an offload chunk must be a multiple of the GPU's block (vLLM 0.32), and those of an LMCache
    chunk too."""
    for name, extra in sizes.connectors(facts):
        lmcache = name.startswith("LMCache")
        chunk = _chunk(facts, name) if lmcache else extra.get("block_size")
        if lmcache and chunk is None:
            yield Lacks("the size of LMCache's chunk")
        if not isinstance(chunk, int) or isinstance(chunk, bool) or (name != "OffloadingConnector" and not lmcache):
            continue
        if chunk > _NO_SIZE:
            yield Says("error", TRANSFER, "block_size is more than any prompt has", "block_size in tokens")
            continue
        block = sizes.block_tokens(facts)
        if block is None:
            yield Lacks("the block size: no --block-size, and no last start of this profile")
        elif chunk <= 0 or chunk % block:
            flag = "LMCACHE_CHUNK_SIZE" if lmcache else TRANSFER
            what = flag if lmcache else "block_size"
            says = f"{what} {chunk} is no multiple of the GPU's block of {block} tokens"
            fix = f"{what}{'=' if lmcache else ' '}{max(1, round(chunk / block)) * block}"
            yield Says("error", flag, says, fix)


def _chunk(facts: Facts, name: str) -> int | None:
    """None: not known, as that of LMCache's own server (`lmcache server --chunk-size`)."""
    given = facts.env.get("LMCACHE_CHUNK_SIZE", "")
    if name == "LMCacheMPConnector":
        return None
    if given.isdecimal() and len(given) < 8:
        return int(given)
    return None if "LMCACHE_CONFIG_FILE" in facts.env or given or not facts.env_known else _LMCACHE_CHUNK


def both_block_size_and_chunks(facts: Facts) -> Saying:
    """`Specify only one of 'block_size' or 'blocks_per_chunk'` (vLLM 0.32)."""
    for name, extra in sizes.connectors(facts):
        if name == "OffloadingConnector" and "block_size" in extra and "blocks_per_chunk" in extra:
            yield Says("error", TRANSFER, "both block_size and blocks_per_chunk are set", "take block_size out")


def connector_unknown(facts: Facts) -> Saying:
    """vLLM ends with `Unsupported connector type` for a name that neither it nor a plugin has registered (0.32). A
    plugin may have any name: only one that is nearly vLLM's own is told."""
    own = facts.flags.json(TRANSFER) or {}
    if facts.flags.value(OFFLOADING) is not None or own.get("kv_connector_module_path"):
        return
    for name, extra in sizes.connectors(facts):
        near = difflib.get_close_matches(name, _CONNECTORS, n=1, cutoff=0.85)
        if near and near[0] != name and not extra.get("kv_connector_module_path"):
            says = f"vLLM has no connector {keyless(name, 60)} of its own"
            yield Says("warning", TRANSFER, says, f'kv_connector = "{near[0]}"')


def kv_role_missing(facts: Facts) -> Saying:
    """A kv_connector without kv_role, or with one that vLLM does not know, does not start (vLLM 0.32)."""
    own = facts.flags.json(TRANSFER) or {}
    role = own.get("kv_role")
    if own.get("kv_connector") is not None and role is None:
        yield Says("error", TRANSFER, "a kv_connector needs a kv_role", 'kv_role = "kv_both"')
    elif role is not None and role not in _ROLES:
        near = difflib.get_close_matches(str(role)[:40], _ROLES, n=1)
        fix = f'kv_role = "{near[0]}"' if near else f"one of {', '.join(_ROLES)}"
        yield Says("error", TRANSFER, f"kv_role takes no '{keyless(str(role), 40)}'", fix)


def expandable_segments(facts: Facts) -> Saying:
    """PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True with any connector does not start (vLLM 0.32), unless the
    cumem allocator is on, as it is with sleep mode (config/vllm.py)."""
    if "expandable_segments:True" not in facts.env.get("PYTORCH_CUDA_ALLOC_CONF", ""):
        return
    if facts.flags.on("enable-sleep-mode") or facts.flags.on("enable-cumem-allocator"):
        return
    names = [name for name, _ in sizes.connectors(facts)]
    if names:
        says = f"expandable_segments:True and {names[0]} do not start together"
        yield Says("error", "PYTORCH_CUDA_ALLOC_CONF", says, no_variable(facts, "PYTORCH_CUDA_ALLOC_CONF"))


def prefix_caching_off(facts: Facts) -> Saying:
    """Without the prefix cache every prompt is computed whole, and a tier has nothing to keep (vLLM 0.32)."""
    if facts.flags.on("enable-prefix-caching") is not False:
        return
    if any(name in sizes.TIERS or name.startswith("LMCache") for name, _ in sizes.connectors(facts)):
        says = "the offload tier needs the prefix cache, which is turned off"
        yield Says("error", "--no-enable-prefix-caching", says, "take --no-enable-prefix-caching out")
    else:
        says = "every prompt will be computed from its first token"
        yield Says("warning", "--no-enable-prefix-caching", says, "take it out, unless that is what you measure")


def hash_seed_unset(facts: Facts) -> Saying:
    """LMCache names its chunks by Python's hash: without PYTHONHASHSEED each process makes other names."""
    if not any(name.startswith("LMCache") for name, _ in sizes.connectors(facts)):
        return
    if "PYTHONHASHSEED" not in facts.env and not facts.env_known:
        yield Lacks(NO_ENV)
    elif not facts.env.get("PYTHONHASHSEED", "").isdecimal():
        says = "without it each process of LMCache names the same tokens otherwise"
        yield Says("warning", "PYTHONHASHSEED", says, variable(facts, "PYTHONHASHSEED", "0"))
