"""What each cause costs in tokens: its section of the old turn is put back, and the common prefix is measured again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from kvtop.triage.causes.template import HANDFUL
from kvtop.triage.changes import Comparison
from kvtop.triage.ids import common, count
from kvtop.triage.kinds import KEYS, NOT_SENT_AGAIN, SAYS_ANEW
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

    async def put_back(changes: set[int]) -> bytes:
        nonlocal calls
        calls += 1
        return await ask(comparison.restored(changes))

    before = new
    while waiting and at < size and calls < MOST_CALLS:
        for cause in waiting:
            made = await put_back(restored | cause.changes)
            if (moved := common(old, made)) > at:
                priced.append(_with(cause, at, moved, before, made))
                restored |= cause.changes
                waiting.remove(cause)
                at, before = moved, made
                break
            if calls >= MOST_CALLS:
                break
        else:
            # Two changes within one token move nothing one by one.
            made = await put_back(restored.union(*(cause.changes for cause in waiting))) if len(waiting) > 1 else before
            if (moved := common(old, made)) > at:
                first, *rest = waiting
                priced.append(_with(first, at, moved, before, made))
                priced += [replace(cause, lost_tokens=0, reread_tokens=0) for cause in rest]
                waiting, at = [], moved
            break
    spent = at < size and calls >= MOST_CALLS
    unseen, unasked = ((), waiting) if spent else (waiting, ())
    return Priced(tuple(priced), tuple(unseen), tuple(unasked), start, at, 0 if spent else size - at, calls)


def _with(cause: Cause, at: int, moved: int, before: bytes, made: bytes) -> Cause:
    """With its price: `made` is `before` with the cause put back, and `moved` the tokens that it has in common with the
    old prompt, instead of `at`."""
    lost = moved - at
    if cause.kind in SAYS_ANEW:
        kept = common(before[::-1], made[::-1])  # what ends both: what was kept, and what is behind the old prompt
        again = kept - (count(made) - moved)
    else:
        # So many tokens fewer are read with it. What a change took away was not read, what it put in was never before.
        again = (count(before) - at) - (count(made) - moved)
    return replace(cause, lost_tokens=lost, reread_tokens=max(0, min(lost, again)))


def in_blocks(causes: Sequence[Cause], tokens: Tokens, unit: int | None, rest: int) -> tuple[list[Cause], Tokens]:
    """Each with what it made the server read again, and the counts of the pair with their sum. `causes` in the order of
    the prompt, those of another key behind the others. `rest`: tokens at the end of the old prompt that no cause
    explains; a few of them are the last cause's."""
    old, new, at = tokens.old, tokens.new, tokens.common
    if not unit or old is None or new is None or at is None or tokens.reusable is None:
        return list(causes), tokens

    def blocks(token: int) -> int:
        return max(0, min(token, old, new - 1)) // unit * unit

    out: list[Cause] = []
    start = end = at
    """Where a cause moved the common prefix from; where what was read again for it begins, were it all in one piece."""
    costly = [n for n, cause in enumerate(causes) if cause.lost_tokens and cause.kind not in KEYS]
    key = True
    for n, cause in enumerate(causes):
        if cause.kind in KEYS:  # what both have in common could not be read for it
            out.append(replace(cause, at_token=0, reread_tokens=blocks(at) if key else 0))
            key = False
        elif cause.lost_tokens is None:
            out.append(cause)
        else:
            again = cause.told_tokens or 0
            if costly[-1:] == [n] and rest <= HANDFUL:
                again, rest = again + rest, 0
            if cause.kind in NOT_SENT_AGAIN:
                again = 0
            share = blocks(end + again) - blocks(end)
            out.append(replace(cause, at_token=start, reread_tokens=share))
            start, end = start + cause.lost_tokens, end + again
    return out, replace(tokens, reread=max(0, blocks(end + rest) - tokens.reusable))


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
    """By lost tokens, those for which nothing was read again behind the others; of equal price as they stand."""
    return tuple(sorted(causes, key=lambda cause: (not cause.told_tokens, -(cause.lost_tokens or 0))))
