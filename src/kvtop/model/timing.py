"""What the times of a turn say, by one rule for the screen and for `kvtop turns`. Pure."""

from __future__ import annotations

from typing import Protocol

AT_ONCE_S = 0.05
"""An answer whose tokens came within this time came in one piece: it has no speed."""


class Waited(Protocol):
    """A turn, captured or as it is shown."""

    @property
    def ttft_s(self) -> float | None: ...
    @property
    def queue_s(self) -> float | None: ...
    @property
    def prefill_s(self) -> float | None: ...


def waited_s(turn: Waited) -> float | None:
    """TTFT; of an answer that came in one piece, what the server says that queue and prefill took together."""
    if turn.ttft_s is not None or turn.queue_s is None or turn.prefill_s is None:
        return turn.ttft_s
    return turn.queue_s + turn.prefill_s


def tokens_per_s(tokens: float | None, decode_s: float | None) -> float | None:
    """While it wrote: the tokens after the first one, over the time that they took."""
    if decode_s is None or decode_s < AT_ONCE_S or tokens is None or tokens < 2:
        return None
    return (tokens - 1) / decode_s
