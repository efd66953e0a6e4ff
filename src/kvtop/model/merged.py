"""Captured turns and the counters' rows of one server as one list: a request that both tell of stands once.

The counters count every request; a tap sees those that go through it, and sees them exactly. So a counted row whose
requests were all captured is left out, and what it alone knows (queue, prefill, decode) goes to its captured turn. What
kvtop's own replays asked stands by itself, as they noted it, and never with a number of the counters. What is left of
the counted rows went past the tap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from kvtop.model import own as replays
from kvtop.model.own import OwnRequest
from kvtop.model.shown_turn import Turn
from kvtop.model.timing import waited_s

Span = tuple[float, float]
"""From one Unix time to another; infinite where it goes on."""
_NUMBERS = frozenset(
    {"prompt_tokens", "cached_tokens", "new_tokens", "completion_tokens", "queue_s", "prefill_s", "decode_s"}
)
_PROMPT = frozenset({"cached_tokens", "new_tokens"})
_TOLD = (*sorted(_NUMBERS), "verdict", "engine")
"""What a counted row may know of a captured turn that the capture does not."""
LATE_S = 3.0
"""The counters tell of an end up to so long after the tap saw it: polls, and a server that counts once a step."""
EARLY_S = 0.5
"""They may also tell it before the last byte has reached the client."""
UNTOLD_LATE_S = 1.5
"""The same for a turn whose tokens nobody told: there only the time says that both are one request."""
EDGE_S = 1.5
"""A first token may be counted so much sooner or later than the tap saw it: servers count once a step, and a window
ends where a poll was answered."""
FEW = 8
"""Of no more turns than this any may be a group: of more there would be too many groups."""
GUESS = 0.25
"""An estimate of a prompt may be too small by this part of it."""


def in_flight(captured: Sequence[Turn], counted: Sequence[Turn], beside: bool, own: int = 0) -> tuple[Turn, ...]:
    """Of both lists what is in flight; the lists begin with it. `beside`: see `Ended.of`. `own`: so many requests of
    replays are."""
    flying = tuple(_flying_of(captured))
    rows = _not_seen(list(_flying_of(counted)), len(flying))
    return (*numbered_apart(replays.flying(rows, own), beside), *flying)


def numbered_apart(rows: Iterable[Turn], beside: bool) -> Iterable[Turn]:
    """Counted rows, so that none has the number of a captured turn."""
    return (replace(row, beside=True) for row in rows) if beside else rows


class Ended:
    """Merges what ended, and remembers the last result: there may be thousands, and mostly nothing has changed."""

    def __init__(self) -> None:
        self._of: tuple[Sequence[Turn], Sequence[Turn], float | None, bool, Sequence[OwnRequest], Span | None]
        self._of = ((), (), None, False, (), None)
        self._made: tuple[Turn, ...] = ()

    def of(
        self,
        captured: Sequence[Turn],
        counted: Sequence[Turn],
        tapped_since: float | None,
        beside: bool,
        own: Sequence[OwnRequest] = (),
        *,
        unsure: Span | None = None,
    ) -> tuple[Turn, ...]:
        """Both lists of turns that ended, newest first, as one. `tapped_since`: Unix time since when a tap runs: what
        is counted later and not captured went past it. `beside`: turns of this server were captured, whether they have
        ended or not. `own`: what kvtop's replays asked of this server. `unsure`: when what went through a tap may not
        have been recorded."""
        known, rows, *others = self._of
        if captured is not known or counted != rows or others != [tapped_since, beside, own, unsure]:
            self._of = (captured, counted, tapped_since, beside, own, unsure)
            self._made = _merged(captured, counted, tapped_since, beside, own, unsure=unsure)
        return self._made


def _flying_of(turns: Sequence[Turn]) -> Iterator[Turn]:
    for turn in turns:
        if turn.state != "in_flight":
            return
        yield turn


def _merged(
    captured: Sequence[Turn],
    counted: Sequence[Turn],
    tapped_since: float | None,
    beside: bool,
    own: Sequence[OwnRequest],
    *,
    unsure: Span | None,
) -> tuple[Turn, ...]:
    ended = list(captured)
    if own:
        ended = sorted([*ended, *replays.as_turns(own)], key=_end, reverse=True)
    pairs = _Pairs(ended)
    left = [row for row in counted if row.n > 1 or not pairs.exactly(row)]
    left = [row for row in left if row.n > 1 or not pairs.own(row)]
    left = [row for row in left if row.n == 1 or not pairs.exactly(row)]
    left = [row for row in left if row.n > 1 or not pairs.by_time(row)]
    left = pairs.in_part(left)
    if tapped_since is not None:
        left = [_past(row, tapped_since, unsure) for row in left]
    if own:
        left += (turn for turn in ended if turn.own)
        ended = [turn for turn in ended if not turn.own]
    left = list(numbered_apart(left, beside))
    return tuple(sorted([*ended, *left], key=_end, reverse=True)) if left else tuple(ended)


def _end(turn: Turn) -> float:
    return turn.ended_at or turn.started_at or 0.0


def _past(row: Turn, since: float, unsure: Span | None) -> Turn:
    """A row that no captured turn stands for went past the tap, where one ran from before its start on, and recorded
    what it saw."""
    end = row.ended_at or 0.0
    began = row.started_at if row.started_at is not None else end - (row.duration_s or 0.0) - LATE_S
    unknown = unsure is not None and overlap((began, end), unsure)
    return replace(row, past_tap=True) if began >= since and not unknown else row


def overlap(one: Span, other: Span) -> bool:
    """Whether they may have a moment in common: what happens is told a little later."""
    return one[0] <= other[1] + LATE_S and other[0] - LATE_S <= one[1]


class _Pairs:
    """Which captured turns a counted row is made of. Fills what the row knows into them, in place."""

    def __init__(self, ended: list[Turn]) -> None:
        self._ended = ended
        self._times = [-_end(turn) for turn in ended]
        self._taken: set[int] = set()

    def exactly(self, row: Turn) -> bool:
        """Captured turns with this row's tokens stand for it from now on."""
        if row.ended_at is None or row.prompt_tokens is None:
            return False
        near = [i for i in self._near(row.ended_at, LATE_S) if self._ended[i].prompt_tokens is not None]
        found: Iterable[int] = ()
        if row.n == 1:
            found = [i for i in near if _equal(self._ended[i], row)][:1]  # both lists are newest first
        else:
            total = round(row.prompt_tokens * row.n)
            found = next((g for g in _some(near, row.n) if self._tokens(g, "prompt_tokens") == total), ())
        return self._take(row, found)

    def own(self, row: Turn) -> bool:
        """A request of kvtop's own with this row's prompt stands for it, though the server told other cached tokens."""
        near = self._near(row.ended_at, LATE_S) if row.ended_at is not None else []
        return self._take(row, [i for i in near if self._ended[i].own and _same_prompt(self._ended[i], row)][-1:])

    def by_time(self, row: Turn) -> bool:
        """A captured turn that told no tokens, ended just before and took as long stands for this row of one."""
        if row.ended_at is None:
            return False
        near = self._near(row.ended_at, UNTOLD_LATE_S)
        untold = [i for i in near if self._ended[i].prompt_tokens is None and _untold(self._ended[i], row)]
        return self._take(row, untold[-1:])

    def in_part(self, rows: Sequence[Turn]) -> list[Turn]:
        """What is left of rows that the tokens did not tell, when each captured turn that belongs to no other row is
        taken as one of the requests of the row in which it was counted: the first after its end, else one near it.

        Where it is not certain which row that is, the number of requests that are left is right in sum all the same.
        """
        groups = [row for row in reversed(rows) if row.n > 1 and row.ended_at is not None]
        of: dict[int, list[int]] = {row.id: [] for row in groups}
        for late_s in (None, LATE_S):
            for row, before in zip(groups, [None, *groups], strict=False):
                at = row.ended_at or 0.0
                since = LATE_S if before is None else min(LATE_S, at - (before.ended_at or 0.0))
                near = self._near(at, late_s or since)
                if late_s is None:  # one that ended after a poll may be in the next one
                    near = [i for i in near if -self._times[i] <= at]
                near = [i for i in near if self._ended[i].state == "done"]
                of[row.id] += self._members(row, of[row.id], near[::-1])
        left = (self._rest(row, of[row.id]) if of.get(row.id) else row for row in rows)
        return [row for row in left if row is not None]

    def _members(self, row: Turn, known: Sequence[int], near: Sequence[int]) -> list[int]:
        """As many of these as may be requests of the row besides those that are known to be."""
        for n in range(min(row.n - len(known), len(near)), 0, -1):
            for some in _some(near, n):
                if self._fit(row, [*known, *some]):
                    self._take(row, some)
                    return list(some)
        return []

    def _fit(self, row: Turn, members: Sequence[int]) -> bool:
        """Their tokens leave at least one for each of the others."""
        others = row.n - len(members)
        for name in ("prompt_tokens", "completion_tokens"):
            mean = getattr(row, name)
            if mean is None or (not others and self._tokens(members, name) is None):
                continue
            rest = round(mean * row.n) - sum(getattr(self._ended[i], name) or 0 for i in members)
            if rest < others or (not others and rest):
                return False
        return True

    def _rest(self, row: Turn, members: Sequence[int]) -> Turn | None:
        others = row.n - len(members)
        if not others:
            return None
        told, prompt = self._tokens(members, "prompt_tokens"), None
        doubtful = self._near(row.ended_at or 0.0, LATE_S)
        if row.prompt_tokens is not None and told is not None and not doubtful:
            prompt = (row.prompt_tokens * row.n - told) / others
        return Turn(row.id, row.ended_at, others, row.state, prompt_tokens=prompt, engine=row.engine)

    def _tokens(self, places: Iterable[int], name: str) -> float | None:
        """Of these turns together; None where one of them told none."""
        told = [getattr(self._ended[i], name) for i in places]
        return None if None in told else sum(told)

    def _near(self, at: float, late_s: float) -> list[int]:
        """Places of the captured turns that may be counted at this time, newest first."""
        first, last = bisect_left(self._times, -(at + EARLY_S)), bisect_left(self._times, -(at - late_s) + 1e-9)
        return [i for i in range(first, last) if i not in self._taken and self._ended[i].ended_at is not None]

    def _take(self, row: Turn, places: Iterable[int]) -> bool:
        places = list(places)
        self._taken.update(places)
        for i in places:
            if self._ended[i].own:
                continue  # its note knows it all; a row with the same prompt may be of the request before it
            self._ended[i] = _filled(self._ended[i], row) if row.n == 1 else replace(self._ended[i], counted=row.id)
        return bool(places)


def _some(places: Sequence[int], n: int) -> Iterator[Sequence[int]]:
    """So many of them, those that stand together first; of many only those."""
    yield from (places[i : i + n] for i in range(len(places) - n + 1))
    if len(places) <= FEW:
        yield from combinations(places, n)


def _equal(turn: Turn, row: Turn) -> bool:
    """A replay sends one prompt twice in a row: of its requests the cached tokens are asked for as well."""
    told = None not in (turn.cached_tokens, row.cached_tokens)
    if turn.own and told and turn.cached_tokens != row.cached_tokens:
        return False
    return _same_prompt(turn, row)


def _same_prompt(turn: Turn, row: Turn) -> bool:
    outs = turn.completion_tokens, row.completion_tokens  # what was not told is not unequal
    return turn.prompt_tokens == row.prompt_tokens and (None in outs or outs[0] == outs[1])


def _untold(turn: Turn, row: Turn) -> bool:
    """It may be this row: it ended well, and took about as long."""
    if turn.state != "done" or (turn.status or 200) >= 400:
        return False
    if turn.duration_s is None or row.duration_s is None:
        return True
    return abs(turn.duration_s - row.duration_s) <= 0.5 + 0.1 * row.duration_s


def _filled(turn: Turn, row: Turn) -> Turn:
    """What the counters know of it besides."""
    told = {name: getattr(row, name) for name in _TOLD if getattr(turn, name) is None}
    told = {name: value for name, value in told.items() if value is not None}
    one = replace(turn, **told, counted=row.id)
    if "cached_tokens" in told and one.cached_source is None:
        one = replace(one, cached_source="metrics")
    # where its tokens said which row it is, the times of that row are its own
    marked = _NUMBERS if turn.prompt_tokens is None else _PROMPT
    worked_out = [*turn.worked_out, *(name for name in told if name in marked)]
    if one.ttft_s is None and (waited := waited_s(one)) is not None:
        one = replace(one, ttft_s=waited)
        worked_out.append("ttft_s")
    return replace(one, worked_out=tuple(worked_out))


def _not_seen(running: Sequence[Turn], captured: int) -> list[Turn]:
    """Of what the server runs, as much as the tap has not in flight: one row, since nobody can tell which."""
    total = sum(row.n for row in running)
    if not captured:
        return list(running)
    if total <= captured or not running:
        return []
    return [Turn(id=running[0].id, ended_at=None, n=total - captured, state="in_flight")]


def tokens_of(turns: Iterable[Turn], start: float, end: float) -> float | None:
    """Prompt tokens of the captured turns that the server may have counted in this span, at most.

    The server counts a prompt at its first token. A turn stands for all of its prompt where its first token may have
    come in the span: where it came within `EDGE_S` of either end, since polls and the tap do not look at the same
    moment, and where nobody saw it come (no stream, or it is still read). One that told no tokens stands for its
    estimate and `GUESS` of it more. `turns`: in flight first, then newest first. None where one of them told no tokens
    and cannot be estimated.
    """
    total = 0.0
    for turn in turns:
        if not turn.captured:
            continue
        if turn.ended_at is not None and turn.ended_at <= start - EDGE_S:
            break  # all that follow ended before
        if not _counted_in(turn, start - EDGE_S, end + EDGE_S):
            continue
        tokens: float | None = turn.prompt_tokens
        if tokens is None and turn.estimate is not None:
            tokens = turn.estimate.prompt_tokens * (1 + GUESS)
        if tokens is None and turn.state == "failed":
            continue  # a refused request is not counted by the server either
        if tokens is None:
            return None
        total += tokens
    return total


def _counted_in(turn: Turn, start: float, end: float) -> bool:
    """Its first token came in this span, or may have where nobody saw it."""
    if turn.started_at is not None and turn.ttft_s is not None and "ttft_s" not in turn.worked_out:
        return start < turn.started_at + turn.ttft_s <= end
    if turn.state == "in_flight" and turn.phase == "waits":
        return False
    began = turn.started_at if turn.started_at is not None else turn.ended_at
    ended = turn.ended_at if turn.ended_at is not None else end
    return began is not None and began <= end and ended > start
