"""Which turn follows which: by the content that two prompts share, over the recent turns, not by the last request.

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

from collections.abc import Iterable, Iterator
from typing import Any

from kvtop.capture.conversations.hinted import answered, compacted, spawned
from kvtop.capture.conversations.linked import Linked, Place, linked
from kvtop.capture.conversations.matching import Match, best_tip, compare, relation
from kvtop.capture.turn import Captured, Route

__all__ = ["LIMIT", "MAX_AGE_S", "Linker", "Place"]

LIMIT = 512
"""Turns that are looked back on."""
MAX_MESSAGES = 500_000
"""Of all of them together: a message takes up to 370 bytes, and a request may have 20,000."""
MAX_AGE_S = 86_400.0
_ENDS = 48
"""Messages at the end of a turn by which turns are found whose start differs."""
_WIDELY = 8
"""A message in more conversations than this tells nothing."""
_LOOKED_AT = 6
"""Candidates of one kind that are compared in full."""
_PLAIN = (Route.EMBEDDINGS, Route.OTHER)


class Linker:
    """The recent turns, and what finds a turn's forerunner among them. One thread at a time."""

    def __init__(self, recent: Iterable[Captured] = ()) -> None:
        """`recent`: turns that were placed before, in the order of their ids."""
        self._turns: dict[int, Linked] = {}
        self._whole: dict[int, list[int]] = {}
        """Hash over all messages of a turn -> the turns, oldest first."""
        self._holders: dict[str, dict[str, int]] = {}
        """Message -> conversation -> its latest turn that ends in it or near it."""
        self._talks: dict[str, list[int]] = {}
        """Conversation -> its turns, oldest first."""
        self._openings: dict[str, frozenset[str]] = {}
        """Conversation -> what its first turn had before its last message: instructions, examples, files."""
        self._messages = 0
        for turn in recent:
            self.add(turn)

    def place(self, turn: Captured) -> Place:
        """Where a turn that has just come belongs. Changes nothing."""
        new = linked(turn)
        if not new.chain or turn.route in _PLAIN:
            return answered(self._turns, new) or Place(None, None, "first")
        found = answered(self._turns, new)
        match = None if found else self._match(new)
        if match and new.suggestion and not match.old.suggestion:
            return Place(None, match.old.id, "side")
        if match and match.old.session.agent != new.session.agent:
            return Place(None, match.old.id, "subagent")
        if match:
            return Place(match.old.conversation, match.old.id, relation(match, new))
        return found or compacted(self._turns, new) or spawned(self._turns, new) or Place(None, None, "first")

    def add(self, turn: Captured) -> None:
        """Take in a placed turn with its id."""
        new = linked(turn)
        self._forget(new.started_at - MAX_AGE_S, len(new.chain))
        self._turns[new.id] = new
        self._messages += len(new.chain)
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

    def _forget(self, before: float, messages: int) -> None:
        """What is too old, and what leaves no room for a further turn of so many messages."""
        while self._turns:
            old = next(iter(self._turns.values()))
            room = len(self._turns) < LIMIT and self._messages + messages <= MAX_MESSAGES
            if room and old.last_at >= before:
                return
            self._drop(old)

    def _drop(self, old: Linked) -> None:
        del self._turns[old.id]
        self._messages -= len(old.chain)
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

    def _match(self, new: Linked) -> Match | None:
        """The turn that this one goes on from, retries or leaves, if its content tells."""
        matches = [
            match for old in self._candidates(new) if (match := compare(old, new, self._openings[old.conversation]))
        ]
        tips = [match for match in matches if match.tip]
        others = [match for match in matches if not match.tip]
        tip = best_tip(tips)
        other = max(others, key=lambda match: match.rank, default=None)
        if not tip or not other:
            return tip or other
        if not tip.shared:
            return other
        if tip.whole and not other.prefix:
            return tip  # two tasks may take the same steps: each goes on from its own
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
            if sure and 0 < at < len(new.prefixes) - 1 and (at + 1) * 2 >= len(new.prefixes):
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
        free = not (old.runs_at(new.started_at) or old.followed(new))
        alike = (old.tools == new.tools) + (old.system == new.system)
        known = old.session.key == new.session.key and old.session.cache_key == new.session.cache_key
        return (old.at, old.agent) == (new.at, new.agent), same, free, known, alike, old.last_at

    def _heard(self, talk: str) -> float:
        return max(self._turns[id].last_at for id in self._talks[talk])


def _take(index: dict[Any, list[int]], key: object, id: int) -> None:
    """Take an id out of an index."""
    left = index[key]
    left.remove(id)
    if not left:
        del index[key]
