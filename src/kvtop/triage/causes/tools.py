"""Causes in the tools: they stand before the messages, so a change there costs nearly all of the prompt."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from kvtop.triage.causes.board import Board, quoted
from kvtop.triage.changes import Change, What
from kvtop.triage.kinds import Kind, Varies, Who
from kvtop.triage.spans import skeleton, spans, varying
from kvtop.triage.tree import ABSENT
from kvtop.triage.values import key_sorted, ordered

_SORTED = "sort the keys of tool schemas in the program that writes them"
_MCP = re.compile(r"^(?:mcp__)?([A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*?)__")


def tool_random_name(board: Board) -> None:
    """A tool whose name holds an id that is made anew. https://github.com/omdsh-dev/dsh-mnemon/issues/239"""
    changes = [change for change in _fields(board, "name")]
    if changes:
        values = {value for change in changes for value in _ids(str(change.old), str(change.new))}
        board.claim(
            Kind.TOOL_RANDOM_NAME,
            changes,
            f"the tool {quoted([changes[0].new])} is the old one under a new random name",
            "give the tool a name that stays",
            values=values,
        )


def tool_key_order(board: Board) -> None:
    """The keys of a schema in another order: equal once they are sorted. https://github.com/maximhq/bifrost/pull/2082"""
    changes = [
        change
        for change in _fields(board, "parameters")
        if key_sorted(change.old) == key_sorted(change.new) and ordered(change.old) != ordered(change.new)
    ]
    if changes:
        names = _names(board, changes)
        board.claim(
            Kind.TOOL_KEY_ORDER,
            changes,
            f"{quoted(names)} {'has' if len(names) == 1 else 'have'} the same keys in another order",
            _SORTED,
            who=Who.GATEWAY if board.gateway else Who.CLIENT,
        )


def tool_array_order(board: Board) -> None:
    """required or enum in another order: equal only once scalar arrays are sorted, too.
    https://github.com/maximhq/bifrost/issues/3362"""
    changes = [
        change
        for change in _fields(board, "parameters")
        if key_sorted(change.old, arrays=True) == key_sorted(change.new, arrays=True)
    ]
    if changes:
        board.claim(
            Kind.TOOL_ARRAY_ORDER,
            changes,
            f"lists in the schema of {quoted(_names(board, changes))} hold the same words in another order",
            "keep the order of required and enum, or sort them",
            who=Who.GATEWAY if board.gateway else Who.CLIENT,
        )


def tools_reordered(board: Board) -> None:
    """The same tools in another order. https://github.com/openclaw/openclaw/pull/58037; a group of one MCP server that
    goes to the end is a reconnect. https://github.com/can1357/oh-my-pi/pull/890"""
    for change in board.free(What.TOOL_ORDER):
        says = f"the tools stand in another order, from {quoted([_name(board, change)])} on"
        server = _moved_group(change.old, change.new)
        if server:
            says = f"the tools of the MCP server “{server}” moved to the end: it connected anew"
        board.claim(Kind.TOOLS_REORDERED, [change], says, "sort the tools by name before they are sent")


def tools_added_or_removed(board: Board) -> None:
    """Another set of tools: added, removed, or both. https://github.com/anthropics/claude-code/issues/75142"""
    added, removed = board.free(What.TOOL_ADDED), board.free(What.TOOL_REMOVED)
    came = [str(change.new.get("name", "")) for change in added]
    went = [str(change.old.get("name", "")) for change in removed]
    fix = "name all tools from the first turn on"
    if added and removed:
        says = f"another set of tools: {quoted(came)} came, {quoted(went)} went"
        first = min(added, key=lambda change: change.path)
        board.claim(Kind.TOOLS_CHANGED, [*added, *removed], says, fix, at=first.path)
    elif added:
        new = board.comparison.new.tools
        at_end = all(change.path[1] in range(len(new) - len(added), len(new)) for change in added)
        where = "at the end" if at_end else "between the others"
        verb = "was" if len(added) == 1 else "were"
        board.claim(Kind.TOOL_ADDED, added, f"{quoted(came)} {verb} added {where}", fix)
    elif removed:
        verb = "was" if len(removed) == 1 else "were"
        board.claim(
            Kind.TOOL_REMOVED, removed, f"{quoted(went)} {verb} removed", "keep the tools of a conversation to its end"
        )


def tool_text_changed(board: Board) -> None:
    """The description of a tool of the same name, in it often an id or a path of this run.
    https://github.com/anthropics/claude-code/issues/27786"""
    by_tool: dict[int | None, list[Change]] = {}
    for change in board.free(What.TEXT, What.FIELD):
        if change.tool is None:
            continue
        if change.path[-1] == "description" or (change.path[-1] == "parameters" and _only_words(change)):
            by_tool.setdefault(change.tool, []).append(change)
    for changes in by_tool.values():
        values: set[Varies] = set()
        for old, new in {(_text(change.old), _text(change.new)) for change in changes}:
            values |= set(_values(old, new))
        what = f" ({', '.join(sorted(values)).replace('_', ' ')})" if values else ""
        fix = "write what changes into the messages, not into the text of a tool" if values else _KEEP
        board.claim(
            Kind.TOOL_TEXT_CHANGED,
            changes,
            f"the text of the tool {quoted([_name(board, changes[0])])} changed{what}",
            fix,
            values=values,
        )


_KEEP = "keep the text of tools as it is through a conversation"


def tool_schema_changed(board: Board) -> None:
    """Another schema, or another member, under the same name."""
    by_tool: dict[int | None, list[Change]] = {}
    for change in board.free(What.TEXT, What.FIELD):
        if change.tool is not None:
            by_tool.setdefault(change.tool, []).append(change)
    for changes in by_tool.values():
        board.claim(
            Kind.TOOL_SCHEMA_CHANGED,
            changes,
            f"the schema of the tool {quoted([_name(board, changes[0])])} changed",
            "keep the schemas of a conversation's tools to its end",
        )


def _fields(board: Board, key: str) -> list[Change]:
    return [change for change in board.free(What.FIELD) if change.tool is not None and change.path[3:] == (key,)]


def _name(board: Board, change: Change) -> str:
    tool = change.tool
    return "" if tool is None else str(board.comparison.new.tools[tool].get("name", ""))


def _names(board: Board, changes: list[Change]) -> list[str]:
    return [_name(board, change) for change in changes]


def _without_words(value: Any) -> Any:
    """A schema without what is only told to the reader."""
    if isinstance(value, dict):
        return {
            key: "" if key in ("description", "title") and isinstance(one, str) else _without_words(one)
            for key, one in value.items()
        }
    return [_without_words(one) for one in value] if isinstance(value, list) else value


def _only_words(change: Change) -> bool:
    if change.old is ABSENT or change.new is ABSENT or isinstance(change.old, str):
        return False
    return ordered(_without_words(change.old)) == ordered(_without_words(change.new))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ordered(value)


def _values(old: str, new: str) -> tuple[Varies, ...]:
    """What varies in a text that is edited besides, too: spans of both that stand alone in their line."""
    if (found := varying(old, new)) is not None:
        return found
    lines = [(a, b) for a, b in zip(old.splitlines(), new.splitlines(), strict=False) if a != b]
    if len(old.splitlines()) == len(new.splitlines()):
        each = [varying(a, b) for a, b in lines]
        if all(one is not None for one in each):
            return tuple(sorted({what for one in each if one for what in one}))
    return ()


def _ids(old: str, new: str) -> tuple[Varies, ...]:
    """Of two random names: a UUID where both hold one, else an id."""
    both = {span.what for span in spans(old)} & {span.what for span in spans(new)}
    return (Varies.UUID,) if Varies.UUID in both and skeleton(old) == skeleton(new) else (Varies.RANDOM_ID,)


def _moved_group(old: list[Any], new: list[Any]) -> str:
    """The MCP server whose tools alone went to the end, in their order; empty: that is not what happened."""
    old, new = [str(name) for name in old], [str(name) for name in new]
    ours, theirs = set(old), set(new)
    common, now = [name for name in old if name in theirs], [name for name in new if name in ours]
    if Counter(common) != Counter(now) or not now or (last := _MCP.match(now[-1])) is None:
        return ""
    group = [name for name in common if (found := _MCP.match(name)) and found[1] == last[1]]
    moved = set(group)
    return last[1] if [name for name in common if name not in moved] + group == now else ""


RULES = (
    tool_random_name,
    tool_key_order,
    tool_array_order,
    tools_reordered,
    tools_added_or_removed,
    tool_text_changed,
    tool_schema_changed,
)
