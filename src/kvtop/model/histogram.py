"""Quantiles of a Prometheus histogram that claim no more than its buckets know."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvtop.model.box import Latency, Quantile

NEEDED = {0.5: 1, 0.95: 20, 0.99: 100}
"""Observations that a quantile needs to mean anything."""

Buckets = Sequence[tuple[float, float]]
"""(upper bound `le`, observations of the window at or below it), sorted by bound; the last bound may be +Inf."""


def latency(count: float | None, total: float | None, buckets: Buckets) -> Latency:
    """A histogram's growth over a window as a latency group; seconds. `count` None: the series is not there."""
    if count is None:
        return Latency()
    n = round(count)
    if n <= 0:
        return Latency(n=0)
    mean = total / n if total is not None and math.isfinite(total) and total >= 0 else None
    return Latency(
        n=n,
        mean_s=mean,
        p50=quantile(0.5, n, mean, buckets),
        p95=quantile(0.95, n, mean, buckets),
        p99=quantile(0.99, n, mean, buckets),
    )


def quantile(q: float, n: int, mean: float | None, buckets: Buckets) -> Quantile | None:
    """The q-quantile of n observations: the bucket that it fell into, and a value where one can be told.

    Linear inside the bucket, as far as the mean allows: of times, none of which is negative, the part 1 - q that is
    above a quantile lets it be mean / (1 - q) at most. The mean where n is 1, since that is the observation itself.
    None beyond the last finite bound, and where the mean contradicts the bucket. None altogether with fewer
    observations than `NEEDED`, and where the buckets contradict the count.
    """
    if n < NEEDED.get(q, 1):
        return None
    rank = q * n
    below, lower, highest = 0.0, 0.0, 0.0
    for bound, cumulative in buckets:
        if not math.isfinite(cumulative):
            return None
        here = max(cumulative, below)  # a torn text may have a bucket behind its neighbour
        if math.isinf(bound):
            break
        highest = bound
        if here >= rank and here > below:
            part = (rank - below) / (here - below)
            most = bound if mean is None else _within(min(bound, mean / (1 - q)), lower, bound)
            value = None if most is None else min(most, lower + (most - lower) * part)
            if n == 1 and mean is not None:
                value = _within(mean, lower, bound)
            return Quantile(value_s=value, above_s=lower, up_to_s=bound)
        below, lower = here, bound
    if not buckets:
        return None
    return Quantile(value_s=None, above_s=highest, up_to_s=None)


def _within(value: float, lower: float, bound: float) -> float | None:
    """An observation inside its bucket, but for what a difference of two large sums rounds away; else None."""
    slack = 1e-6 * bound
    return min(max(value, lower), bound) if lower - slack <= value <= bound + slack else None
