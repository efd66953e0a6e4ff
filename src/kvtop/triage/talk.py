"""A conversation turn by turn: what one pair alone cannot tell, since it shows in several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvtop.triage.causes.conversations import of_talk, strangers
from kvtop.triage.causes.history import tells_before
from kvtop.triage.changes import Comparison, compare, in_system
from kvtop.triage.judge import causes_of
from kvtop.triage.kinds import Kind
from kvtop.triage.prompt import Prompt
from kvtop.triage.recurrence import Step, forms, told, told_of_sessions
from kvtop.triage.result import Cause
from kvtop.triage.values import SYSTEM, key_of, role

_PLAIN = (Kind.TEXT_EDITED, Kind.PATH_CHANGED)
_BEGINS = (Kind.OTHER_CONVERSATION, Kind.PER_AGENT_TEXT_FIRST, Kind.ROLLED_BACK, Kind.LAST_MESSAGE_REPLACED)
"""What a first turn is that goes on with nothing."""
ANCHOR = 24
"""Characters before a region that are the same where it is the same block."""
BACK = 8
"""Turns in which the same block changed before."""


class Talk:
    """Takes the turns of a conversation in their order. Each is compared with the one before it."""

    def __init__(
        self, steps: list[Step] | None = None, begins: list[Step] | None = None, *, gateway: bool = False
    ) -> None:
        """`steps`, `begins`: of an agent's other conversations, to be gone on with."""
        self.steps: list[Step] = [] if steps is None else steps
        """One for each turn that goes on with one before it."""
        self.begins: list[Step] = [] if begins is None else begins
        """One for each conversation that goes on with none, against the turn of the agent before it."""
        self.line = id(self)
        """Of which line of turns it is: that of another conversation where it goes on with that one."""
        self._gateway = gateway
        self._last: Prompt | None = None
        self._systems: list[str] = []
        self._edits: list[set[tuple[str, str]]] = []
        self._asked: list[bool] = []
        """Of each step, whether it brought a new user message."""
        self._changed: list[bool] = []
        """And whether its system prompt is another one."""

    def add(
        self, at: float, prompt: Prompt, before: Prompt | None = None, line: int | None = None
    ) -> tuple[Cause, ...]:
        """The causes of this turn against the one before, with how often each was seen. `before`: the agent's turn
        before a first one, which this may go on with; `line`: that of its conversation."""
        last, self._last = self._last, prompt
        first = last is None
        self._systems.append(_system(prompt))
        if last is None:
            if before is None:
                return ()
            last = before
            self._systems.insert(0, _system(before))
        comparison = compare(last, prompt)
        if first:
            plain = causes_of(comparison, gateway=self._gateway)
            no_summary = any(cause.kind is Kind.COMPACTION for cause in plain) and not tells_before(prompt)
            if no_summary or any(cause.kind in _BEGINS for cause in plain):
                del self._systems[0]
                return self._begun(at, comparison, plain)
            self.line = line or self.line
        self._asked.append(any(role(prompt.messages[j]) == "user" for j in comparison.appended))
        self._changed.append(self._systems[-1] != self._systems[-2])
        causes = self.refined(comparison, causes_of(comparison, gateway=self._gateway))
        self.steps.append(Step(at, causes, self.line, forms(comparison, causes)))
        self._edits.append(_edits(comparison, causes))
        return told(self.steps)

    def _begun(self, at: float, comparison: Comparison, causes: Sequence[Cause]) -> tuple[Cause, ...]:
        """What its beginning should have in common with the agent's turn before, and how often it has not."""
        if strangers(comparison.old, comparison.new):
            return ()
        heads = tuple(one for one in causes if one.kind not in _BEGINS and not of_talk(one, comparison))
        self.begins.append(Step(at, heads, self.line))
        return told_of_sessions(self.begins, self.steps)

    def refined(self, comparison: Comparison, causes: Sequence[Cause]) -> tuple[Cause, ...]:
        """The same causes, seen with the turns before."""
        return tuple(self._refine(comparison, cause) for cause in causes)

    def _refine(self, comparison: Comparison, cause: Cause) -> Cause:
        head = any(in_system(comparison, change) for change in comparison.changes if change.id in cause.changes)
        if not head or cause.kind not in (*_PLAIN, Kind.LIVE_STATUS, Kind.MEMORY_TEXT, Kind.VOLATILE_TEXT):
            return cause
        if self._flaps():
            return replace(
                cause,
                kind=Kind.SYSTEM_FLAPS,
                values=(),
                says="the system prompt goes back and forth between forms that it had before",
                fix="keep what comes and goes out of the system prompt",
            )
        if cause.kind in (*_PLAIN, Kind.LIVE_STATUS) and self._with_each_question():
            return replace(
                cause,
                kind=Kind.MEMORY_TEXT,
                says="the system prompt stays the same while tools run, and changes with each user message",
                fix="put what is recalled into the newest message, behind what stays",
            )
        now = _edits(comparison, [cause])
        if cause.kind in _PLAIN and any(now & before for before in self._edits[-BACK:]):
            return replace(
                cause,
                kind=Kind.LIVE_STATUS,
                says="the same place of the system prompt is rewritten again and again",
                fix="put it into the newest message, behind what stays",
            )
        return cause

    def _with_each_question(self) -> bool:
        """The system prompt changed at user messages alone, more than once, and not while tools ran."""
        steps = list(zip(self._asked, self._changed, strict=True))
        return (
            sum(asked and changed for asked, changed in steps) >= 2
            and not any(changed and not asked for asked, changed in steps)
            and sum(not asked and not changed for asked, changed in steps) >= 2
        )

    def _flaps(self) -> bool:
        """The system prompt is one that stood there before, and another one between: A, B, A."""
        seen = self._systems
        return len(seen) >= 3 and seen[-1] != seen[-2] and seen[-1] in seen[-2 - BACK : -2]


def _system(prompt: Prompt) -> str:
    return key_of([message for message in prompt.messages if role(message) in SYSTEM][:1])


def _edits(comparison: Comparison, causes: Sequence[Cause]) -> set[tuple[str, str]]:
    """Where texts were edited: (pointer, what stands before the region)."""
    ids = {id for cause in causes if cause.kind in (*_PLAIN, Kind.LIVE_STATUS) for id in cause.changes}
    out = set()
    for change in comparison.changes:
        if change.id in ids and change.region is not None:
            at = change.region.new_at
            out.add((comparison.new.at(change.path), change.new[max(0, at - ANCHOR) : at]))
    return out
