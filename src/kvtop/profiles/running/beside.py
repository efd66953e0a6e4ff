"""Sidecars that have ended while their server runs, or starts: vLLM goes on, and misses them."""

from __future__ import annotations

from kvtop.profiles.running.record import Record

SHORT = "sidecar ended"


def ended(state: Record) -> int:
    """How many have, of the server of a record."""
    return sum(not who.lives for who in state.sidecars)


def words(count: int, of: int) -> str:
    """`1 of 2 sidecars has ended`. `count`: 1 at least."""
    if of == 1:
        return "its sidecar has ended"
    return f"{count} of {of} sidecars {'has' if count == 1 else 'have'} ended"
