"""Where hints place a turn that its content does not: an answer that it names, a summary, a side call, a subagent."""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.capture.conversations.agents import USE_TOOLS
from kvtop.capture.conversations.linked import Linked, Place

_SOON_S = 120.0
_AT_ONCE_S = 10.0
_LATER_S = 900.0


def answered(turns: dict[int, Linked], new: Linked) -> Place | None:
    """The turn whose answer it names (previous_response_id): then its messages are only the new ones."""
    if not new.session.follows:
        return None
    for old in reversed(turns.values()):
        if old.response == new.session.follows:
            return Place(old.conversation, old.id, "branch" if old.followed(new) else "next")
    return None


def compacted(turns: dict[int, Linked], new: Linked) -> Place | None:
    """A summary in place of a history that is gone."""
    if not new.session.key and not new.summary:
        return None
    near = [
        old
        for old in reversed(turns.values())
        if not old.runs_at(new.started_at) and len(old.chain) > len(new.chain) and old.has_tools == new.has_tools
    ]
    held = next((old for old in near if old.session.holds(new.session)), None)
    old = held if held and _shrunk(held, new) else None
    if not held and new.summary:
        old = _lone_tip(near, new)
    return Place(old.conversation, old.id, "compaction") if old else None


def _shrunk(old: Linked, new: Linked) -> bool:
    """Whether a turn of the same session is that one's history, made short."""
    if new.summary or (new.session.window is not None and new.session.window > (old.session.window or 0)):
        return True
    alike = new.has_tools and (old.tools, old.system) == (new.tools, new.system) and not old.calls
    short = len(old.chain) >= 6 and len(new.chain) <= max(2, len(old.chain) * 3 // 10)
    return alike and short and new.started_at - old.last_at <= _SOON_S


def _lone_tip(near: Iterable[Linked], new: Linked) -> Linked | None:
    """The one turn of the same program that nothing goes on from; None where there are several."""
    tips: dict[str, Linked] = {}
    for old in near:
        same = (old.agent, old.at) == (new.agent, new.at)
        if same and new.started_at - old.last_at <= _LATER_S and not old.followed(new):
            tips.setdefault(old.conversation, old)
    return next(iter(tips.values())) if len(tips) == 1 else None


def spawned(turns: dict[int, Linked], new: Linked) -> Place | None:
    """A side call, or a subagent's first turn."""
    small = not new.has_tools and len(new.chain) <= 3 and "a" not in new.roles
    session = new.session
    if not (small or session.key or session.parent or session.side):
        return None
    parent = _serving(turns, new)
    id = parent.id if parent else None
    if session.agent or session.parent:
        return Place(None, id, "subagent" if new.has_tools else "side")
    if session.side or (small and (parent or new.agent in USE_TOOLS)):
        return Place(None, id, "side")
    busy = parent is not None and (parent.runs_at(new.started_at) or parent.calls)
    if parent and busy and new.has_tools and new.system != parent.system:
        return Place(None, id, "subagent")
    return None


def _serving(turns: dict[int, Linked], new: Linked) -> Linked | None:
    """The turn that a side call or a subagent belongs to, as far as that can be told."""
    session = new.session
    if session.parent or session.key:
        family = [old for old in turns.values() if old.has_tools and _related(old, new)]
        waiting = [old for old in family if old.calls and not old.followed(old)]
        if family or not session.side:
            return max(waiting or family, key=lambda old: old.id, default=None)
    busy = {
        old.conversation: old
        for old in turns.values()
        if old.has_tools
        and (old.agent, old.at[0]) == (new.agent, new.at[0])
        and (old.runs_at(new.started_at) or new.started_at - old.last_at <= _AT_ONCE_S)
    }
    return next(iter(busy.values())) if len(busy) == 1 and not new.has_tools else None


def _related(old: Linked, new: Linked) -> bool:
    session = new.session
    if session.agent:  # inside one session: spawned by another agent, or by none
        return old.session.key == session.key and old.session.agent == session.parent
    return old.session.key == (session.parent or session.key)
