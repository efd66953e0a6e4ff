"""One reason why an engine may have lost what it had, looked into."""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.capture.turn import Captured
from kvtop.triage.kinds import Reason


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason looked into."""

    reason: Reason
    shown: bool | None
    """True: there is positive evidence. False: it is ruled out. None: it cannot be told."""
    says: str = ""
    """What shows it, or rules it out; for a candidate what speaks for it."""
    clause: str = ""
    """Of one that is shown, for the sentence: 'evicted by turns 795–802'."""


def names_of(turns: list[Captured]) -> str:
    """`turn 795`, `turns 795–802`."""
    if len(turns) == 1:
        return f"turn {turns[0].id}"
    return f"turns {turns[0].id}–{turns[-1].id}"
