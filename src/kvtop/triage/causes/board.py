"""What the rules work on: the changes that nobody has explained yet, and the causes found so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvtop.triage.changes import Change, Comparison, What
from kvtop.triage.kinds import Kind, Varies, Who
from kvtop.triage.prompt import Path, in_words
from kvtop.triage.result import Cause


@dataclass
class Board:
    """Each rule takes changes off it, by claiming them for a cause."""

    comparison: Comparison
    gateway: bool = False
    """A gateway or proxy stands between the client and the server, as far as headers tell."""
    causes: list[Cause] = field(default_factory=list)
    _taken: set[int] = field(default_factory=set)
    _now: dict[int, int] = field(init=False)
    """Of messages that both have: the place in the new prompt by that in the old one."""
    _places: dict[int, int] = field(init=False)
    """Of changes, by their ids: the place in the order of the prompt."""

    def __post_init__(self) -> None:
        self._now = dict(self.comparison.pairs)
        self._places = {change.id: place for place, change in enumerate(self.comparison.changes)}

    def free(self, *what: What) -> list[Change]:
        """Unexplained changes of these kinds; of all kinds where none is named."""
        return [
            change
            for change in self.comparison.changes
            if change.id not in self._taken and (not what or change.what in what)
        ]

    def is_free(self, change: Change) -> bool:
        """Nobody has explained it yet."""
        return change.id not in self._taken

    def claim(
        self,
        kind: Kind,
        changes: Iterable[Change],
        says: str,
        fix: str,
        *,
        who: Who = Who.CLIENT,
        values: Iterable[Varies] = (),
        at: Path | None = None,
        moved_to: Path | None = None,
        in_old: bool = False,
        called: str = "",
    ) -> None:
        """These changes are explained. `at`: where the cause is named, else the first change's place; `in_old`: it is a
        place of the old prompt; `called`: as `Cause.called`."""
        mine = list(changes)
        self._taken |= {change.id for change in mine}
        first = mine[0]
        gone = first.what.value.endswith("_removed")
        path = at if at is not None else first.path
        prompt = self.comparison.old if in_old or (gone and at is None) else self.comparison.new
        pointer = prompt.at(path, first.region.new_at if first.region is not None and at is None else None)
        self.causes.append(
            Cause(
                kind=kind,
                pointer=pointer,
                section=in_words(pointer),
                says=says,
                fix=fix,
                who=who,
                values=tuple(sorted(set(values))),
                pointer_new=None if moved_to is None else self.comparison.new.at(moved_to),
                changes=frozenset(change.id for change in mine),
                called=called,
            )
        )

    def message_of(self, change: Change) -> int | None:
        """The message of the new prompt that a change is in; None: it is in none, or in one that is gone."""
        if change.what in (What.BLOCK_REMOVED, What.CALL_REMOVED) and change.message is not None:
            return self._now.get(change.message)
        return None if change.what is What.MESSAGE_REMOVED else change.message

    def causes_of(self, kind: Kind) -> list[Cause]:
        """Those of a kind that were found."""
        return [cause for cause in self.causes if cause.kind is kind]

    def drop(self, changes: Iterable[Change]) -> None:
        """These are known to reach no prompt."""
        self._taken |= {change.id for change in changes}

    def order(self, cause: Cause) -> int:
        """The place of a cause in the order of the prompt: that of its first change."""
        return min((self._places[id] for id in cause.changes), default=len(self._places))


def quoted(names: Iterable[object], most: int = 4) -> str:
    """Names for a sentence, the first few."""
    told = [str(name) for name in names]
    rest = f" and {len(told) - most} more" if len(told) > most else ""
    return ", ".join(f"“{name}”" for name in told[:most]) + rest
