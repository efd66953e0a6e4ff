"""Two turns of which it is known that they belong to two conversations: their messages are no news."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvtop.triage.causes.conversations import of_talk, one_agent, strangers
from kvtop.triage.causes.history import tells_before
from kvtop.triage.causes.template import HANDFUL
from kvtop.triage.changes import Comparison
from kvtop.triage.kinds import Kind, Who
from kvtop.triage.pricing import dearest_first
from kvtop.triage.result import Cause


def two_conversations(
    causes: Sequence[Cause], comparison: Comparison, common: int | None = None, unit: int | None = None
) -> tuple[Cause, ...]:
    """The same causes, with all those of the messages as one: what is said in another conversation is another thing.
    Of two agents this one is all, and what each of them is told and may call belongs to it. A history that gave way to
    its summary is told as that. `common`: tokens that both begin with, of which the server matches `unit` at once."""
    if any(one.kind is Kind.COMPACTION for one in causes) and one_agent(comparison) and tells_before(comparison.new):
        return tuple(causes)
    if _nothing_shared(comparison, common, unit):
        if own := next((one for one in causes if one.kind is Kind.PER_AGENT_TEXT_FIRST), None):
            return (own,)
        talk = list(causes)
    else:
        same = one_agent(comparison)
        talk = [one for one in causes if of_talk(one, comparison) or (not same and one.kind is Kind.TEXT_EDITED)]
    if not talk:
        return tuple(map(_of_head, causes))
    lost = [one.lost_tokens for one in talk if one.lost_tokens is not None]
    seconds = [one.lost_s for one in talk if one.lost_s is not None]
    other = replace(
        talk[0],
        kind=Kind.OTHER_CONVERSATION,
        says="these are two conversations: from here on each says its own",
        fix="nothing is to be mended",
        who=Who.NOBODY,
        values=(),
        pointer_new=None,
        changes=frozenset().union(*(one.changes for one in talk)),
        lost_tokens=sum(lost) if lost else None,
        lost_s=sum(seconds) if seconds else None,
        reread_tokens=None,
        of_system=False,
        seen=None,
    )
    first = list(causes).index(talk[0])
    found = [
        other if i == first else _of_head(one)
        for i, one in enumerate(causes)
        if i == first or (one not in talk and (one.lost_tokens is None or one.lost_tokens > HANDFUL))
    ]
    return dearest_first(found)


def _nothing_shared(comparison: Comparison, common: int | None, unit: int | None) -> bool:
    """They are two agents' prompts; or no whole block of them is the same, and no agent is known by its head."""
    old, new = comparison.old, comparison.new
    if strangers(old, new):
        return True
    few = common is not None and common < max(HANDFUL, unit or 0)
    return few and not (old.tools or new.tools) and not one_agent(comparison)


_OWN = "say what is a conversation's own in its first message, behind what all of them share"
_FIXES = {
    Kind.VOLATILE_TEXT: _OWN,
    Kind.PATH_CHANGED: _OWN,
    Kind.LIVE_STATUS: _OWN,
    Kind.MEMORY_TEXT: _OWN,
    Kind.TEXT_EDITED: f"an edit that was meant costs this once; else {_OWN}",
}


def _of_head(cause: Cause) -> Cause:
    """What two conversations of one agent can do about it: neither goes on with the other's messages."""
    return replace(cause, fix=_FIXES[cause.kind]) if cause.kind in _FIXES else cause
