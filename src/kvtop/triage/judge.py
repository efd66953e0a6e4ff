"""The causes of a divergence, from two requests alone: what a template that prints everything would show."""

from __future__ import annotations

from kvtop.capture.api.canonical import decode
from kvtop.capture.turn import Route
from kvtop.triage.causes import RULES, Board
from kvtop.triage.changes import Comparison, compare
from kvtop.triage.prompt import Prompt, from_chat
from kvtop.triage.result import Cause, Diff, FirstDifference, Tokens

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
    """Where the first cause stands, with the texts around it."""
    if not causes:
        return None
    return FirstDifference(section=causes[0].section, pointer=causes[0].pointer, old="", new="")
