"""What is known of a captured turn beyond its own row: what was expected of it, and what was found out about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvtop.capture.estimate import Guess, Sizes
from kvtop.capture.slow import expected_s, lost, may_be_slow, reread
from kvtop.capture.turn import Captured, TurnState
from kvtop.live.shown import shown
from kvtop.model.finding import Finding
from kvtop.model.judge import Thresholds
from kvtop.model.shown_turn import Estimate, Turn
from kvtop.model.timing import waited_s

KEPT = 5_000
"""Turns of which something is remembered."""
FOUND = 1_000
"""The same of what was found out about why they took their time."""
BESIDE = ("side", "subagent")
"""Relations of a first turn whose conversation is another's."""
BROKEN_OFF = ("abort", "error")
"""What a server calls an answer that it did not bring to its end, in a stream that it ended in order."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What is known of the server now, for what its captured turns are judged by."""

    at: float
    """Unix time."""
    rate: float | None
    """Its prefill rate, tokens a second."""
    limits: Thresholds
    running: int | None = None
    waiting: int | None = None
    began: float | None = None
    """Unix time of its start: its cache holds nothing that is older."""
    unit: int | None = None
    """Cached tokens are a multiple of it; None: the server does not tell."""
    recorded: bool = True
    """A tap to it runs, as far as is known."""


class Judging:
    """Turns as rows of the dashboard. Learns from each one that it is told of."""

    def __init__(self) -> None:
        self._sizes = Sizes()
        self._queued: set[int] = set()
        """Turns that waited in the server's queue."""
        self._began: dict[str, str] = {}
        """Conversation -> how it began, of those that began as another's: `BESIDE`."""
        self._guessed: dict[tuple[int, float], int | None] = {}
        """Turn, by number and begin -> prompt tokens by its size as of its end, for those that told none: what others
        teach later changes nothing that is over."""
        self._found: dict[tuple[int, float], Finding] = {}

    def forget(self) -> None:
        """All turns will be told of again: they may be those of another store, whose numbers begin anew."""
        self._sizes, self._queued = Sizes(), set()

    def drop(self, id: int) -> None:
        """This turn is not kept at hand any more."""
        self._queued.discard(id)

    def learn(self, turn: Captured) -> str | None:
        """Its conversation, where this turn tells how that began, and later turns of it may be shown already."""
        self._sizes.learn(turn)
        talk = turn.conversation
        if turn.relation not in BESIDE or talk is None or self._began.get(talk) == turn.relation:
            return None
        self._began[talk] = turn.relation
        _bound(self._began, KEPT)
        return talk

    def queued(self, id: int, stood: bool) -> bool:
        """Whether the turn waited in the server's queue; True where that is news."""
        if stood == (id in self._queued):
            return False
        (self._queued.add if stood else self._queued.discard)(id)
        return True

    def found(self, turn: Captured, finding: Finding) -> None:
        """Why this turn took its time."""
        key = turn.id, turn.started_at
        self._found.pop(key, None)  # the newest last
        self._found[key] = finding
        _bound(self._found, FOUND)

    # -- rows

    def in_flight(self, turn: Captured, parent: Captured | None, phase: str | None, now: Moment) -> Turn:
        guess = self._sizes.guess(turn) if turn.prompt_tokens is None else None
        estimate = None if guess is None else _expected(turn, parent, guess, phase, now)
        return self._shown(turn, phase=phase, estimate=estimate)

    def unseen(self, turn: Captured) -> Turn:
        """One whose end nobody will see."""
        return replace(self._shown(turn), state=None)

    def ended(
        self, turn: Captured, parent: Captured | None, now: Moment, rate: Callable[[Captured], float | None]
    ) -> Turn:
        """`rate`: the prefill rate as of that turn, as the turns before it tell it; asked only where it may decide."""
        waited = waited_s(turn)
        if waited is not None and may_be_slow(waited, now.limits) and (told := rate(turn)) is not None:
            now = replace(now, rate=told)
        made, finding = self._ended(turn, parent, now), self._found.get((turn.id, turn.started_at))
        if finding is None:
            return made
        known = None if finding.verdict == "unknown" else finding.verdict
        return replace(made, finding=finding, verdict=known)

    def _ended(self, turn: Captured, parent: Captured | None, now: Moment) -> Turn:
        estimate = None
        if turn.prompt_tokens is None and (tokens := self._guess_at_end(turn)) is not None:
            estimate = Estimate(tokens)
        before, waited = self._sizes.before(turn), waited_s(turn)
        gone = lost(turn, before, now.unit)
        again = gone is not False and reread(turn, parent)
        if waited is None:
            return self._shown(turn, estimate=estimate, again=again)
        known: dict[str, Any] = {"lost": gone, "queue_seen": turn.id in self._queued}
        if now.rate and turn.new_tokens is not None:
            known["read_s"] = max(0, turn.new_tokens) / now.rate
        expected = expected_s(turn, before, now.rate)
        slow = now.limits.slow(waited, expected)
        long = now.limits.long(waited)
        fine = waited <= (now.limits.no_rate_s if expected is None else now.limits.extra_s)
        if before is not None and expected is not None and not slow and not long:
            fine = True  # as long as what it had to read anew takes
        ok = fine and turn.state is TurnState.DONE and not again and turn.finish_reason not in BROKEN_OFF
        verdict = "no_fault" if ok else None
        known |= {"estimate": estimate, "slow": slow, "waited": slow or long, "again": again}
        made = self._shown(turn, **known, verdict=verdict)
        if made.waited and made.lost is False and not made.accused and made.read_ruled and not made.queue_ruled:
            return replace(made, verdict="new_tokens")
        return made

    def _shown(self, turn: Captured, **known: Any) -> Turn:
        return shown(turn, began_as=self._began.get(turn.conversation or ""), **known)

    def _guess_at_end(self, turn: Captured) -> int | None:
        key = turn.id, turn.started_at
        if key not in self._guessed:
            guess = self._sizes.guess(turn)
            self._guessed[key] = guess.prompt_tokens if guess is not None else None
            _bound(self._guessed, KEPT)
        return self._guessed[key]


def _expected(turn: Captured, parent: Captured | None, guess: Guess, phase: str | None, now: Moment) -> Estimate:
    """Of one in flight: what the turn that it continues left in the cache, and what is new."""
    left = parent is None or parent.ended_at is None or now.began is None or parent.ended_at >= now.began
    if guess.cached_tokens is None or not left:
        return Estimate(guess.prompt_tokens)
    new = guess.prompt_tokens - guess.cached_tokens
    if phase != "reads" or not now.rate:
        return Estimate(guess.prompt_tokens, guess.cached_tokens, new)
    read_s, so_far_s = new / now.rate, now.at - (turn.sent_at or turn.started_at)
    if now.limits.slow(so_far_s, read_s):
        return Estimate(guess.prompt_tokens)  # it reads more than it should have to
    return Estimate(guess.prompt_tokens, guess.cached_tokens, new, read_s - so_far_s if so_far_s < read_s else None)


def _bound(known: dict[Any, Any], most: int) -> None:
    """The oldest go."""
    while len(known) > most:
        del known[next(iter(known))]
