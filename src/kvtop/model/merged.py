"""Captured turns and the counters' rows of one server as one list: a request that both tell of stands once.

The counters count every request; a tap sees those that go through it, and sees them exactly. So a counted row whose
requests were all captured is left out, and what it alone knows (queue, prefill, decode) goes to its captured turn. What
is left of the counted rows went past the tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvtop.model.view import Turn

LATE_S = 3.0
"""The counters tell of an end up to so long after the tap saw it: polls, and a server that counts once a step."""
EARLY_S = 0.5
"""They may also tell it before the last byte has reached the client."""


def merge(captured: Sequence[Turn], counted: Sequence[Turn]) -> tuple[Turn, ...]:
    """Both lists in flight first, then the newest end first; so is the result."""
    if not captured:
        return tuple(counted)
    flying = [t for t in captured if t.state == "in_flight"]
    ended = [t for t in captured if t.state != "in_flight"]
    taken: set[int] = set()
    left: list[Turn] = []
    for row in counted:
        if row.state == "in_flight":
            continue
        found = _same(row, ended, taken)
        if not found:
            left.append(row)
            continue
        taken |= found
        if row.n == 1:
            i = next(iter(found))
            ended[i] = _filled(ended[i], row)
    running = _not_seen([row for row in counted if row.state == "in_flight"], len(flying))
    return (*running, *flying, *sorted([*ended, *left], key=_ended, reverse=True))


def _ended(turn: Turn) -> float:
    return turn.ended_at or 0.0


def _same(row: Turn, ended: Sequence[Turn], taken: set[int]) -> set[int]:
    """The places of the captured turns that this counted row is made of; empty where they are not all there."""
    if row.ended_at is None or row.prompt_tokens is None:
        return set()
    near = [
        i
        for i, turn in enumerate(ended)
        if i not in taken
        and turn.ended_at is not None
        and row.ended_at - LATE_S <= turn.ended_at <= row.ended_at + EARLY_S
        and turn.prompt_tokens is not None
    ]
    if row.n == 1:
        fits = [i for i in near if _equal(ended[i], row)]
        return {fits[0]} if fits else set()  # both lists are newest first: so the most rows find theirs
    oldest = near[-row.n :]
    for group in (near[: row.n], oldest):
        if len(group) == row.n and round(row.prompt_tokens * row.n) == sum(ended[i].prompt_tokens or 0 for i in group):
            return set(group)
    return set()


def _equal(turn: Turn, row: Turn) -> bool:
    out = turn.completion_tokens
    return turn.prompt_tokens == row.prompt_tokens and (out is None or out == row.completion_tokens)


def _filled(turn: Turn, row: Turn) -> Turn:
    """What the counters know of it besides."""
    cached = turn.cached_tokens if turn.cached_tokens is not None else row.cached_tokens
    return replace(
        turn,
        cached_tokens=cached,
        new_tokens=turn.new_tokens if turn.new_tokens is not None else row.new_tokens,
        queue_s=turn.queue_s if turn.queue_s is not None else row.queue_s,
        prefill_s=turn.prefill_s if turn.prefill_s is not None else row.prefill_s,
        decode_s=turn.decode_s if turn.decode_s is not None else row.decode_s,
        verdict=turn.verdict if turn.verdict is not None else row.verdict,
        engine=turn.engine if turn.engine is not None else row.engine,
    )


def _not_seen(running: Sequence[Turn], captured: int) -> list[Turn]:
    """Of what the server runs, as much as the tap has not in flight: one row, since nobody can tell which."""
    total = sum(row.n for row in running)
    if not captured:
        return list(running)
    if total <= captured or not running:
        return []
    return [Turn(id=running[0].id, ended_at=None, n=total - captured, state="in_flight")]


def of_window(captured: Sequence[Turn], start: float, end: float) -> float:
    """Prompt tokens of the captured turns whose first token came in this span: when the server counts them, too."""
    total = 0.0
    for turn in captured:
        first = turn.started_at + turn.ttft_s if turn.started_at is not None and turn.ttft_s is not None else None
        at = first if first is not None else turn.ended_at
        if at is not None and start < at <= end:
            total += turn.prompt_tokens or 0.0
    return total
