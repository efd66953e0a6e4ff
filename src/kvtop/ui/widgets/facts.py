"""Small terminals: one fact a line, label first; the share and its line stay longest."""

from __future__ import annotations

from kvtop.config import Thresholds
from kvtop.model.view import Chart
from kvtop.ui.draw import SUPER, Line, pick, pick_line, rj, spread
from kvtop.ui.numbers import DASH, exact, of_gib, pct, short
from kvtop.ui.scene import age
from kvtop.ui.widgets.box import BoxPanel
from kvtop.ui.widgets.cache import share_rows, share_tone
from kvtop.ui.widgets.gpu import degrees, how_old, why_none
from kvtop.ui.widgets.offload import ways
from kvtop.ui.widgets.ttft import estimate

GIVES_WAY = ("gpu", "offload", "queue", "ttft")
"""Which fact goes first where there is no room."""


class Facts(BoxPanel):
    FED_BY_METRICS = True

    def grey(self) -> bool:
        return False  # the GPU's line has its own age: greyed line by line

    def all_lines(self, w: int, h: int) -> list[Line]:
        scene = self.scene
        if scene is None:
            return []
        old = bool(age(self.server, self.at))
        facts = [name for name in ("offload", "queue", "ttft", "gpu") if name in scene.shown]
        for name in GIVES_WAY:
            if len(facts) > h - 1 and name in facts:
                facts.remove(name)
        out = [self._share(w)]
        chart_h = h - 1 - len(facts)
        if chart_h > 0 and "cache" in scene.shown:
            out += share_rows(self.server.share_chart if self.server else Chart(), w, chart_h)
        lines = {"offload": self._offload, "queue": self._queue, "ttft": self._ttft, "gpu": self._gpu}
        out += [lines[name](w) for name in facts]
        if not old:
            return out
        return [
            out[0],
            *(_grey(line) if i <= len(out) - 2 or "gpu" not in facts else line for i, line in enumerate(out[1:], 1)),
        ]

    def _share(self, w: int) -> Line:
        scene, server = self.scene, self.server
        cached, n = self.now.cached, self.now.latency.ttft.n
        limits = scene.thresholds if scene else Thresholds()
        old = age(server, self.at)
        tone = "d" if old else f"{share_tone(cached.share, limits)} bold"
        life = self.life.cached
        since = pct(life.lifetime_share if life.lifetime_share is not None else life.share)
        right: Line = [(old, "warn")] if old else [("since start ", "d"), *rj(since, 5)] if w >= 40 else []
        words = f" {server.window_words} n={exact(n)}" if server and not self.empty else ""
        left: list[Line] = [
            [(SUPER[1], "d"), ("cache ", "t bold"), (pct(cached.share).rjust(5), tone), (words, "d")],
            [(SUPER[1], "d"), ("cache ", "t bold"), (pct(cached.share).rjust(5), tone)],
        ]
        room = w - sum(len(text) for text, _ in right) - 1
        return spread(pick_line(left, room), right, w) if right else pick_line(left, w)

    def _offload(self, w: int) -> Line:
        label: Line = [(SUPER[2], "d"), ("tier  ", "t bold")]
        if self.life.offload.supported is False:
            return [*label, (pick(["no KV offload on this server", "no KV offload", "none"], w - 7), "d")]
        store, load = ways(
            self.now.offload, self.hour.offload, self.life.offload, self.server.window_key if self.server else "5m"
        )
        out: Line = [(store.now, "t"), (" out", "d")]
        back: Line = [(load.now, "t"), (" back", "d")]
        return pick_line([[*label, *out, (", ", "d"), *back], [*label, *out], [*label, (store.now, "t")]], w)

    def _queue(self, w: int) -> Line:
        r = self.now.requests
        label: Line = [(SUPER[3], "d"), ("queue ", "t bold")]
        run: Line = [(exact(r.running), "t"), (" run ", "d"), (exact(r.waiting), "t"), (" wait", "d")]
        pool: Line = [("  KV pool ", "d"), (pct(r.kv_cache_usage_share), "t")]
        return pick_line([[*label, *run, *pool], [*label, *run]], w)

    def _ttft(self, w: int) -> Line:
        ttft = self.now.latency.ttft
        label: Line = [(SUPER[4], "d"), ("TTFT  ", "t bold")]
        p50: Line = [(estimate(ttft.p50, ttft.n), "t"), (" p50", "d")]
        p95: Line = [("  p95 ", "d"), (estimate(ttft.p95, ttft.n), "t")]
        mean: Line = [("  mean ", "d"), (short(ttft.mean_s), "t")]
        return pick_line([[*label, *p50, *p95, *mean], [*label, *p50, *p95], [*label, *p50]], w)

    def _gpu(self, w: int) -> Line:
        label: Line = [(SUPER[5], "d"), ("GPU   ", "t bold")]
        reading = self.scene.view.gpu if self.scene else None
        if reading is None or not reading.gpus:
            return [*label, (pick(why_none(reading)[1:] or why_none(reading), w - 7), "d")]
        cards = reading.gpus
        if lost := [card for card in cards if card.lost]:
            return [*label, (f"{len(lost)} of {len(cards)} lost", "bad")]
        used = [card.memory_used_bytes for card in cards if card.memory_used_bytes is not None]
        total = [card.memory_total_bytes for card in cards if card.memory_total_bytes is not None]
        memory = of_gib(sum(used) if used else None, sum(total) if total else None)
        busy = " ".join(pct(card.util_share).removesuffix(" %") for card in cards)
        warm = " ".join(degrees(card).removesuffix(" °C") for card in cards)
        known = any(card.util_share is not None for card in cards)
        options = [f"{busy} %  {warm} °C  {memory}", f"{busy} %  {memory}", f"{busy} %", f"{len(cards)} cards"]
        if old := how_old(reading, self.at):
            return pick_line(
                [[*label, (old, "warn"), (f": {said}", "d")] for said in options] + [[*label, (old, "warn")]], w
            )
        return [*label, (pick(options, w - 7) if known else memory if memory != DASH else DASH, "t")]


def _grey(line: Line) -> Line:
    """The same words without colour."""
    return [(text, "f" if style == "fill-device" else "d") for text, style in line]
