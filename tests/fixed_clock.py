"""A clock for tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class FixedClock:
    """A clock that moves only when told to."""

    now: float = 1_795_953_600.0

    def wall(self) -> float:
        return self.now

    def mono(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds
