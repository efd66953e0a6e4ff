"""Everything that is remembered of one server, and what it looks like at a moment."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from kvtop.model import charts, fleet
from kvtop.model.archive import Archive
from kvtop.model.box import EngineWindow, Window
from kvtop.model.shown_turn import Turn
from kvtop.model.traces import LEVEL_GAP_S, Traces
from kvtop.model.turns import TurnTracker
from kvtop.model.view import Savings, ServerView, seconds_of
from kvtop.model.window import Glance, between, glance, since_start
from kvtop.readings import Scrape, ServerFacts, SourceDown, State

TURNS_KEPT = 500

TOO_OLD = 1.5
TOO_OLD_S = 5.0
"""A window may be longer than asked by half, or by five seconds, where no nearer scrape is left."""

TRAFFIC_S = 300.0


class Tracker(Protocol):
    """What makes turns of scrapes."""

    def add(self, scrape: Scrape) -> tuple[Turn, ...]: ...

    def in_flight(self) -> tuple[Turn, ...]: ...


class ServerHistory:
    """One endpoint: feed it `scrape`, `down` and `facts` as they come; `view` says what is to be shown.

    `seconds` of the scrapes are Unix times. Not for several threads: feed and view from one.
    """

    def __init__(
        self, url: str, label: str, *, tracker: Callable[[], Tracker] = TurnTracker, pool_full: float = 0.95
    ) -> None:
        """`pool_full`: share of the KV pool in use from which on what waits is said to wait for room in it."""
        self.url = url
        self.label = label
        self._pool_full = pool_full
        self.version = 0
        """Grows with everything that was fed."""
        self._tracker = tracker()
        self._archive = Archive()
        self._last: Scrape | None = None
        self._last_at = 0.0
        self._state = State.UP
        self._down: SourceDown | None = None
        self._state_since: float | None = None
        self._failed = 0
        self._facts = ServerFacts()
        self._watched_since: float | None = None
        self._started_at: float | None = None
        self._reset_at: float | None = None
        self._reset_seen_at: float | None = None
        self._zero: Scrape | None = None
        """All counters at zero, at the time from which on they count, where a reset was seen."""
        self._waiting_since: float | None = None
        self._busy_at: float | None = None
        self._busy = False
        self._traffic: Window | None = None
        self._turns: deque[Turn] = deque(maxlen=TURNS_KEPT)
        self._finished: Counter[str | None] = Counter()
        """Requests seen to finish, by engine."""
        self._traces = Traces()
        self._windows: dict[str, Window] = {}
        self._views: dict[tuple[str, str | None], tuple[tuple[int, int], ServerView]] = {}
        self._pid: int | None = None
        self._loader_pid: int | None = None
        self._tier_of: int | None = None
        self._tier_files: frozenset[str] = frozenset()
        self._waits = ""

    # -- feeding

    def scrape(self, scrape: Scrape) -> None:
        """One /metrics text that was read. Its `at` counts; without one it lies a second after the one before."""
        at = scrape.at if scrape.at is not None else self._last_at + 1.0
        if scrape.at is None:
            scrape = replace(scrape, at=at)
        seen = glance(scrape)
        if not seen.state.good:
            self.down(SourceDown(seen.state, seen.detail, at))
            return
        if self._last is not None and at <= self._last_at:
            self._rewind(at)
        self.version += 1
        self._windows = {}
        self._note_state(seen.state, at)
        if self._watched_since is None:
            self._watched_since = at
        self._count(seen, scrape, at)
        self._archive.add(scrape, at)
        self._last, self._last_at = scrape, at
        finished = self._tracker.add(scrape)
        self._turns.extendleft(finished)
        for turn in finished:
            self._finished[turn.engine] += turn.n

    def waits(self, what: str) -> None:
        """What a slow try that is under way waits for; empty: none is, or it is not slow."""
        if what != self._waits:
            self._waits = what
            self.version += 1

    def down(self, down: SourceDown) -> None:
        """A try that failed."""
        self.version += 1
        self._failed += 1
        if self._down is None or down.state is not self._state:
            self._state_since = down.at
        if down.loader is not None:  # it loads since its process began, whenever that was seen
            self._loader_pid = down.loader.pid
            self._state_since = down.loader.started_at or self._state_since
        self._state, self._down = down.state, down

    def facts(self, facts: ServerFacts) -> None:
        """What changes seldom. A version and models that are unknown this time stay what was known; whether it sleeps
        does not."""
        self.version += 1
        known = self._facts
        self._facts = replace(facts, version=facts.version or known.version, models=facts.models or known.models)

    def served_by(self, pid: int) -> None:
        """The API process on this machine that serves this URL."""
        if pid != self._pid:
            self._pid = pid
            self.version += 1

    def maps(self, pid: int, files: frozenset[str]) -> None:
        """This process, which serves this URL or will, and those that it started map these files of a tier."""
        known = self._tier_files if pid == self._tier_of else frozenset[str]()
        self._tier_of = pid
        if files - known or known != self._tier_files:
            self._tier_files = known | files
            self.version += 1

    def moved(self, url: str, label: str) -> None:
        """The same server is asked at another URL from now on."""
        self.url, self.label = url, label
        self.version += 1

    @property
    def pid(self) -> int | None:
        """The API process that was last seen to serve this URL."""
        return self._pid

    @property
    def state(self) -> State:
        return self._state

    @property
    def failed_tries(self) -> int:
        return self._failed

    @property
    def reset_seen_at(self) -> float | None:
        """Unix time of the scrape that told last that the server's counters began again."""
        return self._reset_seen_at

    @property
    def latest(self) -> tuple[Scrape, ServerFacts] | None:
        """What was read of it last; None where it does not answer, or was not asked yet."""
        return (self._last, self._facts) if self._last is not None and self._down is None else None

    @property
    def started_at(self) -> float | None:
        """Unix time of the start of its process, where the last scrape told."""
        return self._started_at

    @property
    def in_flight(self) -> bool:
        """Something runs or waits, as far as the last scrape knows."""
        return self._busy and self._down is None

    @property
    def idle_since(self) -> float | None:
        """Unix time from which on nothing was seen to happen."""
        return self._busy_at if self._busy_at is not None else self._watched_since

    def _note_state(self, state: State, at: float) -> None:
        if self._down is not None or state is not self._state or self._state_since is None:
            self._state_since = at
        self._state, self._down, self._failed = state, None, 0
        self._loader_pid = None

    def _rewind(self, to: float) -> None:
        """The clock was set back: what is recorded as later than now is forgotten, the counters go on."""
        self._archive.rewind(to)
        self._traces.rewind(to)
        marks = ("_reset_at", "_reset_seen_at", "_waiting_since", "_busy_at", "_watched_since", "_state_since")
        for name in marks:
            value = getattr(self, name)
            if value is not None and value > to:
                setattr(self, name, to)

    def _count(self, seen: Glance, scrape: Scrape, at: float) -> None:
        """What happened since the scrape before: charts, resets, and whether somebody is there."""
        last = self._last
        waiting = seen.waiting
        busy = bool(seen.running or waiting)
        step: Window | None = None
        if last is not None:
            gap = at - self._last_at
            step = between(last, scrape, gap if gap > 0 else None, lean=True)
            if step.state is State.RESET or _other_start(self._started_at, step.started_at):
                step = self._reset(step, scrape, at)
                last = None  # what was before says nothing of this one
            if step is not None:
                busy = self._traces.add(step, at) or busy
        self._started_at = seen.started_at
        if busy:
            self._busy_at = at
        elif self._busy and last is not None:
            # somebody just stopped asking: keep what the last five minutes of it were
            self._traffic = self._ending_at(last, self._last_at, TRAFFIC_S, self._zero)
        self._busy = busy
        if not waiting:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = at

    def _reset(self, step: Window, scrape: Scrape, at: float) -> Window | None:
        """The counters began again between the last scrape and this one."""
        started = step.started_at
        self._reset_at = started if started is not None and self._last_at < started <= at else at
        self._reset_seen_at = self._busy_at = at  # whether somebody asked before, nobody could see
        self._busy = False
        self._zero = _zero(scrape, self._reset_at)
        self._archive.clear()
        self._waiting_since = None
        self._traffic = None
        return between(self._zero, scrape, at - self._reset_at, lean=True) if at > self._reset_at else None

    # -- showing

    def view(self, now: float, window_key: str, engine: str | None = None) -> ServerView:
        """What is to be shown at `now`. The same again where nothing was fed meanwhile."""
        stale = self._down is not None or now - self._last_at > LEVEL_GAP_S
        mark = (self.version, int(now) if stale else 0)
        known = self._views.get((window_key, engine))
        if known is not None and known[0] == mark:
            return known[1]
        made = self._view(now if stale or self._last is None else self._last_at, window_key, engine)
        if len(self._views) > 16:
            self._views.clear()
        self._views[window_key, engine] = (mark, made)
        return made

    def series(self, name: str, span_s: float, columns: int, now: float) -> tuple[float | None, ...]:
        """Columns of any span up to a day, oldest first, for a page of its own; None is a gap.

        Names: share, ttft_p50_s, running, waiting, kv_cache_usage_share, store_bytes_per_s, load_bytes_per_s (their
        peaks), generation_tokens_per_s (its mean). Of an unknown name nothing is known. Its cost grows with `columns`.
        """
        end = now if self._down is not None or now - self._last_at > LEVEL_GAP_S else self._last_at
        return self._traces.page(name, span_s, columns, end)

    def _view(self, now: float, window_key: str, engine: str | None) -> ServerView:
        life = self._window("start")
        whole = self._window(window_key)
        hour = self._window("1h")
        known = engine if engine is not None and any(e.engine == engine for e in life.engines) else None
        window, hour, life = (_of_engine(w, known) for w in (whole, hour, life))
        age = max(0.0, now - self._last_at) if self._last is not None else None
        span = charts.span_of(window_key, self._seen_s(now, life if window_key == "start" else None))
        drawn = self._traces.charts(now, span, self._last_at)
        state = State.SLEEPING if self._state is State.UP and self._facts.sleeping else self._state
        return ServerView(
            url=self.url,
            label=self.label,
            state=state,
            cause=self._down.cause if self._down is not None else "",
            http_status=self._down.http_status if self._down is not None else None,
            state_since=self._state_since,
            last_good_at=self._last_at if self._last is not None else None,
            failed_tries=self._failed,
            waits_for=self._waits,
            version=self._facts.version,
            models=self._facts.models,
            started_at=life.started_at if life.started_at is not None else self._reset_at,
            reset_at=self._reset_at,
            reset_seen_at=self._reset_seen_at,
            config=life.all.config,
            window_key=window_key,
            window=window,
            hour=hour,
            life=life,
            savings=_savings(window, hour, life),
            share_chart=drawn["share"],
            store_chart=drawn["store"],
            load_chart=drawn["load"],
            running_chart=drawn["running"],
            waiting_chart=drawn["waiting"],
            no_room=_no_room(window, self._pool_full),
            waiting_since=self._waiting_since if self._down is None else None,
            turns=tuple(_of_this(self._flying(), known)) + tuple(_of_this(self._turns, known)),
            turns_total=sum(n for e, n in self._finished.items() if known is None or e in (known, None)),
            engines=fleet.engine_lines(whole, state, age, known),
            engine=known,
            api_key=_api_key(self._facts),
            pid=self._pid,
            loader_pid=self._loader_pid,
            tier_files=self._tier_files,
            watched_since=self._watched_since,
            last_busy_at=self._busy_at,
            last_traffic=self._traffic if not self._busy else None,
        )

    def _flying(self) -> tuple[Turn, ...]:
        return self._tracker.in_flight() if self._down is None else ()

    def _seen_s(self, now: float, life: Window | None) -> float:
        """How long it has been watched; with `life` of this process alone."""
        seen = now - self._watched_since if self._watched_since is not None else 0.0
        return max(1.0, min(seen, life.window_s) if life is not None and life.window_s is not None else seen)

    def _window(self, key: str) -> Window:
        """Over the last so many seconds up to the newest scrape; worked out once a scrape."""
        if self._last is None:
            return Window(self._state)
        known = self._windows.get(key)
        if known is None:
            seconds = seconds_of(key)
            if seconds is None:
                known = since_start(self._last)
            else:
                known = self._ending_at(self._last, self._last_at, seconds, self._zero)
            self._windows[key] = known
        return known

    def _ending_at(self, scrape: Scrape, at: float, seconds: float, zero: Scrape | None) -> Window:
        """`seconds` up to this scrape, or as much of it as was seen since the counters began (see window_s)."""
        wanted = at - seconds
        if zero is not None and zero.at is not None and zero.at >= wanted:
            counted = between(zero, scrape, at - zero.at) if at > zero.at else since_start(scrape)
            state = State.RESET if counted.state is State.UP else counted.state
            return replace(counted, state=state, detail="the counters began again in this window: counted from zero")
        start = self._archive.nearest(wanted, at)
        if start is None or start.at is None or at - start.at > max(seconds * TOO_OLD, seconds + TOO_OLD_S):
            alone = between(_NOTHING, scrape, None)
            return replace(alone, detail="the first reading: a window needs two")
        return between(start, scrape, at - start.at)


_NOTHING = Scrape({}, {}, has_vllm=False)


def _api_key(facts: ServerFacts) -> str:
    """What keeps the server from telling its models, in the words of `ServerView.api_key`."""
    about = next((words for words in facts.problems if "API key" in words), "")
    return ("refused" if "is refused" in about else "wanted") if about else ""


def _other_start(old: float | None, new: float | None) -> bool:
    return old is not None and new is not None and abs(old - new) > 0.5


def _no_room(window: Window, full: float) -> bool:
    """vLLM's reason `capacity` is any want of scheduling capacity: seats, the step's budget, or room in the pool."""
    requests = window.all.requests
    usage = requests.kv_cache_usage_share
    return bool(requests.waiting_by_reason.capacity) and usage is not None and usage >= full


def _zero(scrape: Scrape, at: float) -> Scrape:
    """The same series with nothing counted yet."""
    return replace(scrape, values=dict.fromkeys(scrape.values, 0.0), at=at, truncated=False)


def _of_engine(window: Window, engine: str | None) -> Window:
    """The window with one engine's numbers as its own; its list of engines stays."""
    if engine is None:
        return window
    one = next((e for e in window.engines if e.engine == engine), EngineWindow(engine=engine))
    return replace(window, all=one)


def _of_this(turns: Iterable[Turn], engine: str | None) -> Iterable[Turn]:
    return turns if engine is None else (t for t in turns if t.engine in (engine, None))


def _savings(window: Window, hour: Window, life: Window) -> Savings:
    """Cached tokens of the window, and the seconds that reading them anew would have taken this server."""
    rates = (w.all.throughput.prefill_tokens_per_s for w in (window, hour, life))
    rate = next((r for r in rates if r), None)
    tokens = window.all.cached.cached_tokens
    seconds = tokens / rate if tokens is not None and rate else None
    return Savings(tokens=tokens, prefill_s=seconds, prefill_tokens_per_s=rate)
