"""Whether one prompt goes on with another one although it does not begin as that did: what both say tells, where the
linker saw only that their messages are not the same. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvtop.capture.api.tags import without
from kvtop.capture.turn import Captured, Route
from kvtop.triage.causes.conversations import same_agent
from kvtop.triage.changes import Comparison, compare
from kvtop.triage.prompt import Prompt
from kvtop.triage.values import SYSTEM, role, system_head, text_of

BEGINS = (None, "first")
"""Relations of turns that go on with none, as far as the linker could tell."""
KNOWN_AGAIN = 1_000
"""Characters that two conversations do not have in common by chance."""
PROBE, PROBES = 48, 12
"""A text is looked for by so many pieces of so many characters."""
HELD = 0.8
"""From this share of its pieces on it is the same text, edited."""


def holds(text: str, other: str) -> bool:
    """A text, or nearly all of it, stands in another one, wherever."""
    if len(text) <= 2 * PROBE:
        return text in other
    step = (len(text) - PROBE) / (PROBES - 1)
    found = sum(text[int(n * step) : int(n * step) + PROBE] in other for n in range(PROBES))
    return found >= HELD * PROBES


def may_go_on(old: Prompt, new: Prompt) -> bool:
    """The same without looking at every change: what was said last is there, and more. Cheap."""
    if old.route is Route.COMPLETIONS or new.route is Route.COMPLETIONS:
        return old.route is new.route and _grown(old, new)
    if not old.messages or not any(role(message) == "assistant" for message in new.messages):
        return False
    said = _said(old.messages[-1])
    return any(holds(said, _said(message)) for message in new.messages[:-1])


def goes_on(comparison: Comparison) -> bool:
    """The new prompt is the old one's next step, broken: the last message of the old one was answered in it, and most
    of what the old one said, too much to be the same by chance, it says as well. Only of one agent's prompts. A plain
    text goes on with one that it holds."""
    old, new = comparison.old, comparison.new
    if old.route is Route.COMPLETIONS or new.route is Route.COMPLETIONS:
        return old.route is new.route and _grown(old, new)
    if not same_agent(comparison) or not old.messages:
        return False
    last, place = len(old.messages) - 1, dict(comparison.pairs)
    if role(old.messages[last]) in SYSTEM or last not in place:
        return False
    answer = next((role(one) for one in new.messages[place[last] + 1 :]), "")
    if answer != "assistant":
        return False
    talk = range(system_head(old.messages), len(old.messages))
    kept = [i for i in talk if i in place and holds(_said(old.messages[i]), _said(new.messages[place[i]]))]
    size = sum(len(_said(old.messages[i])) for i in kept)
    return last in kept and size >= KNOWN_AGAIN and 2 * size >= sum(len(_said(old.messages[i])) for i in talk)


def broken_off(
    turn: Captured, before: Sequence[Captured], read: Callable[[Captured], Prompt | None]
) -> Captured | None:
    """Of a turn that seems to begin a conversation the one whose next step it is all the same, the latest of these
    turns of its agent. `read`: None where a prompt is not known."""
    new = read(turn) if turn.relation in BEGINS else None
    if new is None:
        return None
    for one in reversed(before):
        old = read(one) if one.agent == turn.agent else None
        if old is not None and may_go_on(old, new) and goes_on(compare(old, new)):
            return one
    return None


def _grown(old: Prompt, new: Prompt) -> bool:
    """The end of the old text stands in the new one, with more behind it: two that only begin alike, with the same
    instructions, end in other words, or in the same last ones."""
    one, other = ("".join(map(text_of, prompt.messages)) for prompt in (old, new))
    end = one[-2 * PROBE :]
    at = other.rfind(end)
    return len(one) >= KNOWN_AGAIN and at >= 0 and bool(other[at + len(end) :].strip()) and holds(one, other)


def _said(message: dict[str, Any]) -> str:
    """Its words without blocks that move on from message to message."""
    return without(text_of(message)).strip()
