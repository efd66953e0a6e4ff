"""How much of a window is kvtop's own: requests of its replays."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnPart:
    """How many requests of a window are of kvtop's own replays."""

    taken: int = 0
    """They are in none of its prompt tokens and cached tokens; its histograms have them."""
    left: int = 0
    """They are, or may be, in all of it: at an edge of it, or broken off."""
    took_s: float = 0.0
    """Of those that were taken out, from sending to the answer: they were read for this long together at most."""

    @property
    def n(self) -> int:
        """That its histograms have, at most."""
        return self.taken + self.left


def less(n: int | None, own: OwnPart) -> int | None:
    """So many requests without those of kvtop's own that were taken out."""
    return None if n is None else max(0, n - own.taken)
