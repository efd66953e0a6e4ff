"""History: spans and quantities by key, gaps stay gaps, clock time below, drawn off the loop."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from kvtop.model import charts
from kvtop.model.series import Medians
from kvtop.ui import plot
from kvtop.ui.draw import nice, width
from kvtop.ui.keys import Keymap
from kvtop.ui.plot import Curve, Scale, chart, clock_ticks
from kvtop.ui.screens.history import METRICS, SPANS, HistoryScreen, _levels

from .page_app import NOON, PageApp, shown
from .screen import until


class Recorded:
    """A source of series that knows what it was asked for."""

    def __init__(self, **values: float) -> None:
        self.values = values
        self.asked: list[tuple[str, float, int]] = []

    def __call__(self, name: str, span_s: float, columns: int) -> Sequence[float | None]:
        self.asked.append((name, span_s, columns))
        value = self.values.get(name)
        return [value if i >= columns // 2 else None for i in range(columns)]


def page(series: Recorded) -> PageApp:
    return PageApp(HistoryScreen(Keymap(), series, "127.0.0.1:8000", now=lambda: NOON))


async def drawn(app: PageApp, pilot: Pilot[None]) -> list[str]:
    """The screen once its thread has drawn."""
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()
    return shown(app)


async def test_it_shows_share_first_at_80x24() -> None:
    series = Recorded(share=0.9)
    app = page(series)
    async with app.run_test(size=(80, 24)) as pilot:
        rows = await drawn(app, pilot)
        assert "127.0.0.1:8000  last 1 h" in rows[0]
        assert "▸Cached share" in rows[1]
        assert "▸1 h" in rows[2]
        assert "Cached share   2 min mean: now 90 %  lowest 90 %" in rows[3]
        assert rows[4].startswith("    100 %┼")
        assert re.search(r"\d\d:\d\d +\d\d:\d\d", rows[22])
        assert {name for name, _, _ in series.asked} == {"share"}


def hour(name: str, span_s: float, columns: int) -> Sequence[float | None]:
    """An hour of small turns, of which every ninth read all of its prompt and waited long."""
    part, whole, waits = charts.flow(), charts.flow(), Medians()
    for n in range(360):
        at, cold = NOON - 3600 + 10 * n, n % 9 == 0
        part.add(at, at + 1, 0 if cold else 900)
        whole.add(at, at + 1, 1000)
        waits.add(at + 1, 40.0 + n / 10 if cold else 0.4, 1)
    if name == "share":
        return charts.share(part, whole).at(NOON, span_s, None, columns).values
    return waits.query(span_s, columns, NOON) if name == "ttft_p50_s" else (None,) * columns


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (137, 40), (200, 50)])
async def test_the_figures_are_the_same_at_any_size_and_in_any_view(size: tuple[int, int]) -> None:
    """A figure is of two minutes of the hour, however many columns the hour has on this screen."""
    app = PageApp(HistoryScreen(Keymap(), hour, now=lambda: NOON))
    async with app.run_test(size=size) as pilot:
        page, seen = app.screen, ""
        assert isinstance(page, HistoryScreen)
        for page.metric in (None, "Cached share", "TTFT p50"):
            page.rebuild()
            seen += re.sub(r" +", " ", "\n".join(await drawn(app, pilot)))
    assert set(re.findall(r"lowest (\S+ %)", seen)) == {"75 %"}
    assert set(re.findall(r"median: now \S+ \S+ highest (\S+ \S+)", seen)) == {"400 ms"}


async def test_a_servers_name_is_shown_and_not_obeyed() -> None:
    app = PageApp(HistoryScreen(Keymap(), Recorded(), "box\x1b[31m\x9b", now=lambda: NOON))
    async with app.run_test(size=(80, 24)) as pilot:
        assert "box␛[31m�  last 1 h" in (await drawn(app, pilot))[0]


async def test_gaps_are_gaps() -> None:
    app = page(Recorded(share=0.9))
    async with app.run_test(size=(80, 24)) as pilot:
        rows = await drawn(app, pilot)
        area = [row[10:] for row in rows[4:21]]
        left = "".join(row[:30] for row in area)
        right = "".join(row[40:] for row in area)
        assert not any("\u2800" <= c <= "\u28ff" for c in left)
        assert sum("\u2800" <= c <= "\u28ff" for c in right) > 100


async def test_keys_choose_span_and_quantity() -> None:
    series = Recorded(share=0.9, running=2.0, waiting=1.0, ttft_p50_s=0.5)
    app = page(series)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(app, pilot)
        await pilot.press("right")
        rows = await drawn(app, pilot)
        assert "▸6 h" in rows[2]
        assert "last 6 h" in rows[0]
        await pilot.press("down", "down")
        rows = await drawn(app, pilot)
        assert "▸Queue" in rows[1]
        assert "running 2" in rows[3]
        assert "waiting 1" in rows[3]
        await pilot.press("up", "left", "left", "left")
        rows = await drawn(app, pilot)
        assert "▸TTFT p50" in rows[1]
        assert "▸10 min" in rows[2]
        assert "now 500 ms" in rows[3]
        asked = {span for _, span, _ in series.asked}
        assert asked == {600, 3600, 6 * 3600}


async def test_clicks_choose_quantity_and_span() -> None:
    app = page(Recorded(share=0.9, running=2.0))
    async with app.run_test(size=(80, 24)) as pilot:
        rows = await drawn(app, pilot)
        await pilot.click("#body", offset=(rows[1].index("Queue") + 1, 1))
        await pilot.click("#body", offset=(rows[2].index("24 h"), 2))
        rows = await drawn(app, pilot)
        assert "▸Queue" in rows[1] and "▸24 h" in rows[2]
        await pilot.click("#body", offset=(79, 1))
        await pilot.click("#body", offset=(30, 9))
        assert "▸Queue" in (await drawn(app, pilot))[1]
        await pilot.resize_terminal(40, 15)
        await drawn(app, pilot)
        await pilot.click("#body", offset=(4, 1))
        assert "▸Store and load  4 of 6" in (await drawn(app, pilot))[1]


async def test_it_says_what_a_column_is_and_which_day() -> None:
    app = page(Recorded(ttft_p50_s=0.4, store_bytes_per_s=5e6))
    async with app.run_test(size=(120, 24)) as pilot:
        rows = await drawn(app, pilot)
        assert re.search(r"last 1 h, \d\d:\d\d to \d\d:\d\d, a column is 17 s$", rows[0])
        await pilot.press("right", "right", "down")
        rows = await drawn(app, pilot)
        at = time.strftime("%H:%M", time.localtime(NOON))
        assert rows[0].endswith(f"last 24 h, yesterday {at} to {at}, a column is 7 min")
        assert "TTFT p50   48 min median: now 400 ms  highest 400 ms" in rows[3]


@pytest.mark.parametrize("value", [1.0, 2.0, 3.0, 4.0, 7.0, 15.0, 25.0, 40.0])
@pytest.mark.parametrize("h", [10, 24])
def test_counts_have_whole_ticks(value: float, h: int) -> None:
    queue = next(m for m in METRICS if m.title == "Queue")
    levels = _levels(queue, nice(value), h)
    assert all(at == round(at) and label.strip() == f"{at:g}" for at, label in levels)
    assert levels[0][0] == 0 and levels[-1][0] == nice(value) and len(levels) >= 2


def test_an_axis_below_a_second_is_in_ms() -> None:
    ttft = next(m for m in METRICS if m.title == "TTFT p50")
    assert [label.strip() for _, label in _levels(ttft, 0.5, 10)] == ["0 ms", "250 ms", "500 ms"]
    assert [label.strip() for _, label in _levels(ttft, 5.0, 10)] == ["0 s", "2.5 s", "5 s"]


async def test_nothing_recorded_is_said_without_an_ellipsis() -> None:
    app = page(Recorded())
    async with app.run_test(size=(80, 24)) as pilot:
        rows = await drawn(app, pilot)
        assert "nothing was recorded in this span" in "\n".join(rows)
        assert "…" not in "\n".join(rows)


async def test_all_quantities_at_200x50() -> None:
    series = Recorded(share=0.9, kv_cache_usage_share=0.5)
    app = page(series)
    async with app.run_test(size=(200, 50)) as pilot:
        rows = "\n".join(await drawn(app, pilot))
        for metric in METRICS:
            assert metric.title in rows
        assert {name for name, _, _ in series.asked} == {name for m in METRICS for name, _, _ in m.curves}
        assert "nothing was recorded in this span" in rows
        await pilot.resize_terminal(80, 24)
        assert "▸Cached share" in (await drawn(app, pilot))[1]


@pytest.mark.parametrize("size", [(40, 15), (24, 8), (20, 5), (10, 3), (200, 50)])
async def test_it_survives_every_size(size: tuple[int, int]) -> None:
    app = page(Recorded(share=0.5))
    async with app.run_test(size=size) as pilot:
        rows = await drawn(app, pilot)
        assert len(rows) == size[1]
        if size == (40, 15):
            assert "▸Cached share  1 of 6" in rows[1]
            assert "100 %" in "\n".join(rows)


async def test_it_is_drawn_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    real = plot._draw

    def draw(*args: object) -> str:
        threads.append(threading.get_ident())
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(plot, "_draw", draw)
    app = page(Recorded(share=0.5))
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(app, pilot)
    assert threads
    assert threading.get_ident() not in threads


async def test_until_the_first_chart_is_drawn_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    real = plot._draw

    def draw(*args: object) -> str:
        go.wait(30)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(plot, "_draw", draw)
    app = page(Recorded(share=0.5))
    async with app.run_test(size=(80, 24)) as pilot:
        try:
            await until(pilot, lambda: "▸Cached share" in shown(app)[1])
            assert shown(app)[3] == " drawing …"
        finally:
            go.set()
        assert "drawing" not in "\n".join(await drawn(app, pilot))


async def test_a_chart_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(*_: object) -> str:
        raise RuntimeError("no ink")

    monkeypatch.setattr(plot, "_draw", draw)
    app = page(Recorded(share=0.5))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "the chart could not be drawn: RuntimeError" in "\n".join(shown(app)))
        await pilot.press("escape")
        await pilot.pause()
        assert app.done == ["back"]


def scale(top: float = 1.0) -> Scale:
    return Scale(NOON - 3600, NOON, top, ((0.0, "0 %"), (top, "100 %")))


@settings(max_examples=30, derandomize=True, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.floats(allow_nan=True)), min_size=1, max_size=80),
    st.integers(1, 120),
    st.integers(0, 40),
)
def test_a_chart_has_its_size_whatever_the_values(values: list[float | None], w: int, h: int) -> None:
    rows = chart([Curve(tuple(values), "store")], w, h, scale(), "fill-device")
    assert len(rows) == h
    for row in rows:
        assert width(row) == w
        assert not any("\x1b" in text for text, _ in row)


def test_curves_keep_their_style_keys() -> None:
    rows = chart([Curve((0.2,) * 50, "store"), Curve((0.8,) * 50, "load")], 60, 12, scale())
    dots = {style for row in rows for text, style in row if any("\u2801" <= c <= "\u28ff" for c in text)}
    assert dots == {"store", "load"}
    assert {style for row in rows for _, style in row} == {"store", "load", "d", "f"}


def test_a_full_curve_is_at_the_top_and_an_empty_one_at_the_bottom() -> None:
    def rows_of(value: float) -> list[int]:
        rows = chart([Curve((value,) * 50, "store")], 60, 12, scale())
        return [y for y, row in enumerate(rows) if any(style == "store" for _, style in row)]

    assert rows_of(1.0) == [0]
    assert rows_of(0.0) == [9]


def test_charts_of_two_threads_do_not_mix() -> None:
    out: dict[str, list[object]] = {}

    def draw(style: str, value: float) -> None:
        out[style] = [chart([Curve((value,) * 50, style)], 60, 12, scale()) for _ in range(10)]

    threads = [threading.Thread(target=draw, args=a) for a in (("store", 0.1), ("load", 0.9))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for style, value in (("store", 0.1), ("load", 0.9)):
        alone = chart([Curve((value,) * 50, style)], 60, 12, scale())
        assert all(rows == alone for rows in out[style])


@pytest.mark.parametrize("span", [s for s, _ in SPANS])
@pytest.mark.parametrize("w", [30, 70, 190])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns"])
def test_ticks_are_round_local_times(span: float, w: int, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        ticks = clock_ticks(NOON - span, NOON, w)
        assert 1 <= len(ticks) <= max(2, w // 6)
        for at, label in ticks:
            assert NOON - span <= at <= NOON
            assert label == time.strftime("%H:%M", time.localtime(at))
            assert time.localtime(at).tm_sec == 0
        if span >= 6 * 3600:
            assert all(label[3:] in ("00", "30") for _, label in ticks)
    finally:
        monkeypatch.undo()
        time.tzset()
