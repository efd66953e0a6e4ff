"""A conversation that went back: to which turn. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kvtop.capture.turn import Captured, Part
from kvtop.triage.baseline import prompt_parts
from kvtop.triage.kinds import Kind
from kvtop.triage.result import Cause
from kvtop.triage.words import nothing_lost

SAID_SINCE = 2
"""Messages behind the prompt that it went back to: its answer, and what was asked then."""


def named(causes: Sequence[Cause], turn: Captured, before: Iterable[Captured]) -> tuple[Cause, ...]:
    """The causes of a turn; where it went back, with the last one of its conversation before it (oldest first) that it
    goes on from, whatever tools either had."""
    mine = _digests(turn.outline)
    for one in reversed(list(before)):
        parts = _digests(one.outline)
        near = 0 < len(parts) < len(mine) <= len(parts) + SAID_SINCE
        if one.conversation == turn.conversation and near and mine[: len(parts)] == parts:
            says = f"the conversation went back to turn {one.id}, and on from there"
            return tuple(replace(cause, says=says) if cause.kind is Kind.ROLLED_BACK else cause for cause in causes)
    return tuple(causes)


def said(causes: Iterable[Cause]) -> list[str]:
    """A line of evidence: that it went back, which costs nothing."""
    return [f"{cause.says}: {nothing_lost(cause)}" for cause in causes if cause.kind is Kind.ROLLED_BACK]


def _digests(outline: Sequence[Part]) -> list[tuple[str, str, str]]:
    return [(part.kind, part.role, part.digest) for part in prompt_parts(outline) if part.kind != "tool"]
