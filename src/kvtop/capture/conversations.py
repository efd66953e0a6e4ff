"""Which turn follows which: by the content that two prompts share, over the recent turns, not by 'the previous request'.

Messages decide. A changed system prompt or changed tools do not split a conversation: they are what kvtop hunts.
Session hints break ties and tell side calls and subagents; alone they join nothing.

first        nothing before it
next         it goes on from its parent: the parent's messages, the reply, and more. Also where old messages were
             rewritten on the way (a reminder left, a tool's output was cleared), as long as the talk went on
retry        the parent's messages again
branch       it leaves the parent's way: rolled back, or asked anew
compaction   a summary stands in place of the parent's history
side         a title, a summary, a suggestion: a conversation of its own; the parent is the turn that it serves
subagent     a conversation of its own; the parent is the turn that spawned it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kvtop.capture.agents import USE_TOOLS
from kvtop.capture.linked import Linked, common_prefix, linked
from kvtop.capture.turn import Captured, Route

LIMIT = 512
"""Turns that are looked back on."""
MAX_AGE_S = 86_400.0
_ENDS = 48
"""Messages at the end of a turn by which turns are found whose start differs."""
_WIDELY = 8
"""A message in more conversations than this tells nothing."""
_LOOKED_AT = 6
"""Candidates of one kind that are compared in full."""
_LONG = 16
"""No preamble of examples has so many messages: what shares more shares a history."""
_SOON_S = 120.0
_AT_ONCE_S = 10.0
_LATER_S = 900.0
_PLAIN = (Route.EMBEDDINGS, Route.OTHER)


class Place(NamedTuple):
    """Where a turn belongs."""

    conversation: str | None
    """None: a new one."""
    parent: int | None
    relation: str


class _Match(NamedTuple):
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


class Linker:
    """The recent turns, and what finds a turn's forerunner among them. One thread at a time."""

    def __init__(self, recent: Sequence[Captured] = ()) -> None:
        self._turns: dict[int, Linked] = {}
        self._whole: dict[int, list[int]] = {}
        """Hash over all messages of a turn -> the turns, oldest first."""
        self._holders: dict[str, dict[str, int]] = {}
        """Message -> conversation -> its latest turn that ends in it or near it."""
        self._talks: dict[str, list[int]] = {}
        """Conversation -> its turns, oldest first."""
        self._openings: dict[str, frozenset[str]] = {}
        """Conversation -> what its first turn had before its last message: instructions, examples, files."""
        for turn in sorted(recent, key=lambda turn: turn.id):
            self.add(turn)

    def place(self, turn: Captured) -> Place:
        """Where a turn that has just come belongs. Changes nothing."""
        new = linked(turn)
        if not new.chain or turn.route in _PLAIN:
            return self._answered(new) or Place(None, None, "first")
        found = self._answered(new)
        match = None if found else self._match(new)
        if match and new.suggestion and not match.old.suggestion:
            return Place(None, match.old.id, "side")
        if match and match.old.session.agent != new.session.agent:
            return Place(None, match.old.id, "subagent")
        if match:
            return Place(match.old.conversation, match.old.id, _relation(match, new))
        return found or self._compacted(new) or self._spawned(new) or Place(None, None, "first")

    def add(self, turn: Captured) -> None:
        """Take in a placed turn with its id."""
        new = linked(turn)
        self._forget(new.started_at - MAX_AGE_S)
        self._turns[new.id] = new
        if new.chain and turn.route not in _PLAIN:
            self._whole.setdefault(new.prefixes[-1], []).append(new.id)
            for digest in new.chain[-_ENDS:]:
                self._holders.setdefault(digest, {})[new.conversation] = new.id
        talk = self._talks.setdefault(new.conversation, [])
        talk.append(new.id)
        if len(talk) == 1:
            self._openings[new.conversation] = frozenset(new.chain[:-1])
        old = self._turns.get(turn.parent or 0)
        if old and turn.relation not in ("side", "subagent"):
            old.followers.add(new.has_tools)

    def update(self, turn: Captured) -> None:
        """It went on, or ended."""
        known = self._turns.get(turn.id)
        if known:
            known.heard(turn)

    def _forget(self, before: float) -> None:
        while self._turns:
            old = next(iter(self._turns.values()))
            if len(self._turns) < LIMIT and old.last_at >= before:
                return
            self._drop(old)

    def _drop(self, old: Linked) -> None:
        del self._turns[old.id]
        if old.prefixes and old.id in self._whole.get(old.prefixes[-1], ()):
            _take(self._whole, old.prefixes[-1], old.id)
        for digest in old.chain[-_ENDS:]:
            holders = self._holders.get(digest, {})
            if holders.get(old.conversation) == old.id:
                del holders[old.conversation]
                if not holders:
                    del self._holders[digest]
        _take(self._talks, old.conversation, old.id)
        if old.conversation not in self._talks:
            del self._openings[old.conversation]

    # by content

    def _match(self, new: Linked) -> _Match | None:
        """The turn that this one goes on from, retries or leaves, if its content tells."""
        matches = [match for old in self._candidates(new) if (match := self._compare(old, new))]
        tips = [match for match in matches if match.tip]
        others = [match for match in matches if not match.tip]
        tip = _best_tip(tips)
        other = max(others, key=lambda match: match.rank, default=None)
        if not tip or not other:
            return tip or other
        if not tip.shared:
            return other
        # Two runs of one prompt may say the same at first: the one that waits goes on, unless the other is the newer
        nearer = other.shared > tip.shared and other.prefix < len(new.chain) and not (other.foreign and tip.whole)
        return other if nearer and self._heard(other.old.conversation) > tip.old.last_at else tip

    def _candidates(self, new: Linked) -> Iterator[Linked]:
        seen: set[int] = set()
        for old in self._forerunners(new):
            if old.id not in seen:
                seen.add(old.id)
                yield old

    def _forerunners(self, new: Linked) -> Iterator[Linked]:
        levels = 0
        for at in range(len(new.prefixes) - 1, -1, -1):
            found = self._whole.get(new.prefixes[at])
            if not found:
                continue
            turns = [self._turns[id] for id in found]
            turns.sort(key=lambda old: self._likely(old, new), reverse=True)
            yield from turns[:_LOOKED_AT]
            levels += 1
            sure = self._likely(turns[0], new)[:3] == (True, True, True)
            if sure and 0 < len(new.prefixes) - 1 - at <= 3 and at > 0:
                return  # the common case: one more step of the same talk
            if levels == _LOOKED_AT:
                break
        yield from self._holding(new)
        yield from self._waiting(new)

    def _holding(self, new: Linked) -> Iterator[Linked]:
        """Turns of the conversations that hold most of the messages."""
        votes: dict[str, int] = {}
        latest: dict[str, int] = {}
        for digest in new.chain:
            holders = self._holders.get(digest)
            if holders and len(holders) <= _WIDELY:
                for talk, id in holders.items():
                    votes[talk] = votes.get(talk, 0) + 1
                    latest[talk] = id
        for talk in sorted(votes, key=lambda talk: (votes[talk], latest[talk]), reverse=True)[:_LOOKED_AT]:
            for id in {latest[talk], *self._talks[talk][-2:]}:
                yield self._turns[id]

    def _waiting(self, new: Linked) -> Iterator[Linked]:
        """The latest turns of the same program: one may go on although its only message was rewritten."""
        found = 0
        for old in reversed(self._turns.values()):
            if old.agent == new.agent and old.at == new.at and not old.followed(new) and old.chain:
                yield old
                found += 1
                if found == _LOOKED_AT:
                    return

    @staticmethod
    def _likely(old: Linked, new: Linked) -> tuple[bool, bool, bool, bool, int, float]:
        same_key = not old.session.key or not new.session.key or old.session.key == new.session.key
        same = same_key and old.session.agent == new.session.agent
        free = not (old.in_flight or old.followed(new))
        alike = (old.tools == new.tools) + (old.system == new.system)
        known = old.session.key == new.session.key and old.session.cache_key == new.session.cache_key
        return (old.at, old.agent) == (new.at, new.agent), same, free, known, alike, old.last_at

    def _compare(self, old: Linked, new: Linked) -> _Match | None:
        """How the two match; None where they are no one conversation."""
        prefix = common_prefix(old.chain, new.chain)
        whole = prefix == len(old.chain)
        longer = len(new.chain) > len(old.chain)
        same = new.contents & old.contents
        shared = max(prefix, len(same))
        own = same - self._openings.get(old.conversation, frozenset())
        replies = own & old.replies
        other_key = bool(old.session.key and new.session.key and old.session.key != new.session.key)
        other_agent = old.session.agent != new.session.agent
        foreign = other_key or other_agent or (old.at, old.agent) != (new.at, new.agent)
        alike = (old.tools == new.tools) + (old.system == new.system)
        match = _Match(old, len(new.chain), prefix, shared, whole, tip=False, extends=False, foreign=foreign, alike=alike)
        if foreign:
            return match if replies and shared * 2 > len(old.chain) and (longer or prefix) else None
        free = not old.in_flight and not old.followed(new)
        if whole and not longer:
            return _again(match, new, free, bool(replies))
        extends = longer and free and new.roles.startswith(old.roles) and new.roles[len(old.roles)] in "aop"
        if whole:
            return match._replace(tip=free)
        if old.rest[0]:
            return None  # the pieces of a prompt prove no more than a common start
        held = bool(old.session.key) and old.session.key == new.session.key
        if prefix == 0:
            if replies and shared * 2 >= min(len(old.chain), len(new.chain)):
                return match._replace(tip=free and longer, extends=extends)
            return match._replace(tip=True, extends=True) if extends and _rewritten(old, new, held) else None
        if len(new.chain) == prefix and not (replies and own):
            return match if held else None  # its first messages alone: another run, but in the same session rolled back
        if own or shared >= _LONG:
            goes_on = longer and old.chain[-1] in same and free
            return match._replace(tip=extends or goes_on, extends=extends)
        return match._replace(tip=True, extends=True) if extends else None

    def _heard(self, talk: str) -> float:
        return max(self._turns[id].last_at for id in self._talks[talk])

    # by hints

    def _answered(self, new: Linked) -> Place | None:
        """The turn whose answer it names (previous_response_id): then its messages are only the new ones."""
        if not new.session.follows:
            return None
        for old in reversed(self._turns.values()):
            if old.response == new.session.follows:
                return Place(old.conversation, old.id, "branch" if old.followed(new) else "next")
        return None

    def _compacted(self, new: Linked) -> Place | None:
        """A summary in place of a history that is gone."""
        near = [old for old in reversed(self._turns.values()) if not old.in_flight and len(old.chain) > len(new.chain)]
        for old in near:
            held = bool(new.session.key) and old.session.key == new.session.key
            if not held or old.session.agent != new.session.agent or old.has_tools != new.has_tools:
                continue
            risen = new.session.window is not None and new.session.window > (old.session.window or 0)
            if risen or new.summary:
                return Place(old.conversation, old.id, "compaction")
            alike = old.tools == new.tools and old.system == new.system and new.has_tools and not old.calls
            shrunk = len(old.chain) >= 6 and len(new.chain) <= max(2, len(old.chain) * 3 // 10)
            soon = new.started_at - old.last_at <= _SOON_S
            return Place(old.conversation, old.id, "compaction") if alike and shrunk and soon else None
        if not new.summary:
            return None
        alike = (
            old
            for old in near
            if (old.agent, old.at) == (new.agent, new.at) and new.started_at - old.last_at <= _LATER_S and old.has_tools == new.has_tools
        )
        tips = {old.conversation: old for old in sorted(alike, key=lambda old: old.id) if not old.followed(new)}
        if len(tips) != 1:
            return None
        old = next(iter(tips.values()))
        return Place(old.conversation, old.id, "compaction")

    def _spawned(self, new: Linked) -> Place | None:
        """A side call, or a subagent's first turn."""
        small = not new.has_tools and len(new.chain) <= 3 and "a" not in new.roles
        session = new.session
        parent = self._serving(new)
        if session.agent or session.parent:
            return Place(None, parent and parent.id, "subagent" if new.has_tools else "side")
        if session.side or (small and (parent or new.agent in USE_TOOLS)):
            return Place(None, parent and parent.id, "side")
        busy = parent is not None and (parent.in_flight or parent.calls)
        if parent and busy and new.has_tools and new.system != parent.system:
            return Place(None, parent.id, "subagent")
        return None

    def _serving(self, new: Linked) -> Linked | None:
        """The turn that a side call or a subagent belongs to, as far as that can be told."""
        session = new.session
        if session.parent or session.key:
            turns = [old for old in self._turns.values() if old.has_tools and self._related(old, new)]
            waiting = [old for old in turns if old.calls and not old.followed(old)]
            if turns or not session.side:
                return max(waiting or turns, key=lambda old: old.id, default=None)
        busy = {
            old.conversation: old
            for old in self._turns.values()
            if old.has_tools
            and (old.agent, old.at[0]) == (new.agent, new.at[0])
            and (old.in_flight or new.started_at - old.last_at <= _AT_ONCE_S)
        }
        return next(iter(busy.values())) if len(busy) == 1 and not new.has_tools else None

    @staticmethod
    def _related(old: Linked, new: Linked) -> bool:
        session = new.session
        if session.agent:  # inside one session: spawned by another agent, or by none
            return old.session.key == session.key and old.session.agent == session.parent
        return old.session.key == (session.parent or session.key)


def _best_tip(tips: list[_Match]) -> _Match | None:
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


def _again(match: _Match, new: Linked, free: bool, replied: bool) -> _Match | None:
    """The same messages once more: a retry, or another run of the same prompt that knows nothing of the first."""
    old = match.old
    if old.rest[0] != new.rest[0]:
        return match._replace(tip=True) if free and new.rest[1] > old.rest[1] > 0 and old.failed else None
    held = bool(old.session.key) and old.session.key == new.session.key
    if replied or held:
        return match._replace(tip=free)
    return match._replace(tip=True) if free and new.started_at - old.last_at <= _LATER_S else None


def _rewritten(old: Linked, new: Linked, held: bool) -> bool:
    """Whether a turn that shares no message may still go on from the old one: its first message alone was rewritten."""
    alike = old.tools == new.tools or old.system == new.system
    near = abs(new.first_size - old.first_size) <= 64
    return len(old.chain) <= 2 and alike and (held or near) and new.started_at - old.last_at <= _LATER_S


def _relation(match: _Match, new: Linked) -> str:
    old = match.old
    if match.whole and len(new.chain) == len(old.chain):
        return "retry"
    gone = old.chain[0] not in new.contents
    if gone and (new.summary or len(new.chain) * 10 <= len(old.chain) * 7):
        return "compaction"
    return "next" if match.tip or (match.whole and not old.followed(new)) else "branch"


def _take(index: dict[Any, list[int]], key: object, id: int) -> None:
    """Take an id out of an index."""
    left = index[key]
    left.remove(id)
    if not left:
        del index[key]
