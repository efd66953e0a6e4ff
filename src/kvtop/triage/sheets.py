"""The sheet of a divergence: both prompts in pieces, and which of them are the same."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from kvtop.triage.differ import Divergence, Server
from kvtop.triage.hunks import hunks, hunks_of
from kvtop.triage.prompt import Path, Prompt, in_words
from kvtop.triage.render import render
from kvtop.triage.sheet import Sheet

_WORD = re.compile(r"\s{0,80}\S{1,80}|\s{1,80}")
"""A word with the space before it; of very long ones a piece."""


def of_words(found: Divergence, old_label: str, new_label: str) -> Sheet:
    """From the prompts alone, as a template that prints everything would show them."""
    old, new = render(found.comparison.old), render(found.comparison.new)
    pieces = _WORD.findall(old.text), _WORD.findall(new.text)
    ends = list(accumulate(map(len, pieces[1])))
    sections: list[tuple[int, str]] = []
    for start, path in zip(new.starts, new.paths, strict=True):
        name = named(found.comparison.new, path)
        if not sections or sections[-1][1] != name:
            sections.append((bisect_left(ends, start + 1), name))
    return Sheet(
        diff=found.diff,
        old=pieces[0],
        new=pieces[1],
        hunks=hunks_of(pieces[0], pieces[1]),
        tokens=False,
        sections=tuple(sections),
        counts=_counts(found.comparison.new),
        old_label=old_label,
        new_label=new_label,
    )


async def of_tokens(found: Divergence, server: Server, old_label: str, new_label: str) -> Sheet:
    """From the tokens that the server counted; from words where it does not tell their texts. Raises KvtopError."""
    assert found.counted is not None
    one, other = (counted.ids for counted in found.counted)
    old, new = await server.pieces(found.sent[0], one), await server.pieces(found.sent[1], other)
    if old is None or new is None:
        return of_words(found, old_label, new_label)
    return Sheet(
        diff=found.diff,
        old=old,
        new=new,
        hunks=hunks(one, other),
        tokens=True,
        sections=tuple(_sections(found.comparison.new, new)),
        counts=_counts(found.comparison.new),
        old_label=old_label,
        new_label=new_label,
    )


SOUGHT = 48
"""Characters by which a part of a prompt is found again in the server's text."""
_HEADING = re.compile(
    r"(?:<[|｜]?[^<>/\s]{1,30}>|\[[A-Z_]{2,20}\])\s*(?:\w{1,20}\s*)?(?:<[|｜]?[^<>]{1,30}>\s*){0,3}\Z"
)
"""What a template prints before a message: <|im_start|>user, [INST]."""
HEADING = 80
"""Characters of it, at most."""


def _counts(prompt: Prompt) -> tuple[tuple[str, int], ...]:
    """How many tools and messages there are, by the names that they have in the request."""
    paths: list[Path] = [("tools", i) for i in range(len(prompt.tools))]
    paths += [("messages", i) for i in range(len(prompt.messages))]
    # A system prompt may stand in the list, or beside it: what counts is the number of the last one.
    last: dict[str, int] = {}
    for name in (named(prompt, path) for path in paths):
        kind, bracket, _ = name.partition("[")
        if bracket:
            last[kind] = max(last.get(kind, 0), _number(name))
    return tuple((kind, n + 1) for kind, n in last.items())


def _number(name: str) -> int:
    digits = name.partition("[")[2].partition("]")[0]
    return int(digits) if digits.isdigit() else 0


def _sections(prompt: Prompt, pieces: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(piece, name) of the parts that can be found in the text, in the order in which the server prints them."""
    text, ends = "".join(pieces), list(accumulate(map(len, pieces)))
    places: list[tuple[int, str]] = []
    rendered = render(prompt)
    at = 0
    for i, tool in enumerate(prompt.tools):
        start = text.find(f'"{tool.get("name", "")}"')
        if start >= 0:
            places.append((start, named(prompt, ("tools", i))))
    for n, (start, path) in enumerate(zip(rendered.starts, rendered.paths, strict=True)):
        if path[:1] != ("messages",) or path[-1] == "role":
            continue
        end = min([start + SOUGHT, *rendered.starts[n + 1 : n + 2]])
        words = rendered.text[start:end].strip().split("\n")[0]
        if "tool_calls" in path:  # a template has its own way of writing them
            words = _called(prompt, path) or words
        found = text.find(words, at) if len(words) >= 4 else -1
        if found >= 0:
            begins = _HEADING.search(text, max(at, found - HEADING), found)
            places.append((begins.start() if begins else found, named(prompt, path)))
            at = found if path[1:2] != (0,) else at  # a system prompt may stand before the tools
    last = ""
    for start, name in sorted(places):
        if name != last:
            yield bisect_left(ends, start + 1), name
            last = name


def _called(prompt: Prompt, path: Path) -> str:
    """The name of the first tool that a message calls, quoted; empty: it is not told."""
    calls = prompt.messages[int(path[1])].get("tool_calls")
    first = calls[0] if isinstance(calls, list) and calls else None
    function = first.get("function") if isinstance(first, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return f'"{name}"' if isinstance(name, str) and name else ""


def named(prompt: Prompt, path: Path) -> str:
    """The part of a prompt that a path leads into, as it was sent: tools[3], messages[5], input[7]."""
    return in_words(prompt.at(path[:2]))
