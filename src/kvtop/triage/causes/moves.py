"""Causes in what stands elsewhere than before: reminders that go along, messages and blocks that are put together
anew."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

from kvtop.capture.api.tags import blocks
from kvtop.triage.align import ALIKE, text_likeness
from kvtop.triage.causes.board import Board
from kvtop.triage.changes import Change, Comparison, What
from kvtop.triage.kinds import Kind
from kvtop.triage.values import is_text, key_of, text_of


@dataclass(frozen=True, slots=True)
class _Piece:
    """A block of text that left, or came."""

    change: Change
    text: str


MOST_LOOKED_AT = 200
"""Blocks of the same name that are held against one that left."""


def reminder_moved(board: Board) -> None:
    """A tagged block leaves a message and stands in a later one. https://github.com/Kilo-Org/kilocode/issues/13336,
    https://github.com/anomalyco/opencode/issues/23595"""
    pieces = [(piece, name) for piece in _left(board) if (name := tag(piece.text)) is not None]
    if not pieces:
        return
    blocks_that_came = _came(board.comparison)
    changed: dict[int | None, list[Change]] = {}
    for change in board.free(What.TEXT, What.MESSAGE_INSERTED, What.BLOCK_INSERTED):
        changed.setdefault(change.message, []).append(change)
    for gone, name in pieces:
        if not board.is_free(gone.change):
            continue
        at = board.message_of(gone.change)
        start = at if at is not None else int(gone.change.path[1])
        j = _stands_in(gone.text.strip(), blocks_that_came.get(name, []), start, at, board.comparison)
        if j is None:
            continue
        came = [change for change in changed.get(j, []) if board.is_free(change) and name in _new_text(change)]
        board.claim(
            Kind.REMINDER_MOVED,
            [gone.change, *(change for change in came if change.id != gone.change.id)],
            f"the block <{name}> left an earlier message and stands in a later one",
            "keep a reminder where it was first sent, and add the new one behind it",
            at=gone.change.path[:2],
            moved_to=("messages", j),
            in_old=gone.change.what.value.endswith("_removed"),
        )


def _came(c: Comparison) -> dict[str, list[tuple[int, str]]]:
    """Tagged blocks of the new prompt that the same message did not hold before: (message, block) by name, in order."""
    before = {j: i for i, j in c.pairs}
    found: dict[str, list[tuple[int, str]]] = {}
    for j, message in enumerate(c.new.messages):
        text = text_of(message)
        came = [(one.name, text[one.start : one.end]) for one in blocks(text)]
        if not came:
            continue
        old = text_of(c.old.messages[before[j]]) if j in before else ""
        had = {old[one.start : one.end] for one in blocks(old)}
        for name, block in came:
            if block not in had:
                found.setdefault(name, []).append((j, block))
    return found


def _stands_in(block: str, came: list[tuple[int, str]], start: int, at: int | None, c: Comparison) -> int | None:
    """The first message from `start` on that holds such a block now; the message `at`, which it left, only where the
    very same text still stands in it."""
    first = bisect_left(came, start, key=itemgetter(0))
    for j, one in came[first : first + MOST_LOOKED_AT]:
        if (j != at or block in text_of(c.new.messages[j])) and text_likeness(block, one) >= ALIKE:
            return j
    return None


def message_moved(board: Board) -> None:
    """Messages that both have, at other places; many at once after a client's restart are a resume.
    https://github.com/anthropics/claude-code/issues/43657"""
    inserted = {key_of(change.new): change for change in board.free(What.MESSAGE_INSERTED)}
    moved = [
        (change, inserted[key_of(change.old)])
        for change in board.free(What.MESSAGE_REMOVED)
        if key_of(change.old) in inserted
    ]
    by_key = {key_of(change.new): change for change in board.free(What.BLOCK_INSERTED)}
    texts = {
        change.new["text"]: change
        for change in board.free(What.BLOCK_INSERTED)
        if is_text(change.new) and change.new["text"].strip()
    }
    moved += [
        (change, texts[text_of(change.old)])
        for change in board.free(What.MESSAGE_REMOVED)
        if text_of(change.old) in texts and key_of(change.old) not in inserted
    ]
    moved += [
        (change, by_key[key_of(change.old)])
        for change in board.free(What.BLOCK_REMOVED)
        if key_of(change.old) in by_key and is_text(change.old)
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


def _left(board: Board) -> Iterator[_Piece]:
    """What is not where it was."""
    for change in board.free(What.TEXT, What.MESSAGE_REMOVED, What.BLOCK_REMOVED):
        if change.what is What.TEXT:
            region = change.region
            if change.message is not None and region is not None and region.old.strip():
                yield _Piece(change, _around(change.old, region.old_at, region.old))
        elif change.what is What.MESSAGE_REMOVED:
            yield _Piece(change, text_of(change.old))
        elif is_text(change.old):
            yield _Piece(change, change.old["text"])


def _around(text: str, at: int, part: str) -> str:
    """The tagged block that a region lies in, where it is most of it."""
    start, end = at + len(part) - len(part.lstrip()), at + len(part.rstrip())
    for block in blocks(text):
        if block.start <= start and end <= block.end + 1:
            return text[block.start : block.end] if 5 * len(part.strip()) >= 3 * (block.end - block.start) else ""
    return part


def tag(text: str) -> str | None:
    """The name of the block that a text is, where it is one tagged block (or several of a name)."""
    found = blocks(text)
    if not found or 5 * (found[0].end - found[0].start) < 3 * len(text.strip()):
        return None
    return found[0].name


def _new_text(change: Change) -> str:
    if change.region is not None:
        return _around(change.new, change.region.new_at, change.region.new) or change.region.new
    return text_of(change.new) if change.what is What.MESSAGE_INSERTED else str(change.new)
