"""Two scrapes -> what happened between them. Pure, and cheap enough for five times a second."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from kvtop.model import metrics as m
from kvtop.model.box import (
    Cached,
    EngineWindow,
    Finished,
    Latencies,
    Latency,
    Requests,
    SpecDecode,
    Throughput,
    WaitingByReason,
    Window,
)
from kvtop.model.by_source import by_source
from kvtop.model.engine_config import config
from kvtop.model.growth import Growth, ratio, whole
from kvtop.model.histogram import latency
from kvtop.model.offload import offload
from kvtop.model.possible import share
from kvtop.model.samples import Quantity, Samples, cut_short, lost_some, samples
from kvtop.readings import Scrape, State

_LOST = "its last line was dropped, and the last family of series is left out"
_POSITION = re.compile(r"[0-9]{1,4}")

CLOCK_SKEW_S = 120.0
"""How far a server's clock may be off before its start time is believed to lie before a scrape."""


@dataclass(frozen=True, slots=True)
class Glance:
    """What one scrape says by itself, without counting anything."""

    state: State
    detail: str
    running: int | None
    waiting: int | None
    started_at: float | None


def glance(scrape: Scrape) -> Glance:
    """Of a scrape, what is needed to know whether and how to go on: a tenth of the cost of `since_start`."""
    after = samples(scrape)
    g = Growth(None, after, None, False)
    running, waiting = whole(g.now(m.RUNNING)), whole(g.now(m.WAITING))
    return Glance(after.state, "" if after.state.good else _why(after), running, waiting, after.start)


def between(a: Scrape, b: Scrape, seconds: float | None, *, lean: bool = False) -> Window:
    """What happened from `a` to `b`, which lie `seconds` apart (None: nobody knows; then all rates are None).

    Gauges, totals and configuration are those of `b`. After a reset (another start time, or a counter that fell)
    everything counts from zero, `state` is reset and `detail` says why. Where `a` is no text of a vLLM engine, or `b`
    is of another process that ran before `a` was read (replicas behind one address), what grew is None.
    Several engines: `all` adds them up (KV usage is their mean, since their pools are alike), `engines` has each.
    `lean`: without engines, and of the latencies TTFT alone, for one step of a series.
    """
    before, after = samples(a), samples(b)
    state = after.state
    notes = [] if state.good else [_why(after)]
    if len(after.engines) < after.engines_told:
        notes.append(f"{after.engines_told:,} engines: the first {len(after.engines)} are looked at one by one")
    if a.truncated:
        notes.append(f"the first text was cut: {_LOST}")
    if b.truncated and state.good:
        notes.append(f"the text was cut: {_LOST}" if not a.truncated else "so was the second")
    reset = ""
    if state.good:
        if before.state.good:
            before, after, cut = _mended(before, after)
            notes += [cut] if cut else []
            reset = reset_reason(before, after)
        else:
            notes.append("the first text has no engine series: nothing can be said of the time between")
    if reset:
        notes.insert(0, reset)
        state = State.RESET if state is State.UP else state
    base = before if before.state.good and not reset else None
    zero = bool(reset) and not ran_before(after, before)
    return _window(base, after, state, "; ".join(notes), seconds, zero=zero, lean=lean)


def _mended(before: Samples, after: Samples) -> tuple[Samples, Samples, str]:
    """The two, where one of them was cut at the end of a line, which only the other one shows; and that in words."""
    if lost_some(after, before):
        short = cut_short(after.scrape)
        if after.start is not None or not reset_reason(before, short):
            return before, short, "the text was cut: series of the first one are missing"
    elif before.start is not None and lost_some(before, after):
        return cut_short(before.scrape), after, "the first text was cut: series of the second one are missing"
    return before, after, ""


def since_start(b: Scrape) -> Window:
    """Lifetime: all that the server's counters have counted. `window_s` is its age where both times are known."""
    after = samples(b)
    state = after.state
    notes = [] if state.good else [_why(after)]
    if b.truncated and state.good:
        notes.append(f"the text was cut: {_LOST}")
    age = b.at - after.start if b.at is not None and after.start is not None else None
    return _window(None, after, state, "; ".join(notes), age if age is not None and age > 0 else None, zero=True)


def _why(after: Samples) -> str:
    if after.scrape.truncated:
        return "the text was cut before any series of the engine"
    if after.state is State.NO_STATS:
        return "engine statistics are off: started with --disable-log-stats"
    return "the text has no vLLM series"


def reset_reason(before: Samples, after: Samples) -> str:
    """Why the counters of `after` do not continue those of `before`; empty where they do."""
    if before.start is not None and after.start is not None and abs(before.start - after.start) > 0.5:
        if ran_before(after, before):
            return "another server process answers on this address: what it did in this window is not known"
        return "the server was restarted in this window: counted from zero"
    pairs = [(before.engines.get(label), engine) for label, engine in after.engines.items()]
    for old, engine in pairs or [(before.all, after.all)]:
        if old is None:
            continue
        # of a family that is split, row by row: a row that is missing is none that fell
        fell = _fell("", {name: value for name, value in old.totals.items() if name not in old.rows}, engine.totals)
        for name, rows in engine.rows.items():
            fell = fell or _fell(name, old.rows.get(name, {}), rows)
        if fell:
            return f"counters fell in this window ({fell}): counted from zero"
    return ""


def swapped(a: Scrape, b: Scrape) -> bool:
    """Whether `a` looks like the later one of the two: of one process, and no counter rose from `a` to `b`, but some
    fell."""
    before, after = samples(a), samples(b)
    if before.start is None or after.start is None or abs(before.start - after.start) > 0.5:
        return False
    return bool(reset_reason(before, after)) and not reset_reason(after, before)


def ran_before(after: Samples, before: Samples) -> bool:
    """Whether the process of `after` is another one that was already running when `before` was read: what it counted
    is not of the time between. Only where both times are known; the server's clock may be a little off."""
    seen = before.scrape.at
    if after.start is None or before.start is None or seen is None or abs(after.start - before.start) <= 0.5:
        return False
    return after.start < seen - CLOCK_SKEW_S


def _fell(family: str, old: dict[str, float], new: dict[str, float]) -> str:
    """The first counter that fell, in words; the keys are sample names, or rows of `family`."""
    if family and family not in m.FALLING_NAMES:
        return ""
    for key, value in new.items():
        was = old.get(key)
        if was is not None and -math.inf < value < was < math.inf and (family or key in m.FALLING_NAMES):
            return f"{family or key} from {was:.12g} to {value:.12g}"
    return ""


def _window(
    base: Samples | None,
    after: Samples,
    state: State,
    detail: str,
    seconds: float | None,
    *,
    zero: bool,
    lean: bool = False,
) -> Window:
    if not state.good:
        return Window(state, detail, at=after.scrape.at, window_s=seconds, started_at=after.start)
    several = len(after.engines) > 1 and not lean
    rate_s = seconds if seconds is not None and math.isfinite(seconds) and seconds > 0 else None
    return Window(
        state=state,
        detail=detail,
        at=after.scrape.at,
        window_s=seconds,
        all=_engine(Growth(base, after, None, zero), None, rate_s, lean),
        engines=tuple(_engine(Growth(base, after, label, zero), label, rate_s) for label in after.engines)
        if several
        else (),
        started_at=after.start,
    )


def _engine(g: Growth, label: str | None, seconds: float | None, lean: bool = False) -> EngineWindow:
    cached = _cached(g)
    if lean:
        return EngineWindow(
            engine=label,
            cached=cached,
            requests=_requests(g),
            latency=Latencies(ttft=_latency(g, m.TTFT)),
            throughput=_throughput(g, cached, seconds),
            offload=offload(g, seconds),
        )
    return EngineWindow(
        engine=label,
        cached=cached,
        requests=_requests(g),
        latency=Latencies(
            ttft=_latency(g, m.TTFT),
            queue=_latency(g, m.QUEUE),
            prefill=_latency(g, m.PREFILL),
            decode=_latency(g, m.DECODE),
            e2e=_latency(g, m.E2E),
            inter_token=_latency(g, m.INTER_TOKEN),
        ),
        throughput=_throughput(g, cached, seconds),
        offload=offload(g, seconds),
        spec_decode=_spec_decode(g),
        config=config(g),
    )


def _cached(g: Growth) -> Cached:
    prompt = g.grew(m.PROMPT)
    if g.is_newer(m.CACHED, m.PROMPT_BY_SOURCE):
        cached, of = g.grew(m.CACHED), prompt
        lifetime = ratio(g.now(m.CACHED), g.now(m.PROMPT))
    else:
        # below 0.16: hits over queries, which count on one clock (admission) and skip requests that may not read
        cached, of = _with_external(g.grew(m.HITS), g.grew(m.EXTERNAL_HITS)), g.grew(m.QUERIES)
        lifetime = ratio(_with_external(g.now(m.HITS), g.now(m.EXTERNAL_HITS)), g.now(m.QUERIES))
    return Cached(
        prompt_tokens=whole(prompt),
        cached_tokens=whole(cached),
        share=_at_most_one(ratio(cached, of)),
        lifetime_share=_at_most_one(lifetime),
        by_source=by_source(g),
    )


def _at_most_one(share: float | None) -> float | None:
    """In multiprocess mode a text may show the one counter before and the other after the same request."""
    return None if share is None else min(share, 1.0)


def _with_external(hits: float | None, external: float | None) -> float | None:
    return None if hits is None else hits + (external or 0.0)


def _requests(g: Growth) -> Requests:
    usage = g.now(m.KV_USAGE)
    return Requests(
        running=whole(g.now(m.RUNNING)),
        waiting=whole(g.now(m.WAITING)),
        waiting_by_reason=WaitingByReason(
            capacity=whole(g.now_row(m.WAITING_BY_REASON, "capacity")),
            deferred=whole(g.now_row(m.WAITING_BY_REASON, "deferred")),
        ),
        preempted=whole(g.grew(m.PREEMPTIONS)),
        preempted_total=whole(g.now(m.PREEMPTIONS)),
        kv_cache_usage_share=share(ratio(usage, g.engine.members)),
        finished=finished(g),
    )


def finished(g: Growth) -> Finished:
    """Requests that ended in the window, by reason. Hang-ups of the client show in none of them."""
    return Finished(
        stop=whole(g.grew_row(m.SUCCESS, "stop")),
        length=whole(g.grew_row(m.SUCCESS, "length")),
        abort=whole(g.grew_row(m.SUCCESS, "abort")),
        error=whole(g.grew_row(m.SUCCESS, "error")),
        repetition=whole(g.grew_row(m.SUCCESS, "repetition")),
    )


def _latency(g: Growth, quantity: Quantity) -> Latency:
    count = g.grew(quantity, "_count")
    if not count:
        return Latency(n=None if count is None else 0)
    return latency(count, g.grew(quantity, "_sum"), g.buckets(quantity))


def _throughput(g: Growth, cached: Cached, seconds: float | None) -> Throughput:
    generated = g.grew(m.GENERATION)
    finished_prefills = g.grew(m.REQUEST_COMPUTED, "_count")
    return Throughput(
        prompt_tokens_per_s=ratio(cached.prompt_tokens, seconds),
        computed_tokens_per_s=ratio(cached.by_source.computed, seconds),
        generation_tokens_per_s=ratio(generated, seconds),
        generation_tokens=whole(generated),
        step_tokens_mean=ratio(g.grew(m.ITERATION, "_sum"), g.grew(m.ITERATION, "_count")),
        prefill_tokens_per_s=ratio(g.grew(m.REQUEST_COMPUTED, "_sum"), g.grew(m.PREFILL, "_sum"))
        if finished_prefills
        else None,
    )


def _spec_decode(g: Growth) -> SpecDecode | None:
    if not g.has(m.DRAFTS):
        return None
    drafts, draft_tokens, accepted = g.grew(m.DRAFTS), g.grew(m.DRAFT_TOKENS), g.grew(m.ACCEPTED)
    tokens_a_draft = ratio(accepted, drafts)
    positions = sorted((int(p), p) for p in g.row_names(m.ACCEPTED_PER_POSITION) if _POSITION.fullmatch(p))
    grown = [whole(g.grew_row(m.ACCEPTED_PER_POSITION, name)) for _, name in positions]
    return SpecDecode(
        drafts=whole(drafts),
        draft_tokens=whole(draft_tokens),
        accepted_tokens=whole(accepted),
        acceptance_share=ratio(accepted, draft_tokens),
        mean_length_tokens=None if tokens_a_draft is None else 1.0 + tokens_a_draft,
        per_position=tuple(n for n in grown if n is not None) if None not in grown else (),
    )
