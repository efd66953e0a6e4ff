"""The last turns of one agent: which they are, and how often each cause of the last one was seen in them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvtop.capture.turn import Captured
from kvtop.triage.causes.conversations import strangers
from kvtop.triage.prompt import Prompt
from kvtop.triage.recurrence import Step
from kvtop.triage.result import Cause
from kvtop.triage.talk import Talk

BESIDE = ("side", "subagent")
"""Relations of turns that are no step of their conversation."""
_BEGIN = (None, "first", *BESIDE)
"""Those of turns that may be the first one of a conversation."""


def turns(
    turn: Captured, before: Iterable[Captured], read: Callable[[Captured], Prompt | None], most: int
) -> list[tuple[Captured, Prompt]]:
    """A turn and those before it of its agent on that model and upstream, oldest first, with their prompts. `before`:
    turns with a prompt, newest first; `read`: None where a prompt is not known.

    Those of a subagent are its own conversation's alone, and no step of another one; nor is a turn that another agent
    asked for under the same name.
    """
    rows = [row for row in before if _asks(row) == _asks(turn)]
    subagents = {row.conversation for row in (turn, *rows) if row.relation == "subagent" and row.conversation}
    alone = turn.conversation in subagents
    newest = read(turn)
    found = [] if newest is None else [(turn, newest)]
    mine = {turn.conversation: True}
    for row in rows:
        if len(found) == most:
            break
        own = row.conversation == turn.conversation
        if not own and (alone or row.relation in BESIDE or row.conversation in subagents):
            continue
        if own and not alone and row.relation in BESIDE:
            continue
        if row.conversation is not None and not mine.get(row.conversation, True):
            continue
        prompt = read(row)
        if prompt is None:
            continue
        if row.conversation is None or row.conversation not in mine:
            mine[row.conversation] = newest is None or not strangers(prompt, newest)
        if mine[row.conversation]:
            found.append((row, prompt))
    return found[::-1]


def told(turns: Sequence[tuple[Captured, Prompt]], *, gateway: bool = False) -> tuple[tuple[Cause, ...], int | None]:
    """The causes of the last of these turns, with how often each was seen in all of them: each is compared with the
    one before it in its conversation, a first one with the agent's turn before. And that turn."""
    steps: list[Step] = []
    starts: list[Step] = []
    talks: dict[str | None, Talk] = {}
    last: dict[str | None, int] = {}
    causes: tuple[Cause, ...] = ()
    before: tuple[int, Prompt, int] | None = None
    compared: int | None = None
    for row, prompt in turns:
        talk = talks.setdefault(row.conversation, Talk(steps, starts, gateway=gateway))
        # One whose beginning is not among them goes on with a turn that is not known here.
        begins = row.relation in _BEGIN
        causes = talk.add(row.started_at, prompt, *(before[1:] if before and begins else ()))
        compared = last.get(row.conversation, before[0] if before else None)
        before, last[row.conversation] = (row.id, prompt, talk.line), row.id
    return causes, compared


def _asks(turn: Captured) -> tuple[object, ...]:
    return turn.upstream, turn.model, turn.agent
