"""Where the parts of the page of profiles stand: a pure function from its size. Nothing moves while it is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

SMALL, MIDDLE, LARGE = 19, 29, 44
"""Rows under the footer; from so many on the next larger form."""
WIDE = 116
"""Cells from which on a finding and its fix share a row."""

LEAST_LOG = 3
"""Rows of the log beside what is told in full above it."""


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


def starts(rooms: Plan) -> Plan:
    """While something starts: on a small page how that goes stands in place of what check says."""
    return rooms if rooms.start else replace(rooms, check=0, start=rooms.check)


def roomy(rooms: Plan, wanted: int, used: Callable[[int], int], *, logs: bool) -> Plan:
    """While nothing starts or stops: Check takes the rows that a start which is over, or never was, and a log that is
    not there (`logs`) leave empty. Why one failed is told in full, in `wanted` rows: what check says gives way to that,
    then the log; on a small page as far as there is room, in place of Check. `used`: how many rows Start fills of so
    many."""
    if not rooms.start:
        return replace(rooms, check=0, start=rooms.check) if wanted else rooms
    log = rooms.log if logs else min(1, rooms.log)
    check = rooms.check + rooms.log - log
    short_of = max(0, wanted - rooms.start)
    of_check = min(short_of, check - 1)
    of_log = min(short_of - of_check, max(0, log - LEAST_LOG))
    start = used(rooms.start + of_check + of_log)
    whole = rooms.check + rooms.start + rooms.log
    return replace(rooms, check=whole - start - (log - of_log), start=start, log=log - of_log)
