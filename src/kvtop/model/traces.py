"""What the charts of one server are drawn from: each quantity over time, and its columns."""

from __future__ import annotations

from kvtop.model import charts
from kvtop.model.box import Window
from kvtop.model.series import How, Medians
from kvtop.model.view import Chart

LEVEL_GAP_S = 6.0
"""A gauge read now says nothing of a time further back than this: the chart has a gap."""

FLOW_GAP_S = 120.0
"""A counter's growth over a longer silence is in the windows, but no column of a chart could say when it was."""

_FLOWS = ("prompt", "cached", "store", "load", "generated")
_LEVELS = ("running", "waiting", "kv_usage")

_PAGES: dict[str, tuple[str, How]] = {
    "running": ("running", How.PEAK),
    "waiting": ("waiting", How.PEAK),
    "kv_cache_usage_share": ("kv_usage", How.PEAK),
    "store_bytes_per_s": ("store", How.PEAK),
    "load_bytes_per_s": ("load", How.PEAK),
    "generation_tokens_per_s": ("generated", How.MEAN),
}
"""Name on the history page -> series, and what a column says."""


class Traces:
    """Fed with what happened between two scrapes, in order of time."""

    def __init__(self) -> None:
        self._series = {name: charts.level() if name in _LEVELS else charts.flow() for name in (*_FLOWS, *_LEVELS)}
        self._ttft = Medians()
        self._charts = {
            "share": charts.share(self._series["cached"], self._series["prompt"]),
            "store": charts.plain(self._series["store"], How.PEAK),
            "load": charts.plain(self._series["load"], How.PEAK),
            "running": charts.plain(self._series["running"], How.PEAK),
            "waiting": charts.plain(self._series["waiting"], How.PEAK),
        }

    def add(self, step: Window, at: float) -> bool:
        """A step that ended at `at`; True where something was done in it."""
        gap, everything = step.window_s, step.all
        flows = {
            "prompt": everything.cached.prompt_tokens,
            "cached": everything.cached.cached_tokens,
            "store": everything.offload.store_bytes,
            "load": everything.offload.load_bytes,
            "generated": everything.throughput.generation_tokens,
        }
        levels = {
            "running": everything.requests.running,
            "waiting": everything.requests.waiting,
            "kv_usage": everything.requests.kv_cache_usage_share,
        }
        if gap is not None and gap <= FLOW_GAP_S:
            for name, amount in flows.items():
                if amount is not None and amount >= 0:
                    self._series[name].add(at - gap, at, amount)
        if gap is not None and gap <= LEVEL_GAP_S:
            for name, value in levels.items():
                if value is not None:
                    self._series[name].add(at - gap, at, value)
        ttft = everything.latency.ttft
        if ttft.n and ttft.p50 is not None and ttft.p50.value_s is not None:
            self._ttft.add(at, ttft.p50.value_s, ttft.n)
        return bool(flows["prompt"] or flows["generated"])

    def rewind(self, to: float) -> None:
        """The clock was set back: what is later than now is forgotten."""
        for series in self._series.values():
            series.rewind(to)
        self._ttft.rewind(to)
        for chart in self._charts.values():
            chart.forget()

    def charts(self, now: float, span_s: float, data_end: float) -> dict[str, Chart]:
        """The live charts by name, each ending in the column of `now`; data may still come from `data_end` on."""
        return {name: rolling.at(now, span_s, data_end) for name, rolling in self._charts.items()}

    def page(self, name: str, span_s: float, columns: int, end: float) -> tuple[float | None, ...]:
        """Columns of any span up to a day: see `ServerHistory.series`."""
        if name == "share":
            rolling = charts.share(self._series["cached"], self._series["prompt"])
            return rolling.at(end, span_s, None, columns).values
        if name == "ttft_p50_s":
            return self._ttft.query(span_s, columns, end)
        found = _PAGES.get(name)
        if found is None:
            return (None,) * columns
        series, how = found
        return self._series[series].query(span_s, columns, how, end)
