"""Which watched server is which profile's: its name, how far its start has come; and that a new one is watched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvtop.errors import UsageError
from kvtop.live.endpoint import Endpoint
from kvtop.live.profile_asks import url_of, url_of_start
from kvtop.live.profile_view import Figures
from kvtop.live.profiles import Profiles
from kvtop.model.starting import Starting
from kvtop.model.view import ServerView
from kvtop.readings import State
from kvtop.sources.url import same_place

if TYPE_CHECKING:
    from kvtop.profiles.running.record import Record
    from kvtop.profiles.standing import Standing

SLACK_S = 5.0
"""A scrape that was under way at a server's end may be dated after it."""
RUNS = ("starting", "running", "foreign")


class Profiled:
    """Between the profiles and the servers that are watched."""

    def __init__(
        self,
        profiles: Profiles,
        endpoints: Callable[[], Sequence[Endpoint]],
        add: Callable[[str], None],
        forget: Callable[[Endpoint], None],
    ) -> None:
        """`add` watches the server at a URL, `forget` ends that."""
        self._profiles, self._endpoints, self._add, self._forget = profiles, endpoints, add, forget
        self._wanted: set[str] = set()
        self._was: dict[str, str] = {}
        """Profile -> the URL at which its server was, as of the last look."""

    def watch(self, name: str) -> None:
        """Its server is watched from now on, though others were named on the command line."""
        self._wanted.add(name)

    def follow(self, discovers: bool) -> None:
        """After a look: watch what started, and no more what a profile's server has left for another one.

        `discovers`: no server was named, so that what runs here is what is meant.
        """
        live = {row.name: url for row in self._profiles.view.live if row.state in RUNS and (url := url_of(row))}
        for name, url in live.items():
            if discovers or name in self._wanted:
                with contextlib.suppress(UsageError):
                    self._add(url)
        left = {same_place(url) for name, url in self._was.items() if live.get(name) != url}
        left -= {same_place(url) for url in live.values()}
        if live:
            for endpoint in [one for one in self._endpoints() if one.found and not one.good]:
                if same_place(endpoint.history.url) in left:
                    self._forget(endpoint)
            self._was = live
        else:
            self._was |= live

    def marked(self, server: ServerView, now: float) -> ServerView:
        """With the profile whose server it is. One that does not answer yet is told as loading."""
        row = self._row(server)
        if row is None:
            return self._ended(server)
        start: Starting | None = None
        if row.state == "starting" and not server.state.good and (seen := row.seen) is not None:
            from kvtop.profiles.running.stages import starting

            start = starting(seen, row.starts, now)
        loads = start is not None and server.state is State.REFUSED
        return replace(
            server,
            profile=row.name,
            start=start,
            state=State.LOADING if loads else server.state,
            state_since=start.started_at if start is not None and loads else server.state_since,
        )

    def _ended(self, server: ServerView) -> ServerView:
        """With who ended it, or why it failed, where it was the last that ran at its URL."""
        if server.state is not State.REFUSED:
            return server
        place = same_place(server.url)
        rows = self._profiles.view.rows
        ours = [row for row in rows if row.record is not None and _same(url_of_start(row.record), place)]
        last = max(ours, key=lambda row: row.record.started_at if row.record is not None else 0.0, default=None)
        state = last.record if last is not None else None
        if last is None or state is None or _another(server, state):
            return server
        if last.state == "stopped" and state.ask is not None:
            return replace(server, profile=last.name, ended_by=state.ask.by, ended_at=state.ended_at)
        if last.state == "failed" and state.why:
            return replace(
                server, profile=last.name, failed=state.why, failed_loading=state.ready_at is None,
                failed_before=state.ready_at is None and state.server is None, ended_at=state.ended_at,
            )  # fmt: skip
        return server

    def _row(self, server: ServerView) -> Standing | None:
        place = same_place(server.url)
        rows = [row for row in self._profiles.view.rows if row.state in RUNS and _same(url_of(row), place)]
        return next((row for row in rows if row.pid is not None and row.pid == server.pid), rows[0] if rows else None)

    def figures(self, now: float) -> dict[str, Figures]:
        """Of each profile's server that was asked something in the last minutes."""
        found: dict[str, Figures] = {}
        for endpoint in self._endpoints():
            server = endpoint.history.view(now, "5m", None)
            row = self._row(server) if server.state.good else None
            window = server.window.all
            if row is None or window.cached.share is None:
                continue
            ttft = window.latency.ttft
            p50 = ttft.p50.value_s if ttft.p50 is not None else None
            found[row.name] = Figures(round(now), window.cached.share, ttft.n, p50)
        return found


def _another(server: ServerView, state: Record) -> bool:
    """What was seen at its URL since this start was over was no server of it."""
    ended = state.ended_at
    if ended is not None and server.last_good_at is not None and server.last_good_at > ended + SLACK_S:
        return True
    loader = server.loader_pid
    return loader is not None and (state.server is None or state.server.pid != loader)


def _same(url: str, place: str) -> bool:
    return bool(url) and same_place(url) == place
