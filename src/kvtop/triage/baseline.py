"""Which captured turn to compare a turn with. Pure.

Not the request before it: the one that shares the longest beginning with it, among the last few of the same model (an
adapter is asked for as a model) on the same upstream. A title, a summary or another agent's turn may lie between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kvtop.capture.turn import Captured, Part, Route, TurnState
from kvtop.triage.ids import common
from kvtop.triage.reuse import Earlier

LOOKED_AT = 32
"""Turns that are looked back on."""
OLDER, ALIKE = 200, 4
"""Of so many turns of its agent before these so many more, where a turn begins a conversation."""
_PROMPTS = frozenset({"tool", "system", "message", "prompt"})


def before(turn: Captured, turns: Iterable[Captured], limit: int | None = None) -> list[Captured]:
    """The turns before it of the same model on the same upstream, oldest first; the last `limit` of them."""
    found = [
        old
        for old in turns
        if (old.upstream, old.model) == (turn.upstream, turn.model)
        and old.route is not Route.EMBEDDINGS
        and old.id != turn.id
        and _order(old) < _order(turn)
    ]
    found.sort(key=_order)
    return found if limit is None else found[-limit:]


def older(
    turn: Captured, rows: Iterable[Captured], near: Iterable[Captured], read: Callable[[int], Captured | None]
) -> list[Captured]:
    """Of its agent's turns before the `near` ones those whose prompts begin the most like its own, by their outlines,
    which `read` gets; of equals the newest."""
    known = {one.id for one in near}
    its = [one for one in before(turn, rows) if one.agent == turn.agent and one.id not in known]
    whole = [one for row in its[-OLDER:] if (one := read(row.id)) is not None]
    heads = [(common_head(turn.outline, one.outline), _order(one), one) for one in whole]
    best = sorted((head for head in heads if head[0]), key=lambda head: head[:2], reverse=True)
    return [one for _, _, one in best[:ALIKE]]


def has_prompt(turn: Captured) -> bool:
    """It asked for a text to be gone on with."""
    return turn.route in (Route.CHAT, Route.COMPLETIONS, Route.RESPONSES, Route.MESSAGES)


def was_read(old: Captured, at: float | None = None) -> bool | None:
    """Whether the prefill of a turn had ended (at a Unix time), so that all of its prompt was in the cache.

    None: an answer that is no stream shows no first token, and it had not ended well, or not yet.
    """
    if old.first_token_at is not None:
        return at is None or old.first_token_at <= at
    if old.state is TurnState.DONE:
        if old.ended_at is None or at is None or old.ended_at <= at:
            return True
        return None  # in one piece: somewhere on the way it was read
    if old.completion_tokens:
        return True
    if old.state is TurnState.FAILED or old.stream:
        return False
    return None


def by_ids(
    turn: Captured, ids: bytes, known: Mapping[int, bytes], turns: Iterable[Captured], unit: int = 1
) -> Captured | None:
    """The turn before it whose prompt is the most alike from its beginning on, by the packed token ids
    (`kvtop.triage.ids`), `known` by turn; those without are left out.

    `unit`: a prefix is matched in multiples of so many tokens, and less than that decides nothing against a turn of its
    own conversation. None: no turn before it shares a token.
    """
    old = [one for one in before(turn, turns) if one.id in known]
    lengths = {one.id: common(ids, known[one.id]) for one in old}
    return _best(turn, old, lambda one: lengths[one.id], max(1, unit))


def by_outlines(turn: Captured, turns: Iterable[Captured]) -> Captured | None:
    """The same by the parts of their prompts, weighed by their size. None: no turn before it begins with the same
    part."""
    old = [one for one in before(turn, turns) if one.outline]
    lengths = {one.id: common_head(turn.outline, one.outline) for one in old}
    return _best(turn, old, lambda one: lengths[one.id], 1)


def stepped_aside(parent: Captured, own: Iterable[Captured]) -> bool:
    """Whether a turn may have left the line of its conversation alone, so that the next one goes on from an earlier
    one. Of prompts that go to and fro each is compared with the one before it. `own`: its conversation's."""
    before_it = by_outlines(parent, own)
    return before_it is None or before_it.id == parent.parent


def nearest(
    turn: Captured,
    parent: Captured | None,
    own: Sequence[Captured],
    ids: Mapping[int, bytes] | None = None,
    unit: int = 1,
) -> Captured | None:
    """The one to compare a turn with. `parent`: the turn that it continues; `own`: the turns before it that it may be
    compared with; `ids`, `unit` as of `by_ids`, where a server told them: without, texts decide."""
    if parent is not None and not stepped_aside(parent, own):
        return parent
    if ids is not None and (parent is None or parent.id in ids):
        found = by_ids(turn, ids[turn.id], ids, own, unit)
        if found is not None:
            return found
    return by_outlines(turn, own) or parent


def common_head(a: Sequence[Part], b: Sequence[Part]) -> int:
    """Bytes of the parts that two prompts begin with alike, whether their template prints the tools first or the system
    prompt: the longer of the two."""
    one, other = prompt_parts(a), prompt_parts(b)
    return max(_head(one, other), _head(_system_first(one), _system_first(other)))


def _system_first(parts: Sequence[Part]) -> list[Part]:
    tools = [part for part in parts if part.kind == "tool"]
    rest = [part for part in parts if part.kind != "tool"]
    end = next((i for i, part in enumerate(rest) if not _is_system(part)), len(rest))
    return [*rest[:end], *tools, *rest[end:]]


def _is_system(part: Part) -> bool:
    return part.kind == "system" or part.role in ("system", "developer")


def _head(a: Sequence[Part], b: Sequence[Part]) -> int:
    size = 0
    for one, other in zip(a, b, strict=False):
        if (one.kind, one.role, one.digest) != (other.kind, other.role, other.digest):
            break
        size += one.size
    return size


def earlier(old: Captured, prompt: bytes, turn: Captured, reply: bytes | None = None) -> Earlier:
    """An old turn as `History` takes it in when a later turn is judged. `prompt`, `reply`: packed ids."""
    arrived = turn.sent_at or turn.started_at
    over = old.ended_at is not None and old.ended_at <= arrived and old.state is TurnState.DONE
    return Earlier(
        key=old.id,
        prompt=prompt,
        reply=reply if over else None,
        reply_tokens=old.completion_tokens if over else None,
        cached=old.cached_tokens,
        whole=was_read(old, arrived) is True,
    )


def admitted(turns: Iterable[Captured]) -> list[Captured]:
    """In the order in which the server took them in, as far as that can be told: by when they were sent."""
    return sorted(turns, key=lambda one: (one.sent_at or one.started_at, one.id))


def _order(turn: Captured) -> tuple[float, int]:
    return turn.started_at, turn.id


def prompt_parts(outline: Sequence[Part]) -> list[Part]:
    """Those that reach the prompt."""
    return [part for part in outline if part.kind in _PROMPTS]


def _best(turn: Captured, old: Sequence[Captured], shared: Callable[[Captured], int], unit: int) -> Captured | None:
    def rank(one: Captured) -> tuple[int, bool, int, float, int]:
        same = turn.conversation is not None and one.conversation == turn.conversation
        # Of other conversations the longest beginning says most of what differs, also within a unit.
        return shared(one) // unit, same, 0 if same else shared(one), *_order(one)

    return max((one for one in old if shared(one)), key=rank, default=None)
