"""How long a time the live charts span."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.model.charts import span_of
from kvtop.model.view import WINDOWS

MINUTE, HOUR = 60.0, 3_600.0


@pytest.mark.parametrize(
    ("window", "seen", "span"),
    [
        ("10s", 1.0, MINUTE),
        ("1m", 1.0, 6 * MINUTE),
        ("5m", 1.0, 10 * MINUTE),
        ("5m", 7 * MINUTE, 10 * MINUTE),
        ("5m", 7.5 * MINUTE, 30 * MINUTE),
        ("5m", 10 * HOUR, 30 * MINUTE),
        ("1h", 1.0, 10 * MINUTE),
        ("1h", 10 * MINUTE, 30 * MINUTE),
        ("1h", 32 * MINUTE, 2 * HOUR),
        ("1h", 89 * MINUTE, 2 * HOUR),
        ("1h", 90 * MINUTE, 6 * HOUR),
        ("start", 1.0, 5 * MINUTE),
        ("start", 32 * MINUTE, HOUR),
        ("start", 90 * HOUR, 24 * HOUR),
    ],
)
def test_six_windows_or_less_where_not_so_much_was_seen(window: str, seen: float, span: float) -> None:
    assert span_of(window, seen) == span


@given(st.sampled_from([w for w in WINDOWS if w[1] is not None]), st.floats(1.0, 1e6), st.floats(1.0, 1e6))
def test_what_was_seen_fills_a_quarter_and_a_span_only_grows(
    window: tuple[str, float, str], one: float, other: float
) -> None:
    key, seconds, _ = window
    short, long = sorted((one, other))
    assert span_of(key, short) <= span_of(key, long) <= 6 * seconds
    assert span_of(key, short) <= max(10 * MINUTE, 4 * short)
    assert span_of(key, short) >= min(short, 6 * seconds)
