"""A server as its counters tell of it, joined with what taps captured of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvtop.live.captures import Captures
from kvtop.live.judging import Moment
from kvtop.live.replays import Replays
from kvtop.live.taps import Taps
from kvtop.model import own
from kvtop.model.judge import Thresholds
from kvtop.model.merged import EDGE_S, LATE_S, Ended, Span, in_flight, numbered_apart, overlap, tokens_of
from kvtop.model.others import of_others
from kvtop.model.own import OwnRequest
from kvtop.model.shown_turn import Turn
from kvtop.model.view import ServerView, TapView

UNTOLD_S = 1.5
"""What the counters have seen to end just now may be one that is captured, whose end has not been read yet."""
SHORT_FOR_S = 3.0
"""That something went past a tap is said when the captured turns have been too few for the counters for so long: what a
tap has just seen is in the store a little later."""
VIEWS = 16
"""Views that are remembered."""


class Joined:
    """Cheap to ask again: what ended is joined once a change, what is in flight once a second."""

    def __init__(
        self,
        captures: Captures,
        taps: Taps,
        replays: Replays,
        limits: Thresholds,
        recorded_since: Callable[[], float | None],
    ) -> None:
        """`recorded_since`: see `Factories`."""
        self._captures, self._taps, self._replays, self._limits = captures, taps, replays, limits
        self._recorded_since = recorded_since
        self._ended: dict[str, Ended] = {}
        self._short: dict[tuple[str, str], tuple[float, float]] = {}
        """(URL, window) -> since when captured turns are fewer than counted, and when that was last seen."""
        self._views: dict[tuple[str, str, str | None], tuple[ServerView, tuple[object, ...], ServerView]] = {}

    def view(self, view: ServerView, now: float) -> ServerView:
        """The same server with its captured turns, and with kvtop's own replays named; as it is where there are none
        and no tap leads to it."""
        url = self._taps.behind(view.url)
        captured, listens, asked = self._captures.count(url), self._taps.listens(url), self._replays.of(url)
        if not (captured or listens or asked or self._captures.problem):
            return view
        mark = (self._captures.version, self._captures.problem, self._taps.version, self._replays.version, int(now))
        key = (view.url, view.window_key, view.engine)
        known = self._views.get(key)
        if known is not None and known[0] is view and known[1] == mark:
            return known[2]
        by_itself = self._recorded_since() is not None
        unwritten = self._taps.unwritten(url)
        tap = TapView(captured, listens, problem=self._captures.problem, unwritten=unwritten, by_itself=by_itself)
        unknown = replace(tap, captured=0)  # on which engine a captured turn ran is not known
        if view.engine is None:
            made = self._made(view, url, tap, asked, now)
            if not (captured or listens or self._captures.problem):
                made = replace(made, tap=view.tap)
        else:
            made = replace(view, tap=unknown, turns=tuple(numbered_apart(view.turns, bool(captured))))
        if len(self._views) > VIEWS:
            self._views.clear()
        self._views[key] = (view, mark, made)
        return made

    def _made(self, view: ServerView, url: str, tap: TapView, asked: Sequence[OwnRequest], now: float) -> ServerView:
        requests = view.window.all.requests
        since = self._recorded_since()  # what fills the store itself does so whether or not a tap leads to it too
        since = since if since is not None else self._taps.since(url)
        moment = Moment(
            now,
            view.savings.prefill_tokens_per_s,
            self._limits,
            requests.running,
            requests.waiting,
            began=view.started_at,
            unit=view.config.match_unit_tokens,
            recorded=bool(tap.listens) or tap.by_itself or not self._taps.tried,
        )
        captured = self._captures.in_flight(url, moment)
        counted = [turn for turn in view.turns if turn.state != "in_flight"]
        running, recent = own.in_flight(asked, now), own.since(asked, view.watched_since)
        if captured or own.lately(recent, now, LATE_S):
            counted = [turn for turn in counted if (turn.ended_at or 0.0) <= now - UNTOLD_S]
        beside = tap.captured > 0
        flying = in_flight(captured, view.turns, beside, running)
        merged = self._ended.setdefault(view.url, Ended())
        unsure = self._taps.unsure(url, now)
        turns = (*flying, *merged.of(self._captures.ended(url, moment), counted, since, beside, recent, unsure=unsure))
        through = _through(view, turns, since, asked, unsure)
        share, passed_by = self._certain((view.url, view.window_key), now, *through)
        tap = replace(tap, share=share, passed_by_tokens=passed_by)
        unasked, unsent = self._captures.no_usage(url)
        tap = replace(tap, no_details=self._captures.no_details(url), no_usage=unasked, usage_unsent=unsent)
        return of_others(replace(view, turns=turns, tap=tap), asked)

    def _certain(
        self, of: tuple[str, str], now: float, share: float | None, passed_by: int | None
    ) -> tuple[float | None, int | None]:
        """What `_through` says; nothing where something is missing, but not for long."""
        if not passed_by:
            self._short.pop(of, None)
            return share, passed_by
        if len(self._short) > VIEWS:
            self._short.clear()
        since, seen = self._short.get(of, (now, now))
        if not 0 <= now - seen <= SHORT_FOR_S:
            since = now  # nobody has looked meanwhile
        self._short[of] = since, now
        return (share, passed_by) if now - since >= SHORT_FOR_S else (None, None)


def _through(
    view: ServerView, turns: Sequence[Turn], since: float | None, asked: Sequence[OwnRequest], unsure: Span | None
) -> tuple[float | None, int | None]:
    """(Share of the window's prompt tokens that went through the tap, at most; those that did not, at least), where one
    ran that long, and recorded what it saw. kvtop's own replays are no part of them."""
    prompt, seconds, end = view.window.all.cached.prompt_tokens, view.window.window_s, view.last_good_at
    if prompt is None or seconds is None or end is None:
        return None, None
    if unsure is not None and overlap((end - seconds, end), unsure):
        return None, None
    prompt -= min(prompt, own.tokens_counted(asked, end - seconds - EDGE_S, end + EDGE_S))
    if prompt <= 0 or since is None or since > end - seconds:
        return None, None
    seen = tokens_of(turns, end - seconds, end)
    return (None, None) if seen is None else (min(1.0, seen / prompt), max(0, round(prompt - seen)))
