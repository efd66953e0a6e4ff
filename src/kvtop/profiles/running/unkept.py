"""What is said of a server whose keeper is gone."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.profiles.running.record import Record

KEEPER_GONE = "its keeper is gone"
OWED = "its keeper was gone before it told that after_stop had run"


def missed(state: Record) -> str:
    """`: its log is not rotated, its after_stop will not run by itself`, as far as its profile wants that."""
    said = ["its log is not rotated"] if state.log else []
    said += ["its after_stop will not run by itself"] if state.after_stop else []
    return f": {', '.join(said)}" if said else ""


def less_owed(notes: Sequence[str]) -> list[str]:
    """Where what is owed is run, or asked about."""
    return [note for note in notes if not note.startswith(OWED)]


def offer(name: str) -> str:
    """Of an after_stop that is owed: who runs it. `name`: fit for a screen."""
    return f"kvtop profile stop {name} offers it"
