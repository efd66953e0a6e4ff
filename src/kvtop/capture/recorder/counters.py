"""What the upstream's counters say of one turn: samples for a later verdict, and whether the turn was alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from kvtop.capture.turn import Captured, Sample, TurnState
from kvtop.model import metrics as m
from kvtop.model.by_source import by_source
from kvtop.model.growth import Growth, ratio
from kvtop.model.samples import samples
from kvtop.model.shown_turn import Turn
from kvtop.model.turns import TurnTracker
from kvtop.readings import HTTP_REQUESTS, Scrape

MAX_SAMPLES = 64
"""Kept of one turn: its first, its last, and what is left of those between."""
_OK = ("status", "2xx")


def sample_of(scrape: Scrape) -> Sample | None:
    """The counters of one text, all engines together; None for what is no text of a vLLM engine."""
    now = samples(scrape)
    if not now.state.good or scrape.truncated:
        return None
    g = Growth(None, now, None, zero=True)
    sources = by_source(g) if g.has(m.PROMPT_BY_SOURCE) else None
    return Sample(
        at=scrape.at or 0.0,
        started_at=now.start,
        prompt_tokens=g.now(m.PROMPT),
        cached_tokens=g.now(m.CACHED),
        by_source={
            name: float(value)
            for name in ("device", "host", "disk", "p2p", "external", "computed")
            if sources is not None and (value := getattr(sources, name)) is not None
        },
        queries=g.now(m.QUERIES),
        hits=g.now(m.HITS),
        external_hits=g.now(m.EXTERNAL_HITS),
        generation_tokens=g.now(m.GENERATION),
        finished=g.now(m.SUCCESS),
        preempted=g.now(m.PREEMPTIONS),
        running=g.now(m.RUNNING),
        waiting=g.now(m.WAITING),
        kv_cache_usage_share=ratio(g.now(m.KV_USAGE), g.engine.members),
        load_bytes=g.now(m.LOAD_BYTES),
        store_bytes=g.now(m.STORE_BYTES),
        resets=_resets(scrape),
    )


def _resets(scrape: Scrape) -> float | None:
    """Requests that clear the cache, answered well so far. None: the text has no counters of the web server."""
    if not scrape.has_http:
        return None
    told = [value for (name, labels), value in scrape.values.items() if name == HTTP_REQUESTS and _OK in labels]
    return sum(told) if all(map(math.isfinite, told)) else None


def in_flight(sample: Sample) -> float:
    """Requests that run or wait."""
    return (sample.running or 0.0) + (sample.waiting or 0.0)


def thinned(kept: list[Sample]) -> list[Sample]:
    """No more than MAX_SAMPLES: of those between the first and the last every second one goes."""
    while len(kept) > MAX_SAMPLES:
        kept = [kept[0], *kept[1:-1:2], kept[-1]]
    return kept


@dataclass(frozen=True)
class Finish:
    """What grew in the counters from one text to another."""

    moved: bool
    """At least one request finished, and both texts are whole."""
    only: Turn | None
    """The request, where exactly one finished, and the prompt counters grew by its prompt alone; or not at all, as it
    was the only one in flight and past its first token already."""


def finish(before: Scrape, after: Scrape) -> Finish:
    """The finishes between two texts of one server."""
    a, b = samples(before), samples(after)
    if a.start != b.start:
        return Finish(moved=False, only=None)
    tracker = TurnTracker()
    tracker.add(before)
    rows = tracker.add(after)
    if len(rows) != 1 or rows[0].n != 1 or rows[0].prompt_tokens is None:
        return Finish(moved=bool(rows), only=None)
    grew = Growth(a, b, None, zero=False).grew(m.PROMPT)
    start = sample_of(before)
    begun = grew == 0 and start is not None and in_flight(start) == 1
    return Finish(moved=True, only=rows[0] if begun or grew == rows[0].prompt_tokens else None)


def learnt(turn: Captured, kept: list[Sample], row: Turn | None, *, alone: bool | None) -> Captured:
    """The turn with what the counters add. `row`: the only request that ran while it did, which was this one unless
    its usage says otherwise."""
    turn = msgspec.structs.replace(turn, samples=thinned(kept), alone=alone)
    if row is None or turn.state is not TurnState.DONE:
        return turn
    if turn.prompt_tokens not in (None, row.prompt_tokens):
        return msgspec.structs.replace(turn, alone=False)
    cached, source = turn.cached_tokens, turn.cached_source
    if cached is None and row.cached_tokens is not None:
        cached, source = round(row.cached_tokens), "metrics"
    return msgspec.structs.replace(
        turn,
        alone=True,
        prompt_tokens=_either(turn.prompt_tokens, row.prompt_tokens),
        completion_tokens=_either(turn.completion_tokens, row.completion_tokens),
        cached_tokens=cached,
        cached_source=source,
        queue_s=row.queue_s if turn.queue_s is None else turn.queue_s,
        prefill_s=row.prefill_s if turn.prefill_s is None else turn.prefill_s,
    )


def _either(known: int | None, counted: float | None) -> int | None:
    return known if known is not None or counted is None else round(counted)
