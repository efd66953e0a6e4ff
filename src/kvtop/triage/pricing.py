"""What each cause costs in tokens: its section of the old turn is put back, and the common prefix is measured again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from kvtop.triage.causes.template import HANDFUL
from kvtop.triage.changes import Comparison
from kvtop.triage.ids import common, count
from kvtop.triage.kinds import KEYS, NOT_SENT_AGAIN
from kvtop.triage.prompt import Prompt
from kvtop.triage.result import Cause, Tokens

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


def in_blocks(causes: Sequence[Cause], tokens: Tokens, unit: int | None, rest: int) -> tuple[list[Cause], Tokens]:
    """Each with what it made the server read again, and the counts of the pair with their sum. `causes` in the order of
    the prompt, those of another key behind the others. `rest`: tokens at the end of the old prompt that no cause
    explains; a few of them are the last cause's."""
    old, new, at = tokens.old, tokens.new, tokens.common
    if not unit or old is None or new is None or at is None or tokens.reread is None:
        return list(causes), tokens

    def blocks(token: int) -> int:
        return max(0, min(token, old, new - 1)) // unit * unit

    out: list[Cause] = []
    start, again = at, tokens.reread
    costly = [n for n, cause in enumerate(causes) if cause.lost_tokens and cause.kind not in KEYS]
    key = True
    for n, cause in enumerate(causes):
        if cause.kind in KEYS:  # what both have in common could not be read for it
            out.append(replace(cause, at_token=0, reread_tokens=blocks(at) if key else 0))
            key = False
        elif cause.lost_tokens is None:
            out.append(cause)
        else:
            end = old if costly[-1:] == [n] and rest <= HANDFUL else start + cause.lost_tokens
            share = blocks(end) - blocks(start)
            if cause.kind in NOT_SENT_AGAIN:
                share, again = 0, again - share
            out.append(replace(cause, at_token=start, reread_tokens=share))
            start = end
    return out, replace(tokens, reread=max(0, again))


def charged(causes: Sequence[Cause], tokens: int) -> tuple[Cause, ...]:
    """The same ones, that together cost so many at most: another prompt left the rest in the cache, which the prompt
    meets first."""
    over = sum(cause.told_tokens or 0 for cause in causes) - tokens
    made = {id(cause): cause for cause in causes}
    for cause in sorted(causes, key=lambda cause: cause.at_token or 0):
        if over <= 0:
            break
        told = cause.told_tokens or 0
        made[id(cause)] = replace(cause, reread_tokens=max(0, told - over))
        over -= min(told, over)
    return tuple(made[id(cause)] for cause in causes)


def dearest_first(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """By lost tokens, those of which the new prompt lost nothing last; of equal price as they stand."""
    return tuple(sorted(causes, key=lambda cause: -(cause.lost_tokens or 0) if cause.told_tokens else 0))
