"""Whether a server lost its whole cache at once: it was started anew, or told to clear it."""

from __future__ import annotations

import itertools
import math

from kvtop.capture.turn import Captured, Sample
from kvtop.model.words import exact, span
from kvtop.triage.between import all_cold, computed_between, hit_elsewhere, own_samples, samples_between
from kvtop.triage.finding import Finding, names_of
from kvtop.triage.kinds import Reason
from kvtop.triage.seen import Seen

CLOCKS_S = 60.0
"""How far the clocks of two machines may be apart."""
_NEVER_FALL = ("prompt_tokens", "cached_tokens", "queries", "hits", "generation_tokens", "finished")


TOLD_S = 1.0
"""So long after a step at most its KV events come."""


def restarted(seen: Seen, source: Captured) -> Finding:
    """Another process of the server answered than when the source was read."""
    path = _path(seen, source)
    if not path:
        return Finding(Reason.RESTART, None)
    a, b = path[0], path[-1]
    if a.started_at is not None and b.started_at is not None and a.started_at != b.started_at:
        if older_process(seen, source):
            return Finding(Reason.RESTART, None)
        age = seen.arrived - b.started_at
        when = f"{span(age)} before" if age > 0 else "meanwhile"
        says = f"the server's process began {when}, after turn {source.id} had ended"
        return Finding(Reason.RESTART, True, says, f"it was restarted {when}")
    fell = next((name for name in _NEVER_FALL if _falls(path, name)), None)
    if fell is not None:
        says = f"the server's counters fell since turn {source.id}: they began again"
        return Finding(Reason.RESTART, True, says, "its counters began again")
    if a.started_at is not None and b.started_at is not None:
        return Finding(Reason.RESTART, False, f"a restart: the process start is unchanged since turn {source.id}")
    if any(getattr(a, name) is not None and getattr(b, name) is not None for name in _NEVER_FALL):
        return Finding(Reason.RESTART, False, f"a restart: no counter fell since turn {source.id}")
    return Finding(Reason.RESTART, None)


def process_began(seen: Seen, source: Captured) -> float | None:
    """Unix time at which the process that answered this turn began, where it is another than the source's."""
    path = _path(seen, source)
    if not path or path[0].started_at is None or path[0].started_at == path[-1].started_at:
        return None
    return path[-1].started_at


def _path(seen: Seen, source: Captured) -> list[Sample]:
    """The server's counters from the last look at them in the source's time to the last one before this turn's first
    token, else the first one after it; empty where one of the two is missing."""
    if source.upstream != seen.turn.upstream:
        return []
    old = [one for one in source.samples if one.at >= (source.first_token_at or source.started_at)]
    own = own_samples(seen, math.nextafter(old[-1].at, math.inf)) if old else []  # the same look tells nothing
    if not old or not own:
        return []
    a, b = old[-1], own[-1]
    return [a, *(one for one in samples_between(seen, source) if a.at < one.at < b.at), b]


def older_process(seen: Seen, source: Captured) -> bool:
    """The process that answered ran already when the source was asked of another one: the address has several."""
    path = _path(seen, source)
    if not path or path[0].started_at is None or path[-1].started_at is None:
        return False
    a, b = path[0].started_at, path[-1].started_at
    return b < a or (b > a and b + CLOCKS_S < source.started_at)


def _falls(path: list[Sample], name: str) -> bool:
    values = [value for one in path if (value := getattr(one, name)) is not None]
    return any(later < sooner for sooner, later in itertools.pairwise(values))


def reset(seen: Seen, source: Captured, restart: Finding) -> Finding:
    """The same process threw all of it away."""
    since, until = seen.since(source), seen.admitted
    # An idle engine tells a reset only with the next request, which is this one.
    told = (seen.turn.first_token_at or seen.turn.ended_at or until) + TOLD_S
    times = [at for at in (seen.events.cleared_at if seen.events else ()) if since <= at <= told]
    if times:
        when = f"{span(max(0.0, seen.arrived - max(times)))} before"
        return Finding(
            Reason.CACHE_RESET, True, f"the prefix cache was cleared {when}", f"its cache was cleared {when}"
        )
    hit = hit_elsewhere(seen, source) if not seen.server.offload else None  # else it may have come from the tier
    if hit is not None:
        share = f"{hit.cached_share:.0%}".replace("%", " %")
        says = f"a reset of the cache: turn {hit.id} of another conversation hit {share} after it"
        return Finding(Reason.CACHE_RESET, False, says)
    path = _path(seen, source)
    if restart.shown is not True and (calls := _resets(path)):
        says = f"/reset_prefix_cache or /sleep was called {_times(calls)} since turn {source.id}"
        return Finding(Reason.CACHE_RESET, True, says, "its cache was cleared by request")
    if seen.events is not None and seen.events.complete:
        return Finding(Reason.CACHE_RESET, False, "a reset of the cache: the KV events tell of none")
    read = seen.turn.first_token_at or seen.turn.ended_at or until
    if path and _resets([path[0], *(one for one in seen.turn.samples if one.at > read)]) == 0:
        return Finding(Reason.CACHE_RESET, False, f"a reset of the cache: none was asked for since turn {source.id}")
    cold = all_cold(seen, source)
    if len(cold) >= 2 and restart.shown is False and _much_read(seen, source) is False:
        says = f"{len(cold)} other conversations that went on found nothing either: {names_of(cold)}"
        return Finding(Reason.CACHE_RESET, True, says, "every conversation was cold at once: its cache was cleared")
    return Finding(Reason.CACHE_RESET, None)


def _resets(path: list[Sample]) -> float | None:
    """Calls that clear the cache from the first of these looks to the last; None: they are not counted."""
    told = [one.resets for one in path if one.resets is not None]
    return told[-1] - told[0] if len(told) == len(path) > 1 else None


def _times(count: float) -> str:
    return "once" if count == 1 else f"{exact(count)} times"


def _much_read(seen: Seen, source: Captured) -> bool | None:
    """Whether at least a pool full was computed since."""
    pool, computed = seen.server.pool_tokens, computed_between(seen, source)
    return None if pool is None or computed is None else computed >= pool
