"""A pair of requests as it would have been without one kind of cause: what `kvtop replay --fix KIND` sends. Pure.

The repaired requests are chat requests (or completions), as the server makes them of the other routes, so that one way
of repairing serves all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvtop.capture.api.canonical import decode, object_of
from kvtop.capture.turn import Route
from kvtop.errors import UsageError
from kvtop.triage.changes import Change, Comparison, What, compare
from kvtop.triage.changes import in_system as of_system
from kvtop.triage.convert import convert
from kvtop.triage.judge import causes_of, read
from kvtop.triage.kinds import Kind
from kvtop.triage.prompt import Prompt
from kvtop.triage.result import Cause
from kvtop.triage.values import key_sorted, role, text_of

Pair = tuple[Prompt, Prompt]
"""Old and new."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """Two requests, as they would have been sent."""

    route: Route
    """chat or completions."""
    old: dict[str, Any] = field(repr=False)
    new: dict[str, Any] = field(repr=False)
    says: str = ""
    """What was done, in words that follow 'with'."""


def repair(
    kind: Kind,
    old: bytes,
    new: bytes,
    route: Route,
    *,
    causes: Sequence[Cause] | None = None,
    version: str | None = None,
) -> Repaired:
    """`old` and `new`: bodies as they were sent. `causes`: those of this pair where they are known from its
    conversation, which tells more than the pair alone; their change ids are those of `compare(read(...), read(...))`.

    Raises UsageError for a kind that has no repair, one that is not among the causes, and what is no request.
    """
    fix = FIXES.get(kind)
    if fix is None:
        raise UsageError(
            f"{kind.value} has no repair that could be replayed", f"these have: {', '.join(sorted(FIXES))}"
        )
    try:
        one, other = (_Side(read(body, route, version), _chat(body, route, version)) for body in (old, new))
    except ValueError as error:
        raise UsageError(f"a request cannot be read: {error}", "give two request bodies, as they were sent") from None
    comparison = compare(one.prompt, other.prompt)
    found = causes_of(comparison) if causes is None else causes
    mine = _changes(kind, comparison, found)
    if not mine:
        there = ", ".join(dict.fromkeys(cause.kind.value for cause in found)) or "nothing that differs"
        raise UsageError(f"{kind.value} is no cause of this pair", f"found: {there}")
    before, after = fix.make(comparison, mine)
    to = Route.COMPLETIONS if comparison.new.route is Route.COMPLETIONS else Route.CHAT
    return Repaired(to, _body(before, one, other), _body(after, other, one), fix.says)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two requests."""

    prompt: Prompt
    chat: Mapping[str, Any]
    """As a chat request; empty on the completions route."""


def _chat(body: bytes, route: Route, version: str | None) -> Mapping[str, Any]:
    return convert(route, decode(body), version=version).chat or {}


@dataclass(frozen=True, slots=True)
class _Fix:
    make: Callable[[Comparison, Sequence[Change]], Pair]
    says: str


def _changes(kind: Kind, comparison: Comparison, causes: Sequence[Cause]) -> list[Change]:
    ids = {id for cause in causes if cause.kind is kind for id in cause.changes}
    if not ids and kind in _IN_SYSTEM:
        # Only a conversation tells these; what they are of a pair is an edit of the system prompt.
        ids = {
            id
            for cause in causes
            if cause.kind in (*_IN_SYSTEM, Kind.TEXT_EDITED, Kind.PATH_CHANGED, Kind.VOLATILE_TEXT)
            for id in cause.changes
        }
        return [change for change in comparison.changes if change.id in ids and of_system(comparison, change)]
    return [change for change in comparison.changes if change.id in ids]


def _body(prompt: Prompt, own: _Side, other: _Side) -> dict[str, Any]:
    """The request that `prompt` is, made of the one that was sent on its side. What it has of the other's inputs is
    taken from there: each route writes some of them in its own way."""
    if prompt.route is Route.COMPLETIONS:
        return {**prompt.inputs, "prompt": prompt.messages[0]["content"] if prompt.messages else ""}
    sides = (own, other)
    same = next((side for side in sides if prompt.inputs == side.prompt.inputs), None)
    made = dict((same or own).chat)
    for key in own.prompt.inputs.keys() | other.prompt.inputs.keys() if same is None else ():
        if prompt.inputs.get(key) != own.prompt.inputs.get(key):
            made.pop(key, None)
            made |= {key: other.chat[key]} if key in other.chat else {}
    made.pop("tools", None)
    made["messages"] = [dict(message) for message in prompt.messages]
    if prompt.tools:
        made["tools"] = [{"type": "function", "function": tool} for tool in prompt.tools]
    return made


# Put back


def _put_back(comparison: Comparison, changes: Sequence[Change]) -> Pair:
    """As if the client had kept it as it was."""
    return comparison.old, comparison.restored({change.id for change in changes})


def _at_the_end(comparison: Comparison, changes: Sequence[Change]) -> Pair:
    """Messages that were put in between others follow them."""
    new = comparison.restored({change.id for change in changes})
    moved = [change.new for change in changes if change.what is What.MESSAGE_INSERTED]
    return comparison.old, replace(new, messages=(*new.messages, *moved))


# Tools


def _sorted_keys(comparison: Comparison, _: Sequence[Change]) -> Pair:
    return _each_schema(comparison, key_sorted)


def _sorted_arrays(comparison: Comparison, _: Sequence[Change]) -> Pair:
    return _each_schema(comparison, lambda value: key_sorted(value, arrays=True))


def _each_schema(comparison: Comparison, made: Callable[[Any], Any]) -> Pair:
    def sorted_in(prompt: Prompt) -> Prompt:
        tools = tuple(
            tool | {"parameters": made(tool["parameters"])} if "parameters" in tool else tool for tool in prompt.tools
        )
        return replace(prompt, tools=tools)

    return sorted_in(comparison.old), sorted_in(comparison.new)


def _by_name(comparison: Comparison, _: Sequence[Change]) -> Pair:
    def sorted_in(prompt: Prompt) -> Prompt:
        return replace(prompt, tools=tuple(sorted(prompt.tools, key=lambda tool: str(tool.get("name", "")))))

    return sorted_in(comparison.old), sorted_in(comparison.new)


def _all_from_the_start(comparison: Comparison, changes: Sequence[Change]) -> Pair:
    """The tools of both turns in both: those of the old one in their order, the others behind them."""
    kept = comparison.restored({change.id for change in changes})
    added = tuple(change.new for change in changes if change.what is What.TOOL_ADDED)
    return (
        replace(comparison.old, tools=(*comparison.old.tools, *added)),
        replace(kept, tools=(*kept.tools, *added)),
    )


# From the system prompt to the end


def _left_out(comparison: Comparison, changes: Sequence[Change]) -> Pair:
    """The lines that change are in neither."""
    return _behind_the_history(comparison, changes, told=False)


def _behind_the_history(comparison: Comparison, changes: Sequence[Change], *, told: bool = True) -> Pair:
    """The lines that change leave the system prompt and stand at the end of the newest message, where they stay when it
    is no longer the newest. What changes elsewhere is put back."""
    in_system = [change for change in changes if of_system(comparison, change)]
    others = {change.id for change in changes} - {change.id for change in in_system}
    whole = {change.id for change in in_system if change.what in (What.MESSAGE_INSERTED, What.MESSAGE_REMOVED)}
    regions = [change for change in in_system if change.what is What.TEXT and change.region is not None]
    left = {change.id for change in in_system} - whole - {change.id for change in regions}
    olds, news = _spans(regions)
    old, old_said = _without_lines(comparison.old, olds)
    new, new_said = _without_lines(comparison.new, news)
    old_said += [text_of(change.old) for change in in_system if change.what is What.MESSAGE_REMOVED]
    new_said += [text_of(change.new) for change in in_system if change.what is What.MESSAGE_INSERTED]
    old = replace(old, messages=_less(old.messages, [c.path for c in in_system if c.what is What.MESSAGE_REMOVED]))
    # Laid over each other anew, now without those lines.
    again = compare(old, replace(new, messages=_less(new.messages, _inserted(in_system))))
    back = same_changes(comparison, again, others | left)
    if not told:
        return again.old, again.restored(back)
    return _told_last(again, again.restored(back), old_said, new_said)


LONG_LINE = 200
"""Characters of a line before or behind a region from which on only its sentence is moved."""
Span = tuple[tuple[str | int, ...], int, int]
"""Path of a text, and a stretch of it."""


def _spans(changes: Sequence[Change]) -> tuple[list[Span], list[Span]]:
    """The lines in which regions stand, in the old texts and in the new ones."""
    olds: list[Span] = []
    news: list[Span] = []
    for change in changes:
        region = change.region
        if region is None:
            continue
        old = _lines(change.old, region.old_at, region.old)
        new = _lines(change.new, region.new_at, region.new)
        # Where whole lines came or went, the other text has none of them.
        olds += [(change.old_path, *old[0])] if region.old or not new[1] else []
        news += [(change.path, *new[0])] if region.new or not old[1] else []
    return olds, news


def _lines(text: str, at: int, part: str) -> tuple[tuple[int, int], bool]:
    """The lines of a stretch with one break, and whether it is whole lines already."""
    end = at + len(part)
    begins, ends = at == 0 or text[at - 1] == "\n", end == len(text) or text[end] == "\n"
    if part and ((begins and part.endswith("\n")) or (ends and part.startswith("\n"))):
        return (at, end), True
    last = text.find("\n", end)
    start, stop = text.rfind("\n", 0, at) + 1, len(text) if last < 0 else last + 1
    # Of a text without lines its sentence is enough.
    if at - start > LONG_LINE:
        start = max(text.rfind(". ", start, at) + 2, at - LONG_LINE) if ". " in text[start:at] else at
    if stop - end > LONG_LINE:
        dot = text.find(". ", end, end + LONG_LINE)
        stop = dot + 2 if dot >= 0 else end
    return (start, stop), False


def _without_lines(prompt: Prompt, spans: Sequence[Span]) -> tuple[Prompt, list[str]]:
    """The prompt without the lines in which they stand, and those lines."""
    messages = copy.deepcopy(list(prompt.messages))
    said: list[str] = []
    for path in dict.fromkeys(path for path, _, _ in spans):
        holder: Any = messages
        for step in path[1:-1]:
            holder = holder[step]
        text = holder[path[-1]]
        cut = sorted({(start, end) for other, start, end in spans if other == path}, reverse=True)
        for start, end in _joined(cut):
            said.append(text[start:end].strip("\n"))
            text = text[:start] + text[end:]
        holder[path[-1]] = text
    return replace(prompt, messages=tuple(messages)), [line for line in said if line]


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Last first, those that touch made one."""
    out: list[tuple[int, int]] = []
    for start, end in spans:
        if out and end >= out[-1][0]:
            out[-1] = (min(start, out[-1][0]), max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def _inserted(changes: Sequence[Change]) -> list[tuple[str | int, ...]]:
    return [change.path for change in changes if change.what is What.MESSAGE_INSERTED]


def _less(messages: Sequence[dict[str, Any]], paths: Collection[tuple[str | int, ...]]) -> tuple[dict[str, Any], ...]:
    gone = {path[1] for path in paths}
    return tuple(message for at, message in enumerate(messages) if at not in gone)


def same_changes(before: Comparison, after: Comparison, ids: Collection[int]) -> set[int]:
    """The changes of `after` that are these of `before`, by what they say."""
    wanted = [(change.what, change.old, change.new, change.region) for change in before.changes if change.id in ids]
    return {change.id for change in after.changes if (change.what, change.old, change.new, change.region) in wanted}


def _told_last(comparison: Comparison, new: Prompt, old_said: list[str], new_said: list[str]) -> Pair:
    old = comparison.old
    at = _last(old.messages)
    before = _with_text(old, at, old_said)
    there = next((j for i, j in comparison.pairs if i == at), None)
    newest = _last(new.messages)
    if there is None or there == newest:
        return before, _with_text(new, newest, new_said)
    return before, _with_text(_with_text(new, there, old_said), newest, new_said)


def _last(messages: Sequence[Mapping[str, Any]]) -> int | None:
    """The newest message of a user or a tool."""
    return next((at for at in range(len(messages) - 1, -1, -1) if role(messages[at]) in ("user", "tool")), None)


def _with_text(prompt: Prompt, at: int | None, said: Sequence[str]) -> Prompt:
    text = "\n".join(reversed(said))
    if not text:
        return prompt
    messages = list(prompt.messages)
    if at is None:
        return replace(prompt, messages=(*messages, {"role": "user", "content": text}))
    content = object_of(messages[at]).get("content")
    more: Any = [*content, {"type": "text", "text": text}] if isinstance(content, list) else f"{content or ''}\n{text}"
    messages[at] = messages[at] | {"content": more}
    return replace(prompt, messages=tuple(messages))


_IN_SYSTEM = (Kind.LIVE_STATUS, Kind.MEMORY_TEXT, Kind.SYSTEM_FLAPS)

FIXES: dict[Kind, _Fix] = {
    Kind.TOOL_KEY_ORDER: _Fix(_sorted_keys, "the keys of all schemas sorted in both turns"),
    Kind.TOOL_ARRAY_ORDER: _Fix(_sorted_arrays, "keys and lists of all schemas sorted in both turns"),
    Kind.TOOLS_REORDERED: _Fix(_by_name, "the tools sorted by name in both turns"),
    Kind.TOOL_ADDED: _Fix(_all_from_the_start, "all tools from the first turn on"),
    Kind.TOOL_REMOVED: _Fix(_put_back, "the tools kept to the end"),
    Kind.TOOLS_CHANGED: _Fix(_all_from_the_start, "all tools from the first turn on"),
    Kind.CLIENT_HEADER: _Fix(_left_out, "that line left out of both turns"),
    Kind.VOLATILE_TEXT: _Fix(_behind_the_history, "what varies in the newest message"),
    Kind.LIVE_STATUS: _Fix(_behind_the_history, "the state in the newest message"),
    Kind.MEMORY_TEXT: _Fix(_behind_the_history, "what is recalled in the newest message"),
    Kind.SYSTEM_FLAPS: _Fix(_behind_the_history, "what comes and goes in the newest message"),
    Kind.MESSAGE_INSERTED: _Fix(_at_the_end, "that message at the end"),
} | {
    kind: _Fix(_put_back, says)
    for kind, says in (
        (Kind.TEMPLATE_INPUTS_CHANGED, "the inputs of the template kept as they were"),
        (Kind.RESPONSE_FORMAT_CHANGED, "the response format kept as it was"),
        (Kind.PROMPT_LOGPROBS_SET, "prompt_logprobs as it was"),
        (Kind.CACHE_SALT_CHANGED, "the same cache salt"),
        (Kind.TOOL_RANDOM_NAME, "the names of the tools kept as they were"),
        (Kind.TOOL_TEXT_CHANGED, "the texts of the tools kept as they were"),
        (Kind.TOOL_SCHEMA_CHANGED, "the schemas kept as they were"),
        (Kind.WHITESPACE, "the white space kept as it was"),
        (Kind.UNICODE_FORM, "the Unicode form kept as it was"),
        (Kind.PATH_CHANGED, "the path kept as it was"),
        (Kind.TEXT_EDITED, "the earlier text kept as it was"),
        (Kind.REMINDER_MOVED, "the reminder kept where it was"),
        (Kind.MESSAGE_REMOVED, "the message kept"),
        (Kind.TOOL_OUTPUT_CLEARED, "the tool's output kept"),
        (Kind.IMAGE_REMOVED, "the picture kept"),
        (Kind.IMAGE_REENCODED, "the picture kept as it was"),
        (Kind.REASONING_DROPPED_BY_CLIENT, "the reasoning sent back"),
        (Kind.TOOL_CALL_IDS_CHANGED, "the ids of the calls kept"),
        (Kind.ARGUMENTS_RESERIALISED, "the arguments sent back as they came"),
        (Kind.RESULT_RESERIALISED, "the results sent back as they were"),
        (Kind.CALLS_REORDERED, "the calls in their order"),
        (Kind.TOOL_CALL_EDITED, "the call kept as it was"),
        (Kind.ROLE_CHANGED, "the role kept"),
        (Kind.CONTENT_FORM_CHANGED, "the form of the content kept"),
        (Kind.RESUME_REASSEMBLY, "the blocks kept where they were"),
    )
}
