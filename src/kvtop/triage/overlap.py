"""How much two turns begin alike, of those that may have taken each other's room in the pool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import combinations

from kvtop.capture.turn import Captured
from kvtop.errors import KvtopError
from kvtop.triage.between import turns_between
from kvtop.triage.ids import common
from kvtop.triage.seen import Seen

MOST = 8
"""Turns in between whose tokens are asked for: those that found most."""


async def shared(seen: Seen, ids: Callable[[Captured], Awaitable[bytes]]) -> dict[tuple[int, int], int]:
    """As `Seen.shared`, of this turn, the one that should have given its prefix and those in between; empty where
    nothing was lost. `ids`: the packed token ids of a prompt; raises KvtopError."""
    source = seen.source
    if source is None or seen.server.pool_tokens is None or not seen.counts(seen.lost):
        return {}
    found = [one for one in turns_between(seen, source) if (one.cached_tokens or 0) >= seen.unit]
    known: dict[int, bytes] = {}
    for one in (source, seen.turn, *sorted(found, key=lambda one: -(one.cached_tokens or 0))[:MOST]):
        try:
            known[one.id] = await ids(one)
        except KvtopError:  # its body is not kept, or the server refuses it: nothing is concluded from it
            continue
    return {(a, b): common(known[a], known[b]) for a, b in combinations(sorted(known), 2)}
