"""How an engine lost what it should have had: for each reason whether there is evidence for it, or against it.

A reason without positive evidence is never named; one that nothing rules out is a candidate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from kvtop.capture.turn import Captured, Sample, TurnState
from kvtop.model.words import exact, secs
from kvtop.triage.all_gone import older_process, process_began, reset, restarted
from kvtop.triage.baseline import was_read
from kvtop.triage.between import (
    computed_between,
    counted_between,
    last_look,
    most_between,
    replays_between,
    requests_between,
    samples_between,
    turns_between,
)
from kvtop.triage.engine import Layers
from kvtop.triage.finding import Finding, names_of
from kvtop.triage.kinds import Reason
from kvtop.triage.room import Touched, touched_by_turns, touched_least, touched_most
from kvtop.triage.seen import Seen
from kvtop.triage.words import were_preempted

STEP_S = 0.5
"""An engine's step takes no longer: what a turn leaves is there a step after its end."""
TOO_FAST = 4.0
"""A first token that came so many times faster than its new tokens can be read was not computed from them."""
STUCK_AFTER = 3
"""Prompts in a row that found nothing, one of them the same as one before."""
_REPLICA_HEADERS = ("x-litellm-model-id", "x-litellm-model-api-base", "x-served-by", "x-backend", "x-upstream")
"""By which gateways say who answered."""
_BROKE = {TurnState.ABORTED: "was aborted", TurnState.CUT: "broke off", TurnState.FAILED: "failed"}
_DOMINATES = {
    Reason.PREVIOUS_ABORTED: {Reason.EVICTED, Reason.OFFLOAD_NOT_LOADED, Reason.STUCK_CACHE},
    Reason.HASH_SEED: {Reason.RESTART, Reason.EVICTED, Reason.STUCK_CACHE, Reason.OFFLOAD_NOT_LOADED},
    Reason.RESTART: {Reason.CACHE_RESET, Reason.EVICTED, Reason.STUCK_CACHE, Reason.OFFLOAD_NOT_LOADED},
    Reason.CACHE_RESET: {Reason.EVICTED},
    Reason.OFFLOAD_NOT_LOADED: {Reason.EVICTED},
    Reason.REPLICA: {Reason.EVICTED, Reason.OFFLOAD_NOT_LOADED, Reason.STUCK_CACHE},
    Reason.METRIC_WRONG: {Reason.STUCK_CACHE},
}
"""A reason that explains by itself what the others would."""


def lost_by(seen: Seen, source: Captured | None) -> list[Finding]:
    """For what a turn did not get although the cache had held it. `source`: the turn that left it there; None: it is
    not among those that were seen, and nothing can be looked into."""
    if source is None:
        return [Finding(reason, None) for reason in (Reason.CACHE_RESET, Reason.EVICTED)]
    restart = restarted(seen, source)
    if restart.shown:  # it explains all, and no count goes on from one process to the next
        if (gone := _gone_before(seen, source)) is not None:
            return [gone]
        told = [restart, _aborted(seen, source), _replica(seen, source), _hash_seed(seen, source, restart)]
        return [one for one in told if one is not None]
    evicted = _evicted(seen, source)
    found = [
        restart,
        reset(seen, source, restart),
        evicted,
        _aborted(seen, source),
        _still_running(seen, source),
        _replica(seen, source),
        _not_loaded(seen, source, evicted),
        _hash_seed(seen, source, restart),
        _stuck(seen, source),
        _metric(seen),
    ]
    return [one for one in found if one is not None]


def never_had(seen: Seen) -> Finding | None:
    """For what a turn would have had if the prompt of the one before it had been read to its end."""
    source = seen.by_id(seen.expected.unread) if seen.expected else None
    if source is None or was_read(source, seen.admitted) is not False:
        return None
    if source.ended_at is not None and source.ended_at <= seen.admitted:
        return _aborted(seen, source)
    if (source.cached_tokens or 0) > (seen.cached or 0):
        return None  # it found more of what both begin with: this turn was taken in before it
    return _still_running(seen, source) if source.state is not None else None


def decided(found: Iterable[Finding]) -> list[Finding]:
    """Those that are shown, without what another one of them explains by itself."""
    shown = [one for one in found if one.shown]
    reasons = {one.reason for one in shown}
    over = set().union(*(_DOMINATES.get(reason, set()) for reason in reasons))
    return [one for one in shown if one.reason not in over]


# each reason


def _evicted(seen: Seen, source: Captured) -> Finding:
    reason, events, pool = Reason.EVICTED, seen.events, seen.server.pool_tokens
    expected = seen.expected.tokens if seen.expected else 0
    since, until = seen.since(source), seen.admitted
    clause = _evicted_by(seen, source)
    gone = [
        one
        for one in (events.gone if events else ())
        if one.tier == "GPU" and since <= one.at <= until and one.end_tokens <= expected
    ]
    if gone:
        blocks = "1 block" if len(gone) == 1 else f"{len(gone)} blocks"
        says = f"KV events: {blocks} of this prefix left the device since turn {source.id}"
        return Finding(reason, True, says, clause)
    came = _came(seen)
    touched, computed = touched_least(seen, source), computed_between(seen, source)
    alone = seen.server.engines in (None, 1)
    if pool is not None and touched is not None and alone:  # of several engines each has a share of the pool
        says = _did_not_fit(seen, source, touched, pool)
        if says:
            return Finding(reason, True, says, clause)
    kept = samples_between(seen, source)
    preempted = [one.preempted for one in kept if one.preempted is not None]
    if alone and len(preempted) > 1 and preempted[-1] > preempted[0]:
        said = were_preempted(preempted[-1] - preempted[0])
        says = f"the pool was full since turn {source.id}: {said}"
        return Finding(reason, True, says, clause)
    held = _held_by_others(seen, kept, since)
    if pool is not None and held is not None and (1 - min(1.0, held)) * pool < expected - seen.unit:
        says = f"running requests held {held:.0%} of the pool since turn {source.id}".replace("%", " %")
        return Finding(reason, True, f"{says}: there was no room left for this prefix", clause)
    if events is not None and events.complete and not gone and events.held >= expected:
        return Finding(reason, False, "eviction: by the KV events none of its blocks left the device")
    most = most_between(seen, source)
    if most is not None and most < (computed or 0.0):
        return Finding(reason, None)  # they contradict each other
    if most == 0:
        return Finding(reason, False, f"eviction: nothing was computed since turn {source.id}")
    full = alone and seen.server.layers is Layers.FULL  # on others its blocks may be taken while the pool has room
    room = touched_most(seen, source) if full else None
    if most is not None and room is not None and pool is not None and room + expected <= pool:
        says = f"eviction: no more than {exact(most)} tokens were {came} since turn {source.id}"
        return Finding(reason, False, f"{says}, and the pool of {exact(pool)} had room")
    return Finding(reason, None, f"{exact(computed)} tokens were {came} in between" if computed else "")


def _gone_before(seen: Seen, source: Captured) -> Finding | None:
    """All of it was evicted in the process that had read it: the restart took nothing of it. None: not for certain."""
    began, pool = process_began(seen, source), seen.server.pool_tokens
    if began is None or pool is None or seen.server.engines not in (None, 1) or seen.server.offload:
        return None
    then = (one for one in seen.others if (one.first_token_at or one.ended_at or math.inf) < began)
    old = replace(seen, others=tuple(then))
    touched = touched_by_turns(old, source)
    if touched is None or touched.tokens < pool:
        return None
    says = f"at least {exact(touched.tokens)} tokens of others were read, or found in the cache, since turn {source.id}"
    return Finding(
        Reason.EVICTED,
        True,
        f"{says} and before the server was restarted: the pool holds {exact(pool)}",
        f"evicted by {names_of(turns_between(old, source))}, before the server was restarted",
    )


def _evicted_by(seen: Seen, source: Captured) -> str:
    """Who asked what took its room, as far as that is known."""
    turns, replays = turns_between(seen, source), replays_between(seen, source)
    told = [one.new_tokens for one in replays if one.new_tokens is not None]
    own, n = sum(told), len({one.replay for one in replays})
    named = "a kvtop replay" if n == 1 else f"{n} kvtop replays"
    by = [names_of(turns)] if turns else []
    if own:
        by.append(f"{exact(own)} tokens of {named}")
    left = (counted_between(seen, source) or 0.0) - own - len(told)  # each wrote a token as well
    if not turns and left >= seen.unit:
        broken = f", among them {named}, broken off" if len(told) < len(replays) else ""
        by.append(f"requests that went past the tap{broken}")
    return f"evicted by {' and '.join(by)}" if by else "evicted"


def _came(seen: Seen) -> str:
    return "loaded or computed" if seen.server.offload else "computed"


def _did_not_fit(seen: Seen, source: Captured, touched: Touched, pool: int) -> str:
    """What shows that this prefix, its tail first, had to make room; empty: it may have fitted."""
    expected = seen.expected.tokens if seen.expected else 0
    much = f"{exact(computed_between(seen, source))} tokens were {_came(seen)}"
    if touched.found:
        much = f"at least {exact(touched.tokens)} tokens of others were read, or found in the cache,"
    if touched.tokens >= pool:
        return f"{much} since turn {source.id}, the pool holds {exact(pool)}"
    over = expected + touched.tokens - pool
    if over <= 0 or not _explained(seen, source, over):
        return ""
    return f"{much} since turn {source.id}: the pool of {exact(pool)} could not hold these {exact(expected)} as well"


def _explained(seen: Seen, source: Captured, over: float) -> bool:
    """Whether so many tokens too many for the pool explain the loss. Blocks of full attention leave one by one, the
    last ones of a prompt first; each request also takes a block that it does not fill."""
    if seen.server.layers is not Layers.FULL:
        return True
    return seen.lost <= over + seen.unit * (2 * requests_between(seen, source) + 3)


def _held_by_others(seen: Seen, kept: list[Sample], since: float) -> float | None:
    """The largest share of the pool that requests held between the source's end and this turn's begin, as far as
    something ran then; None: not known. What is looked at later holds this turn as well."""
    told = [one for one in kept if since < one.at <= seen.arrived and one.running]
    return max((one.kv_cache_usage_share for one in told if one.kv_cache_usage_share is not None), default=None)


def _aborted(seen: Seen, source: Captured) -> Finding | None:
    how = _BROKE.get(source.state) if source.state else None
    if how is None:
        return None
    read = was_read(source)
    if read is False:
        clause = f"turn {source.id} {how} before its prompt had been read"
        return Finding(Reason.PREVIOUS_ABORTED, True, clause, clause)
    says = f"turn {source.id} {how}, and whether its prompt had been read is not known" if read is None else ""
    return Finding(Reason.PREVIOUS_ABORTED, read and False, says or f"turn {source.id} {how}: its prompt had been read")


def _still_running(seen: Seen, source: Captured) -> Finding:
    reason, came = Reason.STILL_RUNNING, seen.admitted
    running = source.state is not None and (source.ended_at is None or source.ended_at > came)
    gap = 0.0 if source.ended_at is None else came - source.ended_at
    if source.ended_at is None and not running:
        return Finding(reason, None, f"nobody saw turn {source.id} end")
    if not running and gap >= STEP_S:
        return Finding(reason, False, f"turn {source.id} still running: it had ended {secs(gap)} before")
    how = "was still writing when it came" if running else f"had ended {secs(gap)} before it came"
    read = was_read(source, came)
    if running and read is False:
        clause = f"turn {source.id} was still being read when it came"
        return Finding(reason, True, clause, clause)
    if read and source.prompt_tokens is not None and (seen.cached or 0) + seen.unit >= source.prompt_tokens:
        return Finding(
            reason, True, f"turn {source.id} {how}, and only its reply is missing", f"turn {source.id} {how}"
        )
    if read and source.prompt_tokens is not None:
        return Finding(reason, False, f"turn {source.id} still running: its prompt had been read, and is missing too")
    return Finding(reason, None, f"turn {source.id} {how}")


def _replica(seen: Seen, source: Captured) -> Finding:
    reason = Reason.REPLICA
    if source.upstream != seen.turn.upstream:
        says = f"turn {source.id} went to another server"
        return Finding(reason, True, says, f"turn {source.id} went to another server")
    for name in _REPLICA_HEADERS:
        one, other = _header(source, name), _header(seen.turn, name)
        if one and other and one != other:
            says = f"{name} of the answers is another: turn {source.id} went to another replica"
            return Finding(reason, True, says, f"turn {source.id} went to another replica")
    if older_process(seen, source):
        says = f"another process answered than turn {source.id}, and it ran already then: the address has several"
        return Finding(reason, True, says, f"turn {source.id} went to another process behind the same address")
    if seen.server.engines == 1:
        return Finding(reason, False, "replicas: the same upstream, and it has one engine")
    return Finding(reason, None)


def _header(turn: Captured, name: str) -> str:
    return next((value for key, value in turn.response_headers if key.lower() == name), "")


def _not_loaded(seen: Seen, source: Captured, evicted: Finding) -> Finding | None:
    """It left the device, a tier behind it held it, and nothing came back from there."""
    reason, events = Reason.OFFLOAD_NOT_LOADED, seen.events
    if seen.server.offload is False:
        return Finding(reason, False, "a tier that was not read: none is configured")
    if not seen.server.offload:
        return None
    flat = _flat_loads(seen)
    if flat is False:
        return Finding(reason, False, "a tier that was not read: KV was loaded while it waited")
    held = _held_in_tier(seen, source)
    if held and flat and evicted.shown:
        there = f"{exact(events.anywhere)} tokens lay in a tier" if events and events.anywhere else "its KV was stored"
        says = f"{there}, and no KV was loaded while it waited"
        return Finding(reason, True, says, "evicted from the device, and its tier was not read")
    if held is False:
        return Finding(reason, False, "a tier that was not read: it held none of this")
    return Finding(reason, None, "no KV was loaded from the tier while it waited" if flat else "")


def _flat_loads(seen: Seen) -> bool | None:
    """Nothing was loaded while it waited for its first token."""
    end = seen.turn.first_token_at or seen.turn.ended_at
    kept = seen.turn.samples
    if end is not None:
        kept = [one for one in kept if one.at < end] + [one for one in kept if one.at >= end][:1]
    if len(kept) > 1:
        return _same_loads(kept[0], kept[-1])
    earlier = last_look(seen, seen.arrived)
    flat = _same_loads(earlier, kept[0]) if kept and earlier is not None else None
    return flat or None  # what was loaded before it came was loaded for others


def _same_loads(a: Sample, b: Sample) -> bool | None:
    pairs = [(a.load_bytes, b.load_bytes), (a.external_hits, b.external_hits)]
    known = [x == y for x, y in pairs if x is not None and y is not None]
    return all(known) if known else None


def _held_in_tier(seen: Seen, source: Captured) -> bool | None:
    """Whether a tier still held what was lost: by the events, or since less was stored than it can hold."""
    events, expected = seen.events, seen.expected.tokens if seen.expected else 0
    if events is not None and events.anywhere is not None:
        if events.anywhere >= expected and (events.on_device or 0) < expected:
            return True
        return False if events.complete else None
    kept = samples_between(seen, source)
    first = last_look(seen, source.started_at) or min(source.samples, key=lambda one: one.at, default=None)
    if not kept or first is None or first.store_bytes is None or kept[-1].store_bytes is None:
        return None
    stored = kept[-1].store_bytes - first.store_bytes
    if stored <= 0:
        return False if kept[-1].store_bytes == 0 else None
    tier = seen.server.tier_bytes
    return True if tier is not None and stored < tier else None


def _hash_seed(seen: Seen, source: Captured, restart: Finding) -> Finding | None:
    """The keys of a tier that outlived the process are others now."""
    if not seen.server.lasting_tier or restart.shown is not True:
        return None
    if not _random_seed(seen):
        return Finding(Reason.HASH_SEED, False, "another hash seed: it is fixed in this version")
    now = [one for one in seen.turn.samples if one.external_hits is not None]
    stored = any((one.store_bytes or 0) > 0 for one in source.samples)
    before = any((one.external_hits or 0) > 0 for one in source.samples)
    if now and now[-1].external_hits == 0 and (stored or before):
        says = "the tier outlived the restart, held this prefix, and was never hit since"
        return Finding(Reason.HASH_SEED, True, says, "the keys of its tier changed with the restart (hash seed)")
    return Finding(Reason.HASH_SEED, None)


def _random_seed(seen: Seen) -> bool:
    """Whether hashes differ from process to process: xxhash always, sha256 before 0.29 (PYTHONHASHSEED)."""
    if (seen.server.hash_algorithm or "").startswith("xxhash"):
        return True
    parts = (seen.server.version or "").split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts[:2]):
        return False
    return (int(parts[0]), int(parts[1])) < (0, 29)


def _stuck(seen: Seen, source: Captured) -> Finding | None:
    """The same prompt again, and it found nothing; nor did any other one since."""
    prompt = seen.turn.prompt_tokens
    same = prompt is not None and seen.expected is not None and seen.expected.common >= prompt
    if not same or seen.cached != 0:
        return None
    since = [one for one in (*turns_between(seen, source), seen.turn) if one.cached_tokens is not None]
    kept = samples_between(seen, source)
    hits = {one.hits for one in kept if one.hits is not None}
    asked = {one.queries for one in kept if one.queries is not None}
    if len(since) >= STUCK_AFTER and not any(one.cached_tokens for one in since) and len(hits) == 1 and len(asked) > 1:
        says = f"the same prompt again found nothing, nor did any of {len(since)} prompts since turn {source.id}"
        return Finding(Reason.STUCK_CACHE, True, says, f"no prompt has hit since turn {source.id}")
    return Finding(Reason.STUCK_CACHE, None)


def _metric(seen: Seen) -> Finding | None:
    """Its first token came too soon for what it is said to have computed."""
    ttft, prompt, cached = seen.ttft, seen.turn.prompt_tokens, seen.cached
    if ttft is None or not seen.rate or prompt is None or cached is None or seen.expected is None:
        return None
    computing = (prompt - cached) / seen.rate
    reusing = (prompt - seen.expected.tokens) / seen.rate
    if computing - reusing >= 1.0 and ttft * TOO_FAST < computing:
        says = f"its first token came after {secs(ttft)}; what it is said to have computed takes {secs(computing)}"
        return Finding(Reason.METRIC_WRONG, True, says, "its first token came as if it had it: the number is wrong")
    if ttft * 2 >= computing:
        return Finding(Reason.METRIC_WRONG, False, "a wrong number: its first token took as long as reading that anew")
    return None
