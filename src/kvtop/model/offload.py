"""What the KV offload tier moved: `store` is GPU to host, `load` is host to GPU."""

from __future__ import annotations

from kvtop.model import metrics as m
from kvtop.model.box import Offload, Tier
from kvtop.model.growth import Growth, ratio, whole


def offload(g: Growth, seconds: float | None) -> Offload:
    """The offload group. A connector without series of its own (ExampleConnector, LMCache) is not to be seen here."""
    if g.has(m.LOAD_BYTES) or g.has(m.STORE_BYTES):
        return _bytes(g, seconds)
    if g.after.scrape.truncated:
        return Offload()  # which connector it is may stand behind the cut
    if g.has(m.SIMPLE_LOADS) or g.has(m.SIMPLE_SAVES):
        return _blocks(g)
    return Offload(supported=False)


def _bytes(g: Growth, seconds: float | None) -> Offload:
    load, store = g.grew(m.LOAD_BYTES), g.grew(m.STORE_BYTES)
    failures = [g.grew(q) for q in (m.ALLOCATION_FAILURES, *m.TIER_FAILURES)]
    failed = [n for n in failures if n is not None]
    if g.after.scrape.truncated and len(failed) < len(failures):
        failed = []  # a part of the sum may stand behind the cut
    return Offload(
        supported=True,
        load_bytes=whole(load),
        store_bytes=whole(store),
        load_bytes_per_s=ratio(load, seconds),
        store_bytes_per_s=ratio(store, seconds),
        load_bytes_total=whole(g.now(m.LOAD_BYTES)),
        store_bytes_total=whole(g.now(m.STORE_BYTES)),
        load_time_s=g.grew(m.LOAD_TIME),
        store_time_s=g.grew(m.STORE_TIME),
        loads=whole(g.grew(m.LOAD_SIZE, "_count")),
        stores=whole(g.grew(m.STORE_SIZE, "_count")),
        loads_total=whole(g.now(m.LOAD_SIZE, "_count")),
        stores_total=whole(g.now(m.STORE_SIZE, "_count")),
        failed=whole(sum(failed)) if failed else None,
        tiers=_tiers(g),
    )


def _tiers(g: Growth) -> tuple[Tier, ...]:
    if g.after.scrape.truncated and not (g.has(m.TIER_READ) and g.has(m.TIER_WRITE)):
        return ()
    names = sorted({*g.row_names(m.TIER_READ), *g.row_names(m.TIER_WRITE)})
    return tuple(
        Tier(name, whole(g.grew_row(m.TIER_READ, name)), whole(g.grew_row(m.TIER_WRITE, name))) for name in names
    )


def _blocks(g: Growth) -> Offload:
    """SimpleCPUOffloadConnector counts blocks: nothing in its series says how many bytes they are."""
    return Offload(
        supported=True,
        unit="blocks",
        loads=whole(g.grew(m.SIMPLE_LOADS)),
        stores=whole(g.grew_row(m.SIMPLE_SAVES, "stored")),
        loads_total=whole(g.now(m.SIMPLE_LOADS)),
        stores_total=whole(g.now_row(m.SIMPLE_SAVES, "stored")),
        failed=whole(g.grew_row(m.SIMPLE_SAVES, "dropped_cpu_full")),
    )
