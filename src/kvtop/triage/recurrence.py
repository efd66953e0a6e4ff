"""The same cause at the same place over a conversation: how often, and in what rhythm."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from kvtop.triage.changes import Change, Comparison
from kvtop.triage.kinds import Kind
from kvtop.triage.result import Cause
from kvtop.triage.tree import ABSENT
from kvtop.triage.values import ordered

ENOUGH = 3
"""Times from which on a rhythm is told."""
AROUND = 24
"""Characters beside a text that was edited by which it is known again."""
STEADY = 0.15
"""How far the gaps of a rhythm may be from its own length, as a share of it."""
_ROUND_S = (5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of a conversation, compared with the one it continues."""

    at: float
    """Unix time."""
    causes: tuple[Cause, ...]
    talk: int = 0
    """The conversation: equal for its steps alone, and for those of one that goes on with it."""
    forms: Mapping[Hashable, tuple[int, int]] = field(default_factory=dict)
    """`place` of a cause -> what stood there and what stands there now, as hashes; equal ones tell nothing."""


def place(cause: Cause) -> Hashable:
    """Equal for the same kind at the same place: of messages not which one, since they grow; of tools which one."""
    pointer = re.sub(r"^/(messages|input)/\d+", r"/\1/*", cause.pointer)
    if cause.kind in _ANY_TOOL:
        pointer = "/tools"
    return _AS_ONE.get(cause.kind, cause.kind) if cause.of_system else cause.kind, pointer


def forms(comparison: Comparison, causes: Sequence[Cause]) -> dict[Hashable, tuple[int, int]]:
    """`Step.forms` of these two prompts."""
    found: dict[Hashable, tuple[int, int]] = {}
    for cause in causes:
        if cause.kind is Kind.VOLATILE_TEXT:
            continue  # a clock does not go back, whatever digits of it do
        if cause.kind in _ANY_TOOL:
            pair: tuple[object, object] = list(comparison.old.tools), list(comparison.new.tools)
        else:
            mine = [change for change in comparison.changes if change.id in cause.changes]
            pair = [_stood(one, new=False) for one in mine], [_stood(one, new=True) for one in mine]
        found[place(cause)] = hash(ordered(pair[0])), hash(ordered(pair[1]))
    return found


def _stood(change: Change, *, new: bool) -> object:
    region = change.region
    if region is not None:
        text, at, part = (change.new, region.new_at, region.new) if new else (change.old, region.old_at, region.old)
        return text[max(0, at - AROUND) : at + len(part) + AROUND]
    value = change.new if new else change.old
    return None if value is ABSENT else value


_AS_ONE = dict.fromkeys((Kind.SYSTEM_FLAPS, Kind.LIVE_STATUS, Kind.MEMORY_TEXT), Kind.TEXT_EDITED)
"""What is told of the system prompt under another name once it was seen often enough."""

_ANY_TOOL = frozenset(
    {
        Kind.TOOL_KEY_ORDER,
        Kind.TOOL_ARRAY_ORDER,
        Kind.TOOLS_REORDERED,
        Kind.TOOL_ADDED,
        Kind.TOOL_REMOVED,
        Kind.TOOLS_CHANGED,
    }
)


def told(steps: Sequence[Step]) -> tuple[Cause, ...]:
    """The causes of the last step, each with how often it was seen in all of them."""
    if not steps:
        return ()
    return tuple(replace(cause, seen=seen(place(cause), steps)) for cause in steps[-1].causes)


def told_of_sessions(begins: Sequence[Step], steps: Sequence[Step]) -> tuple[Cause, ...]:
    """The causes of the last of these beginnings of conversations, each with in how many of them it was seen; one that
    was seen there once, with in how many of the agent's other turns."""
    if not begins:
        return ()
    return tuple(
        replace(cause, seen=_in_sessions(place(cause), begins) or seen(place(cause), steps))
        for cause in begins[-1].causes
    )


def _in_sessions(what: Hashable, begins: Sequence[Step]) -> str | None:
    n = len(begins)
    times = sum(any(place(cause) == what for cause in step.causes) for step in begins)
    if times < 2:
        return None
    if times == n:
        return f"in each of the last {n} sessions of this agent"
    return f"at the start of {times} of the last {n} sessions of this agent ({100 * times / n:.0f} %)"


def seen_before(causes: Sequence[Cause], told_ones: Sequence[Cause], *, same_pair: bool) -> tuple[Cause, ...]:
    """Causes with a price, told as a conversation tells them: how often each was seen, and where both are of the same
    two turns also its kind there. `told_ones`: of the last step of that conversation."""
    out = []
    for cause in causes:
        ours = next((one for one in told_ones if same_pair and one.changes == cause.changes), None)
        if ours is not None:
            cause = replace(
                cause, kind=ours.kind, values=ours.values, says=ours.says, fix=ours.fix, who=ours.who, seen=ours.seen
            )
        elif alike := next((one for one in told_ones if place(one) == place(cause)), None):
            cause = replace(cause, seen=alike.seen)
        out.append(cause)
    return tuple(out)


def seen(what: Hashable, steps: Sequence[Step]) -> str | None:
    """'8 of the last 60 turns of this agent (13 %), every 8 turns'; None where it was once.

    Going back to a form that stood there before is no other change: it is told as 'there and back'.
    """
    places = [n for n, step in enumerate(steps) if any(place(cause) == what for cause in step.causes)]
    left, back = _left(what, places, steps)
    n = len(steps)
    if len(places) < 2:
        return None
    if len(left) < 2:
        return f"once in the last {n} turns of this agent, there and back"
    if len(places) == n:
        return f"in each of the last {n} turns of this agent"
    share = 100 * len(left) / n
    often = f"{len(left)} of the last {n} turns of this agent" + (f" ({share:.0f} %)" if share >= 1 else "")
    rhythm = _in_time([steps[k].at for k in left]) or _in_turns(left, steps)
    return ", ".join(filter(None, (often, rhythm, "there and back" if back else "")))


def _left(what: Hashable, places: Sequence[int], steps: Sequence[Step]) -> tuple[list[int], bool]:
    """(Those of `places` that leave a form, whether others go back to one), each conversation for itself."""
    left: list[int] = []
    before: dict[int, list[int]] = {}
    for at in places:
        step = steps[at]
        old, new = step.forms.get(what, (0, 0))
        had = before.setdefault(step.talk, [])
        if old != new and new in had:
            del had[had.index(new) :]
        else:
            had.append(old)
            left.append(at)
    return left, len(left) < len(places)


def _in_turns(places: Sequence[int], steps: Sequence[Step]) -> str:
    """A rhythm of turns, each conversation counted for itself."""
    if len(places) < ENOUGH or len(places) == len(steps):
        return ""
    counted: dict[int, int] = {}
    before: dict[int, int] = {}
    gaps = []
    wanted = set(places)
    for at, step in enumerate(steps):
        own = counted[step.talk] = counted.get(step.talk, 0) + 1
        if at in wanted:
            if step.talk in before:
                gaps.append(own - before[step.talk])
            before[step.talk] = own
    if len(gaps) < ENOUGH - 1:
        return ""
    every = round(median(gaps))
    if every > 1 and all(abs(gap - every) <= every // 8 for gap in gaps):
        return f"every {every} turns"
    return ""


def _in_time(times: Sequence[float]) -> str:
    """A rhythm of the clock: gaps are whole multiples of a round time, more often than chance has it."""
    if len(times) <= ENOUGH:  # two equal gaps are chance
        return ""
    gaps = [b - a for a, b in pairwise(times)]
    if min(gaps) <= 0:
        return ""
    base = min(_ROUND_S, key=lambda s: abs(s - min(gaps)))
    if base < 20 or abs(base - min(gaps)) > STEADY * base:
        return ""
    if all(abs(gap - round(gap / base) * base) <= STEADY * base and round(gap / base) >= 1 for gap in gaps):
        return f"at multiples of {_words(base)}" if max(gaps) > 1.5 * base else f"every {_words(base)}"
    return ""


def _words(seconds: int) -> str:
    for size, word in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds % size == 0:
            n = seconds // size
            return f"{n} {word}s" if n > 1 else word
    return f"{seconds} s"
