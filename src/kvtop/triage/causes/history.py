"""Causes in the shape of the history: compaction, a cut window, a step back, messages put in or taken
out."""

from __future__ import annotations

import re
from collections.abc import Callable

from kvtop.capture.api.markers import marker
from kvtop.triage.causes import moves
from kvtop.triage.causes.board import Board
from kvtop.triage.causes.conversations import other_conversation
from kvtop.triage.changes import Change, What
from kvtop.triage.kinds import Kind, Who
from kvtop.triage.prompt import Path, Prompt
from kvtop.triage.values import SYSTEM, role, system_head, text_of

SHRUNK = 0.3
"""A compaction drops at least this share of the messages."""
ASKS_CHARS = 200
"""A newest message of fewer characters that speaks of a summary asks for one."""
_SUMMARY = re.compile(
    r"summary|summari[sz]e|compact|condensed|continued from a previous|conversation so far|recap|context checkpoint",
    re.IGNORECASE,
)
_OF_A_TALK = re.compile(
    r"<(?:\w+[_-])?(?:summary|state_snapshot)>"
    r"|(?:conversation|session|history|context|chat|discussion)[^.\n]{0,80}"
    r"(?:summar|compact|condens|continued|grew|overflow|ran out|truncat)"
    r"|(?:summar(?:y|ised|ized)|recap|condensed (?:version|form)) (?:\w+ ){0,4}"
    r"(?:conversation|session|history|context|chat|discussion|work|progress)",
    re.IGNORECASE,
)
"""What is said of a talk that went before, at the beginning of its summary."""
OPENING = 500
"""Characters of a first message that tell what it is."""
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


def tells_before(prompt: Prompt) -> bool:
    """The first message of its talk is the summary of one before it, and no question that speaks of a summary."""
    talk = prompt.messages[system_head(prompt.messages) :]
    text = next((found for message in talk[:2] if role(message) == "user" and (found := text_of(message))), "")
    return len(text) >= ASKS_CHARS and (marker(text) == "summary" or bool(_OF_A_TALK.search(text[:OPENING])))


def window_truncated(board: Board) -> None:
    """The oldest messages dropped to fit a window: what is left is a suffix of the old list."""
    c = board.comparison
    removed = board.free(What.MESSAGE_REMOVED)
    head = system_head(c.old.messages)
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
    if places[0] <= system_head(c.old.messages) or (len(places) == 1 and moves.tag(text_of(removed[0].old))):
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
    came = [change.message or 0 for change in c.of(What.MESSAGE_INSERTED)]
    before = max((j for i, j in c.pairs if i < last), default=-1)
    if any(before < j < now and role(c.new.messages[j]) in ("assistant", "tool") for j in came):
        return  # the talk went on: the newest message is another one
    changes = [
        change
        for change in board.free(What.TEXT, What.FIELD, What.BLOCK_INSERTED, What.BLOCK_REMOVED)
        if change.path[:3] == ("messages", last if change.what is What.BLOCK_REMOVED else now, "content")
    ]
    if not changes or role(c.old.messages[last]) != "user" or system_head(c.old.messages) > last:
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


def _is_head(board: Board, change: Change) -> bool:
    return (change.message or 0) < system_head(board.comparison.new.messages)


def _first_place(board: Board, changes: list[Change]) -> Path | None:
    return min((change.path for change in changes), key=lambda path: path[:2], default=None)


RULES_FIRST: tuple[Callable[[Board], None], ...] = (compaction, other_conversation, window_truncated)
RULES_MOVES: tuple[Callable[[Board], None], ...] = (rolled_back, moves.reminder_moved, moves.message_moved)
RULES_LAST: tuple[Callable[[Board], None], ...] = (message_inserted, message_removed)
