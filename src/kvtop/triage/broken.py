"""What a changed prompt cost, and which of its causes may be held against it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.triage.kinds import KEYS, Kind
from kvtop.triage.result import Cause
from kvtop.triage.seen import Seen

_OF_ITSELF = frozenset(
    {
        Kind.TOOL_KEY_ORDER, Kind.TOOL_ARRAY_ORDER, Kind.TOOLS_REORDERED, Kind.TOOL_RANDOM_NAME,
        Kind.RENDER_NONDETERMINISTIC, Kind.CLIENT_HEADER, Kind.VOLATILE_TEXT, Kind.WHITESPACE, Kind.UNICODE_FORM,
        Kind.SERVER_DATE, Kind.PER_AGENT_TEXT_FIRST,
    }
)  # fmt: skip
"""What two conversations should have had in common, written in two ways. All else may well differ between them."""
_OF_ONE_AGENT = (Kind.PATH_CHANGED, Kind.LIVE_STATUS, Kind.MEMORY_TEXT, Kind.TEXT_EDITED)
"""So should these, in the system prompt of one agent; what another agent is told is no cause (`apart.py`)."""


def blamed(seen: Seen) -> list[Cause]:
    """The causes that may be held against this prompt. Of two conversations only where they part already in what both
    of them write, and only for that."""
    diff = seen.diff
    causes = [one for one in diff.causes if one.kind is not Kind.OTHER_CONVERSATION] if diff else []
    if diff is None or not seen.elsewhere or len(causes) == len(diff.causes):
        return causes
    causes = [one for one in causes if _is_shared(one)]
    parts = diff.first.section if diff.first is not None else None
    return causes if any(one.section == parts for one in causes) else []


def _is_shared(cause: Cause) -> bool:
    if cause.kind is Kind.TOOL_TEXT_CHANGED:
        return bool(cause.values)
    return cause.kind in _OF_ITSELF or (cause.of_system and cause.kind in _OF_ONE_AGENT)


def reread(seen: Seen, broken: Sequence[Cause]) -> int | None:
    """Tokens that a changed prompt made the server read again, in whole units; None: it did not change, or that is not
    known."""
    anew, most = _changed(seen, broken), seen.most
    if anew is None or most is None or seen.cached is None:
        return anew
    held = seen.cached + seen.lost  # what was lost is not the prompt's doing
    return max(0, min(anew, most - held))  # another prompt may have left it there


def _changed(seen: Seen, broken: Sequence[Cause]) -> int | None:
    """The same, whatever the server had of it."""
    diff, most = seen.diff, seen.most
    if diff is not None and (diff.append_only or (not broken and (diff.causes or not seen.goes_on))):
        return None
    if seen.elsewhere and diff is not None and len(broken) < len(diff.causes):
        known = [one.told_tokens for one in broken if one.told_tokens is not None]
        if known or not broken:
            return sum(known) // seen.unit * seen.unit
    if any(one.kind in KEYS for one in broken):
        return most
    if diff is not None and diff.tokens.reread is not None:
        return diff.tokens.reread
    if diff is None and not seen.goes_on:
        return None
    if most is None:
        return None
    if seen.expected is not None:
        same = max(seen.expected.plain, seen.expected.unread_common // seen.unit * seen.unit)
        return max(0, most - same)
    if seen.cached is None or (diff is None and not seen.turn.changed):
        return None
    return max(0, most - seen.cached)
