"""Which numbers of a text can be true. One that cannot is unknown: NaN in the sorted text, None in a window.

A text comes from outside: a damaged one, or another program's, may hold any number, and a sum with one of them in it
would be wrong for as long as a window reaches back.
"""

from __future__ import annotations

import math

MOST = 1e15
"""No count, of tokens or of requests, and no number of seconds is larger."""
MOST_BYTES = 1e18
"""Nor any number of bytes, or of anything a second."""

EARLIEST_S = 1_420_070_400.0
"""2015: no vLLM was started before, and a clock that stands before it is not set."""
LATEST_S = 4_102_444_800.0
"""2100: the same where nobody knows when the text was read."""
DAY_S = 86_400.0

ROUNDING = 0.01
"""How far over 1 a share may be and still be 1."""


def started(value: float, at: float | None) -> float | None:
    """A start time that can be one: from 2015 on, and not more than a day after `at`, when the text was read."""
    latest = at + DAY_S if at is not None and at >= EARLIEST_S else LATEST_S
    return value if EARLIEST_S <= value <= latest else None


def believed(name: str, value: float, most: float) -> float:
    """A sample that is negative, over `most`, or no number: NaN, but for two kinds that are meant otherwise."""
    if most == 1.0 and 1.0 < value <= 1.0 + ROUNDING:
        return 1.0
    if name.endswith("_seconds_sum") and -most <= value < 0.0:
        return value  # a clock set back makes a negative observation
    return math.nan


def share(value: float | None) -> float | None:
    """A share of 0 to 1, or None; a little over 1 is rounding."""
    if value is None or not 0.0 <= value <= 1.0 + ROUNDING:
        return None
    return min(value, 1.0)
