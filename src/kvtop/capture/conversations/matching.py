"""How much of an old turn a new one holds, and whether that makes the two one conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvtop.capture.conversations.linked import Linked, common_prefix

LONG = 16
"""No preamble of examples has so many messages: what shares more shares a history."""
KNOWN_AGAIN = 1_000
"""Bytes that two conversations do not have in common by chance."""
_LATER_S = 900.0
_REWRITTEN = 2
"""Messages of a talk that may all have been rewritten when it goes on: its prompt, and a reminder before it."""


class Match(NamedTuple):
    """How much of an old turn a new one holds."""

    old: Linked
    length: int
    """Messages of the new turn."""
    prefix: int
    shared: int
    whole: bool
    """All of the old turn's messages stand at the new one's start."""
    tip: bool
    """The new one goes on where the old one ended, and nothing else did."""
    extends: bool
    """A tip whose messages stand one for one in the new one, though not all with the same words."""
    foreign: bool
    """Of another program, upstream or model, or with another session's key."""
    alike: int
    """Whether tools and system prompt are the same: it breaks ties."""

    @property
    def rank(self) -> tuple[bool, int, int, int, int, float]:
        """Of two that share as much the one with less that is not shared."""
        return not self.foreign, self.shared, self.prefix, -len(self.old.chain), self.alike, self.old.last_at


def compare(old: Linked, new: Linked, opening: frozenset[str]) -> Match | None:
    """How the two match; None where they are no one conversation.

    `opening` is what the first turn of the old one's conversation had before its last message (instructions, examples,
    files): it may be the same in other conversations, and proves nothing.
    """
    prefix = common_prefix(old.chain, new.chain)
    whole = prefix == len(old.chain)
    longer = len(new.chain) > len(old.chain)
    same = new.contents & old.contents
    shared = max(prefix, len(same))
    own = same - opening
    replies = own & old.replies
    other_key = bool(old.session.key and new.session.key and old.session.key != new.session.key)
    other_agent = old.session.agent != new.session.agent
    foreign = other_key or other_agent or (old.at, old.agent) != (new.at, new.agent)
    alike = (old.tools == new.tools) + (old.system == new.system)
    match = Match(old, len(new.chain), prefix, shared, whole, tip=False, extends=False, foreign=foreign, alike=alike)
    if foreign:
        most = shared * 2 > len(old.chain) and old.weight(same) * 2 > sum(old.sizes)
        return match if replies and most and (longer or prefix) else None
    free = not old.runs_at(new.started_at) and not old.followed(new)
    if whole and not longer:
        return _again(match, new, free, bool(replies))
    extends = longer and free and new.roles.startswith(old.roles) and new.roles[len(old.roles)] in "aop"
    if whole:
        return match._replace(tip=free)
    if old.rest[0]:
        return None  # the pieces of a prompt prove no more than a common start
    held = bool(old.session.key) and old.session.key == new.session.key
    if prefix == 0:
        if (replies or shared >= LONG) and shared * 2 >= min(len(old.chain), len(new.chain)):
            return match._replace(tip=free and longer, extends=extends)
        if longer and free and _answered(old, new, same):
            return match._replace(tip=True, extends=extends)
        return match._replace(tip=True, extends=True) if extends and _rewritten(old, new, held) else None
    if len(new.chain) == prefix and not (replies and own):
        return match if held else None  # its first messages alone: another run, but in the same session rolled back
    if own or shared >= LONG:
        goes_on = longer and old.chain[-1] in same and free
        return match._replace(tip=extends or goes_on, extends=extends)
    told = len(old.contents - opening)  # a talk that went on has replies, and would have been held by one of them
    return match._replace(tip=True, extends=True) if extends and told <= _REWRITTEN else None


def best_tip(tips: Sequence[Match]) -> Match | None:
    """The one that shares most, unless one that has ended later goes on as well as that: then the older one is another
    run of the same, and what looks like its retry, or its edited history, is the newer one's next step."""
    best = max(tips, key=lambda match: match.rank, default=None)
    if best is None:
        return None
    again = best.whole and len(best.old.chain) == best.length
    if again and not best.old.failed:
        newer = [match for match in tips if match.whole and len(match.old.chain) < match.length]
    elif best.whole:
        return best
    else:
        newer = [match for match in tips if match.extends and match.shared * 2 >= best.shared]
    return max([best, *newer], key=lambda match: match.old.last_at)


def _again(match: Match, new: Linked, free: bool, replied: bool) -> Match | None:
    """The same messages once more: a retry, or another run of the same prompt that knows nothing of the first."""
    old = match.old
    if old.rest[0] != new.rest[0]:
        return match._replace(tip=True) if free and new.rest[1] > old.rest[1] > 0 and old.failed else None
    held = bool(old.session.key) and old.session.key == new.session.key
    if replied or held:
        return match._replace(tip=free)
    return match._replace(tip=True) if free and new.started_at - old.last_at <= _LATER_S else None


def _answered(old: Linked, new: Linked, same: frozenset[str]) -> bool:
    """What the old one asked was answered in the new one, and most of what it said stands there too, though something
    else stands before it: so much is not the same by chance."""
    asked, weight = old.chain[-1], old.weight(same)
    if asked not in same or weight < KNOWN_AGAIN or weight * 2 < sum(old.sizes):
        return False
    behind = len(new.chain) - new.chain[::-1].index(asked)
    alike = old.tools == new.tools or old.system == new.system
    return alike and new.roles[behind : behind + 1] in ("a", "o")


def _rewritten(old: Linked, new: Linked, held: bool) -> bool:
    """Whether a turn that shares no message may still go on from the old one: its first message alone was rewritten,
    or says the same without its reminders."""
    alike = old.tools == new.tools or old.system == new.system
    near = abs(new.sizes[0] - old.sizes[0]) <= 64 or bool(old.bare & new.bare)
    return len(old.chain) <= _REWRITTEN and alike and (held or near) and new.started_at - old.last_at <= _LATER_S


def changed(match: Match, new: Linked) -> tuple[str, ...]:
    """As `Captured.changed`. Empty for one that does not hold all of the old turn's messages."""
    old = match.old
    if not match.whole:
        return ()
    same = len(new.chain) == len(old.chain)  # of a longer one system messages may stand where the new ones do
    kinds = (
        ("system", old.head != new.head),
        ("system_messages", same and old.head == new.head and old.system != new.system),
        ("tools", old.tools != new.tools),
    )
    return tuple(name for name, differs in kinds if differs)


def relation(match: Match, new: Linked) -> str:
    """How the new turn follows the old one: one of `kvtop.capture.conversations.linker`."""
    old = match.old
    if match.whole and len(new.chain) == len(old.chain):
        return "branch" if changed(match, new) else "retry"
    gone = old.chain[0] not in new.contents
    if gone and (new.summary or len(new.chain) * 10 <= len(old.chain) * 7):
        return "compaction"
    return "next" if match.tip or (match.whole and not old.followed(new)) else "branch"
