"""What a tap says of its connections as it ends. It stands in the tap's state file until somebody has read it."""

from __future__ import annotations

import msgspec

MOST_CUTS = 50
"""That are told one by one; all of them are counted."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A connection that was reset while it was in use."""

    peer: str
    """host:port of the client."""
    upstream: str
    """Base URL."""
    began_at: float
    """Unix time at which the client began to ask: of a connection that asks several times, the last time."""
    ran_s: float
    """From then to the cut."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the connections."""

    cut: int
    """Reset while they were in use, because the time to drain was over or a second signal came."""
    served: int
    """All that there were, the cut ones too."""
    lost_bytes: int = 0
    """Passed, but not handed to the recorder, and told to it as gaps."""
    lost_turns: int = 0
    """That the recorder could not write, as far as it said so."""
    cuts: list[Cut] = []
    """The first ones of those that were cut."""
