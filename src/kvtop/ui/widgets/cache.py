"""How much of the prompts came from cache: the window, the hour's line, the parts, and what it spared."""

from __future__ import annotations

from itertools import takewhile

from kvtop.config import Thresholds
from kvtop.model.box import Cached
from kvtop.model.charts import mean_of
from kvtop.model.shown_turn import Turn
from kvtop.model.view import Chart, ServerView
from kvtop.ui.digits import big
from kvtop.ui.draw import Line, area, cells, edge, fit, lj, ljust, pick, rj, spread, stack, width
from kvtop.ui.numbers import DASH, exact, pct, secs, tok, whole_shares
from kvtop.ui.widgets.box import BoxPanel

SOURCES = (
    ("cached-device", "device", "device"),
    ("cached-host", "host", "host"),
    ("cached-disk", "disk", "disk"),
    ("cached-p2p", "p2p", "p2p"),
    ("cached-host", "external", "connector"),
    ("computed", "computed", "computed"),
)
"""Style, field of BySource, word. In the order of the bar."""
ALWAYS = ("device", "host", "computed")


def share_tone(share: float | None, limits: Thresholds) -> str:
    """Bright when good, amber below, red when poor; dim when not known."""
    if share is None:
        return "d"
    return "bright" if share >= limits.share_good else "warn" if share >= limits.share_poor else "bad"


def parts_of(cached: Cached) -> list[tuple[str, str, int | None]]:
    """(style, word, tokens) of what the prompts were made of; sources that are none or unknown are left out."""
    out: list[tuple[str, str, int | None]] = []
    for style, name, word in SOURCES:
        tokens: int | None = getattr(cached.by_source, name)
        if name in ALWAYS or tokens:
            out.append((style, word, tokens))
    if cached.by_source.external and not cached.by_source.host:
        out = [part for part in out if part[1] != "host"]
    return out


def parts_shares(cached: Cached) -> list[str]:
    """The share of each part in words: whole percents that add up to 100, those from cache to the share that is shown.

    Where one of them is unknown, or they are not the whole, each is rounded by itself.
    """
    shown, total = parts_of(cached), cached.prompt_tokens
    alone = [pct(n / total) if total and n is not None else DASH for _, _, n in shown]
    known = [n for _, _, n in shown if n is not None]
    if cached.share is None or len(known) < len(shown) or not total or abs(sum(known) / total - 1) > 0.01:
        return alone
    figure = int(pct(cached.share).removesuffix(" %"))
    hits = whole_shares(known[:-1], figure)
    return [f"{share} %" for share in (*hits, 100 - figure)] if sum(hits) == figure else alone


def parts_bar(cached: Cached, w: int) -> Line:
    """The prompts of the window as one bar."""
    if not cached.prompt_tokens:
        return [("·" * w, "f")]
    return stack([(tokens, style) for style, _, tokens in parts_of(cached)], w)


def share_rows(chart: Chart, w: int, h: int) -> list[Line]:
    """The braille area of the cached share, 0 to 100 %."""
    rows = area(chart.values, w, h, 1.0, mean=True)
    if h <= 2:
        return [[(row, "cached-device")] for row in rows]
    return [edge(row, rows[i - 1] if i else "", "cached-device", "fill-device") for i, row in enumerate(rows)]


def span_words(span_s: float) -> str:
    """The left end of a time axis: -30 m."""
    return f"-{span_s / 60:.0f} m" if span_s < 2 * 3600 else f"-{span_s / 3600:.0f} h"


def _mean_words(span_s: float) -> str:
    """How long a mean one point of such a chart is: 6 s, 1 min."""
    mean_s = mean_of(span_s)
    return f"{mean_s / 60:g} min" if mean_s >= 60 else f"{mean_s:g} s"


class CachePanel(BoxPanel):
    NUMBER, NAME, FED_BY_METRICS = 1, "Cache", True

    def depends(self) -> object:
        server, now = self.server, self.now
        marked = self._marked()
        slow = (marked.id, int(self.at - (marked.ended_at or 0)) // 5) if marked is not None else None
        chart, savings = (server.share_chart, server.savings) if server else (None, None)
        return (
            *self.state(),
            now.cached,
            now.latency.ttft.n,
            server.own if server else None,
            self._lifetime(),
            savings,
            chart,
            slow,
        )

    def context(self, w: int) -> Line:
        server = self.server
        assert server is not None
        if server.config.prefix_caching is False:
            return [(pick(["prefix caching is off on this server", "prefix caching is off", "off"], w), "warn")]
        n, prompt = server.asked_n, self.now.cached.prompt_tokens
        span = server.window_words
        last = span if span.startswith("since") else f"last {span}"
        count = DASH if n is None else exact(n)
        mixed = [f"{span}, n={count}, {server.own.left} of a kvtop replay"] if server.own.left else []
        return [
            (
                pick(
                    [
                        *mixed,
                        f"{last}, n={count}, {tok(prompt)} prompt tokens",
                        f"{span}, n={count}, {tok(prompt)} tokens",
                        f"{span}, n={count}",
                        span,
                        "",
                    ],
                    w,
                ),
                "d",
            )
        ]

    def body(self, w: int, h: int) -> list[Line]:
        return (self._small if h <= 5 or w < 46 else self._large)(w, h)[:h]

    def _limits(self) -> Thresholds:
        return self.scene.thresholds if self.scene else Thresholds()

    def _lifetime(self) -> float | None:
        cached = self.life.cached
        return cached.lifetime_share if cached.lifetime_share is not None else cached.share

    # ---- small: figure, chart, bar, legend
    def _small(self, w: int, h: int) -> list[Line]:
        cached, server = self.now.cached, self.server
        tone = share_tone(cached.share, self._limits())
        figure: Line = [(pct(cached.share), f"{tone} bold"), (" cached", "t")]
        if cached.cached_tokens is not None and w >= 42:
            figure.append((f", {tok(cached.cached_tokens)} saved", "d"))
        lifetime: Line = [("since start ", "d"), *rj(pct(self._lifetime()), 5)]
        axis = h > 8
        rows = [spread(figure, lifetime, w), *self._chart(server, w, max(1, h - 3 - axis), axis)]
        return [*rows, parts_bar(cached, w), self._legend(w, False)]

    # ---- large: the figure big, what it spared, the line with its axis
    def _large(self, w: int, h: int) -> list[Line]:
        cached, server = self.now.cached, self.server
        left_w = 24 if w < 80 else 31
        tone = share_tone(cached.share, self._limits())
        figure = pct(cached.share).removesuffix(" %") if cached.share is not None else DASH
        words = ("of prompt tokens", "came from cache") if left_w > 24 else ("of prompt", "from cache")
        left: list[Line] = []
        for row, glyphs in enumerate(big(figure)):
            sign = " %" if row == 2 and cached.share is not None else ""
            cell: Line = [(glyphs, f"{tone} bold"), (sign, tone)]
            left.append([*fit(cell, 13), (" " + ("", *words)[row], "d")])
        savings = server.savings if server else None
        config = self.now.config
        if server and config.match_unit_tokens is None:
            config = server.config
        saved = savings.prefill_s if savings else None
        facts: list[tuple[str, str]] = [
            ("since start", pct(self._lifetime(), 1)),
            ("tokens saved", tok(savings.tokens if savings else None)),
            ("prefill saved", f"~{secs(saved)}" if saved is not None else DASH),
        ]
        if h >= 12:
            speed = tok(savings.prefill_tokens_per_s if savings else None)
            unit = exact(config.match_unit_tokens)
            facts += [
                ("prefill speed", speed if speed == DASH else f"{speed}/s"),
                ("", ""),
                ("match unit", unit if unit == DASH else f"{unit} tok"),
            ]
        left += [[]] + [[(name.ljust(13), "d"), (" ", "t"), *rj(value, 10)] for name, value in facts]
        chart = self._chart(server, w - left_w - 1, h - 3, True)
        out: list[Line] = []
        for i in range(h - 2):
            beside = chart[i] if i < len(chart) else []
            out.append([*fit(left[i] if i < len(left) else [], left_w), (" ", "t"), *beside])
        return [*out, parts_bar(cached, w), self._legend(w, w >= 52)]

    def _chart(self, server: ServerView | None, w: int, h: int, axis: bool) -> list[Line]:
        chart = server.share_chart if server else Chart()
        gutter = 6
        rows = share_rows(chart, max(1, w - gutter), h)
        out: list[Line] = []
        for i, row in enumerate(rows):
            mark = "100 %" if i == 0 else "0 %" if i == h - 1 and h > 1 else "50 %" if h >= 4 and i == h // 2 else ""
            out.append([(mark.rjust(gutter - 1) + " ", "d"), *row])
        if axis:
            out.append([(" " * gutter, "t"), *self._axis(chart, max(1, w - gutter))])
        return out

    def _marked(self) -> Turn | None:
        """The slow turn that the sentence tells of; where it tells of none of this server, the latest one."""
        server, scene = self.server, self.scene
        if server is None or scene is None:
            return None
        url, told = scene.view.sentence.turn or ("", None)
        oldest = self.at - server.share_chart.span_s
        ended = takewhile(lambda t: t.ended_at is None or t.ended_at >= oldest, server.turns)
        waited = (t for t in ended if t.waited and t.ended_at is not None)
        return next((t for t in waited if url != server.url or t.key == told), None)

    def _axis(self, chart: Chart, w: int) -> Line:
        """Left end, the slow turn, now."""
        left = span_words(chart.span_s) + (f", {_mean_words(chart.span_s)} mean" if w >= 50 else "")
        line: Line = [(left, "d")]
        slow = self._marked()
        if slow is not None and slow.ended_at is not None and chart.span_s > 0:
            x = w - 1 - round((self.at - slow.ended_at) / chart.span_s * w)
            label = f"turn {slow.name} ▴"
            start = x - cells(label) + 1
            if start > len(left) + 2 and x < w:
                line += [(" " * (start - len(left)), "t"), (label, "bad")]
        room = w - width(line)
        return [*line, ("now".rjust(room), "d")] if room > 4 else line

    def _legend(self, w: int, tokens: bool) -> Line:
        """The parts of the bar in words, in its order."""
        cached = self.now.cached
        total = cached.prompt_tokens
        shown, shares = parts_of(cached), parts_shares(cached)
        for counts, gap in ((tokens and w >= 56, 3), (tokens and w >= 56, 2), (False, 2), (False, 1)):
            line: Line = []
            for i, ((style, word, n), share) in enumerate(zip(shown, shares, strict=True)):
                line += [
                    (" " * gap if i else "", "t"),
                    (f"{word} ", "computed-text" if style == "computed" else style),
                    *lj(share, max(4, cells(share))),
                ]
                if counts and n is not None and total:
                    line += [(" ", "t"), (ljust(tok(n), 5), "d")]
            if width(line) <= w:
                break
        return line
