"""The prefix cache of the embedded box keeps vLLM's law, and its pool."""

from __future__ import annotations

from array import array
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.sim.cache import CpuTier, PrefixCache, extend_chain, root_hash

B = 4
few = settings(derandomize=True, max_examples=60, deadline=None)


def chain(ids: list[int], salt: str = "") -> list[int]:
    return extend_chain([], array("I", ids), B, root_hash(salt))


def common(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def compute(cache: PrefixCache, ids: list[int]) -> int:
    """Run a prompt through the cache and let go of it; how many tokens were cached."""
    hashes = chain(ids)
    found = cache.match(hashes, len(ids))
    held = cache.hold(hashes[:found])
    new = cache.allocate(-(-len(ids) // B) - found)
    assert new is not None
    blocks = held + new
    cache.publish(blocks[found : len(hashes)], hashes[found:])
    cache.release(blocks)
    return found * B


prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=25)


@few
@given(prompts)
def test_law_holds_where_nothing_is_evicted(talks: list[list[int]]) -> None:
    cache = PrefixCache(2_000, B)
    seen: list[list[int]] = []
    for ids in talks:
        longest = max((common(ids, old) for old in seen), default=0)
        assert compute(cache, ids) == B * (min(longest, len(ids) - 1) // B)
        seen.append(ids)
    assert cache.stats.evicted == 0


@few
@given(prompts, st.sampled_from([2, 3]))
def test_law_holds_for_a_match_unit_of_several_blocks(talks: list[list[int]], units: int) -> None:
    cache = PrefixCache(2_000, B, B * units)
    seen: list[list[int]] = []
    for ids in talks:
        longest = max((common(ids, old) for old in seen), default=0)
        unit = B * units
        # A hit needs whole blocks that were computed, so the common prefix counts in whole blocks first.
        assert compute(cache, ids) == unit * (min(longest, len(ids) - 1) // unit)
        seen.append(ids)


@few
@given(prompts, st.integers(10, 30))
def test_small_pool_never_leaks_and_never_finds_more_than_the_law(talks: list[list[int]], blocks: int) -> None:
    cache = PrefixCache(blocks, B)
    seen: list[list[int]] = []
    for ids in talks:
        longest = max((common(ids, old) for old in seen), default=0)
        assert compute(cache, ids) <= B * (min(longest, len(ids) - 1) // B)
        assert cache.room == blocks
        assert cache.usage == 0
        seen.append(ids)
    assert cache.stats.allocated + cache.stats.reused == cache.stats.freed


@few
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_pool_is_never_exceeded(steps: list[tuple[bool, int]]) -> None:
    cache = PrefixCache(12, B)
    held: list[list[int]] = []
    for take, n in steps:
        if take:
            free = cache.room
            got = cache.allocate(n)
            assert (got is None) == (n > free)
            if got is not None:
                held.append(got)
        elif held:
            cache.release(held.pop(n % len(held)))
        owned = [b for blocks in held for b in blocks]
        assert len(owned) == len(set(owned)) == 12 - cache.room
        assert cache.usage == pytest.approx(len(owned) / 12)


def test_the_tail_of_a_request_is_evicted_first() -> None:
    cache = PrefixCache(6, B)
    ids = list(range(16))
    assert compute(cache, ids) == 0
    assert cache.allocate(4) is not None  # two blocks were never used, then the two last of the prompt go
    assert cache.stats.evicted == 2
    assert cache.match(chain(ids), 16) == 2


def test_shared_blocks_are_held_once_and_freed_with_the_last_holder() -> None:
    cache = PrefixCache(8, B)
    ids = list(range(12))
    compute(cache, ids)
    hashes = chain(ids)
    assert cache.needs(hashes, 2, 3) == 3
    first, second = cache.hold(hashes[:2]), cache.hold(hashes[:2])
    assert first == second
    assert cache.needs(hashes, 2, 3) == 1
    assert cache.room == 6
    cache.release(first)
    assert cache.room == 6
    cache.release(second)
    assert cache.room == 8


def test_a_salt_has_a_cache_of_its_own() -> None:
    cache = PrefixCache(8, B)
    compute(cache, list(range(12)))
    assert cache.match(chain(list(range(12)), "other"), 12) == 0


@pytest.mark.parametrize(("blocks", "unit"), [(0, None), (4, 6)])
def test_impossible_pools_are_refused(blocks: int, unit: int | None) -> None:
    with pytest.raises(ValueError, match="a pool needs"):
        PrefixCache(blocks, B, unit)


@few
@given(st.lists(st.lists(st.integers(0, 20), max_size=8, unique=True), max_size=20), st.integers(0, 10))
def test_tier_holds_the_most_recent(stores: list[list[int]], capacity: int) -> None:
    tier = CpuTier(capacity)
    recent: list[int] = []
    copied = 0
    for keys in stores:
        before = set(recent)
        for key in keys:
            if key in recent:
                recent.remove(key)
            recent.append(key)
            recent = recent[-capacity:] if capacity else []
        new = tier.store(keys)
        copied += new
        assert new <= len(keys)
        assert not capacity or new >= len(set(keys) - before)
        assert len(tier) == len(recent) <= capacity
        for key in recent:
            assert tier.match([key], 0, 1) == 1
    assert tier.stored == copied
    assert tier.evicted == copied - len(tier) if capacity else copied == 0


def test_tier_gives_back_only_what_follows_without_a_gap() -> None:
    tier = CpuTier(10)
    assert tier.store([1, 2, 4]) == 3
    assert tier.match([1, 2, 3, 4], 0, 4) == 2
    assert tier.match([1, 2, 3, 4], 3, 4) == 1
    assert tier.match([1, 2, 3, 4], 1, 1) == 0
    tier.load([1])
    assert tier.loaded == 1
