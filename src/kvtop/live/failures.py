"""Starts that fail while kvtop looks: each is told once, and what a switch has ended for one is offered again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from kvtop.errors import KvtopError
from kvtop.live.profile_view import ProfilesView
from kvtop.live.work import called
from kvtop.worker import Caller

if TYPE_CHECKING:
    from kvtop.profiles.standing import Standing

ANSWER_S = 10.0


class Failures:
    """As of one kvtop: what it began itself, what it saw, what its user has answered."""

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}
        """Profile -> when this kvtop began to start it last; Unix time."""
        self._answered: set[tuple[str, float]] = set()
        """(Profile, begin of its start) of offers that were answered."""
        self._put_off: set[tuple[str, float]] = set()
        self._past: set[tuple[str, float]] = set()
        """(Profile, begin of its start) of those that are no news any more."""
        self._met: set[str] = set()
        """Profiles that a look has found."""
        self._since: float | None = None
        """Unix time of the first look that could read the folder."""

    def begins(self, words: Sequence[str], now: float) -> None:
        """A command of kvtop's is begun: `profile start P`, `profile switch P`; others are none of ours."""
        if list(words[:2]) in (["profile", "start"], ["profile", "switch"]):
            self._begun[words[2]] = now

    def news(self, view: ProfilesView) -> tuple[Standing, ...]:
        """Those whose start has failed since kvtop looks: each start once, however often its row goes and comes."""
        if view.at is None:
            return ()
        failed = [row for row in view.rows if _failed(row) and _start(row) not in self._past]
        found = tuple(row for row in failed if row.name in self._met or self._has_seen_end(row))
        self._past |= {_start(row) for row in failed}
        self._met |= {row.name for row in view.rows}
        if self._since is None and not view.error:
            self._since = view.at
        return found

    def _has_seen_end(self, row: Standing) -> bool:
        """Of a profile that no look has found before: its file may have been away when its start failed, long ago."""
        ended = row.record.ended_at if row.record is not None else None
        return self._since is not None and ended is not None and ended >= self._since

    def is_told(self, words: Sequence[str], view: ProfilesView) -> bool:
        """Whether what this command has failed at is the start itself, which `news` tells."""
        row = view.row(words[2]) if list(words[:2]) in (["profile", "start"], ["profile", "switch"]) else None
        return row is not None and _failed(row) and self._is_ours(row)

    def offer(self, view: ProfilesView) -> tuple[Standing, Standing] | None:
        """(what a switch did not start, what it ended for that), until that was answered or something is started. Not
        while that switch itself may start it again, or asks."""
        new = view.last_used if not view.busy else None
        if new is None or new.record is None or view.live or new.state != "failed" or not _failed(new):
            return None
        if _start(new) in self._answered or _start(new) in self._put_off or new.record.former in ("", new.name):
            return None
        former = view.row(new.record.former)
        return None if former is None else (new, former)

    def put_off(self, new: Standing) -> None:
        """It is not offered any more until `opened`."""
        self._put_off.add(_start(new))

    def opened(self) -> None:
        """The page of profiles was."""
        self._put_off.clear()

    def answered(self, new: Standing) -> None:
        """The offer was, with yes or no."""
        self._answered.add(_start(new))

    def _is_ours(self, row: Standing) -> bool:
        begun = self._begun.get(row.name)
        return begun is not None and row.record is not None and row.record.started_at >= begun


async def keep_answer(worker: Caller, new: Standing) -> None:
    """For other kvtops. Where it cannot be written, they may ask as well."""
    from kvtop.profiles.running import record

    if new.record is not None:
        with contextlib.suppress(KvtopError):
            await called(worker, partial(record.answered, new.name, new.record.started_at), ANSWER_S, "")


def _failed(row: Standing) -> bool:
    """Its last start came to nothing, and nobody meant it to; whatever became of its file, or runs there, since."""
    return row.record is not None and row.record.state == "failed" and row.record.ready_at is None


def _start(row: Standing) -> tuple[str, float]:
    return (row.name, row.record.started_at if row.record is not None else 0.0)
