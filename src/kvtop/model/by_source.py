"""Where the KV of the window's prompt tokens came from."""

from __future__ import annotations

from kvtop.model import metrics as m
from kvtop.model.box import BySource
from kvtop.model.growth import Growth, whole

TIERS = ("host", "disk", "p2p", "external_unspecified")


def by_source(g: Growth) -> BySource:
    """Prompt tokens by source.

    From 0.16 device, external and computed are rows of prompt_tokens_by_source, on one clock with prompt_tokens (first
    token). From 0.32 the tier series, which count at admission, only split the external part. Below 0.16 the hits are
    all there is, and what was computed is not known.
    """
    if not g.is_newer(m.PROMPT_BY_SOURCE, m.CACHED):
        return BySource(device=whole(g.grew(m.HITS)), external=whole(g.grew(m.EXTERNAL_HITS)))
    external = whole(g.grew_row(m.PROMPT_BY_SOURCE, "external_kv_transfer"))
    host = disk = p2p = None
    if external is not None and g.has(m.CACHED_BY_TIER):
        host, disk, p2p, external = _split(external, g)
    elif external and g.after.scrape.truncated:
        external = None  # how it splits may stand behind the cut
    return BySource(
        device=whole(g.grew_row(m.PROMPT_BY_SOURCE, "local_cache_hit")),
        host=host,
        disk=disk,
        p2p=p2p,
        external=external,
        computed=whole(g.grew_row(m.PROMPT_BY_SOURCE, "local_compute")),
    )


def _split(external: int, g: Growth) -> tuple[int | None, int | None, int | None, int | None]:
    """host, disk, p2p and the rest of `external`; they sum to it."""
    grown = [g.grew_row(m.CACHED_BY_TIER, tier) for tier in TIERS]
    if any(n is None for n in grown):
        return None, None, None, external
    weights = [max(0.0, n or 0.0) for n in grown]
    if external and not sum(weights):
        # admitted before this window: if one tier is all that this server ever read from, it was that one
        weights = [max(0.0, g.now_row(m.CACHED_BY_TIER, tier) or 0.0) for tier in TIERS]
        if sum(1 for weight in weights if weight) != 1:
            return 0, 0, 0, external
    total = sum(weights)
    if not external or not total:
        return 0, 0, 0, external
    host, disk, p2p = (int(external * weight / total) for weight in weights[:3])
    rest = external - host - disk - p2p
    if not weights[3] and rest:  # rounding: to the largest tier, never to a source that gave nothing
        largest = max(range(3), key=lambda i: weights[i])
        host, disk, p2p = (n + rest * (i == largest) for i, n in enumerate((host, disk, p2p)))
        rest = 0
    return host, disk, p2p, rest
