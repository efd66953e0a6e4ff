"""What runs and what waits, and why: the KV pool, preemptions, tokens a step."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.model.sentence import QUEUE_AFTER_S
from kvtop.ui.draw import Line, area, meter, nice, peak, pick, rj
from kvtop.ui.numbers import DASH, exact, pct, rate, tok
from kvtop.ui.widgets.box import BoxPanel

NAME_W = 11


class QueuePanel(BoxPanel):
    NUMBER, NAME, FED_BY_METRICS = 3, "Queue", True

    def depends(self) -> object:
        server = self.server
        charts = (server.running_chart, server.waiting_chart) if server else ()
        return *self.state(), self.now.requests, self.now.throughput, charts

    def context(self, w: int) -> Line:
        waiting = self.now.requests.waiting
        if waiting is None:
            return [(DASH, "d")]
        if not waiting:
            return [(pick(["nobody waits", ""], w), "d")]
        since = self.server.waiting_since if self.server else None
        tone = "warn" if since is not None and self.at - since >= QUEUE_AFTER_S else "d"
        verb = "wait" if waiting > 1 else "waits"
        if self.now.requests.waiting_by_reason.capacity:
            room = self.server is not None and self.server.no_room
            what = ["for room in the KV pool", "for room"] if room else ["for scheduling capacity", "for capacity"]
            options = [*(f"{waiting} {verb} {words}" for words in what), f"{waiting} {verb}"]
            return [(pick(options, w), tone)]
        return [(f"{waiting} {verb}", tone)]

    def body(self, w: int, h: int) -> list[Line]:
        return (self._small(w) if h <= 3 else self._large(w, h))[:h]

    def _reason(self) -> str:
        reasons = self.now.requests.waiting_by_reason
        if not self.now.requests.waiting:
            return ""
        return " (capacity)" if reasons.capacity else " (deferred)" if reasons.deferred else ""

    def _pool(self, bar: int, of: bool) -> Line:
        usage, waiting = self.now.requests.kv_cache_usage_share, self.now.requests.waiting
        limit = self.scene.thresholds.kv_pool_full if self.scene else 1.0
        style = "warn" if waiting and usage is not None and usage >= limit else "gauge"
        size = self.server.config.kv_cache_tokens if self.server else None
        words = f" of {tok(size)} tok" if size else ""
        return [*meter([(usage, style)], max(4, bar)), ((words.rjust(13) if of else ""), "d")]

    def _small(self, w: int) -> list[Line]:
        r, t = self.now.requests, self.now.throughput
        count = _count
        return [
            [
                ("running ", "d"),
                *_left(count(r.running), 3),
                (" waiting ", "d"),
                (count(r.waiting), "t"),
                (self._reason(), "d"),
            ],
            [("KV pool ", "d"), *rj(pct(r.kv_cache_usage_share), 5), (" ", "t"), *self._pool(w - 27, w >= 34)],
            [
                ("preempted ", "d"),
                *_left(count(r.preempted), 3),
                (" tok a step ", "d"),
                (exact(t.step_tokens_mean), "t"),
            ],
        ]

    def _step_words(self, h: int) -> list[str]:
        """Beside the tokens of a step; with what all answers together got a second, where no other row says it."""
        out = self.now.throughput.generation_tokens_per_s
        return [
            *([f"mean, {rate(out)} tok/s out"] if h < 8 and out is not None else []),
            "mean of this window",
            "mean",
            "",
        ]

    def _large(self, w: int, h: int) -> list[Line]:
        r, t, server = self.now.requests, self.now.throughput, self.server
        chart_w = max(1, w - NAME_W - 8)
        running = server.running_chart.values if server else ()
        waiting = server.waiting_chart.values if server else ()
        top = nice(max(4.0, peak(running, waiting) or 0.0))

        def row(name: str, value: str, rest: Line) -> Line:
            return [(name.ljust(NAME_W), "d"), *rj(value, 6), ("  ", "t"), *rest]

        def chart(values: Sequence[float | None]) -> Line:
            return [(area(values, chart_w, 1, top)[0], "gauge")]

        total = r.preempted_total
        finished = r.finished
        wide = w >= 48
        rows = [
            row("running", _count(r.running), chart(running)),
            row("waiting", _count(r.waiting), chart(waiting)),
            row(
                "  capacity",
                _count(r.waiting_by_reason.capacity),
                [("deferred ", "d"), (_count(r.waiting_by_reason.deferred), "t")],
            ),
            row("KV pool", pct(r.kv_cache_usage_share), self._pool(chart_w - (13 if wide else 0), wide)),
            row("preempted", _count(r.preempted), [(f"{exact(total)} since start" if total is not None else "", "d")]),
            row("tok a step", tok(t.step_tokens_mean), [(pick(self._step_words(h), chart_w), "d")]),
        ]
        if h >= 8:
            # vLLM counts no client that hangs up: that none did is not known
            said = [f"{_count(n)} {word}" for n, word in ((finished.stop, "stop"), (finished.length, "length"),
                    (finished.abort or None, "abort"), (finished.error, "error")) if n is not None]  # fmt: skip
            some = [part for part in said if not part.startswith("0 ")]
            options = [", ".join(said), ", ".join(some), ""]
            rows.append(row("finished", _count(finished.total), [(pick(options, chart_w), "d")]))
            computed, out = rate(t.computed_tokens_per_s), rate(t.generation_tokens_per_s)
            options = [
                f"tok/s, {computed} of them computed; {out} tok/s out",
                f"tok/s ({computed} computed), {out} tok/s out",
                f"tok/s, {out} tok/s out",
                "tok/s",
            ]
            if t.prompt_tokens_per_s is None:
                options = [""]
            rows.append(row("prompt in", rate(t.prompt_tokens_per_s), [(pick(options, chart_w), "d")]))
        return rows


def _count(n: int | None) -> str:
    return exact(n) if n is None or n < 10_000 else tok(n)


def _left(text: str, w: int) -> Line:
    return [(text.ljust(w), "t")]
