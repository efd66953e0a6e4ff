"""Where the parts of the page of profiles stand: a pure function from its size. Nothing moves while it is open."""

from __future__ import annotations

from dataclasses import dataclass

SMALL, MIDDLE, LARGE = 19, 29, 44
"""Rows under the footer; from so many on the next larger form."""
WIDE = 116
"""Cells from which on a finding and its fix share a row."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows of each part, its title among them; 0: it has no room."""

    list: int
    check: int
    start: int
    log: int


def plan(h: int, profiles: int) -> Plan:
    """`h`: rows under the head and above the footer."""
    most, check, start = (6, 5, 3) if h < MIDDLE - 2 else (8, 6, 10) if h < LARGE - 2 else (14, 10, 10)
    list_ = 2 + max(3, min(most, profiles))
    if h < SMALL - 2:
        list_ = max(0, min(list_, h - 3)) if h > 6 else h
        return Plan(list_, h - list_, 0, 0)
    return Plan(list_, check, start, max(0, h - list_ - check - start))
