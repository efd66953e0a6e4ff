"""What kvtop itself asked of a server: the requests of its replays, so that nobody takes them for somebody else's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvtop.model.here import same_port_here
from kvtop.model.shown_turn import Turn

NAME = "kvtop replay"
OPEN_S = 1_800.0
"""One whose end is not told and that began longer ago was broken off: its process was killed."""


@dataclass(frozen=True, slots=True)
class OwnRequest:
    """One request of a replay. Nothing of its prompt is in it."""

    id: str
    """Of its replay, a hyphen, and which of its requests it is."""
    server: str
    """Base URL, fit to be shown."""
    began_at: float
    """Unix time."""
    ended_at: float | None = None
    """None: it is in flight, or nobody saw its end."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def replay(self) -> str:
        """Requests of one replay have the same."""
        return self.id.partition("-")[0]

    @property
    def step(self) -> str:
        """Which of its requests it is, in words: cold, warm, new, new fixed; empty where that was not noted."""
        return self.id.partition("-")[2].replace("_", " ")

    @property
    def new_tokens(self) -> int | None:
        """Computed at prefill, so that they took room in the KV cache; None: not known."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return max(0, self.prompt_tokens - self.cached_tokens)


def of_server(requests: Iterable[OwnRequest], url: str) -> tuple[OwnRequest, ...]:
    """Those that this server was asked, in their order."""
    place = same_port_here(url)
    return tuple(one for one in requests if same_port_here(one.server) == place)


def in_flight(requests: Iterable[OwnRequest], now: float) -> int:
    """How many have not ended, as far as is known."""
    return sum(one.ended_at is None and 0 <= now - one.began_at < OPEN_S for one in requests)


def lately(requests: Iterable[OwnRequest], now: float, within_s: float) -> bool:
    """One is in flight, or ended so short a time ago: what it was may not be noted yet."""
    return any(
        0 <= now - one.began_at < OPEN_S if one.ended_at is None else now - one.ended_at < within_s for one in requests
    )


def since(requests: Iterable[OwnRequest], began: float | None) -> tuple[OwnRequest, ...]:
    """Those that may have ended since then, in their order; None: all of them."""
    if began is None:
        return tuple(requests)
    return tuple(
        one for one in requests if (one.began_at > began - OPEN_S if one.ended_at is None else one.ended_at >= began)
    )


def as_turns(requests: Iterable[OwnRequest]) -> list[Turn]:
    """Those that ended and whose tokens are known, as rows: each its own numbers, counted from 1 in their order. One
    that was broken off could be any row of the counters, and has none."""
    return [
        Turn(
            id=n,
            ended_at=one.ended_at,
            started_at=one.began_at,
            state="done",
            prompt_tokens=one.prompt_tokens,
            cached_tokens=one.cached_tokens,
            new_tokens=one.new_tokens,
            completion_tokens=1,
            ttft_s=max(0.0, one.ended_at - one.began_at),
            duration_s=max(0.0, one.ended_at - one.began_at),
            agent=NAME,
            own=round(one.began_at * 1000),
            step=one.step,
        )
        for n, one in enumerate(requests, start=1)
        if one.ended_at is not None and one.prompt_tokens is not None
    ]


def flying(rows: Sequence[Turn], n: int) -> Iterable[Turn]:
    """Rows of what is in flight and was not captured, named where `n` requests of replays are all of it."""
    mine = n > 0 and sum(row.n for row in rows) <= n
    return (replace(row, agent=NAME, own=1) for row in rows) if mine else rows


def tokens_counted(requests: Iterable[OwnRequest], start: float, end: float) -> int:
    """Prompt tokens of those that were in flight in this span, at most."""
    return sum(
        one.prompt_tokens or 0
        for one in requests
        if one.began_at <= end and (one.ended_at is None or one.ended_at >= start)
    )
