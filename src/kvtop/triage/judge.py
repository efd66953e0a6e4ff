"""The causes of a divergence, from two requests alone: what a template that prints everything would show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvtop.capture.api.canonical import canonical, decode
from kvtop.capture.turn import Route
from kvtop.triage.causes import RULES, Board
from kvtop.triage.changes import Comparison, What, in_system
from kvtop.triage.convert import convert, render_inputs
from kvtop.triage.kinds import Kind
from kvtop.triage.prompt import Prompt, from_chat, pointer
from kvtop.triage.render import excerpt, render
from kvtop.triage.result import Cause, FirstDifference
from kvtop.triage.tree import ABSENT
from kvtop.triage.values import ordered, salt
from kvtop.triage.windows import common_head


def read(body: bytes, route: Route, version: str | None = None) -> Prompt:
    """The prompt of a request's body, as a server of that version (None: the newest) makes it. Raises ValueError for
    what is no JSON object."""
    raw = decode(body)
    if not isinstance(raw, dict):
        raise ValueError("not an object")
    canonical(raw)  # what is nested too deeply is no prompt
    made = convert(route, raw, version=version)
    inputs = render_inputs(route, raw)
    if made.chat is not None:
        return from_chat(made.chat, inputs, route=route, at=made.pointer, notes=made.approximate)
    prompt = made.prompt if isinstance(made.prompt, str) else ""
    key = "input" if route is Route.EMBEDDINGS else "prompt"
    return Prompt(
        messages=({"role": "", "content": prompt},) if prompt else (),
        inputs=inputs,
        route=Route.COMPLETIONS,
        at=lambda path, at=None: pointer(path[:1]) if path[:1] != ("messages",) else f"/{key}",
        notes=made.approximate,
    )


def causes_of(comparison: Comparison, *, gateway: bool = False) -> tuple[Cause, ...]:
    """All causes, in the order of the prompt. Every change is explained by one of them, or reaches no prompt."""
    board = Board(comparison, gateway)
    for rule in RULES:
        rule(board)
    heads = {change.id for change in comparison.changes if in_system(comparison, change)}
    found = [replace(cause, of_system=bool(cause.changes) and cause.changes <= heads) for cause in board.causes]
    return tuple(_few(sorted(found, key=board.order)))


MOST_ALIKE = 50
"""Causes of one kind that are told one by one; of more, those behind are told as one."""


def _few(causes: Sequence[Cause]) -> Iterator[Cause]:
    seen = Counter(cause.kind for cause in causes)
    many = {kind for kind, n in seen.items() if n > MOST_ALIKE}
    told: Counter[Kind] = Counter()
    for cause in causes:
        told[cause.kind] += 1
        if cause.kind not in many or told[cause.kind] < MOST_ALIKE:
            yield cause
        elif told[cause.kind] == MOST_ALIKE:
            rest = [one for one in causes if one.kind is cause.kind][MOST_ALIKE - 1 :]
            yield replace(
                cause,
                says=f"and {len(rest):,} more of this kind from here on, of which this is the first: {cause.says}",
                values=tuple(sorted({value for one in rest for value in one.values})),
                changes=frozenset().union(*(one.changes for one in rest)),
            )


def first_difference(comparison: Comparison, causes: tuple[Cause, ...]) -> FirstDifference | None:
    """Where the first cause stands, with the texts around it as a template that prints everything would show them."""
    if not causes:
        return None
    first = causes[0]
    inputs = [change for change in comparison.of(What.INPUT) if change.id in first.changes]
    if inputs:
        shown = salt if first.kind is Kind.CACHE_SALT_CHANGED else _said
        old, new = shown(inputs[0].old), shown(inputs[0].new)
        return FirstDifference(section=first.section, pointer=first.pointer, old=old, new=new)
    one, other = render(comparison.old).text, render(comparison.new).text
    at = common_head(one, other)
    return FirstDifference(section=first.section, pointer=first.pointer, old=excerpt(one, at), new=excerpt(other, at))


def _said(value: object) -> str:
    return "" if value is ABSENT else excerpt(value if isinstance(value, str) else ordered(value), 0)
