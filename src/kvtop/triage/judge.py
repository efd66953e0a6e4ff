"""The causes of a divergence, from two requests alone: what a template that prints everything would show."""

from __future__ import annotations

from kvtop.capture.api.canonical import decode
from kvtop.capture.turn import Route
from kvtop.triage.causes import RULES, Board
from kvtop.triage.changes import Comparison, What, compare, ordered
from kvtop.triage.prompt import Prompt, from_chat
from kvtop.triage.render import excerpt, render
from kvtop.triage.result import Cause, Diff, FirstDifference, Tokens
from kvtop.triage.tree import ABSENT
from kvtop.triage.windows import common_head

_INPUTS = (
    "model", "cache_salt", "chat_template", "chat_template_kwargs", "reasoning_effort", "documents", "tool_choice",
    "response_format", "add_generation_prompt", "continue_final_message", "mm_processor_kwargs", "prompt_logprobs",
)  # fmt: skip


def read(body: bytes, route: Route) -> Prompt:
    """The prompt of a request's body. Raises ValueError for what is no JSON object."""
    raw = decode(body)
    if not isinstance(raw, dict):
        raise ValueError("not an object")
    return from_chat(raw, {key: raw[key] for key in _INPUTS if raw.get(key) is not None}, route=route)


def causes_of(comparison: Comparison, *, gateway: bool = False) -> tuple[Cause, ...]:
    """All causes, in the order of the prompt. Every change is explained by one of them, or reaches no prompt."""
    board = Board(comparison, gateway)
    for rule in RULES:
        rule(board)
    return tuple(sorted(board.causes, key=board.order))


def compare_bodies(old: bytes, new: bytes, route: Route) -> Diff:
    """The text method: no server is asked, no token is counted. Raises ValueError for what is no JSON object."""
    comparison = compare(read(old, route), read(new, route))
    causes = causes_of(comparison)
    return Diff(
        old="old",
        new="new",
        method="text",
        exact=False,
        tokens=Tokens(),
        causes=causes,
        first=first_difference(comparison, causes),
        append_only=not causes,
        notes=(*comparison.old.notes, *comparison.new.notes),
    )


def first_difference(comparison: Comparison, causes: tuple[Cause, ...]) -> FirstDifference | None:
    """Where the first cause stands, with the texts around it as a template that prints everything would show them."""
    if not causes:
        return None
    first = causes[0]
    inputs = [change for change in comparison.of(What.INPUT) if change.id in first.changes]
    if inputs:
        old, new = (_said(value) for value in (inputs[0].old, inputs[0].new))
        return FirstDifference(section=first.section, pointer=first.pointer, old=old, new=new)
    one, other = render(comparison.old).text, render(comparison.new).text
    at = common_head(one, other)
    return FirstDifference(section=first.section, pointer=first.pointer, old=excerpt(one, at), new=excerpt(other, at))


def _said(value: object) -> str:
    return "" if value is ABSENT else excerpt(value if isinstance(value, str) else ordered(value), 0)
