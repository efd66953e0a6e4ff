"""Causes in the shape of the history: compaction, a cut window, a step back, messages put in or taken out, blocks
that move."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kvtop.capture.api.markers import marker
from kvtop.triage.align import ALIKE, text_likeness
from kvtop.triage.causes.board import Board
from kvtop.triage.changes import Change, Comparison, What
from kvtop.triage.kinds import Kind, Who
from kvtop.triage.prompt import Path
from kvtop.triage.tags import blocks
from kvtop.triage.values import is_text, key_of, role, text_of
from kvtop.triage.windows import common_head

SHRUNK = 0.3
"""A compaction drops at least this share of the messages."""
SHARED_CHARS = 4_000
"""A stretch that two prompts share behind different heads: about 1,000 tokens."""
_SUMMARY = re.compile(
    r"summary|summari[sz]e|compact|condensed|continued from a previous|conversation so far|recap|context checkpoint",
    re.IGNORECASE,
)
_SYSTEM = ("system", "developer")
_BY_DESIGN = "nothing is to be mended: the next turns read from here on"


def compaction(board: Board) -> None:
    """The history replaced by a summary: by design, and dear once."""
    c = board.comparison
    removed = board.free(What.MESSAGE_REMOVED)
    if len(c.old.messages) < 3 or len(removed) < max(2, SHRUNK * len(c.old.messages)):
        return
    if len(c.new.messages) >= len(c.old.messages):
        return
    inserted = board.free(What.MESSAGE_INSERTED)
    texts = [change for change in board.free(What.TEXT) if change.message is not None and not _is_head(board, change)]
    told = [message for message in c.new.messages if role(message) not in (*_SYSTEM, "tool")]
    before = {text_of(message) for message in c.old.messages}
    fresh = [text for message in told if (text := text_of(message)) not in before]
    if not any(_SUMMARY.search(text[:2_000]) or marker(text) == "summary" for text in fresh):
        longest = max((len(text_of(m)) for m in c.old.messages if role(m) == "user"), default=0)
        if not any(len(text) > max(1_000, 3 * longest) for text in fresh):
            return
    rest = [change for change in board.free(What.FIELD) if change.message is not None]
    board.claim(
        Kind.COMPACTION,
        [*removed, *inserted, *texts, *rest],
        f"the history was compacted: {len(removed)} messages gave way to a summary",
        _BY_DESIGN,
        who=Who.NOBODY,
        at=_first_place(board, [*inserted, *texts]),
    )


def window_truncated(board: Board) -> None:
    """The oldest messages dropped to fit a window: what is left is a suffix of the old list."""
    c = board.comparison
    removed = board.free(What.MESSAGE_REMOVED)
    head = _system_head(c.old.messages)
    places = sorted(int(change.path[1]) for change in removed)
    if not places or board.free(What.MESSAGE_INSERTED):
        return
    # After the system prompt, or after a first message that is always kept.
    start = places[0]
    kept_first = start == head + 1 and head < len(c.old.messages)
    if start != head and not kept_first:
        return
    if places != list(range(start, start + len(places))) or places[-1] == len(c.old.messages) - 1:
        return
    if kept_first and len(places) < max(2, len(c.old.messages) / 4):
        return
    if len(places) < 2 and role(c.old.messages[start]) in ("tool", *_SYSTEM):
        return
    # A call whose thought was another item lost it with the cut.
    j = dict(c.pairs).get(places[-1] + 1)
    torn = [change for change in board.free(What.FIELD, What.CALL_REMOVED) if j is not None and change.message == j]
    board.claim(
        Kind.WINDOW_TRUNCATED,
        [*removed, *torn],
        f"the {len(places)} oldest message{'' if len(places) == 1 else 's'} fell out of the client's window",
        "a larger window, or fewer, larger cuts: each cut makes all that follows new",
        who=Who.NOBODY,
    )


def rolled_back(board: Board) -> None:
    """The conversation went back to an earlier point, and on from there."""
    c = board.comparison
    removed = board.free(What.MESSAGE_REMOVED)
    places = sorted(int(change.path[1]) for change in removed)
    end = len(c.old.messages)
    if not places or places != list(range(places[0], end)) or board.free(What.MESSAGE_INSERTED):
        return
    if places[0] <= _system_head(c.old.messages) or (len(places) == 1 and _tag(_whole(removed[0].old))):
        return  # a reminder at the end goes its own way
    board.claim(
        Kind.ROLLED_BACK,
        removed,
        f"the conversation went back {len(places)} message{'' if len(places) == 1 else 's'}, and on from there",
        "nothing is to be mended: what stands before that point is reused",
        who=Who.NOBODY,
        at=None,
    )


def last_message_replaced(board: Board) -> None:
    """The last message said anew: a retry with other words, or steering."""
    c = board.comparison
    last = len(c.old.messages) - 1
    now = dict(c.pairs).get(last)
    changes = [
        change
        for change in board.free(What.TEXT, What.FIELD, What.BLOCK_INSERTED, What.BLOCK_REMOVED)
        if change.path[:3] == ("messages", last if change.what is What.BLOCK_REMOVED else now, "content")
    ]
    if not changes or role(c.old.messages[last]) != "user" or _system_head(c.old.messages) > last:
        return
    board.claim(
        Kind.LAST_MESSAGE_REPLACED,
        changes,
        "the last message was replaced by another one",
        "nothing is to be mended: only what was new then is read again",
        who=Who.NOBODY,
    )


@dataclass(frozen=True)
class _Piece:
    """A block of text that left, or came."""

    change: Change
    text: str


def reminder_moved(board: Board) -> None:
    """A tagged block leaves a message and stands in a later one. https://github.com/Kilo-Org/kilocode/issues/13336,
    https://github.com/anomalyco/opencode/issues/23595"""
    c = board.comparison
    for gone in list(_left(board)):
        name = _tag(gone.text)
        if name is None or gone.change not in board.free():
            continue
        at = board.message_of(gone.change)
        start = at if at is not None else int(gone.change.path[1])
        for j in range(start, len(c.new.messages)):
            text = _whole(c.new.messages[j])
            if j == at and gone.text.strip() not in text:
                continue
            found = _find(gone.text, name, text, c, j)
            if found is None:
                continue
            came = [
                change
                for change in board.free(What.TEXT, What.MESSAGE_INSERTED, What.BLOCK_INSERTED)
                if change.message == j and name in _new_text(change)
            ]
            moved = [gone.change, *(change for change in came if change is not gone.change)]
            board.claim(
                Kind.REMINDER_MOVED,
                moved,
                f"the block <{name}> left an earlier message and stands in a later one",
                "keep a reminder where it was first sent, and add the new one behind it",
                at=_message_place(gone.change),
                moved_to=("messages", j),
                in_old=gone.change.what.value.endswith("_removed"),
            )
            break


def message_moved(board: Board) -> None:
    """Messages that both have, at other places; many at once after a client's restart are a resume.
    https://github.com/anthropics/claude-code/issues/43657"""
    inserted = {key_of(change.new): change for change in board.free(What.MESSAGE_INSERTED)}
    moved = [
        (change, inserted[key_of(change.old)])
        for change in board.free(What.MESSAGE_REMOVED)
        if key_of(change.old) in inserted
    ]
    blocks = {key_of(change.new): change for change in board.free(What.BLOCK_INSERTED)}
    texts = {change.new["text"]: change for change in board.free(What.BLOCK_INSERTED) if is_text(change.new)}
    moved += [
        (change, texts[text_of(change.old)])
        for change in board.free(What.MESSAGE_REMOVED)
        if text_of(change.old) in texts and key_of(change.old) not in inserted
    ]
    moved += [
        (change, blocks[key_of(change.old)])
        for change in board.free(What.BLOCK_REMOVED)
        if key_of(change.old) in blocks and is_text(change.old)
    ]
    if moved:
        first = moved[0]
        board.claim(
            Kind.RESUME_REASSEMBLY,
            [change for pair in moved for change in pair],
            f"{len(moved)} message{'' if len(moved) == 1 else 's'} or blocks stand at other places than before",
            "resume a conversation from what was sent, not from parts that are put together anew",
            at=first[0].path,
            moved_to=first[1].path,
            in_old=True,
        )


def message_inserted(board: Board) -> None:
    """Messages put in before the end. https://github.com/aaif-goose/goose/pull/9767"""
    changes = board.free(What.MESSAGE_INSERTED)
    if changes:
        n = len(changes)
        board.claim(
            Kind.MESSAGE_INSERTED,
            changes,
            f"{n} message{' was' if n == 1 else 's were'} put in before the end of the history",
            "add new messages at the end",
        )


def message_removed(board: Board) -> None:
    """Messages taken out of the middle. https://github.com/ranxianglei/opencode-acp/pull/206"""
    changes = board.free(What.MESSAGE_REMOVED)
    if changes:
        n = len(changes)
        board.claim(
            Kind.MESSAGE_REMOVED,
            changes,
            f"{n} message{' was' if n == 1 else 's were'} taken out of the history",
            "leave earlier messages where they are, or drop many at once and seldom",
        )


def other_conversation(board: Board) -> None:
    """Two prompts that have nothing of their messages in common, or neither system prompt nor tools: no fault. Where
    they share a long text behind different heads, the text of each agent stands first.
    https://github.com/gotgenes/pi-packages/issues/180"""
    c = board.comparison
    everything = board.free()
    if not everything or board.causes_of(Kind.COMPACTION) or not _apart(board):
        return
    a, b = ("\n".join(text_of(m) for m in one.messages[: _system_head(one.messages)]) for one in (c.old, c.new))
    common = common_head(a, b)
    if a != b and common < SHARED_CHARS and _shared_stretch(a[common:], b[common:]) >= SHARED_CHARS:
        board.claim(
            Kind.PER_AGENT_TEXT_FIRST,
            everything,
            "two agents share a long text, but each one's own text stands before it",
            "put the shared text first, and what is each agent's own behind it",
            at=("messages", 0, "content"),
        )
        return
    board.claim(
        Kind.OTHER_CONVERSATION,
        everything,
        "these are two conversations: nothing of their messages is the same",
        "nothing is to be mended",
        who=Who.NOBODY,
        at=("messages",),
    )


def _apart(board: Board) -> bool:
    """Whether one cannot be the other one, continued."""
    c = board.comparison
    head = _system_head(c.old.messages), _system_head(c.new.messages)
    shared = [(i, j) for i, j in c.pairs if i >= head[0] and j >= head[1]]
    changed = {board.message_of(change) for change in c.changes}
    kept = sum(j not in changed for _, j in shared)
    asked = any(role(message) == "user" for message in c.old.messages[head[0] :])
    systems = [one.messages[:n] for one, n in zip((c.old, c.new), head, strict=True)]
    other_system = bool(systems[0] and systems[1]) and _unlike(systems[0][0], systems[1][0])
    names = [{str(tool.get("name")) for tool in one.tools} for one in (c.old, c.new)]
    other_tools = len(names[0] & names[1]) < len(names[0] | names[1]) / 2
    if other_system and (other_tools or kept == 0):
        return kept <= 2
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


def _system_head(messages: tuple[dict[str, Any], ...]) -> int:
    return next((i for i, message in enumerate(messages) if role(message) not in _SYSTEM), len(messages))


def _is_head(board: Board, change: Change) -> bool:
    return (change.message or 0) < _system_head(board.comparison.new.messages)


def _first_place(board: Board, changes: list[Change]) -> Path | None:
    return min((change.path for change in changes), key=lambda path: path[:2], default=None)


def _left(board: Board) -> Iterator[_Piece]:
    """What is not where it was."""
    for change in board.free(What.TEXT, What.MESSAGE_REMOVED, What.BLOCK_REMOVED):
        if change.what is What.TEXT:
            region = change.region
            if change.message is not None and region is not None and region.old.strip():
                yield _Piece(change, _around(change.old, region.old_at, region.old))
        elif change.what is What.MESSAGE_REMOVED:
            yield _Piece(change, _whole(change.old))
        elif is_text(change.old):
            yield _Piece(change, change.old["text"])


def _around(text: str, at: int, part: str) -> str:
    """The tagged block that a region lies in, where it is most of it."""
    start, end = at + len(part) - len(part.lstrip()), at + len(part.rstrip())
    for block in blocks(text):
        if block.start <= start and end <= block.end + 1:
            return text[block.start : block.end] if 5 * len(part.strip()) >= 3 * (block.end - block.start) else ""
    return part


def _tag(text: str) -> str | None:
    """The name of the block that a text is, where it is one tagged block (or several of a name)."""
    found = blocks(text)
    if not found or 5 * (found[0].end - found[0].start) < 3 * len(text.strip()):
        return None
    return found[0].name


def _find(block: str, name: str, text: str, c: Comparison, j: int) -> str | None:
    """Whether a text of the new prompt holds such a block that the same message did not hold before."""
    before = {jj: i for i, jj in c.pairs}.get(j)
    old = _whole(c.old.messages[before]) if before is not None else ""
    had = {old[one.start : one.end] for one in blocks(old)}
    came = (text[one.start : one.end] for one in blocks(text) if one.name == name)
    return name if any(text_likeness(block.strip(), one) >= ALIKE for one in came if one not in had) else None


def _new_text(change: Change) -> str:
    if change.region is not None:
        return _around(change.new, change.region.new_at, change.region.new) or change.region.new
    return _whole(change.new) if change.what is What.MESSAGE_INSERTED else str(change.new)


def _whole(message: Any) -> str:
    return text_of(message) if isinstance(message, dict) else str(message)


def _message_place(change: Change) -> Path:
    return change.path[:2]


RULES_FIRST: tuple[Callable[[Board], None], ...] = (compaction, other_conversation, window_truncated)
RULES_MOVES: tuple[Callable[[Board], None], ...] = (rolled_back, reminder_moved, message_moved)
RULES_LAST: tuple[Callable[[Board], None], ...] = (message_inserted, message_removed)
