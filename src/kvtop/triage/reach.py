"""How far into a prompt a request could begin, given which block ends lie where. Pure arithmetic.

Full attention needs every block before that point. A Mamba group needs its state exactly there, and a sliding window
its last blocks before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_STATE = ("mamba",)
_WINDOW = ("sliding_window", "sliding_window_mla")
_NO_PREFIX = ("encoder_only_attention", "cross_attention")


@dataclass(frozen=True, slots=True)
class Group:
    """One KV cache group, as the events of its blocks tell it."""

    block_tokens: int = 0
    fine_tokens: int = 0
    """Tokens between two ends that an event may name: less than a block with `--prefix-match-unit`."""
    kind: str | None = None
    window: int | None = None
    masked: bool = False
    """Some of its blocks are not kept."""

    @property
    def needs(self) -> str:
        """`all`, `state`, `window` or `nothing`."""
        if self.kind in _NO_PREFIX:
            return "nothing"
        if self.kind in _WINDOW and self.window:
            return "window"
        # Before 0.22.1 the kind is not told.
        return "state" if self.kind in _STATE or (self.kind is None and self.masked) else "all"


@dataclass(frozen=True, slots=True)
class Place:
    """What one group has in one tier, of one prompt."""

    group: int
    covers: int
    """Tokens of one entry: a block, or what a tier keeps as one."""
    ends: Mapping[int, bool | None] = field(repr=False)
    """Tokens up to an end -> it lies there; None: not known."""
    absent: bool | None = False
    """The same of an end that is not listed."""

    def lies(self, end: int) -> bool | None:
        return self.ends.get(end, self.absent if end % self.covers == 0 else False)


def reach(tokens: int, unit: int, groups: Mapping[int, Group], places: Sequence[Place]) -> tuple[int, int]:
    """(So many tokens for certain, at most so many): both are ends at which a request could begin. `unit` divides
    every end."""
    if not unit or not groups:
        return 0, tokens if any(place.absent is None for place in places) else 0
    return _furthest(tokens, unit, groups, places, False), _furthest(tokens, unit, groups, places, True)


def _furthest(tokens: int, unit: int, groups: Mapping[int, Group], places: Sequence[Place], perhaps: bool) -> int:
    mine = {number: [place for place in places if place.group == number] for number in groups}
    whole = [mine[number] for number, group in groups.items() if group.needs == "all"]
    most = min((_covered(tokens, unit, here, perhaps) for here in whole), default=tokens)
    others = [(group, mine[number]) for number, group in groups.items() if group.needs in ("state", "window")]
    for end in range(most // unit * unit, 0, -unit):
        if all(_has(group, here, end, perhaps) for group, here in others):
            return end
    return 0


def _covered(tokens: int, unit: int, places: Sequence[Place], perhaps: bool) -> int:
    """Up to where every token lies in one of them."""
    covered = 0
    longest = max((place.covers for place in places), default=0)
    for end in range(unit, tokens + 1, unit):
        if end > covered + longest:
            break
        if any(_ok(place, end, perhaps) and (end - 1) // place.covers * place.covers <= covered for place in places):
            covered = end
    return covered


def _has(group: Group, places: Sequence[Place], end: int, perhaps: bool) -> bool:
    def lies(at: int) -> bool:
        return any(_ok(place, at, perhaps) for place in places)

    if group.needs == "state":
        return lies(end)
    size = min((place.covers for place in places), default=0)
    blocks = -(-((group.window or 1) - 1) // size) if size else 0
    return bool(size) and all(lies(at) for at in range(end, max(end - blocks * size, 0), -size))


def _ok(place: Place, end: int, perhaps: bool) -> bool:
    lies = place.lies(end)
    return perhaps if lies is None else lies
