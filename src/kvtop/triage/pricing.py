"""What each cause costs in tokens: its section of the old turn is put back, and the common prefix is measured again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from kvtop.triage.changes import Comparison
from kvtop.triage.ids import common, count
from kvtop.triage.prompt import Prompt
from kvtop.triage.result import Cause

MOST_CALLS = 24
"""Prompts that a server is asked to tokenise for one divergence."""

Ask = Callable[[Prompt], Awaitable[bytes]]
"""The token ids of a prompt, packed. Raises KvtopError."""


@dataclass(frozen=True, slots=True)
class Priced:
    """The causes of one divergence, each with its price."""

    causes: tuple[Cause, ...]
    """In the order in which the prompt meets them: those that moved the common prefix."""
    unseen: tuple[Cause, ...]
    """Changes of the request that moved nothing: they reach no prompt, or stand behind `unexplained`."""
    unasked: tuple[Cause, ...]
    """What no call was left for."""
    common: int
    """Tokens that both prompts begin with as they were sent."""
    reached: int
    """The same with all causes put back; less than the old prompt where something is left."""
    unexplained: int
    """Tokens of the old prompt that no change of the request explains: the template's work, or the server's."""
    calls: int
    """Prompts that were asked for."""


async def price(comparison: Comparison, causes: Sequence[Cause], old: bytes, new: bytes, ask: Ask) -> Priced:
    """`old` and `new`: the ids of both prompts. `causes` in the order of the prompt as far as it can be guessed."""
    size, start = count(old), common(old, new)
    at, calls = start, 0
    restored: set[int] = set()
    priced: list[Cause] = []
    waiting = list(causes)

    async def reach(changes: set[int]) -> int:
        nonlocal calls
        calls += 1
        return common(old, await ask(comparison.restored(changes)))

    while waiting and at < size and calls < MOST_CALLS:
        for cause in waiting:
            moved = await reach(restored | cause.changes)
            if moved > at:
                priced.append(replace(cause, lost_tokens=moved - at))
                restored |= cause.changes
                waiting.remove(cause)
                at = moved
                break
            if calls >= MOST_CALLS:
                break
        else:
            # Two changes within one token move nothing one by one.
            moved = await reach(restored.union(*(cause.changes for cause in waiting))) if len(waiting) > 1 else at
            if moved > at:
                first, *rest = waiting
                priced.append(replace(first, lost_tokens=moved - at))
                priced += [replace(cause, lost_tokens=0) for cause in rest]
                waiting, at = [], moved
            break
    spent = at < size and calls >= MOST_CALLS
    unseen, unasked = ((), waiting) if spent else (waiting, ())
    return Priced(tuple(priced), tuple(unseen), tuple(unasked), start, at, 0 if spent else size - at, calls)


def dearest_first(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """By lost tokens; of equal price as they stand."""
    return tuple(sorted(causes, key=lambda cause: -(cause.lost_tokens or 0)))


def in_seconds(causes: Sequence[Cause], rate: float | None) -> tuple[Cause, ...]:
    """`rate`: prompt tokens that this server computes in a second, at this length; None: no seconds are told."""
    if not rate:
        return tuple(causes)
    return tuple(
        cause if cause.lost_tokens is None else replace(cause, lost_s=cause.lost_tokens / rate) for cause in causes
    )
