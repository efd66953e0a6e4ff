"""Quantiles claim no more than their buckets know."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvtop.model.box import Latency, Quantile
from kvtop.model.histogram import latency, quantile

BOUNDS = (0.1, 0.25, 0.5, 1.0, math.inf)


def of(*values: float, bounds: tuple[float, ...] = BOUNDS) -> Latency:
    buckets = [(bound, float(sum(v <= bound for v in values))) for bound in bounds]
    return latency(len(values), sum(values), buckets)


def test_one_observation_is_the_mean_and_names_its_bucket() -> None:
    got = of(0.21)
    assert got.p50 == Quantile(0.21, 0.1, 0.25)
    assert (got.n, got.mean_s, got.p95, got.p99) == (1, 0.21, None, None)


def test_a_mean_outside_its_bucket_is_no_value_and_the_bucket_stands() -> None:
    assert latency(1.0, 0.2, [(0.001, 1.0), (1.0, 1.0)]).p50 == Quantile(None, 0.0, 0.001)
    assert latency(1.0, 0.05, [(0.1, 0.0), (0.25, 1.0)]).p50 == Quantile(None, 0.1, 0.25)
    assert latency(1.0, 0.1 + 1e-10, [(0.1, 1.0)]).p50 == Quantile(0.1, 0.0, 0.1)  # what two large sums round away


def test_linear_inside_the_bucket() -> None:
    assert of(0.3, 0.3, 0.3, 0.3).p50 == Quantile(0.375, 0.25, 0.5)
    assert of(0.05, 0.3).p50 == Quantile(0.1, 0.0, 0.1)


def test_the_mean_bounds_a_quantile_inside_its_bucket() -> None:
    """Half of the times cannot be over twice the mean."""
    idle = latency(4.0, 4 * 3.55e-05, [(0.3, 4.0), (0.5, 4.0)])
    assert idle.p50 is not None and (idle.p50.above_s, idle.p50.up_to_s) == (0.0, 0.3)
    assert idle.p50.value_s == pytest.approx(3.55e-05)
    rare = latency(100.0, 1.0, [(1.0, 100.0)])
    assert rare.p95 is not None and rare.p95.value_s == pytest.approx(0.95 * 0.2)
    assert rare.p99 is not None and rare.p99.value_s == pytest.approx(0.99), "no bound below that of the bucket"
    assert latency(4.0, None, [(0.3, 4.0)]).p50 == Quantile(0.15, 0.0, 0.3), "without a sum there is none"
    assert latency(4.0, -1.0, [(0.3, 4.0)]).p50 == Quantile(0.15, 0.0, 0.3)


def test_a_mean_that_rules_the_bucket_out_leaves_no_value() -> None:
    assert latency(4.0, 0.4, [(0.25, 0.0), (0.5, 4.0)]).p50 == Quantile(None, 0.25, 0.5)


def test_beyond_the_last_bucket_nobody_knows() -> None:
    assert of(5.0, 6.0).p50 == Quantile(None, 1.0, None)
    assert of(5.0).p50 == Quantile(None, 1.0, None)
    assert of(0.2, 0.2, *[7.0] * 18).p95 == Quantile(None, 1.0, None)


@pytest.mark.parametrize(
    ("n", "p95", "p99"), [(19, False, False), (20, True, False), (99, True, False), (100, True, True)]
)
def test_rare_quantiles_need_observations(n: int, p95: bool, p99: bool) -> None:
    got = of(*[0.2] * n)
    assert (got.p95 is not None, got.p99 is not None) == (p95, p99)


def test_nothing_observed_is_nothing() -> None:
    assert latency(0.0, 0.0, [(1.0, 0.0)]) == Latency(n=0)
    assert latency(None, None, []) == Latency()


def test_damaged_buckets() -> None:
    assert quantile(0.5, 2, None, []) is None
    assert quantile(0.5, 2, None, [(0.1, math.nan), (1.0, 2.0)]) is None
    torn = quantile(0.5, 4, None, [(0.1, 3.0), (0.25, 1.0), (1.0, 4.0)])
    assert torn is not None and torn.up_to_s == 0.1
    assert latency(2.0, math.nan, [(1.0, 2.0)]).mean_s is None


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.floats(0.001, 3.0), min_size=1, max_size=150), st.sampled_from([0.5, 0.95, 0.99]))
@example([0.0625, 0.0625, 0.0625, 1.0, 1.0, 1.0], 0.5)
def test_the_bucket_holds_the_true_quantile(values: list[float], q: float) -> None:
    values.sort()
    n = len(values)
    buckets = [(bound, float(sum(v <= bound for v in values))) for bound in BOUNDS]
    got = quantile(q, n, sum(values) / n, buckets)
    if got is None:
        assert n < {0.5: 1, 0.95: 20, 0.99: 100}[q]
        return
    true = values[math.ceil(q * n - 1e-9) - 1]
    assert got.above_s < true or math.isclose(got.above_s, true)
    if got.up_to_s is None:
        assert got.value_s is None and true > 1.0
    else:
        assert true <= got.up_to_s
        assert got.value_s is not None
        assert n == 1 or got.above_s <= got.value_s <= got.up_to_s
        assert got.value_s <= sum(values) / n / (1 - q) * (1 + 1e-9)
