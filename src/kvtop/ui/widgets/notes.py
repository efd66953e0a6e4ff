"""What the title of the turns says: where the rows come from, how many there are, and what goes past the tap. Pure."""

from __future__ import annotations

from kvtop.model.view import ServerView, TapView
from kvtop.ui.draw import Line, clip, pick, safe
from kvtop.ui.numbers import exact, pct
from kvtop.ui.turn_words import flying

ALL_OF_IT = 0.98
"""A tap that sees this share of the prompt tokens sees all: polls and the tap do not look at the same moment."""
WORTH_SAYING = 100
"""Fewer tokens than these that went past the tap are no news."""
FLAG = "--enable-prompt-tokens-details"
"""What lets a server tell cached tokens of a request."""
OPTION = "stream_options.include_usage"
"""What lets a client be told the tokens of its stream."""


def of_turns(server: ServerView, w: int) -> Line:
    """In at most w cells."""
    tap = server.tap
    if tap is not None and tap.problem:
        said = safe(tap.problem)
        return [(pick([said, f"captured turns: {clip(said, max(0, w - 16))}"], w), "warn")]
    if tap is not None and tap.unwritten:
        return [(pick(unwritten_words(tap, w), w), "warn")]
    if not server.turns:
        if not server.state.good:
            return [(pick(["none is known", ""], w), "d")]
        if tap is not None:
            listens = [f"the tap {safe(tap.listens[0])} listens; no turns yet"] if tap.listens else []
            return [(pick([*listens, "no turns yet"], w), "d")]
        return [(pick(["turns appear here when requests come", "no turns yet"], w), "d")]
    now = f"{exact(_in_flight(server))} in flight"
    if tap is None or not tap.captured:
        return [(pick(_counted(server, now), w), "d")]
    have = f"{exact(tap.captured)} captured"
    if past := past_words(tap):
        counted = [f"{now}, {have}; {past[0]}", *(f"{have}; {words}" for words in past), past[-1]]
        return [(pick(counted, w), "warn")]
    plain = [f"{now}, {have}, newest first", f"{now}, {have}", now]
    hint = [f"{plain[0]}; {FLAG} would tell cached tokens"] if tap.no_details and _caches(server) else []
    if streams := usage_words(tap):
        hint = [f"{words}; {streams[0]}" for words in plain[:2]] + [f"{have}; {words}" for words in streams]
    return [(pick([*hint, *plain], w), "d")]


def unwritten_words(tap: TapView, w: int) -> list[str]:
    """That turns wait for their store, and why, longest wording first."""
    why = safe(tap.unwritten)
    reason = why.rpartition(": ")[2]  # without the file's name
    wordings = [f"the store cannot be written: {why}", why, reason, clip(reason, max(0, w - len("turns wait: ")))]
    return [f"turns wait: {words}" for words in wordings]


def past_words(tap: TapView) -> list[str]:
    """What the counters say of the traffic that a tap does not see, longest wording first; empty where it sees all."""
    if tap.share is None or tap.share >= ALL_OF_IT or (tap.passed_by_tokens or 0) < WORTH_SAYING:
        return []
    share = pct(tap.share)
    return [
        f"tap sees {share} of the prompt tokens; the rest goes past it",
        f"tap sees {share} of the prompt tokens",
        f"tap sees {share} of the tokens",
        f"tap sees {share}",
    ]


def usage_words(tap: TapView) -> list[str]:
    """That streams tell no tokens, and whose doing that is, longest first; empty where they do. No flag of the server
    helps."""
    n = tap.no_usage or tap.usage_unsent
    if not n:
        return []
    streams = f"{n} stream{'' if n == 1 else 's'} without usage"
    if not tap.no_usage:
        return [f"{streams}: the server sent none", streams]
    return [f"{streams}: the client does not set {OPTION}", f"{streams}: no {OPTION}", streams]


def _in_flight(server: ServerView) -> int | None:
    """None where none is seen and the server does not tell: it cannot be read, or its gauges are not there."""
    n = 0
    for turn in server.turns:  # they stand first
        if not flying(turn):
            break
        n += turn.n
    told = server.state.good and server.window.all.requests.running is not None
    return n if n or told else None


def _caches(server: ServerView) -> bool:
    return server.config.prefix_caching is not False


def _counted(server: ServerView, now: str) -> list[str]:
    done = f"{exact(server.turns_total)} done"
    through = ["nothing through the tap yet"] if server.tap is not None and server.tap.listens else []
    return [
        *(f"from the counters: {now}, {done}; {words}" for words in through),
        f"from the counters: {now}, {done}, newest first",
        f"from the counters: {now}, {done}",
        f"counters: {now}, {done}",
        now,
    ]
