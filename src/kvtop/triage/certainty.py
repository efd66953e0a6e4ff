"""Since when what KV events told can be relied on: messages that were lost, a stream that broke off, resets."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from enum import Enum

from kvtop.triage.kv_events import CPU, GPU

_MAX_TIMES = 1_000


class Missing(Enum):
    """Why a time is not known whole."""

    BEFORE = "before"
    """It began before anything was heard, or longer ago than can be looked back at."""
    LOST = "lost"
    """Messages of it were lost, or another engine may have begun unseen."""
    TIERS = "tiers"
    """The device was reset, and whether the tiers behind it were emptied with it is not told."""
    BROKEN_OFF = "broken off"
    """The stream broke off in it, and nothing was heard since."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What can be relied on from a time on: a value with an older epoch cannot, and what is not listed is only known
    to be absent in a tier that is listed whole."""

    at: float
    epochs: tuple[int, int, int] = (0, 0, 0)
    """Of the device, of CPU, of everything else."""
    whole: tuple[bool, bool] = (False, False)
    """The device, CPU. A disk may hold blocks from before the engine began."""

    def whole_in(self, tier: str) -> bool:
        """What is not listed there is not there."""
        return tier in (GPU, CPU) and self.whole[_place(tier)]

    def epoch(self, tier: str) -> int:
        """Of values that can be relied on."""
        return self.epochs[_place(tier)]


_NOTHING = Trust(float("-inf"))


class Certainty:
    """Told of everything that makes something certain or takes it away, in the order of the engine's time."""

    def __init__(self) -> None:
        self.begins = float("inf")
        """Unix time from which on it can be looked back."""
        self.doubtful = False
        """The stream broke off, and nothing has shown since that the same engine goes on."""
        self._suspended: float | None = None
        self._times: deque[Trust] = deque(maxlen=_MAX_TIMES)

    # What happened

    def begun(self, at: float, *, whole: bool) -> None:
        """The first message of an engine. `whole`: it is the first that it sent."""
        if whole:
            self._add(at, whole=(True, True))
        else:
            self.interrupted(at)

    def interrupted(self, at: float) -> None:
        """Messages may be missing since then: nothing is certain until it is told anew."""
        self._add(at, bump=(1, 1, 1))

    def lost(self, after: float, before: float) -> None:
        """Something may have happened at any time between these two."""
        self.interrupted(after)
        self.interrupted(before)

    def suspended(self, at: float) -> None:
        """The stream broke off."""
        self._suspended = at if self._suspended is None else self._suspended
        self.doubtful = True

    def resumed(self) -> None:
        """Something new was heard."""
        self._suspended, self.doubtful = None, False

    def reset(self, at: float) -> None:
        """The device is empty. The tiers behind it may have been emptied with it: 0.32 does not tell."""
        self._add(at, bump=(0, 1, 1), whole=(True, False))

    def incomplete(self, at: float) -> None:
        """What is not listed may be there all the same."""
        self._add(at)

    def _add(
        self, at: float, *, bump: tuple[int, int, int] = (0, 0, 0), whole: tuple[bool, bool] = (False, False)
    ) -> None:
        device, cpu, far = (epoch + more for epoch, more in zip(self.now.epochs, bump, strict=True))
        trust = Trust(max(at, self.now.at), (device, cpu, far), whole)
        if (trust.epochs, trust.whole) != (self.now.epochs, self.now.whole) or not self._times:
            self._times.append(trust)

    # What is asked

    @property
    def now(self) -> Trust:
        """As of the last message."""
        return self._times[-1] if self._times else _NOTHING

    def at(self, at: float | None) -> Trust | None:
        """At a Unix time, or now; None where it cannot be looked back so far, or nothing was heard since."""
        if self._suspended is not None and (at is None or at >= self._suspended):
            return None
        if at is None:
            return self._times[-1] if self._times else None
        if at < self.begins:
            return None
        index = bisect_right(self._times, at, key=lambda one: one.at)
        return self._times[index - 1] if index else None

    def missing(self, since: float, until: float | None = None) -> Missing | None:
        """What keeps that time from being known whole; None: nothing. `until` None: up to now."""
        trust = self.at(since)
        broken_off = self._suspended is not None and (until is None or until >= self._suspended)
        if broken_off and (trust is not None or since >= (self._suspended or 0.0)):
            return Missing.BROKEN_OFF
        if trust is None:
            return Missing.BEFORE
        later = (one for one in self._times if since < one.at and (until is None or one.at <= until))
        differ = [one.epochs for one in later if one.epochs != trust.epochs]
        if not differ:
            return None
        return Missing.LOST if any(epochs[0] != trust.epochs[0] for epochs in differ) else Missing.TIERS


def _place(tier: str) -> int:
    return 0 if tier == GPU else 1 if tier == CPU else 2
