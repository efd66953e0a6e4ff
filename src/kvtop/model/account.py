"""What a turn read, by whether the server had read it before. Pure."""

from __future__ import annotations

from kvtop.model.shown_turn import Turn


def again(turn: Turn) -> int | None:
    """Tokens of its prompt that were read before and read again; None: that was not found out."""
    found = turn.finding.reread_tokens if turn.finding is not None else None
    if found is None or turn.new_tokens is None:
        return found
    return max(0, min(found, round(turn.new_tokens)))


def needed(turn: Turn) -> float | None:
    """Tokens that it had to read in any case: all that did not come from the cache, but for those that were read
    again. None: not known."""
    return None if turn.new_tokens is None else turn.new_tokens - (again(turn) or 0)
