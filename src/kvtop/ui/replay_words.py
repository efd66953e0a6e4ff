"""A replay in lines: what it sends, what that costs, what has come of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtop.live.replaying import Offer
from kvtop.triage.kinds import Verdict
from kvtop.triage.replayed import Name, Replayed, Run
from kvtop.ui.draw import Line, pick, safe, wrap
from kvtop.ui.numbers import DASH, exact, pct, secs

SALTED = (
    "Each for one token, under a cache salt that nobody had. A salt keeps hashes apart, not room: what this writes "
    "evicts other blocks."
)
_MARKS = {Verdict.NO_FAULT: ("·", "t"), Verdict.UNKNOWN: ("?", "warn")}
_NAMES = 10


@dataclass(frozen=True, slots=True)
class _Step:
    name: Name
    what: list[str]
    """Longest first."""
    tokens: int | None = None


def steps(offer: Offer) -> list[_Step]:
    """The requests, in their order."""
    pair = offer.pair
    old, new = safe(pair.old), safe(pair.new)
    made = [
        _Step(Name.COLD, [f"{old}, which nobody has in the cache", old], pair.sent.old_tokens),
        _Step(Name.WARM, [f"{old} once more: what can be reused of it", f"{old} again"], pair.sent.old_tokens),
        _Step(Name.NEW, [f"{new} right behind it", new], pair.sent.new_tokens),
    ]
    if pair.repaired is not None:
        made += [
            _Step(Name.OLD_FIXED, [f"{old} with {pair.repaired.says}", f"{old} repaired"]),
            _Step(Name.NEW_FIXED, [f"{new} with the same", f"{new} repaired"]),
        ]
    return made


def rows(offer: Offer, runs: Sequence[Run], since: float | None, w: int) -> list[Line]:
    """One row a request. `since`: seconds that the one after `runs` has taken; None: nothing is sent just now."""
    done = {run.name: run for run in runs}
    made: list[Line] = []
    for n, step in enumerate(steps(offer)):
        name = step.name.value.replace("_", " ")
        head: Line = [(f"{name:<{_NAMES}} ", "t" if step.name in done else "d")]
        right: Line
        if (run := done.get(step.name)) is not None:
            tail = f"{secs(run.ttft_s) if run.ttft_s is not None else DASH:>8}"
            right = [(f"{exact(run.cached_tokens)} of {exact(run.prompt_tokens)} cached", "t")]
            right += [(f" {pct(run.share):>5}", "bright"), (tail, "d")]
        elif since is not None and n == len(runs):
            right = [(f"is sent, for {secs(since)} now", "bright")]
        else:
            right = [(DASH if step.tokens is None else f"{exact(step.tokens)} tokens", "d")]
        room = w - _NAMES - 1 - sum(len(text) for text, _ in right) - 2
        said = pick([*step.what, ""], max(0, room))
        made.append([*head, (f"{said:<{max(0, room)}}  ", "d"), *right])
    return made


def cost(offer: Offer, w: int) -> list[Line]:
    """What a person has to know before it is sent."""
    plan = offer.plan
    room = plan.pool_tokens is not None and (plan.write_tokens or 0) >= plan.pool_tokens
    said: Line = [("! " if room else "  ", "warn"), (f"It {safe(plan.sentence)}.", "warn" if room else "t")]
    return [*wrap(said, w, 2), *wrap([("  ", "t"), (SALTED, "d")], w, 2)]


def fixes(offer: Offer, key: str, w: int) -> list[Line]:
    """Which repair is sent as well, and which could be."""
    kinds, repaired = offer.pair.kinds, offer.pair.repaired
    if not kinds:
        return wrap([("  no cause of this pair can be repaired in a replay", "d")], w, 2)
    could = ", ".join(kind.value for kind in kinds)
    if repaired is None:
        return wrap([(f"  {key} sends both also as they would be without a cause: ", "d"), (could, "t")], w, 2)
    more = f"; {key} goes on to the next one: {could}" if len(kinds) > 1 else f"; {key} leaves that out again"
    return wrap([("  also sent with ", "d"), (safe(repaired.says), "t"), (more, "d")], w, 2)


def result(found: Replayed, w: int) -> list[Line]:
    """What it shows."""
    mark, style = _MARKS.get(found.verdict, ("×", "bad"))
    return wrap([(f"{mark} ", style), (safe(found.sentence), "bright")], w, 2)


def trouble(what: str, fix: str, w: int) -> list[Line]:
    """Why it cannot be done, and what to do."""
    rows = wrap([("× ", "bad"), (safe(what), "t")], w, 2)
    return rows + (wrap([("  ", "t"), (safe(fix), "d")], w, 2) if fix else [])
