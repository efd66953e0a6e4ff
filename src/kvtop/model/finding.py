"""Why a turn took its time, in the words of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a captured turn took its time, as it was worked out from its prompt and the server's counters. In words that
    are fit for a terminal."""

    verdict: str
    """As in `why --json`: no_fault, new_tokens, prompt_diverged, engine_lost_cache, queued, slow_decode, failed,
    aborted or unknown."""
    tone: str
    """bad: something can be mended. warn: look. ok: nothing to mend. unsure: the evidence does not decide."""
    cells: tuple[str, ...] = ()
    """For a row, longest first; empty: what the row says by itself says it as well."""
    clauses: tuple[str, ...] = ()
    """For the sentence, behind how long it waited, longest first; empty: as `cells`."""
    sentence: str = ""
    """The whole of it, for its page."""
    reason: str | None = None
    """Of a changed prompt its first cause, of a lost cache how it was lost."""
    fix: str = ""
    """What to do about it."""
    reread_tokens: int | None = None
    """Tokens of its prompt that were read before and computed again, for whatever reason."""
    guessed: bool = False
    """That number is an estimate: no server counted tokens."""
    new_tokens: int | None = None
    """The rest of what was computed: read for the first time. None: not known."""
    tools: str = ""
    """How the tools of the turn that it continues were sent, where they are the same in another form: 'tools' keys
    turned'; or that they are those of a turn before that one. Empty: nobody looked, or they are others."""

    @property
    def tells(self) -> bool:
        """It says more than that nobody knows."""
        return self.verdict != "unknown" or bool(self.cells)
