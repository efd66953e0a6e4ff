"""The tokens of an earlier turn from those of a later one that begins with it, so that no server need be asked."""

from __future__ import annotations

from kvtop.capture.turn import Captured
from kvtop.triage.baseline import prompt_parts
from kvtop.triage.ids import WIDTH

HEAD = 2 * WIDTH
"""Of the head of an answer, with which a prompt ends: '<|im_start|>assistant' and a line's end, at least."""


def shortened(old: Captured, longer: Captured, ids: bytes) -> bytes | None:
    """The packed ids of the old turn's prompt; `ids` are those of the longer one. None: they cannot be told so.

    The old prompt's parts must be the first ones of the longer one, and what usage told of its length must end the
    longer one at a place where an answer begins: there the next part is the reply. A template that prints a message
    otherwise once it is no longer the last one makes another length, or another end.
    """
    end = (old.prompt_tokens or 0) * WIDTH
    if not HEAD <= end < len(ids) or ids[end - HEAD : end] != ids[-HEAD:]:
        return None
    mine, theirs = prompt_parts(old.outline), prompt_parts(longer.outline)
    if old.route is not longer.route or not mine or len(mine) >= len(theirs):
        return None
    same = all(
        (one.kind, one.role, one.digest) == (other.kind, other.role, other.digest)
        for one, other in zip(mine, theirs, strict=False)
    )
    return ids[:end] if same and theirs[len(mine)].role == "assistant" else None
