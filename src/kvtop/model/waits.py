"""The sentence about a long wait: what it went into, as far as the counters tell, and when it was.

The parts that are named add up to the wait, the order is that in which they happened, and a part is left out only when
it is less than a tenth. Why a prompt was read anew is not in the counters.
"""

from __future__ import annotations

from kvtop.model.downs import Around
from kvtop.model.shown_turn import CONTINUES, Turn
from kvtop.model.view import ServerView, seconds_of
from kvtop.model.words import ago, exact, lasted, nb, secs

NEWS_FOR_S = 300.0
"""A restart is told no longer than this."""

NEW_INPUT_S = 60.0
"""Neither is a wait with nothing to mend: a long input, or the first turn of a conversation."""

FRESH_S = 15.0
"""A wait that ended longer ago than this comes after a queue that is there now."""

SMALL = 0.1
"""A share of the wait below this need not be named."""

WHEN_AFTER_S = 60.0
"""A wait that ended longer ago than this is told with its age."""

UNTOLD = "why is not in the counters"

NOT_KNOWN = "why is not known"

CHANGED_OR_LOST = (
    "the prompt differs from the turn before, or the cache was lost: kvtop cannot tell which yet",
    "the prompt changed or the cache was lost: which is not known",
    "the prompt changed or the cache was lost",
)
"""Of a captured turn that continues another one, longest first."""

_BEGINS = {
    "first": "first turn of a conversation",
    "subagent": "first turn of a subagent",
    "compaction": "its history was compacted",
}
"""The relations of `BEGINS` in words."""

Made = tuple[str, list[tuple[str, str]]]
"""Tone and wordings, the best first: (first clause, the rest)."""


def slow_turn(view: ServerView, around: Around) -> Turn | None:
    """The turn that waited longest, among the slow ones of the chosen window newer than any that was looked at.

    Slow is what the counters call slow, and any wait that is long whatever the reason. One with nothing to mend comes
    after the others, and is news for a minute at most, however long the window.
    """
    seconds = seconds_of(view.window_key)
    slow = []
    for turn in view.turns:
        if turn.ended_at is None:
            continue
        if seconds is not None and around.now - turn.ended_at > seconds:
            break  # those that ended are in the order of their ends
        if not turn.waited or turn.own or turn.ttft_s is None:
            continue
        if (view.url, turn.key) in around.opened:
            break  # who has looked at one need not be told of what was before it
        told_s = seconds
        if turn.new_input and (turn.captured or not turn.slow):
            told_s = min(seconds or NEW_INPUT_S, NEW_INPUT_S)
        if told_s is None or around.now - turn.ended_at <= told_s:
            slow.append(turn)
    return max(slow, key=lambda t: (not t.new_input, t.ttft_s or 0.0), default=None)


def waiting_turn(view: ServerView, around: Around) -> Turn | None:
    """A request that has been read for long and has no first token yet, where the counters tell when it came."""
    began = [t for t in view.turns if t.state == "in_flight" and t.phase == "reads" and t.started_at is not None]
    turn = min(began, key=lambda t: t.started_at or 0.0, default=None)
    if turn is None or turn.started_at is None or around.now - turn.started_at < around.slow_ttft_s:
        return None
    return turn


def told(view: ServerView, around: Around) -> Turn | None:
    """The turn that is spoken of: one that waits now, else the one that waited longest, if there is one."""
    return waiting_turn(view, around) or slow_turn(view, around)


def _waiting_now(turn: Turn, around: Around) -> Made:
    assert turn.started_at is not None
    wait = nb(lasted(around.now - turn.started_at))
    one = f"turn {turn.name}" if turn.numbered else "a request"
    who = one if turn.n == 1 else f"{turn.n} requests"
    first = f"{who} waits for {wait}:" if turn.n == 1 else f"{who} wait for {wait}:"
    said = [(first, "no first token yet")]
    if turn.n == 1 and turn.new_tokens is not None and turn.prompt_tokens is not None:
        read = f"{exact(turn.new_tokens)} of {exact(turn.prompt_tokens)} prompt tokens are read anew"
        said.insert(0, (first, f"{read}, no first token yet"))
    return "warn", said


def slow_now(view: ServerView, around: Around) -> Made | None:
    """As `slow`, while it is fresh: what waits in the queue now comes before a wait that is over."""
    turn = told(view, around)
    if turn is None or (turn.ended_at is not None and around.now - turn.ended_at > FRESH_S):
        return None
    return slow(view, around)


def slow(view: ServerView, around: Around) -> Made | None:
    """What is said of the turn that is spoken of."""
    turn = told(view, around)
    if turn is None:
        return None
    if turn.ended_at is None:
        return _waiting_now(turn, around)
    first = f"turn {turn.name} waited {nb(secs(turn.ttft_s))}:"
    if turn.n > 1:
        first = f"turn {turn.name}, {turn.n} requests, waited {nb(secs(turn.ttft_s))} on average:"
    tone = "warn" if turn.new_input or turn.judging or unsure(turn) else "bad"
    past = around.now - turn.ended_at
    when = f", {nb(ago(past))}" if past > WHEN_AFTER_S else ""
    full, brief = _why(turn)
    said = [w + end for words in (full, brief) for end in dict.fromkeys((when, "")) for w in words]
    return tone, [(first, rest) for rest in said]


def unsure(turn: Turn) -> bool:
    """What was found out about it fits several reasons."""
    return turn.finding is not None and turn.finding.tone == "unsure" and turn.finding.tells


def _why(turn: Turn) -> tuple[list[str], list[str]]:
    """(Wordings that tell all that is known, wordings that tell less), each longest first."""
    if turn.finding is not None and turn.finding.clauses:
        return list(turn.finding.clauses[:2]), list(turn.finding.clauses[2:])
    if turn.judging:
        return ["why is being worked out"], []
    queue, prefill = parts(turn)
    if turn.captured and turn.queue_s is None and not turn.may_have_read:
        return _unread(turn)
    if turn.captured and turn.new_input and turn.relation in _BEGINS:
        words = _BEGINS[turn.relation]
        new = words if turn.new_tokens is None else f"{words}, {exact(turn.new_tokens)} new tokens"
        return [f"queue {queue}, then {new}" if queue else new], [new]
    if turn.new_input and turn.new_tokens is not None:
        new = f"{exact(turn.new_tokens)} new tokens, a long input"
        if queue:
            return [f"queue {queue}, then {new}"], [new]
        return [f"{new}; nothing to mend"], [new]
    queued = f"{'queued' if turn.verdict == 'queued' else 'queue'} {queue}"
    if queue and turn.queue_ruled and not prefill:
        return [queued if turn.verdict == "queued" else f"{queued}, in line or for a KV load", queued], []
    if turn.new_tokens is not None and turn.prompt_tokens is not None:
        again = "" if turn.queue_ruled else " anew"
        took = f" in {prefill}" if prefill else ""
        read = f"{exact(turn.new_tokens)} of {exact(turn.prompt_tokens)} prompt tokens read{again}{took}"
        if queue:
            brief = [f"{queued}, prefill {prefill}"] if prefill else []
            return [f"{queued}, then {read}"], [*brief, queued if turn.queue_ruled else read]
        return [*(f"{read}; {why}" for why in _untold(turn)), read], []
    if queue and prefill:
        return [f"{queued}, prefill {prefill}"], []
    return list(_untold(turn)), []


def _unread(turn: Turn) -> tuple[list[str], list[str]]:
    """Of a captured turn whose wait was not for reading, and whose queue time nobody told."""
    if not turn.queue_seen:
        read = "" if turn.read_s is None else f"reading its prompt takes {nb(secs(turn.read_s))}; "
        return [f"{read}{NOT_KNOWN}", NOT_KNOWN], []
    if turn.read_s is None or turn.ttft_s is None:
        return ["it queued while others ran"], []
    queue = nb(f"~{secs(turn.ttft_s - turn.read_s)}")
    return [f"it queued for {queue} while others ran", "it queued while others ran"], []


def _untold(turn: Turn) -> tuple[str, ...]:
    """That the reason is not known, longest first. What the prompt was is known of a captured turn."""
    if not turn.captured:
        return (UNTOLD,)
    if turn.relation not in CONTINUES:
        return ("why cannot be told yet",)
    if not turn.accused:
        return (NOT_KNOWN,)
    return (f"it has {turn.changes}", turn.changes) if turn.changed else CHANGED_OR_LOST


def parts(turn: Turn) -> tuple[str, str]:
    """(queue, prefill) of its TTFT in words that add up to the TTFT as it is written; empty: unknown, or too small."""
    queue, prefill, ttft = turn.queue_s, turn.prefill_s, turn.ttft_s
    if queue is None or prefill is None or ttft is None:
        return "", "" if prefill is None else nb(secs(prefill))
    if queue < SMALL * ttft:
        return "", nb(secs(prefill))
    if prefill < SMALL * ttft:
        return nb(secs(queue)), ""
    if min(queue, prefill) >= 9.95 and abs(queue + prefill - ttft) < 1:
        queue = float(round(queue))  # all three are written in whole seconds: the parts shall add up to the eye
        prefill = round(ttft) - queue
    return nb(secs(queue)), nb(secs(prefill))
