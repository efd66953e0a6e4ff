"""Single requests, told apart from the counters of consecutive scrapes.

vLLM observes a request's tokens and phases in its histograms at the finish. So when exactly one request finished
between two scrapes, the growth of their sums is that request, exactly; when n did, only their means are known.
The prompt counters move at the first token, earlier than the finish, and are never paired with one.
A client that hangs up leaves no trace in any histogram: its row vanishes and none is made for it.
"""

from __future__ import annotations

from dataclasses import replace

from kvtop.model import metrics as m
from kvtop.model.flight import Flight
from kvtop.model.growth import Growth, whole
from kvtop.model.judge import Judge, Thresholds
from kvtop.model.samples import Quantity, Samples, samples
from kvtop.model.shown_turn import Turn
from kvtop.model.window import finished, ran_before, reset_reason
from kvtop.readings import Scrape

AT_FINISH: tuple[Quantity, ...] = (
    m.E2E,
    m.REQUEST_PROMPT,
    m.REQUEST_GENERATION,
    m.REQUEST_COMPUTED,
    m.QUEUE,
    m.PREFILL,
    m.DECODE,
)
"""Histograms that see each finish once."""

MAX_TORN = 3
"""Scrapes to wait for a torn text to become whole. In multiprocess mode a text may show half of a finish."""


MAX_PROCESSES = 4
"""Server processes remembered at a time: behind a load balancer or in a mixed folder their texts take turns."""


class TurnTracker:
    """Feed it every scrape of one server, in order; it hands out the rows that each one finished.

    The first scrape only sets the start. After a restart the counters of the new process count from zero. A process is
    known by its start time, so texts of two servers that take turns are never compared with each other.
    """

    def __init__(self, slow_factor: float = 3.0, slow_extra_s: float = 3.0, slow_no_rate_s: float = 10.0) -> None:
        """A turn is slow when its TTFT is over `slow_factor` times, and `slow_extra_s` above, what its new tokens take
        at this server's prefill rate; over `slow_no_rate_s` where no rate is known."""
        self._thresholds = Thresholds(slow_factor, slow_extra_s, slow_no_rate_s)
        self._processes: dict[float | None, _Process] = {}
        self._current: _Process | None = None
        self._next = 1

    def add(self, scrape: Scrape) -> tuple[Turn, ...]:
        """The rows of requests that finished since the scrape before, in engine order."""
        now = samples(scrape)
        if not now.state.good or scrape.truncated or not any(now.has(quantity) for quantity in AT_FINISH):
            return ()  # half a text would invent finishes, or lose them
        process = self._processes.pop(now.start, None)
        if process is None:
            process = _Process(self._thresholds, fresh=_began_since(self._current, now))
        self._processes[now.start] = process
        if len(self._processes) > MAX_PROCESSES:
            del self._processes[next(iter(self._processes))]
        self._current = process
        rows = process.add(now)
        numbered = tuple(replace(row, id=self._next + i) for i, row in enumerate(rows))
        self._next += len(numbered)
        return numbered

    def in_flight(self) -> tuple[Turn, ...]:
        """What is running or waiting as of the last scrape: single requests where one is alone, else a row a phase.

        Their ids are provisional: a request that is alone keeps its id when it finishes.
        """
        rows = self._current.in_flight() if self._current else []
        return tuple(replace(row, id=self._next + i) for i, row in enumerate(rows))[::-1]


class _Process:
    """The engines of one server process. `fresh`: it began after the scrape before, so all it counted is new."""

    def __init__(self, thresholds: Thresholds, *, fresh: bool) -> None:
        self._thresholds = thresholds
        self._fresh = fresh
        self._engines: dict[str, _EngineTracker] = {}
        self.last: Samples | None = None

    def add(self, now: Samples) -> list[Turn]:
        fell = self.last is not None and bool(reset_reason(self.last, now))
        labels = list(now.engines) if len(now.engines) > 1 else [""]
        rows: list[Turn] = []
        for label in labels:
            tracker = self._engines.get(label)
            if tracker is None:
                tracker = self._engines[label] = _EngineTracker(label or None, self._thresholds)
            rows += tracker.add(now, from_zero=fell or (self._fresh and self.last is None))
        for label in self._engines.keys() - set(labels):
            del self._engines[label]
        self.last = now
        return rows

    def in_flight(self) -> list[Turn]:
        return [row for tracker in self._engines.values() for row in tracker.flight.rows()]


def _began_since(before: _Process | None, now: Samples) -> bool:
    """Whether the process of `now` was started after the last scrape of another one: a restart."""
    last = before.last if before else None
    if last is None or last.start is None or now.start is None:
        return False
    return now.start > last.start and not ran_before(now, last)


class _EngineTracker:
    def __init__(self, label: str | None, thresholds: Thresholds) -> None:
        self._label = label
        self._base: Samples | None = None
        self._torn = 0
        self.flight = Flight(label)
        self._judge = Judge(thresholds)

    def add(self, now: Samples, *, from_zero: bool) -> list[Turn]:
        """The row that `now` finished, if any. `from_zero`: the server began anew since the scrape before."""
        if from_zero:
            self._base = None
            self.flight = Flight(self._label)
            self._judge.restart()
        g = Growth(self._base, now, self._label, zero=from_zero)
        if self._base is None and not from_zero:
            self._settle(now, g, 0)
            return []
        counts = [n for q in AT_FINISH if now.has(q) and (n := g.grew(q, "_count")) is not None]
        n = whole(g.grew(m.E2E, "_count"))
        if n is None:
            n = whole(max(counts, default=0.0)) or 0
        if self._is_torn(g, counts) and not from_zero and self._torn < MAX_TORN:
            self._torn += 1
            return []
        row = self._row(g, now, n) if n > 0 else None
        self._settle(now, g, n, row)
        return [row] if row else []

    def _is_torn(self, g: Growth, counts: list[float]) -> bool:
        """The histograms disagree about how many finished, or a sum moved without its count."""
        if len(set(counts)) > 1:
            return True
        if counts and counts[0] == 0:
            return any(g.grew(q, "_sum") for q in AT_FINISH if g.has(q))
        return False

    def _settle(self, now: Samples, g: Growth, n: int, row: Turn | None = None) -> None:
        self._base = now
        self._torn = 0
        self.flight.add(now, n)
        self._judge.learn(g, row)

    def _row(self, g: Growth, now: Samples, n: int) -> Turn:
        """n finishes as one row: the growth of each sum, divided by n."""

        def total(quantity: Quantity) -> float | None:
            return g.grew(quantity, "_sum") if g.grew(quantity, "_count") == n else None

        def tokens(total: float | None) -> float | None:
            return None if total is None else (round(total) if n == 1 else total / n)

        def seconds(quantity: Quantity) -> float | None:
            return None if (sum_s := total(quantity)) is None or sum_s < 0 else sum_s / n

        prompts, computed = total(m.REQUEST_PROMPT), total(m.REQUEST_COMPUTED)
        prompt, new, completion = tokens(prompts), tokens(computed), tokens(total(m.REQUEST_GENERATION))
        cached = tokens(prompts - computed) if prompts is not None and computed is not None else None
        if cached is not None and cached < 0:
            cached = new = None  # more computed than there was to read: the texts contradict themselves
        if not g.has(m.REQUEST_COMPUTED) and n == 1 and prompt is not None:
            cached = self.flight.cached_if_alone(now, prompt)  # below 0.13
            new = None if cached is None else prompt - cached
        queue, prefill, decode, duration = seconds(m.QUEUE), seconds(m.PREFILL), seconds(m.DECODE), seconds(m.E2E)
        at = now.scrape.at
        row = Turn(
            id=0,
            ended_at=at,
            n=n,
            started_at=at - duration if at is not None and duration is not None else None,
            prompt_tokens=prompt,
            cached_tokens=cached,
            new_tokens=new,
            completion_tokens=completion,
            queue_s=queue,
            prefill_s=prefill,
            decode_s=decode,
            ttft_s=queue + prefill if queue is not None and prefill is not None else None,
            duration_s=duration,
            inter_token_s=decode / (completion - 1) if decode is not None and completion and completion > 1 else None,
            finish_reason=_reason(g, n),
            engine=self._label,
        )
        slow, verdict = self._judge.verdict(row, g, self.flight.idle)
        return replace(row, slow=slow, verdict=verdict, waited=slow or self._judge.long(row))


def _reason(g: Growth, n: int) -> str | None:
    """Why they finished, where it was for all of them the same."""
    ends = finished(g)
    if ends.total != n:
        return None
    reasons = [name for name in ("stop", "length", "abort", "error", "repetition") if getattr(ends, name)]
    return reasons[0] if len(reasons) == 1 else None
