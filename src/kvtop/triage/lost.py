"""What an engine lost, told as the verdict on a turn or beside another one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.model.words import exact, secs
from kvtop.triage.between import turns_between
from kvtop.triage.engine_side import decided, lost_by, never_had
from kvtop.triage.finding import Finding
from kvtop.triage.kinds import Reason, Verdict
from kvtop.triage.result import Why
from kvtop.triage.seen import Seen
from kvtop.triage.split import by_change
from kvtop.triage.words import FIXES, because, named, rest, waited

OWN_COPY = (
    "send this conversation in one form: another cache_salt, system prompt or other tools make a second copy of it, "
    "and both do not fit; or more room for KV"
)
"""What mends an eviction by the turn's own conversation."""


def engine(seen: Seen) -> Why | None:
    """Less than the law expects; None: it got that, or nobody knows."""
    if seen.cached is None or seen.expected is None:
        return None
    if seen.counts(seen.lost):
        return _told(seen, seen.expected.tokens, lost_by(seen, seen.source))
    unread = never_had(seen)
    should = min(seen.expected.at_most, seen.expected.unread_common // seen.unit * seen.unit)
    if unread is not None and seen.counts(should - seen.cached):
        return _told(seen, should, [unread], had=False)
    return None


def _told(seen: Seen, expected: int, found: Sequence[Finding], *, had: bool = True) -> Why:
    """`had`: the cache had held it; else it would have, if the turn before had been read to its end."""
    missing = expected - (seen.cached or 0)
    cost_s = seen.cost_s(missing)
    cost = f", {secs(cost_s)}" if cost_s is not None else ""
    left = rest(seen, missing, by_change(seen, missing))
    shown, name = decided(found), named(seen)
    lines = (
        f"{exact(seen.cached)} of {exact(expected)} tokens came from the cache that should have",
        *(one.says for one in shown),
    )
    if seen.events is not None and seen.events.short and not any("KV events" in line for line in lines):
        lines = (*lines, seen.events.short)
    out = (*(one.says for one in found if one.shown is False and one.says), *_same_prompt(seen, had=had))
    id = str(seen.turn.id)
    if len(shown) == 1:
        tokens = f"{exact(missing)} {f'of {exact(expected)} ' if missing < expected else ''}tokens"
        lost = f"the engine lost {tokens}{cost}, " if had else f"{tokens} were missing{cost}: "
        sentence = f"{name} {waited(seen)}: {lost}{shown[0].clause}{left}"
        return Why(
            id, Verdict.ENGINE_LOST_CACHE, sentence, reason=shown[0].reason, evidence=lines, rules_out=out,
            expected_cached_tokens=expected, fix=_fix(seen, shown[0].reason), reread_tokens=missing,
            how=shown[0].clause, rest=left.removeprefix("; "),
        )  # fmt: skip
    fits = [one for one in shown or found if one.shown is not False]
    told = because([one.reason for one in fits])
    if len(shown) > 1:
        said = f"{told}, the evidence fits {'both' if len(shown) == 2 else 'each'}"
    else:
        said = f"nothing shows how; {told} would fit" if told else "nothing shows how"
        lines = (*lines, *(one.says for one in fits if one.says))
    sentence = f"{name} {waited(seen)}: it got {exact(missing)} tokens less than expected{cost}: {said}{left}"
    return Why(
        id, Verdict.UNKNOWN, sentence, candidates=tuple(one.reason for one in fits), evidence=lines, rules_out=out,
        expected_cached_tokens=expected, reread_tokens=missing, how=said, rest=left.removeprefix("; "),
    )  # fmt: skip


def _fix(seen: Seen, reason: Reason) -> str:
    source, talk = seen.source, seen.turn.conversation
    if reason is Reason.EVICTED and source is not None and talk is not None:
        between = turns_between(seen, source)
        if between and all(one.conversation == talk for one in between):
            return OWN_COPY
    return FIXES[reason]


def beside(seen: Seen, tokens: int) -> str:
    """What the engine lost on top of what a verdict tells."""
    expected = seen.expected.tokens if seen.expected is not None else 0
    shown = decided(lost_by(seen, seen.source))
    how = shown[0].clause if len(shown) == 1 else "nothing shows how"
    much = f"{exact(seen.cached)} of {exact(expected)} that are the same came from the cache"
    who = "the engine lost" if len(shown) == 1 else "the cache gave less than expected by"
    return f"{who} {exact(tokens)} tokens, {how}: {much}"


def _same_prompt(seen: Seen, *, had: bool) -> tuple[str, ...]:
    if seen.expected is None:
        return ()
    if by_change(seen, seen.lost):
        return ()
    common = seen.expected.common if had else seen.expected.unread_common
    return (f"a changed prompt: {exact(common)} tokens are the same from the beginning on",) if common else ()
