"""Requests that run or wait now, as far as gauges and counters tell."""

from __future__ import annotations

from kvtop.model import metrics as m
from kvtop.model.growth import Growth, whole
from kvtop.model.samples import Samples
from kvtop.model.shown_turn import Turn

MAX_COUNT = 10_000
"""Requests in flight whose arrival is remembered."""


class Flight:
    """What is in flight in one engine (`label` None: the only one)."""

    def __init__(self, label: str | None) -> None:
        self._label = label
        self._now: Samples | None = None
        self.idle: Samples | None = None
        """The last scrape with nothing in flight: what grew since then belongs to the requests of this spell."""
        self._counts = (0, 0)
        self._arrivals: list[float | None] = []
        """When each one was first seen, oldest first."""
        self._finished = 0
        """Finishes since `idle`."""
        self._lost = False
        """Since `idle` one left without a finish: a client hung up, and its tokens stand in the counters."""

    def add(self, now: Samples, finished: int) -> None:
        """The next scrape, and how many finished since the one before."""
        g = Growth(None, now, self._label, zero=True)
        gauges = whole(g.now(m.RUNNING)), whole(g.now(m.WAITING))
        running, waiting = (max(0, n or 0) for n in gauges)
        count = min(running + waiting, MAX_COUNT)
        stayed = min(count, max(0, len(self._arrivals) - finished))
        if count < len(self._arrivals) - finished:
            self._lost = True
        # which ones left is not known: the ones that stay have been there at least since the latest arrivals
        kept = self._arrivals[len(self._arrivals) - stayed :] if stayed else []
        self._arrivals = kept + [now.scrape.at] * (count - stayed)
        self._finished += finished
        self._counts = (running, waiting)
        self._now = now
        if count == 0 and None not in gauges:
            self.idle, self._finished, self._lost = now, 0, False

    def rows(self) -> list[Turn]:
        """One row for a request that is alone; else one a phase, with `n` requests in it."""
        running, waiting = self._counts
        if self._now is None or running + waiting == 0:
            return []
        writing = self._writing()
        first = self._arrivals[0] if self._arrivals else None
        if running + waiting == 1:
            phase = "waits" if waiting else (None if writing is None else "writes" if writing else "reads")
            prompt, cached = self._tokens(bool(writing))
            return [
                Turn(
                    id=0,
                    ended_at=None,
                    state="in_flight",
                    phase=phase,
                    started_at=first,
                    prompt_tokens=prompt,
                    cached_tokens=cached,
                    new_tokens=None if prompt is None or cached is None else prompt - cached,
                    engine=self._label,
                )
            ]
        if writing is None:
            groups = [(running, None), (waiting, "waits")]
        else:
            groups = [(min(writing, running), "writes"), (running - min(writing, running), "reads"), (waiting, "waits")]
        return [
            Turn(
                id=0,
                ended_at=None,
                n=n,
                state="in_flight",
                phase=phase,
                started_at=first if n == running + waiting else None,
                engine=self._label,
            )
            for n, phase in groups
            if n
        ]

    def cached_if_alone(self, now: Samples, prompt: float) -> float | None:
        """Cached tokens of the only request that ran since the last idle scrape, `now` being idle again; else None.

        For vLLM below 0.13, whose histograms do not tell it. That nothing else ran shows in the prompt counter.
        """
        if self.idle is None or self._finished or self._lost:
            return None
        g = Growth(self.idle, now, self._label, zero=False)
        if g.now(m.RUNNING) != 0 or g.now(m.WAITING) != 0 or g.grew(m.PROMPT) != prompt or g.grew(m.QUERIES) != prompt:
            return None
        hits = whole(g.grew(m.HITS))
        return None if hits is None else hits + (whole(g.grew(m.EXTERNAL_HITS)) or 0)

    def _since_idle(self) -> Growth | None:
        if self._now is None or self.idle is None or self._lost:
            return None
        return Growth(self.idle, self._now, self._label, zero=False)

    def _writing(self) -> int | None:
        """Requests in flight that have had their first token: first tokens less finishes, since the engine was idle."""
        g = self._since_idle()
        if g is None:
            return None
        first_tokens = whole(g.grew(m.TTFT, "_count"))
        n = None if first_tokens is None else first_tokens - self._finished
        return n if n is not None and 0 <= n <= sum(self._counts) else None

    def _tokens(self, writes: bool) -> tuple[int | None, int | None]:
        """Prompt and cached tokens of the one in flight: what grew since idle, less what the finished ones took.

        Known from its admission on where the lookups tell it, for certain from its first token on.
        """
        g = self._since_idle()
        if g is None:
            return None, None
        done = g.grew(m.REQUEST_PROMPT, "_sum")
        asked, hits = (g.grew(m.PROMPT), g.grew(m.CACHED)) if writes else (g.grew(m.QUERIES), g.grew(m.HITS))
        if asked is None or done is None or asked <= done:
            return None, None
        prompt = round(asked - done)
        if not writes or hits is None:
            local, external = g.grew(m.HITS), g.grew(m.EXTERNAL_HITS)
            hits = None if local is None else local + (external or 0.0)
        computed = g.grew(m.REQUEST_COMPUTED, "_sum")
        if hits is None or (computed is None and done):
            return prompt, None
        cached = round(hits - (done - (computed or 0.0)))
        return (prompt, cached) if 0 <= cached <= prompt else (None, None)
