"""Time to first token: quantiles with their buckets and n, and what the time went into."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.model.box import EngineWindow, Latency, Quantile
from kvtop.ui.draw import Line, cells, lj, pick, pick_line, rj, stack, width
from kvtop.ui.numbers import DASH, bound, bucket, exact, ms, pct, rate, short, tok
from kvtop.ui.scene import second_row
from kvtop.ui.widgets.box import BoxPanel

COLUMNS = ((7, 0), (6, 0), (9, 0), (8, 0), (7, 44), (7, 37))
"""(cells, from which width on) of span, p50, bucket, p95, mean and n: each a cell wider than its longest text."""
P95_NEEDS = 20
LONGEST = 6
"""Cells of a mean: 655 ms, 10.6 h."""
BAR_AT_LEAST = 8
"""Cells of the bar, whatever stands beside it."""


def incl(n: int) -> str:
    """That so many of what was observed are kvtop's own requests; empty: none is."""
    return f"incl. {exact(n)} of a kvtop replay" if n else ""


def value(q: Quantile | None) -> str:
    """A quantile: 4.3 s; '> 1920 s' beyond the last bucket."""
    if q is None or (q.value_s is None and q.up_to_s is not None):
        return DASH
    return short(q.value_s) if q.value_s is not None else f"> {bound(q.above_s)}"


def _brief(q: Quantile | None, about: bool = False) -> str:
    """A quantile in six cells: 4.3 s, ~119 s; beyond the last bucket >640 s, >43 m."""
    if q is None:
        return DASH
    return f"{'~' if about else ''}{short(q.value_s)}" if q.value_s is not None else f">{short(q.above_s)}"


def estimate(q: Quantile | None, n: int | None) -> str:
    """The same where its bucket does not stand beside it: ~4.3 s. Of a single observation it is exact."""
    return f"~{value(q)}" if q is not None and q.value_s is not None and n != 1 else value(q)


def bounds(q: Quantile | None) -> str:
    return DASH if q is None else bucket(q.above_s, q.up_to_s, q.value_s)


class TtftPanel(BoxPanel):
    NUMBER, NAME, FED_BY_METRICS = 4, "TTFT", True

    def depends(self) -> object:
        own = (self.server.own, self.server.own_of_hour) if self.server else None
        return *self.state(), self.now.latency, second_row(self.server)[1].latency.ttft, self.now.spec_decode, own

    def context(self, w: int) -> Line:
        server = self.server
        assert server is not None
        span, n = server.window_words, exact(self.now.latency.ttft.n)
        mixed = incl(server.own.n)
        told = [f"{said}, {mixed}" for said in (f"time to first token, {span}, n={n}", f"{span}, n={n}", f"n={n}")]
        if mixed:
            told += [f"n={n}, {mixed.removeprefix('incl. ').replace('a kvtop', 'a')}"]
        return [
            (
                pick([*(told if mixed else []), f"time to first token, {span}, n={n}", f"{span}, n={n}", f"n={n}"], w),
                "d",
            )
        ]

    def body(self, w: int, h: int) -> list[Line]:
        return (self._small(w) if h <= 3 else self._large(w, h))[:h]

    def _small(self, w: int) -> list[Line]:
        ttft = self.now.latency.ttft
        exactly: Line = [("p50 ", "d"), (value(ttft.p50), "t bold")]
        if ttft.p50 is not None:
            exactly.append((f" ({bounds(ttft.p50)})", "d"))
        about: Line = [("p50 ", "d"), (estimate(ttft.p50, ttft.n), "t bold")]
        p95: Line = [("  p95 ", "d"), (estimate(ttft.p95, ttft.n), "t")]
        mean: Line = [("  mean ", "d"), (short(ttft.mean_s), "t")]
        return [
            pick_line([[*exactly, *p95, *mean], [*exactly, *p95], [*about, *p95]], w),
            self._bar(w),
            self._phases(w),
        ]

    def _bar(self, w: int) -> Line:
        """What the requests that finished spent their time on, and how many they were.

        The means above are of first tokens: other requests, so that the two need not agree.
        """
        latency = self.now.latency
        parts = ((latency.queue, "queue"), (latency.prefill, "prefill"), (latency.decode, "decode"))
        n = latency.prefill.n
        if n is None:
            words = ""
        elif n:
            words = pick([f"  mean of {exact(n)} finished", f"  {exact(n)} finished", ""], w - BAR_AT_LEAST)
        else:
            words = pick(["  none finished", ""], w - BAR_AT_LEAST)
        return [*stack([(phase.mean_s, style) for phase, style in parts], w - cells(words)), (words, "d")]

    def _phases(self, w: int) -> Line:
        latency = self.now.latency
        phases = ((latency.queue, "queue"), (latency.prefill, "prefill"), (latency.decode, "decode"))
        words = [short(phase.mean_s) for phase, _ in phases]
        # by the width alone: a value that grows changes no word beside it
        for decode, gap in (("decode", 3), ("decode", 2), ("decode", 1), ("dec", 1)):
            if cells(f"queue prefill {decode} ") + 3 * LONGEST + 2 * gap <= w:
                return _row_of_phases(words, LONGEST, gap, decode)
        # decode goes first: it is no part of what was waited for
        n = 2 if cells("queue prefill ") + 2 * LONGEST + 1 <= w else 1
        return _row_of_phases(words[:n], LONGEST, 1)

    def _large(self, w: int, h: int) -> list[Line]:
        server = self.server
        span = server.window_words if server else "5 min"
        name, longer = second_row(server)
        of_hour = server.own_of_hour.n if server and longer is server.hour.all else 0
        own = server.own.n if server else 0
        rows = [self._columns(w), self._row(span, self.now, w, own), self._row(name, longer, w, of_hour)]
        if h >= 8:
            rows.append([])
        rows += [self._bar(w), self._phases(w), self._writing(w)]
        spec = self.now.spec_decode
        if h >= 8 and spec is not None:
            length = DASH if spec.mean_length_tokens is None else f"{spec.mean_length_tokens:.1f}"
            rows.append(
                [
                    ("drafts ", "d"),
                    (pct(spec.acceptance_share), "t"),
                    (" accepted, ", "d"),
                    (length, "t"),
                    (" tok a step", "d"),
                ]
            )
        return rows

    def _columns(self, w: int) -> Line:
        return self._cells(w, (("", "d"), ("p50", "d"), ("bucket", "d"), ("p95", "d"), ("mean", "d"), ("n", "d")))

    def _row(self, name: str, window: EngineWindow, w: int, own: int) -> Line:
        """`own`: so many of it are kvtop's own."""
        ttft = window.latency.ttft
        line = self._cells(
            w,
            (
                (_short_span(name), "d"),
                (_brief(ttft.p50), "t bold"),
                (bounds(ttft.p50), "d"),
                (_brief(ttft.p95, about=ttft.n != 1), "t"),
                (short(ttft.mean_s), "t"),
                (exact(ttft.n) if ttft.n is None or ttft.n < 100_000 else tok(ttft.n), "t"),
            ),
        )
        about = [f"   {incl(own)}"] if own else []
        said = pick([*about, _about(ttft), ""], w - width(line))
        return [*line, (said, "d")] if said else line

    @staticmethod
    def _cells(w: int, texts: Sequence[tuple[str, str]]) -> Line:
        """A row of the table: the first at the left, the others at the right of their fields; first go mean, then n."""
        line: Line = []
        for (text, style), (field, from_w) in zip(texts, COLUMNS, strict=True):
            if w >= from_w:
                line += rj(text, field, style) if line else lj(text, field, style)
        return line

    def _writing(self, w: int) -> Line:
        """How fast one answer is written, however many are at a time: one over the mean gap between its tokens."""
        gap = self.now.latency.inter_token
        speed = rate(1 / gap.mean_s if gap.mean_s else None)
        line: Line = [("writes ", "d"), *lj(speed if speed == DASH else f"{speed} tok/s", 11)]
        line += [(" gap p50 ", "d"), *lj(_gap(gap.p50, gap.n), 7)]
        if w >= 50:
            line += [(" p95 ", "d"), (_gap(gap.p95, gap.n), "t")]
        return line


def _gap(q: Quantile | None, n: int | None) -> str:
    """Between tokens: ~26 ms. No bucket has room beside it."""
    if q is None or q.value_s is None:
        return DASH
    return ms(q.value_s) if n == 1 else f"~{ms(q.value_s)}"


def _row_of_phases(words: list[str], field: int, gap: int, decode: str = "decode") -> Line:
    """The three phases with their means, or the first of them, in the colours of the bar above."""
    line: Line = []
    for i, (name, word) in enumerate(zip(("queue", "prefill", "decode"), words, strict=False)):
        last = i == len(words) - 1
        line += [
            (f"{decode if name == 'decode' else name} ", name if name == "queue" else f"{name}-text"),
            *lj(word, len(word) if last else max(field, len(word))),
        ]
        if not last:
            line.append((" " * gap, "t"))
    return line


def _short_span(words: str) -> str:
    """In six cells."""
    return "start" if words.startswith("since") else words if len(words) <= 6 else words.split(" s", maxsplit=1)[0][:6]


def _about(ttft: Latency) -> str:
    """Beside the numbers where there is room."""
    if ttft.p95 is not None:
        return f"   95 % ≤ {bound(ttft.p95.up_to_s)}" if ttft.p95.up_to_s is not None else ""
    return f"   p95 needs n ≥ {P95_NEEDS}" if ttft.n is not None and 0 < ttft.n < P95_NEEDS else ""
