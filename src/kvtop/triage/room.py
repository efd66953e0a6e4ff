"""What the pool had to hold since a turn left its prefix there. Pure.

Free blocks are handed out least recently used first, the tail of a request first. So the tail of a prefix goes when
the prefix and what was touched since do not fit into the pool together. Touched is what was computed, and also what
was only found: its blocks leave their place in that order, and come back behind the prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.capture.turn import Captured, Sample
from kvtop.model.shown_turn import CONTINUES
from kvtop.triage.between import computed_between, requests_between, samples_between, spanned, turns_between
from kvtop.triage.seen import Seen


@dataclass(frozen=True, slots=True)
class Touched:
    """Tokens of other content than the prefix."""

    tokens: float
    found: float
    """Of these, what was found in the cache."""


def touched_least(seen: Seen, source: Captured) -> Touched | None:
    """What was touched since the source ended, no less; None: not known."""
    computed = computed_between(seen, source)
    by_turns = touched_by_turns(seen, source)
    if computed is None:
        return by_turns
    # A block that a request does not fill is taken again by the next one.
    computed = max(0.0, computed - seen.unit * requests_between(seen, source))
    return by_turns if by_turns is not None and by_turns.tokens > computed else Touched(computed, 0.0)


def touched_by_turns(seen: Seen, source: Captured) -> Touched | None:
    """By the captured turns alone. What one of them found counts only as far as it shares nothing with the prefix, nor
    with what another one touched before it."""
    turns = sorted(turns_between(seen, source), key=lambda one: (one.first_token_at or one.ended_at or 0.0, one.id))
    touched: Touched | None = None
    for n, one in enumerate(turns):
        if one.new_tokens is None or one.cached_tokens is None:
            continue
        others = (source, seen.turn, *turns[:n])
        own = max(0, one.cached_tokens - max(seen.in_common(one, other) for other in others))
        found = own // seen.unit * seen.unit
        before = touched or Touched(0.0, 0.0)
        touched = Touched(before.tokens + found + max(0, one.new_tokens - seen.unit), before.found + found)
    return touched


def touched_most(seen: Seen, source: Captured) -> float | None:
    """What was touched since the source was read, and what others held then, no more; None: not known."""
    span = spanned(seen, source)
    pool = seen.server.pool_tokens
    if span is None or pool is None:
        return None
    a, b = span
    usage = [one.kv_cache_usage_share for one in samples_between(seen, source)]
    held = [share for share in (a.kv_cache_usage_share, *usage) if share is not None]
    if not held:
        return None
    read = _read(a, b)
    if read is None or a.finished is None or b.finished is None:
        return None
    own = _whole(source) + _whole(seen.turn)
    counted = max(0.0, read - own)
    turns = [one for one in seen.others if _within(one, source, seen, a, b)]
    told = sum(_whole(one) for one in turns)
    requests = max(float(len(turns)), b.finished - a.finished)
    most = min(counted, _distinct(turns)) if told >= counted else counted
    return most + max(held) * pool + seen.unit * (requests + 2)


def _distinct(turns: list[Captured]) -> float:
    """What a turn found of the one that it continues is counted with that one."""
    by_id = {one.id: one for one in turns}
    total = 0.0
    for one in turns:
        before = by_id.get(one.parent or 0)
        goes_on = before is not None and one.relation in CONTINUES and not one.changed
        covered = _whole(before) if before is not None and goes_on and before.first_token_at is not None else 0
        total += _whole(one) - min(one.cached_tokens or 0, covered)
    return total


def _within(one: Captured, source: Captured, seen: Seen, a: Sample, b: Sample) -> bool:
    same = one.upstream == source.upstream and one.id not in (source.id, seen.turn.id)
    return same and one.started_at < b.at and (one.ended_at is None or one.ended_at > a.at)


def _whole(turn: Captured) -> int:
    return (turn.prompt_tokens or 0) + (turn.completion_tokens or 0)


def _read(a: Sample, b: Sample) -> float | None:
    """Tokens of prompts and answers from one look to another, found or computed."""
    if None in (a.prompt_tokens, b.prompt_tokens, a.generation_tokens, b.generation_tokens):
        return None
    prompt = (b.prompt_tokens or 0.0) - (a.prompt_tokens or 0.0)
    generated = (b.generation_tokens or 0.0) - (a.generation_tokens or 0.0)
    return None if min(prompt, generated) < 0 else prompt + generated
