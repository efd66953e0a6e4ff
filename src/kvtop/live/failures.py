"""Starts that fail while kvtop looks: each is told once, and what a switch has ended for one is offered again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvtop.live.profile_view import ProfilesView

if TYPE_CHECKING:
    from kvtop.profiles.standing import Standing


class Failures:
    """As of one kvtop: what it began itself, what it saw, what its user has answered."""

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}
        """Profile -> when this kvtop began to start it last; Unix time."""
        self._answered: set[tuple[str, float]] = set()
        """(Profile, begin of its start) of offers that were answered."""

    def begins(self, words: Sequence[str], now: float) -> None:
        """A command of kvtop's is begun: `profile start P`, `profile switch P`; others are none of ours."""
        if list(words[:2]) in (["profile", "start"], ["profile", "switch"]):
            self._begun[words[2]] = now

    def news(self, before: ProfilesView, view: ProfilesView) -> tuple[Standing, ...]:
        """Those whose start has failed between two looks."""
        if before.at is None:
            return ()
        known = {_start(row) for row in before.rows if _failed(row)}
        return tuple(row for row in view.rows if _failed(row) and _start(row) not in known)

    def is_told(self, words: Sequence[str], view: ProfilesView) -> bool:
        """Whether what this command has failed at is the start itself, which `news` tells."""
        row = view.row(words[2]) if list(words[:2]) in (["profile", "start"], ["profile", "switch"]) else None
        return row is not None and _failed(row) and self._is_ours(row)

    def offer(self, view: ProfilesView) -> tuple[Standing, Standing] | None:
        """(what a switch of this kvtop's did not start, what ran before it), until that was answered or something is
        started."""
        new = view.last_used
        if new is None or view.live or not _failed(new) or not self._is_ours(new) or _start(new) in self._answered:
            return None
        began = new.record.started_at if new.record is not None else 0.0
        ended = {
            row.record.ask.at: row for row in view.rows
            if row.state == "stopped" and row.record is not None and row.record.ask is not None
            and row.record.ask.by == f"a switch to {new.name}"
            and self._begun[new.name] <= row.record.ask.at <= began
        }  # fmt: skip
        return (new, ended[max(ended)]) if ended else None

    def answered(self, new: Standing) -> None:
        """The offer was, with yes or no."""
        self._answered.add(_start(new))

    def _is_ours(self, row: Standing) -> bool:
        begun = self._begun.get(row.name)
        return begun is not None and row.record is not None and row.record.started_at >= begun


def _failed(row: Standing) -> bool:
    """Its last start came to nothing, and nobody meant it to."""
    return row.state == "failed" and row.record is not None and row.record.ready_at is None


def _start(row: Standing) -> tuple[str, float]:
    return (row.name, row.record.started_at if row.record is not None else 0.0)
