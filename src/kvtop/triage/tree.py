"""Two JSON values laid over each other: what is equal, and what differs, each difference to be put back by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvtop.triage.windows import Region

Restored = Collection[int]
"""Ids of the changes that are put back as they were in the old value."""


class Absent:
    """In the place of a member that is not there."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


class Node(Protocol):
    """Builds the new value with some changes put back; with all of them it is the old one."""

    def build(self, restored: Restored) -> Any: ...


@dataclass(frozen=True, slots=True)
class Same:
    """Equal in both."""

    value: Any

    def build(self, restored: Restored) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class Replaced:
    """One value in the place of another; either may be ABSENT."""

    change: int
    old: Any
    new: Any

    def build(self, restored: Restored) -> Any:
        return self.old if self.change in restored else self.new


@dataclass(frozen=True, slots=True)
class Text:
    """A text of which some regions differ."""

    parts: tuple[str | tuple[int, Region], ...]
    """Equal text, or the change and its region."""

    def build(self, restored: Restored) -> str:
        out: list[str] = []
        for part in self.parts:
            if isinstance(part, str):
                out.append(part)
            else:
                change, region = part
                out.append(region.old if change in restored else region.new)
        return "".join(out)


@dataclass(frozen=True, slots=True)
class Object:
    """Members, in the order of the new object, behind them those that only the old one has."""

    members: Mapping[str, Node]

    def build(self, restored: Restored) -> dict[str, Any]:
        built = ((key, node.build(restored)) for key, node in self.members.items())
        return {key: value for key, value in built if value is not ABSENT}


@dataclass(frozen=True, slots=True)
class Reformed:
    """A text in one and a list of blocks in the other, compared as two lists."""

    node: Node
    changes: frozenset[int]
    """All that differ."""
    old: Any
    new: Any

    def build(self, restored: Restored) -> Any:
        back = self.changes & set(restored)
        if not back or back == self.changes:
            return self.old if back else self.new
        return self.node.build(restored)


@dataclass(frozen=True, slots=True)
class Item:
    """An element that both lists have."""

    old_at: int
    new_at: int
    node: Node


@dataclass(frozen=True, slots=True)
class Removed:
    """An element that only the old list has."""

    change: int
    old_at: int
    value: Any


@dataclass(frozen=True, slots=True)
class Inserted:
    """An element that only the new list has; `change` None: it was appended, and stays."""

    change: int | None
    new_at: int
    value: Any


@dataclass(frozen=True, slots=True)
class List:
    """Elements that were paired, removed and inserted; and whether the paired ones stand in another order."""

    items: tuple[Item, ...]
    removed: tuple[Removed, ...] = ()
    inserted: tuple[Inserted, ...] = ()
    order: int | None = None
    """The change that is their order."""

    def build(self, restored: Restored) -> list[Any]:
        old_order = self.order is not None and self.order in restored
        back = [one for one in self.removed if one.change in restored]
        stay = [one for one in self.inserted if one.change is None or one.change not in restored]
        kept = sorted(self.items, key=lambda item: item.old_at if old_order else item.new_at)
        # What only one list has stands behind the element that it stood behind there.
        in_old: list[Item | Removed] = [*self.items, *back]
        in_new: list[Item | Inserted] = [*self.items, *stay]
        olds = sorted(in_old, key=lambda one: one.old_at)
        news = sorted(in_new, key=lambda one: one.new_at)
        first, second = (back, stay) if old_order else (stay, back)
        out = _merged(kept, first, olds if old_order else news)
        out = _merged(out, second, news if old_order else olds)
        return [one.node.build(restored) if isinstance(one, Item) else one.value for one in out]


_One = Item | Removed | Inserted


def _merged(out: Sequence[_One], more: Sequence[_One], order: Sequence[_One]) -> list[_One]:
    """`out` with `more` put in, each behind its predecessor in `order`."""
    if not more:
        return list(out)
    wanted = {id(one) for one in more}
    present = {id(one) for one in out}
    behind: dict[int | None, list[_One]] = {}
    last: int | None = None
    for one in order:
        if id(one) in wanted:
            behind.setdefault(last, []).append(one)
        elif id(one) in present:
            last = id(one)
    merged: list[_One] = list(behind.get(None, []))
    for one in out:
        merged.append(one)
        merged += behind.get(id(one), [])
    return merged
