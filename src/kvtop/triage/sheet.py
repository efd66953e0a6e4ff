"""Two prompts side by side, piece by piece: what the diff screen and `kvtop diff` print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtop.triage.result import Diff


@dataclass(frozen=True, slots=True)
class Hunk:
    """A stretch of pieces: equal in both, or what stands in each in its place (one side may be empty)."""

    old: range
    new: range
    same: bool


@dataclass(frozen=True, slots=True)
class Sheet:
    """A piece is the text of one token; where no tokens are known, a word with the space behind it."""

    diff: Diff
    old: Sequence[str]
    new: Sequence[str]
    hunks: tuple[Hunk, ...]
    """In order; together all pieces of both sides."""
    tokens: bool
    """The pieces are tokens: their numbers are token numbers, and whole units of them are cached."""
    sections: tuple[tuple[int, str], ...] = ()
    """(first piece of the new side, name), in order: tools[3], system, messages[5]."""
    old_label: str = ""
    new_label: str = ""
    """`turn 811`, or the name of a file."""
    counts: tuple[tuple[str, int], ...] = ()
    """(kind, how many) of the parts of the new prompt: ("messages", 27). Not all of them may be in `sections`."""
