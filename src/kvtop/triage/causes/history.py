"""Causes in the shape of the history: compaction, a cut window, a step back, messages put in or taken
out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kvtop.capture.api.markers import marker
from kvtop.triage.align import ALIKE, text_likeness
from kvtop.triage.causes import moves
from kvtop.triage.causes.board import Board
from kvtop.triage.changes import Change, What
from kvtop.triage.kinds import Kind, Who
from kvtop.triage.prompt import Path
from kvtop.triage.values import SYSTEM, key_of, role, text_of
from kvtop.triage.windows import common_head

SHRUNK = 0.3
"""A compaction drops at least this share of the messages."""
SHARED_CHARS = 4_000
"""A stretch that two prompts share behind different heads: about 1,000 tokens."""
ASKS_CHARS = 200
"""A newest message of fewer characters that speaks of a summary asks for one."""
_SUMMARY = re.compile(
    r"summary|summari[sz]e|compact|condensed|continued from a previous|conversation so far|recap|context checkpoint",
    re.IGNORECASE,
)
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
    before = {text_of(message) for message in c.old.messages}
    # What was said behind messages that were kept is no summary of those that were not.
    last_removed = max(int(change.path[1]) for change in removed)
    kept_behind = any(i > last_removed for i, _ in c.pairs)
    said_since = set(c.appended) if kept_behind else set()
    fresh = [
        (j, text)
        for j, message in enumerate(c.new.messages)
        if j not in said_since and role(message) not in (*SYSTEM, "tool") and (text := text_of(message)) not in before
    ]
    last = len(c.new.messages) - 1
    if not any(_is_summary(text, asked=j == last) for j, text in fresh):
        longest = max((len(text_of(m)) for m in c.old.messages if role(m) == "user"), default=0)
        if not any(len(text) > max(1_000, 3 * longest) for _, text in fresh):
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


def _is_summary(text: str, *, asked: bool) -> bool:
    """`asked`: it is the newest message, where a short text may also ask for a summary."""
    if marker(text) == "summary":
        return True
    return not (asked and len(text) < ASKS_CHARS) and bool(_SUMMARY.search(text[:2_000]))


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
    if len(places) < 2 and role(c.old.messages[start]) in ("tool", *SYSTEM):
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
    if places[0] <= _system_head(c.old.messages) or (len(places) == 1 and moves.tag(text_of(removed[0].old))):
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
    """The last message said anew: a retry with other words, or steering. One that has its answer behind it by now was
    edited afterwards, which is none."""
    c = board.comparison
    last = len(c.old.messages) - 1
    now = dict(c.pairs).get(last)
    if now is None or any(role(c.new.messages[j]) in ("assistant", "tool") for j in c.appended if j > now):
        return
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
    return next((i for i, message in enumerate(messages) if role(message) not in SYSTEM), len(messages))


def _is_head(board: Board, change: Change) -> bool:
    return (change.message or 0) < _system_head(board.comparison.new.messages)


def _first_place(board: Board, changes: list[Change]) -> Path | None:
    return min((change.path for change in changes), key=lambda path: path[:2], default=None)


RULES_FIRST: tuple[Callable[[Board], None], ...] = (compaction, other_conversation, window_truncated)
RULES_MOVES: tuple[Callable[[Board], None], ...] = (rolled_back, moves.reminder_moved, moves.message_moved)
RULES_LAST: tuple[Callable[[Board], None], ...] = (message_inserted, message_removed)
