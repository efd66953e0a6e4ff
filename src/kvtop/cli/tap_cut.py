"""What a tap says as it ends: which streams it cut, whose, to which server, for how long, and as which turn; and how
many turns could not be written."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from kvtop.capture.tap.ended import Cut, Ended
from kvtop.capture.turn import Captured, TurnState
from kvtop.errors import KvtopError, printable

_LOOKED_AT = 500
"""Of the newest turns."""
_SAME_S = 0.1
"""The tap and its recorder reckon Unix time each for itself."""


def lines(ended: Ended, store: str | None) -> list[str]:
    """A line for each stream that was cut, with what the store knows of it, and one for the turns that it lacks."""
    turns = _turns(store) if store and ended.cuts else []
    named = _named(ended.cuts, turns)
    told = [_line(cut, named.get(place)) for place, cut in enumerate(ended.cuts)]
    more = ended.cut - len(told)
    told += [f"  and {more} more"] if told and more > 0 else []
    if ended.lost_turns:
        told.append(f"  {lost(ended.lost_turns, store)}")
    return told


def lost(turns: int, store: str | None) -> str:
    what = f"{turns} turn{' is' if turns == 1 else 's are'} not recorded whole"
    return f"{what}: {printable(store or 'the store', 300)} could not be written"


def _line(cut: Cut, turn: Captured | None) -> str:
    line = f"  cut: {cut.peer} -> {cut.upstream}, {cut.ran_s:.1f} s after it asked"
    return printable(line if turn is None else f"{line}; turn {turn.id}, {turn.route} by {turn.agent}", 400)


def _named(cuts: Sequence[Cut], turns: Sequence[Captured]) -> dict[int, Captured]:
    """Place of a cut -> the turn of that server that began at that moment and has no end of its own. A turn is one
    cut's: a connection whose turn was forgotten has none, and not its neighbour's."""
    open_ones = [turn for turn in turns if _broke_off(turn)]
    apart = sorted(
        (abs(turn.started_at - cut.began_at), place, turn.id, turn)
        for place, cut in enumerate(cuts)
        for turn in open_ones
        if turn.upstream == cut.upstream and abs(turn.started_at - cut.began_at) <= _SAME_S
    )
    found: dict[int, Captured] = {}
    taken: set[int] = set()
    for _, place, id, turn in apart:
        if place not in found and id not in taken:
            found[place] = turn
            taken.add(id)
    return found


def _broke_off(turn: Captured) -> bool:
    """It may have been cut with its connection: it was neither answered whole nor left by its client."""
    return turn.state in (TurnState.CUT, TurnState.IN_FLIGHT, None)


def _turns(path: str) -> list[Captured]:
    """The newest turns; none where they cannot be read: what was cut is told all the same."""
    from kvtop.capture.store.store import Store

    with contextlib.suppress(KvtopError, sqlite3.Error, OSError), Store.open(Path(path)) as store:
        return store.turns(last=_LOOKED_AT)
    return []
