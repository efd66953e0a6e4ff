"""Two prompts laid over each other: every single change, and the new prompt with any of them put back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Any

from kvtop.capture.turn import Route
from kvtop.triage.align import Aligned, align, insertions_last
from kvtop.triage.likeness import (
    another_way,
    as_blocks,
    block_likeness,
    by_name,
    call_likeness,
    message_likeness,
    renamed,
    same_ones,
)
from kvtop.triage.prompt import Path, Prompt
from kvtop.triage.tree import ABSENT, Inserted, Item, List, Node, Object, Reformed, Removed, Replaced, Same, Text
from kvtop.triage.values import SYSTEM, is_text, key_of, ordered, role
from kvtop.triage.windows import Region, common_head, stretches


class What(StrEnum):
    """What kind of a change."""

    INPUT = "input"
    """A whole-request input, by its name."""
    FIELD = "field"
    """One value in the place of another; either may be ABSENT."""
    TEXT = "text"
    """A region of a text."""
    TOOL_ADDED = "tool_added"
    TOOL_REMOVED = "tool_removed"
    TOOL_ORDER = "tool_order"
    MESSAGE_INSERTED = "message_inserted"
    MESSAGE_REMOVED = "message_removed"
    BLOCK_INSERTED = "block_inserted"
    BLOCK_REMOVED = "block_removed"
    CALL_INSERTED = "call_inserted"
    CALL_REMOVED = "call_removed"
    CALL_ORDER = "call_order"


@dataclass(frozen=True, slots=True)
class Change:
    """One of them. `path` leads into the new prompt, of what was removed into the old one."""

    id: int
    what: What
    path: Path
    old: Any = ABSENT
    new: Any = ABSENT
    """What stands there: a value, or the whole text of which `region` differs."""
    region: Region | None = None
    old_path: Path = ()
    """Where it stands in the old prompt."""

    @property
    def message(self) -> int | None:
        """The message it is in."""
        return self.path[1] if self.path[0] == "messages" and isinstance(self.path[1], int) else None

    @property
    def tool(self) -> int | None:
        return (
            self.path[1] if self.path[0] == "tools" and len(self.path) > 1 and isinstance(self.path[1], int) else None
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """The old and the new prompt."""

    old: Prompt
    new: Prompt
    changes: tuple[Change, ...]
    """In the order in which most templates print: inputs, tools, messages."""
    pairs: tuple[tuple[int, int], ...]
    """Messages that are the same one, or one that was edited: (place in old, place in new)."""
    appended: tuple[int, ...]
    """Messages of the new prompt behind all of the old one."""
    _inputs: Object = field(default_factory=lambda: Object({}))
    _tools: List = field(default_factory=lambda: List(()))
    _messages: List = field(default_factory=lambda: List(()))

    def restored(self, ids: Collection[int]) -> Prompt:
        """The new prompt with these changes put back as they were; with all of them it begins with the old one."""
        return replace(
            self.new,
            inputs=self._inputs.build(ids),
            tools=tuple(self._tools.build(ids)),
            messages=tuple(self._messages.build(ids)),
        )

    def of(self, *what: What) -> list[Change]:
        return [change for change in self.changes if change.what in what]


_REMOVED = (What.MESSAGE_REMOVED, What.BLOCK_REMOVED, What.CALL_REMOVED)
"""Changes whose place is one in the old prompt."""


def in_system(comparison: Comparison, change: Change) -> bool:
    """It is a change of a system message."""
    side = comparison.old if change.what in _REMOVED else comparison.new
    return change.message is not None and role(side.messages[change.message]) in SYSTEM


def compare(old: Prompt, new: Prompt) -> Comparison:
    """Never raises: what is no proper message is compared as the value that it is."""
    maker = _Maker()
    inputs = maker.inputs(old.inputs, new.inputs)
    tools = maker.tools(old.tools, new.tools)
    messages, pairs, appended = maker.messages(old, new)
    changes = sorted(
        maker.changes,
        key=lambda change: ("tools", "messages").index(str(change.path[0])) + 1 if change.what is not What.INPUT else 0,
    )
    return Comparison(old, new, tuple(changes), pairs, appended, inputs, tools, messages)


ENDS = 64
"""Characters at the end of a text by which it is found again in one that grew from it."""


def _end_of(old: str, new: str) -> int:
    """Where the old text ends in the new one, if something was put in before it; else where that ends."""
    if new.startswith(old) or len(old) < ENDS:
        return len(new)
    at = new.find(old[-ENDS:], len(old) - ENDS)
    return len(new) if at < 0 else at + ENDS


_WHOLE = frozenset({"id", "tool_call_id", "role", "name", "type", "arguments", "url", "data", "media_type"})
"""Members whose texts are one word, or JSON: judged as a whole."""


class _Maker:
    """Collects the changes of one comparison."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._ids = count()

    def _add(self, what: What, path: Path, **known: Any) -> int:
        change = Change(next(self._ids), what, path, **known)
        self.changes.append(change)
        return change.id

    def value(self, old: Any, new: Any, path: Path, old_path: Path) -> Node:
        """One value: texts by their regions, all else as a whole."""
        if isinstance(old, str) and isinstance(new, str) and path[-1] not in _WHOLE:
            return self._text(old, new, path, old_path)
        return self._whole(old, new, path, old_path)

    def _whole(self, old: Any, new: Any, path: Path, old_path: Path, what: What = What.FIELD) -> Node:
        if ordered(old) == ordered(new) if old is not ABSENT and new is not ABSENT else old is new:
            return Same(new)
        return Replaced(self._add(what, path, old=old, new=new, old_path=old_path), old, new)

    def _text(self, old: str, new: str, path: Path, old_path: Path, *, grows: bool = False) -> Node:
        """`grows`: what stands behind all of the old text is no change."""
        parts: list[str | tuple[int, Region]] = []
        end = _end_of(old, new) if grows else len(new)
        for part in (*stretches(old, new[:end]), *([new[end:]] if new[end:] else [])):
            if isinstance(part, str):
                parts.append(part)
            elif grows and (part.new + old[part.old_at + len(part.old) :]).startswith(old[part.old_at :]):
                parts.append(part.new)
            else:
                id = self._add(What.TEXT, path, old=old, new=new, region=part, old_path=old_path)
                parts.append((id, part))
        return Text(tuple(parts))

    def inputs(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> Object:
        return Object(
            {
                key: self._whole(old.get(key, ABSENT), new.get(key, ABSENT), (key,), (key,), What.INPUT)
                for key in dict.fromkeys([*new, *old])
            }
        )

    # -- tools

    def tools(self, old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> List:
        pairs = by_name(old, new)
        mine, theirs = dict(pairs), {j: i for i, j in pairs}
        items = [Item(i, j, self._tool(old[i], new[j], i, j)) for i, j in pairs]
        removed = [
            Removed(self._add(What.TOOL_REMOVED, ("tools", i), old=tool, old_path=("tools", i)), i, tool)
            for i, tool in enumerate(old)
            if i not in mine
        ]
        inserted = [
            Inserted(self._add(What.TOOL_ADDED, ("tools", j), new=tool), j, tool)
            for j, tool in enumerate(new)
            if j not in theirs
        ]
        order = None
        if [j for _, j in sorted(pairs)] != sorted(theirs):
            first = next(j for j, (_, there) in zip(sorted(theirs), sorted(pairs), strict=True) if j != there)
            names = [[tool.get("name") for tool in tools] for tools in (old, new)]
            order = self._add(What.TOOL_ORDER, ("tools", first), old=names[0], new=names[1], old_path=("tools",))
        return List(tuple(items), tuple(removed), tuple(inserted), order)

    def _tool(self, old: dict[str, Any], new: dict[str, Any], i: int, j: int) -> Node:
        if ordered(old) == ordered(new):
            return Same(new)
        path, old_path = ("tools", j, "function"), ("tools", i, "function")
        return Object(
            {
                key: self.value(old.get(key, ABSENT), new.get(key, ABSENT), (*path, key), (*old_path, key))
                for key in dict.fromkeys([*new, *old])
            }
        )

    # -- messages

    def messages(self, old: Prompt, new: Prompt) -> tuple[List, tuple[tuple[int, int], ...], tuple[int, ...]]:
        likeness = partial(message_likeness, ids=renamed(old.messages, new.messages))
        found = insertions_last(align(old.messages, new.messages, key_of, likeness), new.messages, key_of)
        pairs = [*found.equal, *found.alike]
        removed, inserted = list(found.removed), list(found.inserted)
        head = common_head(sorted(found.equal), [(i, i) for i in range(len(old.messages))])
        if head == len(found.equal) and another_way(old.messages, new.messages, head, found.alike, likeness):
            equal = set(found.equal)
            pairs = [pair for pair in pairs if pair in equal or role(old.messages[pair[0]]) in SYSTEM]
            removed = sorted(set(range(len(old.messages))) - {i for i, _ in pairs})
            inserted = sorted(set(range(len(new.messages))) - {j for _, j in pairs})
        last = len(old.messages) - 1
        if last in removed and last in inserted and (last == 0 or (last - 1, last - 1) in found.equal):
            again = role(old.messages[last]) == role(new.messages[last])  # the last one said anew
            for left in (removed, inserted) if again else ():
                left.remove(last)
            pairs += [(last, last)] if again else []
        pairs.sort()
        end = max((j for _, j in pairs), default=-1)
        kept = max((i for i, _ in pairs), default=-1)
        tail = [i for i in removed if i > kept]
        # What follows the last message that both have is appended; in the place of others it is put in.
        appended = [j for j in inserted if j > end] if not tail or new.route is not Route.COMPLETIONS else []
        behind = set(appended)
        items: list[Item] = []
        for i, j in pairs:
            one, other = old.messages[i], new.messages[j]
            node: Node = Same(other) if key_of(one) == key_of(other) else self._message(one, other, i, j, new.route)
            items.append(Item(i, j, node))
        gone = [
            Removed(
                self._add(What.MESSAGE_REMOVED, ("messages", i), old=old.messages[i], old_path=("messages", i)),
                i,
                old.messages[i],
            )
            for i in removed
        ]
        more = [
            Inserted(
                None if j in behind else self._add(What.MESSAGE_INSERTED, ("messages", j), new=new.messages[j]),
                j,
                new.messages[j],
            )
            for j in inserted
        ]
        return List(tuple(items), tuple(gone), tuple(more)), tuple(pairs), tuple(appended)

    def _message(self, old: dict[str, Any], new: dict[str, Any], i: int, j: int, route: Route) -> Node:
        members: dict[str, Node] = {}
        for key in dict.fromkeys([*new, *old]):
            one, other = old.get(key, ABSENT), new.get(key, ABSENT)
            path: Path = ("messages", j, key)
            old_path: Path = ("messages", i, key)
            if isinstance(one, list) and isinstance(other, list) and key in ("content", "tool_calls"):
                members[key] = self._list(one, other, path, old_path, calls=key == "tool_calls")
            elif key == "content" and isinstance(one, list) != isinstance(other, list) and one and other:
                members[key] = self._reformed(one, other, path, old_path)
            elif route is Route.COMPLETIONS and isinstance(one, str) and isinstance(other, str):
                members[key] = self._text(one, other, path, old_path, grows=True)
            else:
                members[key] = self.value(one, other, path, old_path)
        return Object(members)

    def _reformed(self, old: Any, new: Any, path: Path, old_path: Path) -> Node:
        """A text and a list of blocks: what differs in them, and only where nothing does their form."""
        if not (isinstance(old, str | list) and isinstance(new, str | list)):
            return self._whole(old, new, path, old_path)
        before = len(self.changes)
        node = self._list(as_blocks(old), as_blocks(new), path, old_path, calls=False)
        changes = frozenset(change.id for change in self.changes[before:])
        return Reformed(node, changes, old, new) if changes else self._whole(old, new, path, old_path)

    def _list(self, old: list[Any], new: list[Any], path: Path, old_path: Path, *, calls: bool) -> Node:
        """Blocks of a content, or tool calls."""
        order = None
        if calls and Counter(map(key_of, old)) == Counter(map(key_of, new)) and len(old) > 1:
            pairs = same_ones(old, new)
            if [j for _, j in pairs] != sorted(j for _, j in pairs):
                order = self._add(What.CALL_ORDER, path, old=old, new=new, old_path=old_path)
            return List(tuple(Item(i, j, Same(new[j])) for i, j in pairs), order=order)
        found = align(old, new, key_of, call_likeness if calls else block_likeness)
        if not calls and len(old) == len(new) == 1 and not found.equal and is_text(old[0]) and is_text(new[0]):
            found = Aligned((), ((0, 0),), (), ())  # all that it says, said otherwise
        removed, inserted = (
            (What.CALL_REMOVED, What.CALL_INSERTED) if calls else (What.BLOCK_REMOVED, What.BLOCK_INSERTED)
        )
        items = [Item(i, j, Same(new[j])) for i, j in found.equal]
        for i, j in found.alike:
            items.append(Item(i, j, self._deep(old[i], new[j], (*path, j), (*old_path, i))))
        return List(
            tuple(items),
            tuple(
                Removed(self._add(removed, (*old_path, i), old=old[i], old_path=(*old_path, i)), i, old[i])
                for i in found.removed
            ),
            tuple(Inserted(self._add(inserted, (*path, j), new=new[j]), j, new[j]) for j in found.inserted),
        )

    def _deep(self, old: Any, new: Any, path: Path, old_path: Path) -> Node:
        """Member by member, down to texts and lists."""
        if not (isinstance(old, dict) and isinstance(new, dict)):
            return self.value(old, new, path, old_path)
        if ordered(old) == ordered(new):
            return Same(new)
        members: dict[str, Node] = {}
        for key in dict.fromkeys([*new, *old]):
            one, other = old.get(key, ABSENT), new.get(key, ABSENT)
            if isinstance(one, dict) and isinstance(other, dict) and key == "function":
                members[key] = self._deep(one, other, (*path, key), (*old_path, key))
            else:
                members[key] = self.value(one, other, (*path, key), (*old_path, key))
        return Object(members)
