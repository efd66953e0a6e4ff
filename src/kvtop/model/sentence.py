"""The state of the box in one sentence: worst thing first, at most 125 characters, no adjectives.

A chip is a row of `_CHIPS` or, for an endpoint that cannot be read, of `downs.DOWNS`; the first row that has
something to say wins, over all servers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvtop.model.box import Quantile, Window
from kvtop.model.downs import DOWNS, Around, Wording, label_of
from kvtop.model.view import WINDOWS, Sentence, ServerView, Turn
from kvtop.model.words import exact, hms, nb, pct, per_hour, secs, span, tok
from kvtop.readings import Discovery, State

LENGTH = 125

QUEUE_AFTER_S = 2.0
"""A request that waits for one engine step is no queue."""

IDLE_AFTER_S = (60.0, 300.0)
"""Nobody asked for the chosen window, but for at least one and at most five minutes."""

NEWS_FOR_S = 300.0
"""A restart, or a long input, is told no longer than this."""

Made = tuple[str, list[Wording]]
"""Tone and wordings."""


def make(servers: Sequence[ServerView], selected: int, around: Around, discovery: Discovery | None = None) -> Sentence:
    """The sentence about all servers: the worst one's, the selected one's where they are equally well."""
    if not servers:
        return no_server(discovery)
    found = [(*_judge(servers[selected], around), servers[selected])]
    for view in (*servers[:selected], *servers[selected + 1 :]):
        judged = _judge(view, around)
        if judged[1] in _OF_OTHERS:
            found.append((*judged, view))
    _, chip, tone, wordings, view = min(found, key=lambda one: one[0])
    if len(servers) > 1:
        name = label_of(view)
        named = [(f"{name}: {first}", rest) if name not in first else (first, rest) for first, rest in wordings]
        wordings = named + wordings
    first, rest = next((w for w in wordings if len(f"{w[0]} {w[1]}".strip()) <= LENGTH), wordings[-1])
    return Sentence(chip, tone, first, rest[: max(0, LENGTH - len(first) - 1)].rstrip())


def no_server(discovery: Discovery | None) -> Sentence:
    """No endpoint is known."""
    if discovery is None:
        return Sentence("NO SERVER", "dim", "Looking for vLLM servers on this box.")
    return Sentence("NO SERVER", "warn", "No vLLM server found on this box.", f"Looking again every {nb('2 s')}.")


def _judge(view: ServerView, around: Around) -> tuple[int, str, str, list[Wording]]:
    for rank, (state, chip, tone, maker) in enumerate(DOWNS):
        if view.state is state:
            return rank, chip, tone, maker(view, around)
    for rank, (chip, judge) in enumerate(_CHIPS, start=len(DOWNS)):
        made = judge(view, around)
        if made is not None:
            return rank, chip, *made
    raise AssertionError("the last chip always speaks")


def _window_s(view: ServerView) -> float | None:
    return next((seconds for key, seconds, _ in WINDOWS if key == view.window_key), 300.0)


def slow_turn(view: ServerView, around: Around) -> Turn | None:
    """The turn that waited longest, among the slow ones of the chosen window that nobody has looked at.

    Slow is what the counters call slow, and any wait that is long whatever the reason. One with nothing to mend is
    news for five minutes at most, however long the window.
    """
    window_s = _window_s(view)
    slow = []
    for turn in view.turns:
        if turn.ttft_s is None or turn.ended_at is None or (view.url, turn.id) in around.opened:
            continue
        told_s = window_s
        if not turn.waited:
            continue
        if turn.verdict == "new_tokens" and not turn.slow:
            told_s = min(window_s or NEWS_FOR_S, NEWS_FOR_S)
        if told_s is None or around.now - turn.ended_at <= told_s:
            slow.append(turn)
    return max(slow, key=lambda t: t.ttft_s or 0.0, default=None)


def _slow(view: ServerView, around: Around) -> Made | None:
    turn = slow_turn(view, around)
    if turn is None:
        return None
    first = f"turn {turn.id} waited {nb(secs(turn.ttft_s))}:"
    if turn.n > 1:
        first = f"turn {turn.id}, {turn.n} requests, waited {nb(secs(turn.ttft_s))} each:"
    tone = "warn" if turn.verdict == "new_tokens" else "bad"
    return tone, [(first, rest) for rest in _why_slow(turn)]


def _why_slow(turn: Turn) -> list[str]:
    """What the counters prove. Why a prompt was read anew is not in them."""
    read = f"{exact(turn.new_tokens)} of {exact(turn.prompt_tokens)} prompt tokens read anew"
    took = f" in {nb(secs(turn.prefill_s))}" if turn.prefill_s is not None else ""
    known = turn.new_tokens is not None and turn.prompt_tokens is not None
    if turn.verdict == "queued" and turn.queue_s is not None:
        queued = f"queued {nb(secs(turn.queue_s))}"
        return [f"{queued}, then {read}{took}", queued] if known else [queued]
    if turn.verdict == "new_tokens" and turn.new_tokens is not None:
        return [f"{exact(turn.new_tokens)} new tokens, a long input; nothing to mend"]
    if known:
        return [f"{read}{took}; why is not in the counters", f"{read}{took}"]
    if turn.queue_s is not None and turn.prefill_s is not None:
        return [f"queue {nb(secs(turn.queue_s))}, prefill {nb(secs(turn.prefill_s))}"]
    return ["why is not in the counters"]


def _queue(view: ServerView, around: Around) -> Made | None:
    requests = view.window.all.requests
    waiting = requests.waiting
    if not waiting or view.waiting_since is None or around.now - view.waiting_since < QUEUE_AFTER_S:
        return None
    since = nb(secs(around.now - view.waiting_since))
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
    ago = around.now - view.reset_at
    if ago > min(_window_s(view) or NEWS_FOR_S, NEWS_FOR_S):
        return None
    return "warn", [(f"counters began again {nb(secs(ago))} ago,", "the window counts from there")]


def _sleeping(view: ServerView, around: Around) -> Made | None:
    if view.state is not State.SLEEPING:
        return None
    since = f" since {hms(view.state_since)}" if view.state_since is not None else ""
    return "dim", [(f"the model sleeps{since}:", "its weights are off the GPU until /wake_up")]


def _cache_off(view: ServerView, around: Around) -> Made | None:
    if view.config.prefix_caching is not False:
        return None
    return "warn", [("prefix caching is off:", "every prompt is read whole; --enable-prefix-caching turns it on")]


def _first_look(view: ServerView, around: Around) -> Made | None:
    if view.last_good_at is not None:
        return None
    return "dim", [(f"first look at {label_of(view)}", "")]


def _idle(view: ServerView, around: Around) -> Made | None:
    requests = view.window.all.requests
    since = view.last_busy_at if view.last_busy_at is not None else view.watched_since
    if requests.running or requests.waiting or since is None:
        return None
    low, high = IDLE_AFTER_S
    if around.now - since < min(max(_window_s(view) or high, low), high):
        return None
    first = f"nobody asked anything for {nb(span(around.now - since))};"
    last = view.last_traffic
    if last is not None and last.all.cached.share is not None:
        n = _n(last)
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
    n, share = _n(window), everything.cached.share
    parts: list[str] = []
    if share is not None:
        first = f"{nb(pct(share))} cached"
        lead = f"(n={n} {over})" if n else f"({over})"
        p50 = everything.latency.ttft.p50
        if p50 is not None:
            parts.append(f"TTFT p50 {nb(_quantile(p50))}")
    else:
        running = everything.requests.running
        life = view.life.all.cached.lifetime_share
        known = f"since start {nb(pct(life, 1))} cached" if life is not None else ""
        if running:
            first, lead = f"{running} {'runs' if running == 1 else 'run'},", f"no first token {over} yet"
        else:
            first, lead = f"no turn {over},", ""
        if window.window_s is None:
            first, lead = "the first reading;", "a window needs two"
        if known:
            lead = f"{lead}, {known}" if lead else known
    parts += _queue_words(window) + _tier_words(view)
    for end in range(len(parts), -1, -1):
        rest = ", ".join([lead, *parts[:end]] if lead else parts[:end])
        if len(first) + 1 + len(rest) <= LENGTH:
            return "ok", [(first, rest)]
    return "ok", [(first, lead)]


def _over(view: ServerView) -> str:
    """`in 5 min`; where less than that was seen, how much."""
    asked, seen = _window_s(view), view.window.window_s
    if asked is None:
        return "since start"
    if seen is not None and seen < asked * 0.9:
        return f"in {nb(span(seen))}"
    return f"in {nb(next(words for key, _, words in WINDOWS if key == view.window_key))}"


def _n(window: Window) -> int | None:
    n = window.all.latency.ttft.n
    return n if n is not None else window.all.requests.finished.total


def _quantile(q: Quantile) -> str:
    return secs(q.value_s) if q.value_s is not None else f"> {secs(q.above_s)}"


def _queue_words(window: Window) -> list[str]:
    waiting = window.all.requests.waiting
    if waiting is None:
        return []
    return [f"{waiting} {'waits' if waiting == 1 else 'wait'}"] if waiting else ["no queue"]


def _tier_words(view: ServerView) -> list[str]:
    """What the tier moved. One that is written and never read is said here, and nowhere louder."""
    now, life = view.window.all.offload, view.life.all.offload
    if not now.supported:
        return []
    if now.unit == "blocks":
        if now.stores is None:
            return []
        return [f"tier {exact(now.stores)} blocks out, {exact(now.loads)} back"]
    if now.store_bytes_per_s is None or not (life.store_bytes_total or now.store_bytes or now.load_bytes):
        return []
    out = "0" if not now.store_bytes else nb(per_hour(now.store_bytes_per_s))
    if life.load_bytes_total == 0:
        return [f"tier {out} out, never read"]
    back = "0" if not now.load_bytes else nb(per_hour(now.load_bytes_per_s))
    return [f"tier {out} out, {back} back"]


_OF_OTHERS = {chip for _, chip, _, _ in DOWNS} | {"SLOW", "QUEUE", "RESTARTED"}
"""What is said of a server that is not the selected one."""

_CHIPS: tuple[tuple[str, Callable[[ServerView, Around], Made | None]], ...] = (
    ("SLOW", _slow),
    ("QUEUE", _queue),
    ("RESTARTED", _restarted),
    ("SLEEPING", _sleeping),
    ("CACHE OFF", _cache_off),
    ("FIRST LOOK", _first_look),
    ("IDLE", _idle),
    ("OK", _ok),
)
"""Chip and judge of an endpoint that can be read: worst first."""
