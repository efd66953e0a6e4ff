"""Causes inside one message: calls, results, pictures, reasoning, form."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kvtop.capture.api.canonical import decode
from kvtop.capture.api.tags import blocks
from kvtop.triage.causes.board import Board
from kvtop.triage.changes import Change, What
from kvtop.triage.kinds import Kind, Who
from kvtop.triage.tree import ABSENT
from kvtop.triage.values import is_text, key_of, key_sorted, role, text_of
from kvtop.triage.windows import common_head

_CLEARED = re.compile(
    r"clear|prun|omit|remov|truncat|elid|compact|trimm|collapsed|dropped|no longer|old tool|\[\.\.\.|…|redacted"
    r"|expired|eliminad|borrad|omitid|supprim|effac|retir[ée]|entfern|gelöscht|gekürzt|ausgelassen|rimoss|cancellat|omess"
    r"|removid|apagad|usunię|pomini|verwijder|weggelaten|удал[её]н|очищен|опущен|скрыт|видален|kaldırıl|silin|清除|清空"
    r"|删除|刪除|省略|移除|削除|消去|삭제|생략|제거|đã xóa|lược bỏ|محذوف|حذف",
    re.IGNORECASE,
)
_PICTURES = frozenset({"image_url", "input_image", "image", "image_pil", "video_url", "input_audio", "audio_url"})
_TOOL_ROLES = frozenset({"tool", "function"})
KEPT_CHARS = 40
"""Characters of a tool's output that stay: of fewer a placeholder is said to stand in its place."""
MOST_JSON = 2_000_000
"""Characters of a text that is read as JSON."""


def tool_call_ids_changed(board: Board) -> None:
    """The same calls under other ids: costs only where the template prints ids.
    https://github.com/router-for-me/CLIProxyAPI/issues/5107"""
    changes = [
        change
        for change in board.free(What.FIELD)
        if change.message is not None
        and change.old is not ABSENT
        and change.new is not ABSENT
        and (change.path[-1] == "tool_call_id" or (change.path[-1] == "id" and "tool_calls" in change.path))
    ]
    if changes:
        calls = sum(change.path[-1] == "id" for change in changes) or len(changes)
        board.claim(
            Kind.TOOL_CALL_IDS_CHANGED,
            changes,
            f"{calls} tool call{'' if calls == 1 else 's'} of the history came back under other ids",
            "keep the ids that the server gave; a translator must not make new ones",
            who=_gateway(board),
        )


def arguments_reserialised(board: Board) -> None:
    """Arguments of a call that are equal as JSON, written otherwise. https://github.com/smg-project/smg/pull/1836"""
    changes = [
        change
        for change in board.free(What.FIELD)
        if change.path[-1] == "arguments" and _same_json(change.old, change.new)
    ]
    if changes:
        board.claim(
            Kind.ARGUMENTS_RESERIALISED,
            changes,
            "the arguments of an earlier call were written anew: the same JSON, other bytes",
            "send arguments back as the text that the model wrote",
            who=_gateway(board),
        )


def tool_call_edited(board: Board) -> None:
    """A call of the history that is not the one that the model made."""
    groups = _by_message(
        [
            change
            for change in board.free(What.FIELD, What.TEXT, What.CALL_INSERTED, What.CALL_REMOVED)
            if change.message is not None and "tool_calls" in change.path
        ]
    )
    for changes in groups:
        board.claim(
            Kind.TOOL_CALL_EDITED,
            changes,
            "a tool call of the history is another one than before",
            "send back calls as the model made them",
        )


def calls_reordered(board: Board) -> None:
    """Parallel calls, or their results, in another order."""
    changes = board.free(What.CALL_ORDER)
    inserted: dict[str, list[Change]] = {}
    for came in board.free(What.MESSAGE_INSERTED):
        if role(came.new) in _TOOL_ROLES:
            inserted.setdefault(key_of(came.new), []).append(came)
    for gone in board.free(What.MESSAGE_REMOVED):
        again = inserted.get(key_of(gone.old), []) if role(gone.old) in _TOOL_ROLES else []
        if again and _among_results(board, gone, again[0]):
            changes += [gone, again.pop(0)]
    if changes:
        board.claim(
            Kind.CALLS_REORDERED,
            changes,
            "parallel calls or their results stand in another order",
            "keep parallel calls and results in the order in which they were first sent",
            at=min(change.path for change in changes if change.what is not What.MESSAGE_REMOVED),
        )


def _among_results(board: Board, gone: Change, came: Change) -> bool:
    """Between where it stood and where it stands are results alone."""
    new = board.comparison.new.messages
    low, high = sorted((int(gone.path[1]), int(came.path[1])))
    return all(role(new[at]) in _TOOL_ROLES for at in range(low + 1, min(high, len(new))))


def result_reserialised(board: Board) -> None:
    """A tool's JSON result written anew. https://github.com/teunlao/swift-ai-sdk/pull/39"""
    for changes in _results(board):
        if _same_json(changes[0].old, changes[0].new):
            board.claim(
                Kind.RESULT_RESERIALISED,
                changes,
                "a tool's result was written anew: the same JSON, other bytes",
                "send results back as the text that was sent first",
                who=_gateway(board),
            )


def tool_output_cleared(board: Board) -> None:
    """Old tool outputs replaced by a placeholder. https://github.com/anomalyco/opencode/issues/32515"""
    cleared = [
        change for changes in _results(board) for change in changes if _is_cleared(str(change.old), str(change.new))
    ]
    whole = [
        change
        for change in board.free(What.FIELD)
        if change.message is not None
        and change.path[-1] == "content"
        and role(board.comparison.new.messages[change.message]) in _TOOL_ROLES
        and _is_cleared(_flat(change.old), _flat(change.new))
    ]
    changes = [*cleared, *whole]
    if changes:
        places = sorted({change.message for change in changes if change.message is not None})
        outputs = f"{len(places)} earlier tool output{' was' if len(places) == 1 else 's were'}"
        short = [_is_shortened(_flat(change.old), _flat(change.new)) for change in changes]
        how = "shortened" if all(short) else "shortened or replaced by a placeholder" if any(short) else ""
        board.claim(
            Kind.TOOL_OUTPUT_CLEARED,
            changes,
            f"{outputs} {how or 'replaced by a placeholder'}",
            f"{'shorten' if all(short) else 'clear'} many at once and seldom: each time all that follows is read again",
            called="a tool output shortened" if all(short) else "",
        )


def images(board: Board) -> None:
    """Pictures of the history: dropped at a cap, encoded anew, or put in. The cache's key is a hash of the picture.
    https://github.com/zeroclaw-labs/zeroclaw/issues/10778"""
    gone = [change for change in board.free(What.BLOCK_REMOVED) if _is_picture(change.old)]
    if gone:
        # A placeholder may stand in its place.
        places = {board.message_of(change) for change in gone}
        notes = [
            change
            for change in board.free(What.BLOCK_INSERTED)
            if change.message in places and is_text(change.new) and len(change.new["text"]) < 200
        ]
        board.claim(
            Kind.IMAGE_REMOVED,
            [*gone, *notes],
            f"{len(gone)} picture{' was' if len(gone) == 1 else 's were'} taken out of an earlier message",
            "raise the cap on pictures, or drop many at once and seldom",
            at=("messages", board.message_of(gone[0]) or 0, "content"),
        )
    same = [
        change
        for change in board.free(What.FIELD, What.TEXT)
        if change.message is not None and _in_picture(board, change)
    ]
    for changes in _by_message(same):
        board.claim(
            Kind.IMAGE_REENCODED,
            changes,
            "a picture of an earlier message has other bytes than before",
            "encode a picture once, and send the same bytes on every turn",
        )
    came = [change for change in board.free(What.BLOCK_INSERTED) if _is_picture(change.new)]
    for changes in _by_message(came):
        board.claim(
            Kind.IMAGE_ADDED,
            changes,
            "a picture was put into an earlier message",
            "send a new picture in a new message",
        )


def reasoning_dropped_by_client(board: Board) -> None:
    """The old request carried a message's reasoning, the new one does not. https://github.com/QwenLM/Qwen3.8/issues/131"""
    changes = [
        change
        for change in board.free(What.FIELD)
        if change.message is not None and change.path[2:] == ("reasoning",) and change.new is ABSENT
    ]
    changes += [change for change in board.free(What.TEXT) if _thought_left(board, change)]
    if changes:
        n = len(changes)
        board.claim(
            Kind.REASONING_DROPPED_BY_CLIENT,
            changes,
            f"the reasoning of {n} earlier message{'' if n == 1 else 's'} is not sent back any more",
            "send reasoning back for as long as the template prints it, or never",
        )


def _thought_left(board: Board, change: Change) -> bool:
    """A thought that stood in an answer's own text is gone from it."""
    region = change.region
    if change.message is None or region is None or region.new.strip():
        return False
    if role(board.comparison.new.messages[change.message]) != "assistant":
        return False
    start, end = region.old_at + len(region.old) - len(region.old.lstrip()), region.old_at + len(region.old.rstrip())
    return any(
        thought.start <= start and end <= thought.end and end - start >= 0.5 * (thought.end - thought.start)
        for thought in blocks(change.old)
        if thought.name in ("think", "thinking")
    )


def role_changed(board: Board) -> None:
    """A message under another role."""
    changes = [c for c in board.free(What.FIELD) if c.message is not None and c.path[2:] == ("role",)]
    if changes:
        was, now = changes[0].old, changes[0].new
        names = f" from {was} to {now}" if isinstance(was, str) and isinstance(now, str) else ""
        board.claim(
            Kind.ROLE_CHANGED,
            changes,
            f"the role of an earlier message changed{names}",
            "send earlier messages under the role that they had",
        )


def content_form_changed(board: Board) -> None:
    """A text became a list of blocks, or the other way: costs where the template prints the two differently."""
    changes = [
        change
        for change in board.free(What.FIELD)
        if change.message is not None
        and change.path[2:] == ("content",)
        and isinstance(change.old, list) != isinstance(change.new, list)
        and _flat(change.old) == _flat(change.new)
    ]
    if changes:
        n = len(changes)
        board.claim(
            Kind.CONTENT_FORM_CHANGED,
            changes,
            f"the content of {n} message{'' if n == 1 else 's'} changed its form: a text and a list of blocks",
            "send a message's content in one form on every turn",
        )


def other_fields(board: Board) -> None:
    """Blocks and members that no rule above explains are edited text."""
    rest = [change for change in board.free() if change.message is not None and change.what is not What.TEXT]
    rest = [change for change in rest if change.what not in (What.MESSAGE_INSERTED, What.MESSAGE_REMOVED)]
    groups: dict[int | None, list[Change]] = {}
    for change in rest:
        groups.setdefault(board.message_of(change), []).append(change)
    for changes in groups.values():
        board.claim(
            Kind.TEXT_EDITED,
            changes,
            "a part of an earlier message is another one than before",
            "leave earlier messages as they were sent",
        )


def _gateway(board: Board) -> Who:
    return Who.GATEWAY if board.gateway else Who.CLIENT


def _by_message(changes: list[Change]) -> list[list[Change]]:
    groups: dict[int | None, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.message, []).append(change)
    return list(groups.values())


def _results(board: Board) -> list[list[Change]]:
    """Changed texts of tool messages, one list a text."""
    groups: dict[Any, list[Change]] = {}
    for change in board.free(What.TEXT):
        if change.message is not None and role(board.comparison.new.messages[change.message]) in _TOOL_ROLES:
            groups.setdefault(change.path, []).append(change)
    return list(groups.values())


def _is_cleared(old: str, new: str) -> bool:
    if len(new) >= len(old):
        return False
    if not new.strip():
        return True
    placeholder = new[common_head(old, new) :] or new
    return len(new) < 400 + len(old) // 2 and bool(_CLEARED.search(placeholder))


def _is_shortened(old: str, new: str) -> bool:
    """More than a few words of its beginning stay, and are most of what is left."""
    kept = common_head(old, new)
    return kept >= KEPT_CHARS and 2 * kept >= len(new)


def _same_json(old: Any, new: Any) -> bool:
    if not (isinstance(old, str) and isinstance(new, str)):
        if isinstance(old, dict | list) and isinstance(new, dict | list):
            return bool(key_sorted(old) == key_sorted(new))
        return False
    if max(len(old), len(new)) > MOST_JSON or old.lstrip()[:1] not in ("{", "["):
        return False
    try:
        return bool(key_sorted(decode(old.encode())) == key_sorted(decode(new.encode())))
    except (ValueError, UnicodeError):
        return False


def _is_picture(block: Any) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    return isinstance(kind, str) and kind in _PICTURES


def _in_picture(board: Board, change: Change) -> bool:
    block: Any = board.comparison.new.messages[change.message or 0]
    for step in change.path[2:]:
        try:
            block = block[step]
        except (KeyError, IndexError, TypeError):
            return False
        if _is_picture(block):
            return True
    return False


def _flat(content: Any) -> str:
    return text_of({"content": content})


EARLY: tuple[Callable[[Board], None], ...] = (
    tool_call_ids_changed,
    arguments_reserialised,
    calls_reordered,
    result_reserialised,
    tool_output_cleared,
    images,
    reasoning_dropped_by_client,
    role_changed,
    content_form_changed,
)
LATE: tuple[Callable[[Board], None], ...] = (tool_call_edited, other_fields)
