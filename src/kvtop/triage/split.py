"""What became of the tokens of a prompt: one account, which the row, the page and the commands all tell. Pure."""

from __future__ import annotations

from kvtop.model.words import exact
from kvtop.triage.broken import blamed, reread
from kvtop.triage.cost import reading_s
from kvtop.triage.kinds import Because, Verdict
from kvtop.triage.result import Split, Why
from kvtop.triage.seen import Seen


def split(seen: Seen, found: Why) -> Split:
    """`found`: the verdict, whose sentence may name one of its numbers."""
    prompt, cached = seen.turn.prompt_tokens, seen.cached
    named = found.reread_tokens
    if prompt is None or cached is None:
        return Split(prompt, cached)
    left = prompt - cached
    lost = None if seen.expected is None else seen.lost
    if found.verdict is Verdict.PROMPT_DIVERGED:
        changed = named or 0
    else:
        changed, lost = by_change(seen, named), named if named is not None else lost
    if lost is not None:
        lost = min(lost, left)
    changed = min(changed, left - (lost or 0))
    unsaved = min(_unsaved(seen), left - (lost or 0) - changed)
    return Split(prompt, cached, changed, lost, unsaved, reading_s(seen.turn, seen.rate), _guessed(seen, changed))


def _guessed(seen: Seen, changed: int) -> bool:
    return changed > 0 and seen.diff is not None and seen.diff.method == "text"


def by_change(seen: Seen, named: int | None = None) -> int:
    """Tokens that a changed prompt made the server read again beside the `named` ones; 0 where they are not worth a
    word, or not known."""
    if seen.cached is None:
        return 0
    anew = reread(seen, blamed(seen)) or 0
    if seen.most is not None and named is not None:
        anew = min(anew, max(0, seen.most - seen.cached - named))
    counted = seen.diff is not None and seen.diff.exact
    return anew if anew > seen.unit or (counted and anew == seen.unit) else 0


def too_few(verdict: Verdict, parts: Split) -> str:
    """What is said of a turn that nothing is held against, though some of it was read again; else empty."""
    again = parts.changed + (parts.lost or 0)
    innocent = verdict in (Verdict.NO_FAULT, Verdict.NEW_TOKENS)
    return f"{exact(again)} tokens read again, too few to notice" if innocent and again else ""


def _unsaved(seen: Seen) -> int:
    expected = seen.expected
    if expected is None or Because.HYBRID_BOUNDARY not in expected.because:
        return 0
    anew = expected.plain - max(expected.tokens, seen.cached or 0)
    return anew if seen.counts(anew) else 0
