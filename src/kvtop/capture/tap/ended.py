"""What a tap says of its connections: as it ends, and of what it could not hand to its recorder also while it runs.

It stands in the tap's state file."""

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


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """What passed, but was not handed to the recorder, since the tap began."""

    connections: int = 0
    """Of which something is missing. Those that began and ended meanwhile are not in the store at all."""
    bytes: int = 0
    """Of both directions."""
    first_at: float | None = None
    """Unix time; None: nothing was missed."""
    last_at: float | None = None
    behind_since: float | None = None
    """Unix time since which the recorder has not taken what there is. None: it keeps up."""
    unwritten: str | None = None
    """Why the recorder cannot write its store, in its words, while turns wait for that. None: as far as it said, it
    can."""
    unwritten_since: float | None = None
    """Unix time."""

    @property
    def line(self) -> str:
        of = "connection" if self.connections == 1 else "connections"
        return f"not recorded: {self.bytes:,} bytes, of {self.connections} {of}"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the connections."""

    cut: int
    """Reset while they were in use, because the time to drain was over or a second signal came."""
    served: int
    """All that there were, the cut ones too."""
    lost_turns: int = 0
    """That the recorder could not write, as far as it said so."""
    missed: Missed | None = None
    """None: it recorded nothing."""
    cuts: list[Cut] = []
    """The first ones of those that were cut."""
