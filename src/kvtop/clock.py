"""Time as a value that tests can hold still."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Two clocks: the wall for people, the monotonic one for ages and windows."""

    def wall(self) -> float:
        """Unix time in seconds."""
        ...

    def mono(self) -> float:
        """Seconds that never go backwards."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def wall(self) -> float:
        return time.time()

    def mono(self) -> float:
        return time.monotonic()


def iso(unix_s: float | None) -> str | None:
    """ISO 8601 in UTC with whole seconds, as every JSON document of kvtop writes times; None for what is no date."""
    if unix_s is None:
        return None
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # not finite, or a year that no calendar has
        return None
