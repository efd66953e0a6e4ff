"""The prefix cache of the embedded box, block by block, and its CPU tier.

Laws of vLLM 0.32 that it keeps (plain full attention, one KV group):
- a block's hash covers everything before it, so a match is a prefix; only full blocks are hashed;
- the last prompt token is always computed: cached = B * floor(min(LCP, P - 1) / B), with B the match unit;
- freed blocks stay hittable until they are handed out again, least recently freed first, the tail of a request first;
- the tier takes full prompt blocks once computed and gives them back where the device misses.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def root_hash(salt: str = "") -> int:
    """What the first block's hash is chained to: a salt gives a cache of its own."""
    return hash(("kvtop", salt)) if salt else 0


def extend_chain(chain: list[int], ids: array[int], block_tokens: int, root: int = 0) -> list[int]:
    """`chain` with the hashes of the full blocks of `ids` that it does not cover yet. Returns the same list."""
    raw = memoryview(ids).cast("B")
    size = block_tokens * ids.itemsize
    parent = chain[-1] if chain else root
    for at in range(len(chain) * size, len(ids) // block_tokens * size, size):
        parent = hash((parent, raw[at : at + size].tobytes()))
        chain.append(parent)
    return chain


@dataclass(slots=True)
class CacheStats:
    """Everything that happened to a cache, in blocks, since it began."""

    allocated: int = 0
    reused: int = 0
    freed: int = 0
    evicted: int = 0
    """Hashed blocks handed out again: what they held is lost to the device."""


class PrefixCache:
    """A pool of KV blocks. A block is held by requests, or free; a free block may still be hittable."""

    def __init__(self, blocks: int, block_tokens: int, match_unit_tokens: int | None = None) -> None:
        unit = match_unit_tokens or block_tokens
        if blocks < 1 or block_tokens < 1 or unit % block_tokens:
            raise ValueError("a pool needs blocks, and a match unit that is a multiple of the block")
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.match_unit_tokens = unit
        self.stats = CacheStats()
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._holders = [0] * blocks
        self._hash: list[int | None] = [None] * blocks
        self._by_hash: dict[int, int] = {}

    @property
    def room(self) -> int:
        """Blocks that can be handed out, hittable ones included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of blocks that requests hold (`kv_cache_usage_perc`): cached but free counts as free."""
        return 1 - len(self._free) / self.blocks

    def match(self, chain: Sequence[int], tokens: int) -> int:
        """Blocks of this chain that are here, for a prompt of `tokens` tokens: whole units, never the last token."""
        most = min(len(chain), max(tokens - 1, 0) // self.block_tokens)
        here = self._by_hash
        found = 0
        while found < most and chain[found] in here:
            found += 1
        step = self.match_unit_tokens // self.block_tokens
        return found - found % step

    def needs(self, chain: Sequence[int], found: int, total: int) -> int:
        """Free blocks used up by holding `total` blocks of which the first `found` are hits."""
        holders, here = self._holders, self._by_hash
        return total - found + sum(1 for h in chain[:found] if not holders[here[h]])

    def hold(self, chain: Iterable[int]) -> list[int]:
        """Take the cached blocks of these hashes, which must be here."""
        holders, free, here = self._holders, self._free, self._by_hash
        taken = []
        for h in chain:
            block = here[h]
            if not holders[block]:
                del free[block]
            holders[block] += 1
            taken.append(block)
        self.stats.reused += len(taken)
        return taken

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks to write into, evicting the least recently freed; None and no change where there are fewer."""
        if count > len(self._free):
            return None
        taken = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            old = self._hash[block]
            if old is not None:
                del self._by_hash[old]
                self._hash[block] = None
                self.stats.evicted += 1
            self._holders[block] = 1
            taken.append(block)
        self.stats.allocated += count
        return taken

    def publish(self, blocks: Iterable[int], chain: Iterable[int]) -> None:
        """These blocks are computed: they can be hit from now on. A hash that another block carries stays there."""
        for block, h in zip(blocks, chain, strict=True):
            if h not in self._by_hash:
                self._by_hash[h] = block
                self._hash[block] = h

    def release(self, blocks: Sequence[int]) -> None:
        """A request lets go of its blocks: the tail becomes the first to be evicted."""
        holders, free = self._holders, self._free
        for block in reversed(blocks):
            holders[block] -= 1
            if not holders[block]:
                free[block] = None
                if self._hash[block] is None:
                    free.move_to_end(block, last=False)
        self.stats.freed += len(blocks)


class CpuTier:
    """KV blocks in host memory, least recently used first out."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.stored = 0
        self.loaded = 0
        self.evicted = 0
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, chain: Sequence[int], start: int, most: int) -> int:
        """How many blocks from `start` on are here without a gap, up to block number `most`."""
        at = start
        while at < most and chain[at] in self._blocks:
            at += 1
        return max(at - start, 0)

    def load(self, chain: Iterable[int]) -> None:
        """These blocks are copied to the device; they stay here, as the most recent."""
        for h in chain:
            self._blocks.move_to_end(h)
            self.loaded += 1

    def store(self, chain: Sequence[int]) -> int:
        """Take the blocks that are not here yet, and keep the others recent; how many were copied."""
        here = self._blocks
        new = 0
        for h in chain:
            if h in here:
                here.move_to_end(h)
                continue
            if len(here) >= self.blocks:
                if not self.blocks:
                    return new
                here.popitem(last=False)
                self.evicted += 1
            here[h] = None
            new += 1
        self.stored += new
        return new
