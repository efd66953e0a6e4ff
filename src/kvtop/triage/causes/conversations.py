"""Two prompts that are two conversations: what each says is its own; what both should write alike is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvtop.triage.align import ALIKE, text_likeness
from kvtop.triage.causes import text
from kvtop.triage.causes.board import Board
from kvtop.triage.changes import Change, Comparison, What, compare, in_system
from kvtop.triage.kinds import Kind, Who
from kvtop.triage.prompt import Prompt
from kvtop.triage.result import Cause
from kvtop.triage.values import key_of, role, system_head, text_of
from kvtop.triage.windows import common_head, common_tail

SHARED_CHARS = 4_000
"""A stretch that two prompts share behind different heads: about 1,000 tokens."""
EDIT_CHARS, EDIT_SHARE = 400, 0.05
"""Of a system prompt at most so much is edited where it is still one agent's."""
ROLE_CHARS = 300
"""An agent says who it is within so many characters."""
SAME_LINE = 0.8
"""From this share of likeness on a line there is one that was edited, and no other agent's."""


def other_agent(board: Board) -> None:
    """Two prompts of two agents that go on with nothing of each other: all in which they differ is one thing. What
    each of them is told, may call and asks for besides is its own."""
    c = board.comparison
    everything = board.free()
    if everything and two_agents(c) and _apart(board) and not _per_agent_text(board, everything):
        _claim(board, everything, at=("messages",))


def other_conversation(board: Board) -> None:
    """Two prompts that have nothing of their messages in common, or neither system prompt nor tools: no fault. Of one
    agent only what is said is another thing: its system prompt and its tools are left to the rules for these."""
    c = board.comparison
    everything = board.free()
    if not everything or board.causes_of(Kind.COMPACTION) or not _apart(board):
        return
    if one_agent(c):
        if talk := [change for change in everything if change.message is not None and not in_system(c, change)]:
            _claim(board, talk, at=("messages",) if len(talk) == len(everything) else None)
        return
    if not _per_agent_text(board, everything):
        _claim(board, everything, at=("messages",))


def _per_agent_text(board: Board, everything: list[Change]) -> bool:
    """Where two agents share a long text behind different heads, the text of each agent stands first.
    https://github.com/gotgenes/pi-packages/issues/180"""
    c = board.comparison
    a, b = ("\n".join(map(text_of, head)) for head in _heads(c))
    common = common_head(a, b)
    if a == b or common >= SHARED_CHARS or _shared_stretch(a[common:], b[common:]) < SHARED_CHARS:
        return False
    board.claim(
        Kind.PER_AGENT_TEXT_FIRST,
        everything,
        "two agents share a long text, but each one's own text stands before it",
        "put the shared text first, and what is each agent's own behind it",
        at=("messages", 0, "content"),
    )
    return True


def _claim(board: Board, changes: list[Change], at: tuple[str | int, ...] | None) -> None:
    board.claim(
        Kind.OTHER_CONVERSATION,
        changes,
        "these are two conversations: nothing of their messages is the same",
        "nothing is to be mended",
        who=Who.NOBODY,
        at=at if at is not None else min(change.path[:2] for change in changes),
    )


def one_agent(comparison: Comparison) -> bool:
    """Both prompts have the head of one agent: it is the same, or was the same before something in it varied that no
    agent is known by: a clock, a state, white space, a small edit. Not one whose own role or set of tools differs."""
    c = comparison
    return same_agent(c) and bool(c.old.tools or system_head(c.old.messages))


def same_agent(comparison: Comparison) -> bool:
    """The same, or neither prompt has a head at all."""
    return not _other_tools(comparison) and _same_head(comparison)


def two_agents(comparison: Comparison) -> bool:
    """Neither system prompt nor tools of the one are the other's; or their system prompts have nothing in common."""
    c = comparison
    return (_other_tools(c) or _other_system(c)) and not _same_head(c)


def strangers(old: Prompt, new: Prompt) -> bool:
    """Of two prompts of which it is known that none goes on with the other: they are two agents' as well."""
    a, b = (replace(one, inputs={}, tools=(), messages=one.messages[: system_head(one.messages)]) for one in (old, new))
    heads = compare(a, b)
    return not _same_head(heads) and (_names(old) != _names(new) or _other_system(heads))


def of_talk(cause: Cause, comparison: Comparison) -> bool:
    """It is one of what was said, and not of the system prompt, the tools or the request."""
    if cause.kind is Kind.PER_AGENT_TEXT_FIRST:
        return False
    changes = [one for one in comparison.changes if one.id in cause.changes]
    return any(one.message is not None and not in_system(comparison, one) for one in changes)


def _names(prompt: Prompt) -> set[str]:
    return {str(tool.get("name")) for tool in prompt.tools}


def _other_tools(c: Comparison) -> bool:
    """Of the tools of both not even half are in both."""
    a, b = _names(c.old), _names(c.new)
    return 2 * len(a & b) < len(a | b)


def _heads(c: Comparison) -> list[tuple[dict[str, Any], ...]]:
    """The system messages before the talk, of both."""
    return [one.messages[: system_head(one.messages)] for one in (c.old, c.new)]


def _other_system(c: Comparison) -> bool:
    heads = _heads(c)
    return bool(heads[0] and heads[1]) and _unlike(heads[0][0], heads[1][0])


def _same_head(c: Comparison) -> bool:
    """The system prompt of both is that of one agent."""
    heads = _heads(c)
    if len(heads[0]) != len(heads[1]):
        return False
    if key_of(list(heads[0])) == key_of(list(heads[1])):
        return True
    board = Board(c)
    board.drop(change for change in c.changes if change.message is None or not in_system(c, change))
    for rule in (*text.EARLY, *text.LATE[:-1]):
        rule(board)
    left = board.free()
    if any(change.what is not What.TEXT or change.region is None for change in left):
        return False
    sizes = [max(len(one.region.old), len(one.region.new)) for one in left if one.region is not None]
    whole = max(sum(len(text_of(message)) for message in head) for head in heads)
    return sum(sizes) <= min(EDIT_CHARS, EDIT_SHARE * whole) and not any(map(_is_role, left))


def _is_role(change: Change) -> bool:
    """It stands where an agent says who it is, and says another one."""
    region = change.region
    if region is None or change.message != 0 or region.new_at > ROLE_CHARS:
        return False
    old, new = _line(change.old, region.old_at, region.old), _line(change.new, region.new_at, region.new)
    if not (old.strip() and new.strip()):
        return False
    head = common_head(old, new)
    return head + common_tail(old, new, head) < SAME_LINE * max(len(old), len(new))


def _line(text: str, at: int, part: str) -> str:
    """The line of a region; of a long one the sentence."""
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at + len(part))
    line = text[start : len(text) if end < 0 else end]
    if len(line) <= ROLE_CHARS:
        return line
    before, behind = line[: at - start].rpartition(". ")[2], line[at - start + len(part) :].partition(". ")[0]
    return before + part + behind


def _apart(board: Board) -> bool:
    """Whether one cannot be the other one, continued."""
    c = board.comparison
    systems = _heads(c)
    head = [len(one) for one in systems]
    shared = [(i, j) for i, j in c.pairs if i >= head[0] and j >= head[1]]
    changed = {board.message_of(change) for change in c.changes}
    kept = sum(j not in changed for _, j in shared)
    asked = any(role(message) == "user" for message in c.old.messages[head[0] :])
    if _other_system(c) and (_other_tools(c) or kept == 0):
        return kept <= 2
    if two_agents(c) and kept < len(c.old.messages) - head[0]:
        return kept <= 1  # both may have been given the same task
    if kept or not asked or not all(_unlike(c.old.messages[i], c.new.messages[j]) for i, j in shared):
        return False
    same_head = key_of(list(systems[0])) == key_of(list(systems[1])) and not any(n.tool is not None for n in c.changes)
    return not (same_head and len(c.old.messages) <= head[0] + 1)  # one message, said anew


def _unlike(old: Any, new: Any) -> bool:
    return text_likeness(text_of(old), text_of(new)) < ALIKE


def _shared_stretch(a: str, b: str) -> int:
    """The longest run of equal lines, in characters."""
    places: dict[str, list[int]] = {}
    ours, theirs = a.splitlines(), b.splitlines()
    for n, line in enumerate(theirs):
        if len(line) > 3:
            places.setdefault(line, []).append(n)
    best = 0
    i = 0
    while i < len(ours):
        longest = 0
        for j in places.get(ours[i], [])[:8]:
            n = 0
            while i + n < len(ours) and j + n < len(theirs) and ours[i + n] == theirs[j + n]:
                n += 1
            longest = max(longest, n)
        best = max(best, sum(len(line) + 1 for line in ours[i : i + longest]))
        i += max(1, longest)
    return best
