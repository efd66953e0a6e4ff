"""The state of the box in one sentence: worst thing first, at most 125 characters, no adjectives.

A chip is a row of `_CHIPS` or, for an endpoint that cannot be read, of `downs.DOWNS`; the first row that has
something to say wins, over all servers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from kvtop.errors import printable
from kvtop.model.box import Quantile, Window
from kvtop.model.downs import BRIEF, DOWNS, LENGTH, Around, Wording, label_of, together
from kvtop.model.own_part import OwnPart, less
from kvtop.model.view import Sentence, ServerView, seconds_of
from kvtop.model.waits import NEWS_FOR_S, Made, slow, slow_now, told, unsure
from kvtop.model.words import exact, flow, hms, lasted, nb, pct, secs, span, tok
from kvtop.readings import Discovery, State

QUEUE_AFTER_S = 2.0
"""A request that waits for one engine step is no queue."""

RESTART_ALONE_S = 60.0
"""So long a restart is told before anything that goes well; after that only where there is nothing else to tell."""

IDLE_AFTER_S = (60.0, 300.0)
"""Nobody asked for the chosen window, but for at least one and at most five minutes."""

LOW_NEEDS_N = 3
LOW_NEEDS_COST = 0.05
"""A low cached share is told where so many requests finished, and reading took at least this part of the window."""


def make(servers: Sequence[ServerView], selected: int, around: Around, discovery: Discovery | None = None) -> Sentence:
    """The sentence about all servers: the worst one's, the selected one's where they are equally well."""
    if not servers:
        return no_server(discovery)
    found = [(*_judge(servers[selected], around), servers[selected])]
    for view in (*servers[:selected], *servers[selected + 1 :]):
        judged = _judge(view, around, other=True)
        if judged[1] in _OF_OTHERS and not view.ended_by:
            found.append((*judged, view))
    _, chip, tone, wordings, view = min(found, key=lambda one: one[0])
    if len(servers) > 1:
        name = label_of(view)
        named = [(f"{name}: {first}", rest) if name not in first else (first, rest) for first, rest in wordings]
        wordings = named if any(map(_fits, named)) else wordings
        if view.state in BRIEF and sum(one.state in BRIEF for one in servers) > 1:
            wordings = together(servers, view, wordings, around.now)
    wordings = [(first if rest else first.rstrip(",;:"), rest) for first, rest in wordings]
    fitting = [wording for wording in wordings if _fits(wording)]
    first, rest = fitting[0] if fitting else wordings[-1]
    turn = told(view, around) if chip == "SLOW" else None
    chip = "UNSURE" if turn is not None and unsure(turn) else chip
    return Sentence(
        chip,
        tone,
        first,
        rest[: max(0, LENGTH - len(first) - 1)].rstrip(" ,;:"),
        tuple(fitting[1:]),
        (view.url, turn.key) if turn is not None else None,
    )


def _fits(wording: Wording) -> bool:
    return len(" ".join(wording).strip()) <= LENGTH


def no_server(discovery: Discovery | None) -> Sentence:
    """No endpoint is known."""
    if discovery is None:
        return Sentence("NO SERVER", "dim", "Looking for vLLM servers on this box.")
    return Sentence("NO SERVER", "warn", "No vLLM server found on this box.", "kvtop goes on looking.")


def _judge(view: ServerView, around: Around, other: bool = False) -> tuple[int, str, str, list[Wording]]:
    """`other`: not the selected server. A wait there that is over was news while it was fresh."""
    for rank, (state, chip, tone, maker) in enumerate(DOWNS):
        if view.state is state:
            return rank, chip, tone, maker(view, around)
    for rank, (chip, judge) in enumerate(_CHIPS, start=len(DOWNS)):
        made = None if other and judge is slow else judge(view, around)
        if made is not None:
            return rank, chip, *made
    raise AssertionError("the last chip always speaks")


def _queue(view: ServerView, around: Around) -> Made | None:
    requests = view.window.all.requests
    waiting = requests.waiting
    if not waiting or view.waiting_since is None or around.now - view.waiting_since < QUEUE_AFTER_S:
        return None
    since = nb(lasted(around.now - view.waiting_since))
    first = f"{waiting} {'waits' if waiting == 1 else 'wait'}, a queue for {since}:"
    usage, deferred = requests.kv_cache_usage_share, requests.waiting_by_reason.deferred
    pool = view.config.kv_cache_tokens
    size = f" of {tok(pool)} tokens" if pool else ""
    if usage is not None and usage >= around.pool_full:
        return "warn", [(first, f"no room in the KV pool ({nb(pct(usage))}{size})"), (first, "no room in the KV pool")]
    if deferred and deferred == waiting:
        return "warn", [(first, "put off for a KV transfer, an adapter or a grammar"), (first, "put off")]
    runs = f"{requests.running} run" if requests.running is not None else "the batch is full"
    used = f", KV pool {nb(pct(usage))}{size}" if usage is not None else ""
    return "warn", [(first, f"{runs}{used}"), (first, runs)]


def _restarted(view: ServerView, around: Around) -> Made | None:
    if view.reset_at is None:
        return None
    seen = view.reset_seen_at if view.reset_seen_at is not None else view.reset_at
    if around.now - seen > min(seconds_of(view.window_key) or NEWS_FOR_S, NEWS_FOR_S):
        return None
    if around.now - seen > RESTART_ALONE_S and (view.window.all.cached.share is not None or _n(view.window, view.own)):
        return None
    ago = around.now - view.reset_at
    return "warn", [(f"counters began again {nb(lasted(ago))} ago,", "the window counts from there")]


def _sleeping(view: ServerView, around: Around) -> Made | None:
    if view.state is not State.SLEEPING:
        return None
    since = f" since {hms(view.state_since, around.now)}" if view.state_since is not None else ""
    return "dim", [(f"the model sleeps{since}:", "its weights are off the GPU until /wake_up")]


def _cache_off(view: ServerView, around: Around) -> Made | None:
    if view.config.prefix_caching is not False:
        return None
    return "warn", [("prefix caching is off:", "every prompt is read whole; --enable-prefix-caching turns it on")]


def _low(view: ServerView, around: Around) -> Made | None:
    """Little comes from cache, and that costs time. Prompts that are simply new and cheap to read are no fault."""
    cached, prefill, seconds = view.window.all.cached, view.window.all.latency.prefill, view.window.window_s
    if cached.share is None or cached.share >= around.share_poor or cached.prompt_tokens is None or not seconds:
        return None
    if prefill.mean_s is None or (less(prefill.n, view.own) or 0) < LOW_NEEDS_N:
        return None
    cost = max(0.0, prefill.mean_s * (prefill.n or 0) - view.own.took_s)  # of others, at least
    if cost < LOW_NEEDS_COST * seconds:
        return None
    n = _n(view.window, view.own)
    share, over = nb(pct(cached.share)), f"{f'n={n} ' if n else ''}{_over(view)}"
    firsts = [f"{share} cached ({over}{said}):" for said in own_words(view.own.left)] or [f"{share} cached ({over}):"]
    prompt, spent = exact(cached.prompt_tokens), "" if view.own.taken else f", {nb(secs(cost))} of prefill"
    new = cached.by_source.computed
    if new is None:
        new = cached.prompt_tokens - (cached.cached_tokens or 0)
    read = f"{exact(new)} of {prompt}"
    rests = [
        f"{read} prompt tokens read anew{spent}",
        f"{read} tokens read anew{spent}",
        f"{exact(new)} tokens read anew",
    ]
    return "warn", [(first, rest) for first in firsts for rest in rests]


def own_words(n: int) -> list[str]:
    """That so many requests of kvtop's own are among those that are told of, longest first; empty: none is."""
    many = f"{n} request{'' if n == 1 else 's'}"
    return [f", with {many} of kvtop's own replay", f", {n} of a kvtop replay"] if n else []


def _first_look(view: ServerView, around: Around) -> Made | None:
    if view.last_good_at is not None:
        return None
    return "dim", [(f"first look at {label_of(view)}{':' if view.waits_for else ''}", printable(view.waits_for, 60))]


def _unsure(view: ServerView, around: Around) -> Made | None:
    """The series that would tell of turns are absent, NaN or no counts: then nothing is claimed, not even calm."""
    if view.window.window_s is None or _turns_known(view.window):
        return None
    requests = view.window.all.requests
    parts = [nb(f"{requests.running} {'runs' if requests.running == 1 else 'run'}")] if requests.running else []
    parts += ["nothing runs"] if requests.running == 0 else []
    told = ", ".join([*parts, *_queue_words(view.window)])
    first = f"turns {_over(view)} are not known:"
    why = "/metrics gives no number that counts them"
    return "warn", [(first, f"{why}; {told}" if told else why), (first, why)]


def _turns_known(window: Window) -> bool:
    return window.all.cached.prompt_tokens is not None or _n(window, OwnPart()) is not None


def _idle(view: ServerView, around: Around) -> Made | None:
    requests = view.window.all.requests
    since = view.last_busy_at if view.last_busy_at is not None else view.watched_since
    if requests.running or requests.waiting or since is None or not _turns_known(view.window):
        return None
    low, high = IDLE_AFTER_S
    if around.now - since < min(max(seconds_of(view.window_key) or high, low), high):
        return None
    first = f"nobody asked anything for {nb(span(around.now - since))};"
    last = view.last_traffic
    if last is not None and last.all.cached.share is not None:
        n = _n(last, view.own_of_last)
        count = f" (n={n})" if n else ""
        return "dim", [
            (first, f"the last {nb(span(last.window_s))} with traffic: {nb(pct(last.all.cached.share))} cached{count}")
        ]
    life = view.life.all.cached.lifetime_share
    if life is not None:
        return "dim", [(first, f"since start {nb(pct(life, 1))} cached")]
    return "dim", [(first[:-1], "")]


def _ok(view: ServerView, around: Around) -> Made | None:
    window, everything = view.window, view.window.all
    over = _over(view)
    n, share = _n(window, view.own), everything.cached.share
    parts: list[str] = []
    if share is not None:
        first = f"{nb(pct(share))} cached"
        with_own = f", {view.own.left} of a kvtop replay" if view.own.left else ""
        lead = f"(n={n} {over}{with_own})" if n else f"({over})"
        p50 = everything.latency.ttft.p50
        if p50 is not None and (p50.value_s is not None or p50.up_to_s is None) and not view.own.taken:
            parts.append(f"TTFT p50 {nb(_quantile(p50))}")  # with kvtop's own in it, it is not of those n
    else:
        running = everything.requests.running
        life = view.life.all.cached.lifetime_share
        known = f"since start {nb(pct(life, 1))} cached" if life is not None else ""
        runs = f"{running} {'runs' if running == 1 else 'run'}," if running else ""
        if n or everything.cached.prompt_tokens:
            turns = f"{exact(n)} {'turn' if n == 1 else 'turns'} {over}," if n else f"turns {over},"
            first, lead = turns, ", ".join([*([runs[:-1]] if runs else []), "cached not known"])
        elif running:
            first, lead = runs, _do(view, running, over)
        else:
            first, lead = f"no turn {over},", ""
        if window.window_s is None:
            first, lead = "the first reading;", "a window needs two"
        if known:
            lead = f"{lead}, {known}" if lead else known
    parts += _queue_words(window) + _tier_words(view)
    rests = [", ".join([lead, *parts[:end]] if lead else parts[:end]) for end in range(len(parts), -1, -1)]
    return "ok", [(first if rest else first.rstrip(","), rest) for rest in rests]


def _do(view: ServerView, running: int, over: str) -> str:
    """What those that run do, in a window without a first token. Those that began before it may have had theirs then:
    that there was none is only said where all of them are known to be read."""
    flying = list(takewhile(lambda turn: turn.state == "in_flight", view.turns))
    writes = min(running, sum(turn.n for turn in flying if turn.phase == "writes"))
    if writes:
        whole = {1: "it writes", 2: "both write"}.get(running, "all write")
        return whole if writes == running else f"{writes} {'writes' if writes == 1 else 'write'}"
    if view.window.all.throughput.generation_tokens:
        return "tokens are written"
    return "" if any(turn.phase is None for turn in flying) else f"no first token {over} yet"


def _over(view: ServerView) -> str:
    """`in 5 min`; where less than that was seen, how much."""
    return "since start" if seconds_of(view.window_key) is None else f"in {nb(view.window_words)}"


def _n(window: Window, own: OwnPart) -> int | None:
    """Requests of the window, without kvtop's own where they were taken out of its tokens."""
    n = window.all.latency.ttft.n
    return less(n if n is not None else window.all.requests.finished.total, own)


def _quantile(q: Quantile) -> str:
    return secs(q.value_s) if q.value_s is not None else f"> {secs(q.above_s)}"


def _queue_words(window: Window) -> list[str]:
    waiting = window.all.requests.waiting
    if waiting is None:
        return []
    return [nb(f"{waiting} {'waits' if waiting == 1 else 'wait'}" if waiting else "no queue")]


def _tier_words(view: ServerView) -> list[str]:
    """What the tier moved. One that is written and never read is said here, and nowhere louder."""
    now, life = view.window.all.offload, view.life.all.offload
    if not now.supported:
        return []
    if now.unit == "blocks":
        if now.stores is None:
            return []
        if not now.stores and now.loads == 0:
            return ["tier idle"]
        return [f"tier {nb(f'{exact(now.stores)} blocks out')}, {nb(f'{exact(now.loads)} back')}"]
    if now.store_bytes_per_s is None or not (life.store_bytes_total or now.store_bytes or now.load_bytes):
        return []
    out = "" if now.store_bytes == 0 else nb(f"{flow(now.store_bytes_per_s, view.window_key)} out")
    if life.load_bytes_total == 0:
        return [f"tier {out or 'idle'}, {nb('never read')}"]
    back = "" if now.load_bytes == 0 else nb(f"{flow(now.load_bytes_per_s, view.window_key)} back")
    if not out and not back:
        return ["tier idle"]
    return [f"tier {out or nb('nothing out')}, {back or nb('nothing back')}"]


_OF_OTHERS = {chip for _, chip, _, _ in DOWNS} | {"SLOW", "QUEUE", "RESTARTED"}
"""What is said of a server that is not the selected one."""

_CHIPS: tuple[tuple[str, Callable[[ServerView, Around], Made | None]], ...] = (
    ("SLOW", slow_now),
    ("QUEUE", _queue),
    ("SLOW", slow),
    ("RESTARTED", _restarted),
    ("SLEEPING", _sleeping),
    ("CACHE OFF", _cache_off),
    ("LOW", _low),
    ("FIRST LOOK", _first_look),
    ("UNSURE", _unsure),
    ("IDLE", _idle),
    ("OK", _ok),
)
"""Chip and judge of an endpoint that can be read: worst first."""
