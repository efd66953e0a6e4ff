"""What a changed prompt cost, told as the verdict on a turn or beside another one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.errors import printable
from kvtop.model.words import exact, secs
from kvtop.triage.broken import blamed, reread
from kvtop.triage.kinds import KEYS, SAYS_ANEW, Because, Kind, Verdict, Who
from kvtop.triage.pricing import charged
from kvtop.triage.result import Cause, Why
from kvtop.triage.seen import Seen
from kvtop.triage.words import UNTRUE, cause, named, place, rest, section, waited

ANOTHER_KEY = {
    Kind.CACHE_SALT_CHANGED: "it was sent with another cache salt than the turn before",
    Kind.MODEL_CHANGED: "it was sent with another model than the turn before",
    Kind.PROMPT_LOGPROBS_SET: "it asks for prompt_logprobs, and such a request reads nothing from the cache",
}

MET_FIRST = "the sentence names what the prompt meets first: while that varies, mending the others gains nothing"
"""Said where another cause costs more."""


def prompt(seen: Seen) -> Why | None:
    """It left the prompt that it goes on from, and what stands behind was read anew."""
    broken = blamed(seen)
    anew = reread(seen, broken)
    first = _first(seen, broken)
    if anew is None or not (seen.counts(anew) or _says_anew(seen, first)):
        return None
    told, how = (anew, "tokens were read again") if seen.counts(anew) else (seen.turn.new_tokens or 0, "new tokens")
    cost_s = seen.cost_s(told)
    about = "~" if seen.diff is not None and seen.diff.method == "text" else ""
    cost = f", {about}{secs(cost_s)}" if cost_s is not None else ""
    name, at = f"{named(seen)} {waited(seen)}", _where(seen, first)
    again = f"{about}{exact(told)} {how}{cost}{rest(seen, told, seen.lost)}"
    if first is not None and first.kind in KEYS:
        sentence = f"{name}: {ANOTHER_KEY[first.kind]}; {again}"
    elif first is not None and first.who is Who.NOBODY:
        sentence = f"{name}: {cause(first)}, by design; {again}"
    else:
        kind = f" ({cause(first)})" if first is not None else ""
        sentence = f"{name}: the prefix broke{at}{kind}; {again}"
    lines = [printable(one.says) for one in broken]
    costs = {id(one): cost.told_tokens for one, cost in zip(broken, charged(broken, anew), strict=True)}
    behind = sum(costs[id(one)] or 0 for one in broken if one is not first)
    if first is not None and costs.get(id(first)) is not None and behind:
        lines.append(
            f"to mend the first of them brings back {exact(costs[id(first)])} tokens; "
            f"{exact(behind)} more stand behind the others"
        )
    if first is not None and first.kind not in KEYS and _is_cheaper(first, broken):
        lines.append(MET_FIRST)
    if first is None and seen.turn.changed:
        lines.append(f"other than in the turn before: {', '.join(seen.turn.changed).replace('_', ' ')}")
    return Why(
        str(seen.turn.id),
        Verdict.PROMPT_DIVERGED,
        sentence,
        reason=str(first.kind) if first is not None else None,
        evidence=(*lines, *_agrees(seen)),
        rules_out=served(seen),
        fix=printable(first.fix) if first is not None else None,
        reread_tokens=anew,
    )


def beside(seen: Seen, tokens: int) -> str:
    """What a changed prompt cost on top of what a verdict tells."""
    first = _first(seen, blamed(seen))
    if first is not None and first.kind in KEYS:
        how = ANOTHER_KEY[first.kind]
    elif first is not None and first.who is Who.NOBODY:
        how = f"{cause(first)}, by design"
    else:
        how = f"the prefix broke{_where(seen, first)}{f' ({cause(first)})' if first is not None else ''}"
    return f"{how}: {exact(tokens)} tokens were read again for that"


def _says_anew(seen: Seen, first: Cause | None) -> bool:
    """What it says in the place of the old prompt is worth a word, though nothing was read again."""
    return first is not None and first.kind in SAYS_ANEW and seen.counts(seen.turn.new_tokens or 0)


def _is_cheaper(first: Cause, broken: Sequence[Cause]) -> bool:
    """Another one of them costs more, and stands before it in their list."""
    return any((one.told_tokens or 0) > (first.told_tokens or 0) for one in broken)


def _first(seen: Seen, broken: Sequence[Cause]) -> Cause | None:
    """The cause that the prompt meets first, since mending another one alone gains nothing; another key before all."""
    if key := next((one for one in broken if one.kind in KEYS), None):
        return key
    told = seen.diff.first if seen.diff else None
    found = (one for one in broken if told is not None and (one.pointer, one.section) == (told.pointer, told.section))
    return next(found, broken[0] if broken else None)


def _where(seen: Seen, cause: Cause | None) -> str:
    first = seen.diff.first if seen.diff else None
    if first is not None and cause is not None and cause.section and cause.section != first.section:
        return f" in {place(cause)}"
    if first is None:
        common = seen.expected.common if seen.expected else 0
        return f" at token {exact(common)}" if common else ""
    token = f" at token {exact(first.token)}" if first.token is not None else ""
    if not first.section:
        return token
    return f"{token} in {place(cause) if cause is not None and cause.section else section(first.section)}"


def _agrees(seen: Seen) -> tuple[str, ...]:
    """The server's number beside the prompt's."""
    expected, cached = seen.expected, seen.cached
    if seen.untrue:
        return (UNTRUE,)
    if cached is None:
        return ("the server does not say what it had cached",)
    if expected is None:
        return ()
    if expected.tokens <= cached <= expected.at_most:
        return (f"the server reports {exact(cached)} cached, which is what the prompt allows: both agree",)
    return ()


def served(seen: Seen) -> tuple[str, ...]:
    """That nothing was lost."""
    if seen.expected is None or seen.cached is None or seen.lost:
        return ()
    return ("a lost cache: the engine gave all that this prompt could have had",)


def boundary(seen: Seen) -> Why | None:
    """Most of what it read the server had read before, and had saved no state from which to go on."""
    expected, new = seen.expected, seen.turn.new_tokens
    if expected is None or new is None or Because.HYBRID_BOUNDARY not in expected.because or seen.lost:
        return None
    anew = expected.plain - (seen.cached or 0)
    if not seen.counts(anew) or 2 * anew < new or took_too_long(seen, new):
        return None
    shared = f"{exact(anew)} tokens that it shares with an earlier prompt were read again"
    sentence = f"{named(seen)} {waited(seen)}: {shared}; expected on this model, the next one hits"
    return Why(str(seen.turn.id), Verdict.NO_FAULT, sentence, rules_out=served(seen))


def took_too_long(seen: Seen, tokens: int) -> bool:
    """Reading so many tokens does not explain its wait."""
    return seen.ttft is not None and bool(seen.rate) and seen.limits.slow(seen.ttft, tokens / (seen.rate or 1.0))
