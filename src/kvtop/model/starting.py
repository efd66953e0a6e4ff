"""The start of a profile's server, as far as it has come: stages, how long they took and usually take, what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvtop.model.words import lasted, nb

LIVE = ("starting", "running", "stopping")
"""States of a profile in which a server is there."""


@dataclass(frozen=True, slots=True)
class StartStage:
    """One stage, in the order in which they come."""

    words: str
    """`weights, 9 of 14 shards`."""
    state: Literal["done", "now", "next"]
    took_s: float | None = None
    """Of the one that runs: so far. None: nobody watched."""
    usual_s: float | None = None
    """Median of the last good starts; None: there is none that had it."""
    share: float | None = None
    """Of the one that runs, 0 to 1: by what it has told of itself, else by its usual length; None: not known."""


@dataclass(frozen=True, slots=True)
class Starting:
    """One start, at one moment."""

    profile: str
    started_at: float
    """Unix time."""
    stages: tuple[StartStage, ...] = ()
    pid: int | None = None
    port: int | None = None
    elapsed_s: float = 0.0
    left_s: float | None = None
    """None: no start of this profile went well before, or where it stands is not known."""
    of_starts: int = 0
    """So many good starts are known."""
    fastest_s: float | None = None
    slowest_s: float | None = None
    over: bool = False
    """It has ended, well or not: this is how it went."""

    @property
    def now(self) -> StartStage | None:
        return next((stage for stage in self.stages if stage.state == "now"), None)

    @property
    def fraction(self) -> float | None:
        """Of the way, 0 to 1."""
        if self.over:
            return 1.0
        if self.left_s is None or self.elapsed_s + self.left_s <= 0:
            return None
        return self.elapsed_s / (self.elapsed_s + self.left_s)

    @property
    def place(self) -> str:
        """`stage 3 of 7`; before a good start, whose stages are known, `stage 3`. Empty before the first."""
        at = next((i for i, stage in enumerate(self.stages, 1) if stage.state == "now"), None)
        if at is None:
            return ""
        return f"stage {at} of {len(self.stages)}" if self.of_starts else f"stage {at}"

    @property
    def left_words(self) -> str:
        """`about 3 m 30 s left`; `longer than usual`; empty where it is not known."""
        if self.left_s is None:
            return ""
        return "longer than usual" if self.left_s < 0.5 else f"{about(self.left_s)} left"

    @property
    def wordings(self) -> list[tuple[str, str]]:
        """For the sentence: (first clause, the rest), longest first."""
        stage = self.now
        first = f"{_during(stage.words)}," if stage is not None else f"{self.profile} starts,"
        so_far = f"{nb(lasted(self.elapsed_s))} so far"
        unknown = "time left not known" if self.of_starts else "no good start yet: time left not known"
        left = nb(self.left_words) if self.left_s is not None else unknown
        parts = [part for part in (self.place, so_far, left) if part]
        return [(first, ", ".join(parts)), (first, ", ".join(parts[:-1])), (first, so_far)]


def _during(words: str) -> str:
    """Of the stage that runs: a port that is to answer does not answer yet."""
    return f"waits for {words.removesuffix(' answers')}" if words.endswith(" answers") else words


def about(seconds: float) -> str:
    """A rough length: `about 3 m 30 s`; none is told to the second that is only expected."""
    return f"about {roughly(seconds)}"


def roughly(seconds: float) -> str:
    """`3 m 30 s`: in steps that grow with the length."""
    step = 1 if seconds < 15 else 5 if seconds < 60 else 10 if seconds < 300 else 30
    return lasted(max(1, round(seconds / step) * step))
