"""The turns that taps captured, read from the store beside the loop, as the dashboard shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvtop.capture.estimate import Sizes
from kvtop.capture.turn import Captured, TurnState
from kvtop.live.endpoint import Sleep
from kvtop.live.factories import StoreLike
from kvtop.live.worker import Caller, Hangs
from kvtop.model.judge import Thresholds
from kvtop.model.view import Estimate, Turn

LOOK_S = 0.5
"""Between two looks whether the store has changed; a look costs a tenth of a millisecond."""
ABSENT_S = 5.0
"""The same while there is no store."""
READ_S = 5.0
KEPT = 5_000
"""Turns that are kept at hand; older ones are in the store."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What is known of the server now, for what its captured turns are judged by."""

    at: float
    """Unix time."""
    rate: float | None
    """Its prefill rate, tokens a second."""
    all_wait: bool
    """Everything that it has in flight waits."""
    limits: Thresholds


class Captures:
    """`run` until cancelled. `turns(url)` is what it knows of one server, in flight first, then newest first."""

    def __init__(self, opened: Callable[[], StoreLike | None], worker: Caller, sleep: Sleep) -> None:
        """`opened` returns None where there is no store yet. Raises KvtopError where there is one that is unfit."""
        self.version = 0
        """Grows with every change."""
        self.problem = ""
        """Why the store cannot be read, in words; empty where it can, or where there is none."""
        self._opened, self._worker, self._sleep = opened, worker, sleep
        self._store: StoreLike | None = None
        self._revision = -1
        self._known: dict[int, Captured] = {}
        self._sizes = Sizes()
        self._shown: dict[int, Turn] = {}
        """Turns that ended, as they are shown."""
        self._lists: dict[str, tuple[int, tuple[Turn, ...]]] = {}

    async def run(self, changed: Callable[[], None]) -> None:
        while True:
            try:
                news = await self._worker.call(self._look, READ_S)
            except (TimeoutError, Hangs):
                news, self.problem = None, "the store of captured turns does not answer"
            except Exception as error:  # noqa: BLE001  a store that is unfit is a line on the screen, never its end
                news, self.problem = None, str(error)
                self._store = None
            if news is not None:
                self._take(news)
                changed()
            await self._sleep(LOOK_S if self._store is not None else ABSENT_S)

    def _look(self) -> tuple[list[Captured], bool] | None:
        """(Rows that are new or have changed, whether they are all there is); None where nothing changed."""
        if self._store is None:
            self._store = self._opened()
            self._revision = -1
            if self._store is None:
                return None
        revision = self._store.revision()
        if revision == self._revision:
            return None
        first = self._revision < 0
        self._revision = revision
        self.problem = ""
        if first or not self._known:
            return self._store.turns(last=KEPT), True
        rows = self._store.turns(last=KEPT, since_id=max(self._known))
        if len(self._known) + len(rows) < KEPT and self._store.count() != len(self._known) + len(rows):
            return self._store.turns(last=KEPT), True  # some were forgotten
        open_ids = [id for id, turn in self._known.items() if turn.state is TurnState.IN_FLIGHT]
        return rows + [turn for id in open_ids if (turn := self._store.turn(id)) is not None], False

    def _take(self, news: tuple[list[Captured], bool]) -> None:
        rows, everything = news
        if everything:
            self._known, self._shown = {}, {}
        for turn in sorted(rows, key=lambda turn: turn.id):
            self._known[turn.id] = turn
            self._shown.pop(turn.id, None)
            self._sizes.learn(turn)
        for id in sorted(self._known)[:-KEPT]:
            del self._known[id]
            self._shown.pop(id, None)
        self.version += 1

    # -- showing

    def turns(self, url: str, now: Moment) -> tuple[Turn, ...]:
        """Of the server with this base URL: in flight first, then by their ends, newest first."""
        flying = [t for t in self._known.values() if t.upstream == url and t.state is TurnState.IN_FLIGHT]
        return (*(self._flying(turn, now) for turn in reversed(flying)), *self._ended_of(url, now))

    def count(self, url: str) -> int:
        """Turns of this server that are kept at hand."""
        return sum(turn.upstream == url for turn in self._known.values())

    def no_details(self, url: str) -> bool:
        """The last few turns that ended well have usage, but nothing about cached tokens in it."""
        told = [t for t in reversed(self._known.values()) if t.upstream == url and t.prompt_tokens is not None][:3]
        return bool(told) and all(t.cached_source != "usage" for t in told)

    def _ended_of(self, url: str, now: Moment) -> tuple[Turn, ...]:
        """Worked out once a change of the store: there may be thousands."""
        known = self._lists.get(url)
        if known is not None and known[0] == self.version:
            return known[1]
        rows = []
        for turn in self._known.values():
            if turn.upstream != url or turn.state is TurnState.IN_FLIGHT:
                continue
            shown = self._shown.get(turn.id)
            if shown is None:
                shown = self._shown[turn.id] = _ended(turn, now)
            rows.append(shown)
        rows.sort(key=lambda turn: turn.ended_at or turn.started_at or 0.0, reverse=True)
        self._lists[url] = (self.version, tuple(rows))
        return self._lists[url][1]

    def _flying(self, turn: Captured, now: Moment) -> Turn:
        guess = self._sizes.guess(turn) if turn.first_token_at is None else None
        estimate = None
        if guess is not None:
            new = None if guess.cached_tokens is None else guess.prompt_tokens - guess.cached_tokens
            left = None
            if new is not None and now.rate:
                left = max(0.0, new / now.rate - (now.at - (turn.sent_at or turn.started_at)))
            estimate = Estimate(guess.prompt_tokens, guess.cached_tokens, new, left)
        phase = "writes" if turn.first_token_at is not None else "waits" if now.all_wait else "reads"
        return replace(_shown(turn), phase=phase, estimate=estimate)


def _ended(turn: Captured, now: Moment) -> Turn:
    shown = _shown(turn)
    expected = turn.new_tokens / now.rate if turn.new_tokens is not None and now.rate else None
    slow = turn.ttft_s is not None and now.limits.slow(turn.ttft_s, expected)
    long = turn.ttft_s is not None and turn.ttft_s >= now.limits.no_rate_s
    return replace(shown, slow=slow, waited=slow or long)


def _shown(turn: Captured) -> Turn:
    return Turn(
        id=turn.id,
        ended_at=turn.ended_at,
        state=None if turn.state is None else str(turn.state),
        started_at=turn.started_at,
        prompt_tokens=turn.prompt_tokens,
        cached_tokens=turn.cached_tokens,
        new_tokens=turn.new_tokens,
        completion_tokens=turn.completion_tokens,
        queue_s=turn.queue_s,
        prefill_s=turn.prefill_s,
        decode_s=turn.ended_at - turn.first_token_at if turn.ended_at and turn.first_token_at else None,
        ttft_s=turn.ttft_s,
        duration_s=turn.duration_s,
        inter_token_s=turn.inter_token_p50_s,
        finish_reason=turn.finish_reason,
        source=str(turn.source),
        record=str(turn.record),
        route=str(turn.route),
        model=turn.model,
        agent=turn.agent,
        conversation=turn.conversation,
        relation=turn.relation,
        status=turn.status,
        error=turn.error,
    )
