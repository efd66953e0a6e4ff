"""How alike two messages, calls and blocks are, and which of two lists are the same ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kvtop.capture.api.canonical import decode
from kvtop.capture.api.tags import without
from kvtop.triage.align import ALIKE, align, text_likeness
from kvtop.triage.spans import masked
from kvtop.triage.values import SYSTEM, is_text, key_of, key_sorted, ordered, role, text_of

SAME_TALK = 0.6
"""Messages that share less than this, all in all, are not the same ones edited."""
MOST_READ = 100_000
"""Characters of arguments that are read as JSON to know a call again."""
OF_ITS_OWN = 20
"""Characters of a text that two messages do not have in common by chance."""


def as_blocks(content: Any) -> list[Any]:
    """A content as a list of blocks."""
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def same_ones(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[int, int]]:
    """Equal elements, the n-th with the n-th, of two lists that hold the same ones."""
    places: dict[str, list[int]] = {}
    for i, one in enumerate(old):
        places.setdefault(key_of(one), []).append(i)
    return sorted((places[key_of(one)].pop(0), j) for j, one in enumerate(new))


def by_name(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Tools of the same name, the n-th with the n-th; then those whose names differ in a random part alone."""

    def places(tools: Iterable[tuple[int, Mapping[str, Any]]], *, mask: bool) -> dict[tuple[str, int], int]:
        out: dict[tuple[str, int], int] = {}
        seen: Counter[str] = Counter()
        for i, tool in tools:
            name = str(tool.get("name", ""))
            name = masked(name) if mask else name
            out[name, seen[name]] = i
            seen[name] += 1
        return out

    ours, theirs = places(enumerate(old), mask=False), places(enumerate(new), mask=False)
    pairs = [(i, theirs[name]) for name, i in ours.items() if name in theirs]
    left = [(i, old[i]) for name, i in ours.items() if name not in theirs]
    right = [(j, new[j]) for name, j in theirs.items() if name not in ours]
    some, others = places(left, mask=True), places(right, mask=True)
    return sorted([*pairs, *((i, others[name]) for name, i in some.items() if name in others)])


def another_way(
    old: Sequence[Mapping[str, Any]],
    new: Sequence[Mapping[str, Any]],
    head: int,
    alike: Sequence[tuple[int, int]],
    likeness: Callable[[Mapping[str, Any], Mapping[str, Any]], float],
) -> bool:
    """Whether all that follows an equal beginning is other talk, and not the same one edited."""
    rest = len(old) - head
    if rest < 3 or not alike:
        return False
    return sum(likeness(old[i], new[j]) for i, j in alike) / rest < SAME_TALK


def renamed(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> dict[Any, Any]:
    """Ids of tool calls that came back under other ids: the id now by the id before. Calls are known again by their
    name and arguments, and by their order."""
    ours, theirs = _calls(old), _calls(new)
    known = {id for id, _ in ours} & {id for id, _ in theirs}
    ours, theirs = ([one for one in calls if one[0] not in known] for calls in (ours, theirs))
    if not ours or not theirs:
        return {}
    found = align(ours, theirs, lambda call: call[1], lambda a, b: 0.0)
    return {ours[i][0]: theirs[j][0] for i, j in found.equal}


def _calls(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(Id, what is called with what) of all calls."""
    lists = [calls for message in messages if isinstance(calls := message.get("tool_calls"), list)]
    return [
        (id, _called(call.get("function")))
        for calls in lists
        for call in calls
        if isinstance(call, dict) and isinstance(id := call.get("id"), str)
    ]


def _called(function: Any) -> str:
    """Equal for the same call, however its arguments are written."""
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str) and len(arguments) <= MOST_READ:
        try:
            arguments = key_sorted(decode(arguments.encode()))
        except ValueError:
            pass
        else:
            return ordered([function.get("name"), arguments])
    return key_of(function)


def message_likeness(
    old: Mapping[str, Any], new: Mapping[str, Any], ids: Mapping[Any, Any] = MappingProxyType({})
) -> float:
    """`ids`: of calls that have another one now (`renamed`)."""
    called = old.get("tool_call_id")
    same_call = isinstance(called, str) and ids.get(called, called) == new.get("tool_call_id")
    calls, others = old.get("tool_calls"), new.get("tool_calls")
    if isinstance(calls, list) and isinstance(others, list):
        alike = max((call_likeness(a, b) for a in calls[:8] for b in others[:8]), default=0.0)
        return max(alike, text_likeness(text_of(old), text_of(new))) * (role(old) == role(new))
    if role(old) != role(new):
        texts = text_of(old), text_of(new)
        return 0.9 if texts[0] and texts[0] == texts[1] else 0.0
    if same_call:
        return 1.0
    one, other = text_of(old), text_of(new)
    if not one and not other:
        return 0.5
    if role(old) in SYSTEM:
        return max(ALIKE, text_likeness(one, other))  # there is one, rarely more
    if _begins(one, other):
        return 0.95
    # A block that moves on from message to message does not make two of them the same one.
    return text_likeness(without(one).strip(), without(other).strip())


def _begins(old: str, new: str) -> bool:
    """The one is a whole message of its own, with a paragraph behind it that moves on from message to message."""
    short, long = sorted((old.rstrip(), new.rstrip()), key=len)
    return len(short) >= OF_ITS_OWN and long.startswith(short) and long[len(short) :].startswith("\n\n")


def call_likeness(old: Any, new: Any) -> float:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return 0.0
    if old.get("id") is not None and old.get("id") == new.get("id"):
        return 1.0
    one, other = old.get("function"), new.get("function")
    if not (isinstance(one, dict) and isinstance(other, dict)) or one.get("name") != other.get("name"):
        return 0.0
    return 0.5 + text_likeness(str(one.get("arguments")), str(other.get("arguments"))) / 2


def block_likeness(old: Any, new: Any) -> float:
    if not (isinstance(old, dict) and isinstance(new, dict)) or old.get("type") != new.get("type"):
        return 0.0
    if is_text(old) and is_text(new):
        return text_likeness(old["text"], new["text"])
    return 0.4  # pictures, files: another one in its place
