"""The dashboard as a person sees it: rendered text at the sizes and in the states that matter."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual import events
from textual.color import Color
from textual.pilot import Pilot

import kvtop.ui.app
from kvtop.config import Settings
from kvtop.errors import Problem
from kvtop.model.box import BySource, Cached, Config, Finished, Latency, Quantile, Window
from kvtop.model.shown_turn import Turn, TurnKey
from kvtop.model.view import BoxView, EngineLine, Sentence, TapView
from kvtop.readings import Discovery, GpuReading, Model, State
from kvtop.ui.app import KvtopApp
from kvtop.ui.layout import PANELS
from kvtop.ui.numbers import hms
from kvtop.ui.screens.dashboard import Dashboard
from kvtop.ui.widgets.foot import Foot
from kvtop.ui.widgets.gpu import GpuPanel

from . import boxes
from .screen import Held, lines, text


@asynccontextmanager
async def shown(
    view: BoxView, w: int = 80, h: int = 24, settings: Settings | None = None
) -> AsyncIterator[tuple[KvtopApp, Pilot[str], Held]]:
    held = Held(view)
    app = KvtopApp(held, settings, now=lambda: boxes.NOW)
    async with app.run_test(size=(w, h)) as pilot:
        await pilot.pause()
        yield app, pilot, held


async def until(app: KvtopApp, pilot: Pilot[str], words: str) -> str:
    """Wait until these words are on the screen."""
    for _ in range(100):
        await pilot.pause(0.05)
        if words in text(app):
            return text(app)
    raise AssertionError(f"{words!r} did not come:\n{text(app)}")


async def look(view: BoxView, w: int = 80, h: int = 24) -> str:
    async with shown(view, w, h) as (app, _, _):
        return text(app)


SIZES = [(80, 24), (120, 36), (200, 50), (40, 15), (76, 20), (100, 30), (160, 45), (60, 12), (20, 5), (300, 90), (1, 1)]


@pytest.mark.parametrize("state", boxes.STATES)
async def test_every_state_fits_every_size(state: str) -> None:
    async with shown(boxes.STATES[state]()) as (app, pilot, _):
        for w, h in SIZES:
            await pilot.resize_terminal(w, h)
            await pilot.pause()
            rows = lines(app)
            assert len(rows) == h
            assert all(cell_len(row) == w for row in rows), (w, h)
            assert "could not be drawn" not in text(app), (w, h)
            assert not any(ord(c) < 32 or c == "\u202e" for row in rows for c in row)


@pytest.mark.parametrize(("w", "h"), [(80, 24), (120, 36), (200, 50), (40, 15)])
async def test_the_sentence_and_the_share_are_always_there(w: int, h: int) -> None:
    screen = await look(boxes.box(), w, h)
    assert "SLOW" in screen and "turn 812 waited" in screen
    assert "77 %" in screen or "▀▀█ ▀▀█" in screen


async def test_80_by_24_holds_every_panel() -> None:
    screen = await look(boxes.box())
    for words in (
        "¹Cache", "²Offload", "³Queue", "⁴TTFT", "⁵GPU", "⁶Turns", "store 10.4 GB/h   load 0 B/h",
        "32.9 GB in 612 stores, 0 B in 0 loads", "1 waits for room", "p50 4.3 s (2.5–5)  p95 –  mean 4.3 s",
        "23.1/24 GiB", "written, never read", "from the counters: 3 in flight, 812 done, newest first",
        "! queued 7.4 s",
        "~92 s", "· ok",
    ):  # fmt: skip
        assert words in screen, words


async def test_200_by_50_holds_the_rest() -> None:
    screen = await look(boxes.box(), 200, 50)
    for words in (
        "last 5 min, n=7, 566k prompt tokens", "prefill saved  ~5 m 57 s", "match unit     1,072 tok", "turn 812 ▴",
        "tier 48.0 GiB, mapped by 3 processes", "p95 needs n ≥ 20", "341/350 W", "power cap",
        "· 3 requests, mean; read 4.9k tokens",
        "› waits for room in the KV pool", "tok/s", "took",
    ):  # fmt: skip
        assert words in screen, words


def with_first_tokens(n: int, finished: int | None) -> BoxView:
    """n first tokens in the window, and other requests that finished in it."""
    made = boxes.engine_window().latency
    ttft = boxes.latency(3.4, n, 2.5, 5, (6.9, 5, 7.5))
    nothing = Latency() if finished is None else Latency(0)
    phase = replace(made.prefill, n=finished) if finished else nothing
    latency = replace(made, ttft=ttft, prefill=phase, **({} if finished else {"queue": nothing, "decode": nothing}))
    window = Window(State.UP, at=boxes.NOW, window_s=300.0, all=boxes.engine_window(latency=latency))
    return boxes.box(servers=(boxes.server(window=window),))


@pytest.mark.parametrize("w", [76, 80, 100, 116, 120, 160, 200])
async def test_first_tokens_and_finished_requests_are_counted_apart(w: int) -> None:
    for h in (24, 36, 50):
        screen = await look(with_first_tokens(104, 98), w, h)
        assert "mean of 98 finished" in screen and "n=104" in screen, h
        assert "none finished" in await look(with_first_tokens(104, 0), w, h)
        assert not re.search(r"(\d|none) finished", await look(with_first_tokens(104, None), w, h)), h


async def test_a_quantile_has_its_bucket_beside_it_or_a_sign_that_it_is_an_estimate() -> None:
    for size, words in (
        ((80, 24), ["p50 3.4 s (2.5–5)  p95 ~6.9 s"]),
        ((120, 36), ["3.4 s    2.5–5  ~6.9 s", "gap p50 ~26 ms"]),
        ((200, 50), ["3.4 s    2.5–5  ~6.9 s  3.4 s    104   95 % ≤ 7.5 s", "gap p50 ~26 ms  p95 ~41 ms"]),
        ((40, 15), ["TTFT  ~3.4 s p50  p95 ~6.9 s"]),
    ):
        screen = await look(with_first_tokens(104, 98), *size)
        assert all(word in screen for word in words), size
    assert "TTFT ~4.3 s" in await look(boxes.several(), 100, 30)


@pytest.mark.parametrize(
    ("abort", "words"), [(0, "9 stop, 0 length, 0 error"), (2, "9 stop, 0 length, 2 abort, 0 error")]
)
async def test_that_no_client_hung_up_is_not_known(abort: int, words: str) -> None:
    """vLLM counts none of them."""
    made = boxes.engine_window()
    requests = replace(made.requests, finished=Finished(9, 0, abort, 0))
    window = Window(State.UP, at=boxes.NOW, window_s=300.0, all=replace(made, requests=requests))
    assert words in await look(boxes.box(servers=(boxes.server(window=window),)), 200, 50)


async def test_the_only_one_is_no_estimate() -> None:
    one = Latency(1, 0.21, Quantile(0.21, 0.1, 0.25))
    latency = replace(boxes.engine_window().latency, ttft=one, inter_token=one)
    window = Window(State.UP, at=boxes.NOW, window_s=300.0, all=boxes.engine_window(latency=latency))
    view = boxes.box(servers=(boxes.server(window=window),))
    assert "TTFT  210 ms p50  p95 –" in await look(view, 40, 15)
    assert "gap p50 210 ms" in await look(view, 120, 36)


async def test_unknown_is_a_dash_and_never_a_zero() -> None:
    screen = await look(boxes.loading())
    for words in ("– cached", "store –", "load –", "running –", "p50 –", "no data yet", "device –", "total –"):
        assert words in screen, words
    assert "0 %" not in screen.split("⁵GPU")[0].replace("100 %", "").replace("   0 %\n", "")


async def test_while_it_starts_the_table_says_what_is_known() -> None:
    screen = await look(boxes.loading())
    for words in ("⁶Start", "pid 51877", "2 m 41 s so far", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "engine 51901"):
        assert words in screen, words


@pytest.mark.parametrize(("w", "h"), [(60, 24), (80, 24), (80, 30), (120, 36), (150, 50)])
async def test_while_it_loads_the_panel_says_since_when_and_cuts_its_command_with_an_ellipsis(w: int, h: int) -> None:
    view = boxes.loading()
    (process, worker), flags = view.host.processes, [f"--some-long-flag-{i} {i}" for i in range(80)]
    long = replace(process, command=(*process.command, *flags, "--the-end"))
    rows = (await look(replace(view, host=replace(view.host, processes=(long, worker))), w, h)).splitlines()
    assert not any("none is known" in row for row in rows)
    assert any(re.search(r"⁶(Start ─+|start) loads since \d\d:\d\d:\d\d$", row) for row in rows)
    first = next(i for i, row in enumerate(rows) if row.startswith(" command "))
    last = max(i for i in range(first, first + 3) if i < len(rows) - 1 and rows[i].startswith((" command", " " * 11)))
    assert rows[last].endswith("…") and "--the-end" not in "".join(rows)
    assert (await look(view, 120, 36)).count("…") == 0, "one that fits is whole"


async def test_the_share_chart_says_what_it_is_a_mean_of() -> None:
    for span_s, words in ((1_800.0, "-30 m, 1 min mean"), (21_600.0, "-6 h, 12 min mean"), (600.0, "-10 m, 20 s mean")):
        one = replace(boxes.server(), share_chart=replace(boxes.server().share_chart, span_s=span_s))
        assert words in await look(boxes.box(servers=(one,)), 200, 50)


async def test_old_numbers_say_their_age_and_lose_their_colour() -> None:
    async with shown(boxes.stale()) as (app, _, _):
        screen = text(app)
        assert screen.count("12 s old") == 4
        blue = Color.parse(app.current_theme.variables["cached-device"]).rich_color
        for name, coloured in (("cache", False), ("turns", True)):
            panel = app.dashboard.query_one(f"#{name}")
            strips = [panel.render_line(y) for y in range(panel.size.height)]
            assert (blue in {s.style.color for strip in strips for s in strip if s.style}) is coloured, name
        assert "old" not in app.dashboard.query_one("#gpu").render_line(0).text


async def test_numbers_that_come_back_get_their_colour_back() -> None:
    async with shown(boxes.stale()) as (app, pilot, held):
        held.say(boxes.healthy())
        await until(app, pilot, "95 % cached (n=31")
        blue = Color.parse(app.current_theme.variables["cached-device"]).rich_color
        assert blue in {segment.style.color for segment in app.dashboard.query_one("#cache").render_line(4)}


@pytest.mark.parametrize(("w", "h"), [(200, 50), (120, 36), (80, 24), (40, 15)])
async def test_old_numbers_of_cards_and_machine_say_their_age_too(w: int, h: int) -> None:
    view = boxes.healthy()
    gpu = replace(view.gpu, error="the NVIDIA driver does not answer", at=boxes.NOW - 77)
    host = replace(view.host, error="/proc does not answer", at=boxes.NOW - 66)
    async with shown(replace(view, gpu=gpu, host=host), w, h) as (app, _, _):
        screen = text(app)
        assert "77 s old" in screen
        assert ("66 s old" in screen) is (w >= 80)
        panels = [app.dashboard.query_one(f"#{name}") for name in ("gpu", "facts")]
        strips = [panel.render_line(y) for panel in panels if panel.display for y in range(panel.size.height)]
        of_cards = [
            segment for strip in strips for segment in strip if "98" in segment.text and "97" not in segment.text
        ]
        live = Color.parse(app.current_theme.variables["text"]).rich_color
        assert w == 40 or of_cards
        assert live not in {segment.style.color for segment in of_cards if segment.style}


async def test_a_server_at_an_address_of_this_box_has_these_cards_and_this_tier() -> None:
    url, elsewhere = "http://10.0.0.5:8000", "of this box, not of the server's"
    bound = replace(boxes.HOST, processes=(replace(boxes.HOST.processes[0], host="10.0.0.5"),))
    for server, host, here in (
        (boxes.server(url=url), boxes.HOST, False),
        (boxes.server(url=url), bound, True),
        (boxes.server(url="http://mybox:8000", pid=41233), boxes.HOST, True),
    ):
        screen = await look(boxes.box(servers=(server,), host=host), 200, 50)
        assert (elsewhere in screen) is not here
        assert ("48.0 GiB, mapped by 3 processes" in screen) is here


async def test_a_tier_of_a_command_line_is_not_what_the_server_says() -> None:
    process = replace(boxes.loading().host.processes[0], tier_bytes=boxes.GIB // 4)  # type: ignore[union-attr]
    host = replace(boxes.HOST, processes=(process,), offload_files=())
    assert "256 MiB, as its command line says" in await look(replace(boxes.loading(), host=host), 120, 36)
    untold, told = Config(), Config(cpu_tier_bytes=48 * boxes.GIB)
    for state, config, words in (
        (State.UP, untold, "256 MiB, as its command line says"),
        (State.UP, told, "48.0 GiB, as the server says"),
        (State.TIMEOUT, told, "48.0 GiB, as the server said"),
    ):
        view = boxes.box(servers=(boxes.server(state=state, config=config, pid=process.pid),), host=host)
        assert words in await look(view, 120, 36)


@pytest.mark.parametrize(("usage", "waiting", "warns"), [(0.95, 1, True), (0.94, 1, False), (0.99, 0, False)])
async def test_a_full_pool_is_worth_a_look_where_something_waits(usage: float, waiting: int, warns: bool) -> None:
    requests = replace(boxes.engine_window().requests, waiting=waiting, kv_cache_usage_share=usage)
    window = boxes.engine_window(requests=requests)
    server = boxes.server(window=Window(State.UP, at=boxes.NOW, window_s=300.0, all=window))
    async with shown(boxes.box(servers=(server,)), 120, 36) as (app, _, _):
        panel = app.dashboard.query_one("#queue")
        amber = Color.parse(app.current_theme.variables["warn"]).rich_color
        row = next(strip for y in range(panel.size.height) if "KV pool " in (strip := panel.render_line(y)).text and y)
        assert (amber in {s.style.color for s in row if s.style and "━" in s.text}) is warns


async def test_what_is_in_flight_is_not_known_of_a_server_that_cannot_be_read() -> None:
    assert "– in flight, 812 done" in await look(boxes.down(), 120, 36)
    done = tuple(turn for turn in boxes.turns() if turn.state != "in_flight")
    assert "0 in flight, 812 done" in await look(boxes.box(servers=(boxes.server(turns=done),)), 120, 36)


async def test_a_tap_that_was_says_that_there_are_no_turns_yet() -> None:
    server = boxes.server(turns=(), turns_total=0, tap=TapView(0, problem=""))
    assert "no turns yet" in (await look(boxes.box(servers=(server,)), 120, 36))


async def test_without_a_gpu_one_line_says_why() -> None:
    for size in ((80, 24), (120, 36), (40, 15)):
        screen = await look(boxes.no_gpu(), *size)
        assert sum("no NVIDIA driver" in row for row in screen.splitlines()) == 1


async def test_without_turns_it_says_what_will_appear() -> None:
    assert "worked out from the counters when a request ends" in await look(boxes.no_turns())


async def test_text_from_outside_is_shown_and_not_obeyed() -> None:
    screen = await look(boxes.hostile(), 120, 36)
    assert "␛[31mred␛[0m/[bold]模型" in screen


async def test_several_servers_stand_above_the_panels() -> None:
    async with shown(boxes.several(), 100, 30) as (app, pilot, held):
        screen = text(app)
        assert "▸:8000  up" in screen and ":8001  down 42 s" in screen and "tab server" in screen
        await pilot.press("tab")
        assert "▸:8001" in text(app)
        assert held.asked[-1] == ("5m", 1, None)
        await pilot.click("#strip", offset=(3, 2))
        assert "▸:8002" in text(app)


async def test_a_server_that_cannot_be_read_has_no_figures_and_says_for_how_long() -> None:
    view = boxes.several()
    for seconds, said in ((0.4, "down 0 s"), (42.0, "down 42 s"), (161.0, "down 161 s"), (6000.0, "down 1.7 h")):
        lines = tuple(replace(line, state_s=seconds) for line in view.lines)
        screen = await look(replace(view, lines=lines), 100, 30)
        assert re.search(rf":8001  {said} +cached +–  run +– wait +–  TTFT +–  KV pool +–", screen)
        assert re.search(r":8002  up  +cached  77 %", screen), "one that is up has just been read"
    never = EngineLine("x", "127.0.0.1:8001", State.REFUSED)
    screen = await look(replace(view, lines=(view.lines[0], never, view.lines[2])), 100, 30)
    assert re.search(r":8001  down +cached +– ", screen)


async def test_keys_are_named_as_they_were_chosen() -> None:
    remap = Settings(keys={"freeze": "f", "turn": "o", "next-server": "f3", "back": "b"})
    async with shown(boxes.several(20), 200, 60, remap) as (app, pilot, _):
        await pilot.press("f")
        screen = text(app)
        assert "reading goes on, f shows it" in screen and "o opens it" in screen and "more, f3" in screen
        assert not re.search(r"space shows|enter opens|more, tab", screen)
        await pilot.press("f", "o")
        assert "A request: waits" in text(app)


async def test_a_single_server_has_no_strip_and_no_key_for_it() -> None:
    assert "tab server" not in await look(boxes.box(), 200, 50)


async def test_engines_are_walked_through_and_back_to_all_of_them() -> None:
    names = ("0", "1")
    engines = tuple(replace(boxes.several(2).lines[0], key=n, label=f"engine {n}", selected=False) for n in names)
    async with shown(boxes.box(lines=engines)) as (_, pilot, held):
        for wanted in ("0", "1", None, "0"):
            await pilot.press("tab")
            assert held.asked[-1][2] == wanted


@pytest.mark.parametrize(("w", "h"), [(120, 36), (40, 15)])
async def test_the_history_of_an_engine_says_that_it_is_of_all(w: int, h: int) -> None:
    line = replace(boxes.several(2).lines[0], selected=False)
    engines = tuple(replace(line, key=n, label=f"engine {n}") for n in ("0", "1"))
    async with shown(boxes.box(lines=engines), w, h) as (app, pilot, _):
        await pilot.press("h")
        assert " History ─" in text(app)
        await pilot.press("escape", "tab", "h")
        assert " History, all engines ─" in text(app)


async def test_new_numbers_are_drawn_and_a_held_picture_is_not() -> None:
    async with shown(boxes.box()) as (app, pilot, held):
        await pilot.press("space")
        assert "FROZEN" in text(app) and "frozen since" in text(app)
        held.say(boxes.healthy())
        await pilot.pause()
        assert "turn 812 waited" in text(app)
        await pilot.press("space")
        assert "95 % cached (n=31" in text(app) and "FROZEN" not in text(app)


async def test_news_are_drawn_soon() -> None:
    async with shown(boxes.box()) as (app, pilot, held):
        held.say(boxes.healthy())
        await until(app, pilot, "95 % cached (n=31")


async def test_the_window_goes_round() -> None:
    async with shown(boxes.box()) as (_, pilot, held):
        seen = []
        for _ in range(5):
            await pilot.press("w")
            seen.append(held.asked[-1][0])
        assert seen == ["1h", "start", "10s", "1m", "5m"]


async def test_panels_come_and_go() -> None:
    async with shown(boxes.box()) as (app, pilot, _):
        for key, name in zip("123456", ("Cache", "Offload", "Queue", "TTFT", "GPU", "Turns"), strict=True):
            await pilot.press(key)
            assert f"{name} ─" not in text(app)
            await pilot.press(key)
            assert f"{name} ─" in text(app)


@pytest.mark.parametrize(("w", "h"), [(80, 24), (200, 50), (40, 15)])
async def test_with_all_panels_hidden_it_says_how_to_bring_them_back(w: int, h: int) -> None:
    async with shown(boxes.several(), w, h, Settings(hide=list(PANELS))) as (app, pilot, _):
        rows = text(app).splitlines()
        (at,) = (i for i, row in enumerate(rows) if "all panels are hidden: 1-6 show them" in row)
        assert h // 4 < at < h * 3 // 4
        assert abs(rows[at].index("all") - (w - len(rows[at]))) <= 1
        await pilot.press("1")
        assert "hidden" not in text(app)
        await pilot.press("1")
        assert "all panels are hidden" in text(app)


async def test_panels_hidden_by_the_configuration() -> None:
    async with shown(boxes.box(), settings=Settings(hide=["gpu", "offload"])) as (app, _, _):
        assert "⁵GPU" not in text(app) and "²Offload" not in text(app)


async def test_choosing_a_turn_and_its_page() -> None:
    async with shown(boxes.box()) as (app, pilot, held):
        assert re.search(r"▸   –  .*› waits", text(app)), "it has no number before it ended"
        await pilot.press("down", "j", "down")
        assert "▸ 814" in text(app)
        await pilot.press("up")
        assert re.search(r"▸   –  .*› writes", text(app))
        await pilot.press("end")
        assert "▸ 766" in text(app)
        await pilot.press("home", *["down"] * 5, "enter")
        page = text(app)
        for words in (
            "Turn 812",
            "cached 11,792   new 111,388",
            "prefill 92 s",
            "TTFT ~92 s",
            "The counters cannot tell",
        ):
            assert words in page, words
        assert held.seen == [(boxes.URL, ("counted", 812))]
        await pilot.press("n")
        assert "Turn 811" in text(app)
        await pilot.press("N", "escape")
        assert "▸ 812" in text(app)


async def test_that_the_api_key_is_refused_stands_where_the_model_would() -> None:
    view = boxes.box(servers=(boxes.server(models=(), api_key="refused"),))
    for size in ((80, 24), (120, 36)):
        assert "API key refused" in await look(view, *size), size


async def test_what_several_requests_do_has_a_verb_at_any_width() -> None:
    many = Turn(9, None, n=8, state="in_flight", phase="waits")
    view = boxes.box(servers=(boxes.server(turns=(many, *boxes.turns()[3:]), no_room=False),))
    for size in ((120, 36), (80, 24)):
        assert "› 8 requests wait" in await look(view, *size)
    assert re.search(r"–  .*› (8 requests wait|8 wait)", await look(view, 44, 20))


async def test_bodies_that_were_not_captured_are_said_not_to_be_there() -> None:
    async with shown(boxes.box()) as (app, pilot, _):
        await pilot.press("end", "enter", "v")
        await pilot.pause()
        assert any("bodies were not captured" in note.message for note in app._notifications)


async def test_of_many_quick_keys_only_the_last_one_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[TurnKey | None] = []
    draw = Dashboard._draw

    def counted(dashboard: Dashboard) -> None:
        drawn.append(dashboard.cursor)
        draw(dashboard)

    async with shown(boxes.box()) as (app, pilot, _):
        made = app.dashboard.made
        assert made is not None
        keys = [turn.key for turn in made.rows]
        monkeypatch.setattr(Dashboard, "_draw", counted)
        for _ in range(30):
            app.post_message(events.Key("down", None))
        await until(app, pilot, f"▸ {made.rows[30].id}")
        assert drawn[-1] == keys[30] and len(drawn) < 10


async def test_the_mouse_chooses_and_the_wheel_scrolls() -> None:
    async with shown(boxes.box()) as (app, pilot, _):
        await pilot.click("#turns", offset=(10, 5))
        assert "▸ 814" in text(app)
        await pilot.click("#turns", offset=(10, 5))
        assert "Turn 814" in text(app)
        await pilot.press("escape")
        app.dashboard.query_one("#turns").scroll_rows(3)  # type: ignore[attr-defined]
        await pilot.pause()
        assert "› waits" not in text(app) and " 811 " in text(app)


async def test_what_one_reads_stays_where_it_is_when_a_row_comes() -> None:
    view = boxes.box()
    async with shown(view) as (app, pilot, held):
        app.dashboard.query_one("#turns").scroll_rows(6)  # type: ignore[attr-defined]
        await pilot.pause()
        before = text(app).splitlines()[17:23]
        server = view.servers[0]
        new = (boxes.turn(818, 1, 1_000, 500, 0, 10), *server.turns)
        held.say(replace(view, servers=(replace(server, turns=new, turns_total=813),)))
        await until(app, pilot, "813 done")
        assert text(app).splitlines()[17:23] == before


async def test_the_filter_is_typed_kept_and_left() -> None:
    async with shown(boxes.box()) as (app, pilot, _):
        await pilot.press("slash", *"slow")
        assert "/slow" in text(app) and "1 of 50 rows" in text(app) and " 813 " not in text(app)
        await pilot.press("enter")
        assert "enter turn" in text(app) and " 813 " not in text(app)
        await pilot.press("slash", "x", "q", "enter")
        assert "no turn fits the filter" in text(app)
        await pilot.press("escape")
        assert " 813 " in text(app)


async def test_what_is_typed_right_behind_the_key_of_the_filter_is_its_text() -> None:
    async with shown(boxes.box()) as (app, pilot, _):
        for key, typed in (("slash", "/"), *((char, char) for char in "slow")):
            app.post_message(events.Key(key, typed))
        await pilot.pause()
        await pilot.press("enter")
        assert "1 of 50 rows" in text(app)


async def test_a_filter_that_is_none_is_named() -> None:
    async with shown(boxes.box()) as (app, pilot, _):
        await pilot.press("slash")
        assert "slow broke queued new>10k cached<50" in text(app)
        await pilot.press(*"out>zz")
        assert "out>zz is no filter" in text(app).splitlines()[-1]
        await pilot.press("enter")
        screen = text(app)
        assert "out>zz is no filter; compare like new>10k" in screen and "no turn fits" not in screen
        await pilot.press("escape", "slash", *"new > 100k", "enter")
        assert " 812 " in text(app) and " 811 " not in text(app)


async def test_times_are_of_the_end_and_in_flight_of_the_start() -> None:
    async with shown(boxes.box(), 200, 50) as (app, _, _):
        rows = {line.split()[0].lstrip("▸"): line for line in text(app).splitlines() if line[4:6].strip()}
        turns = {str(t.id): t for t in boxes.turns()}
        for number, at in (("814", turns["814"].ended_at), ("–", turns["815"].started_at)):
            assert hms(at) in rows[number]


def long_wait(**timing: object) -> BoxView:
    known = {"slow": True, "waited": True, "verdict": None, **timing}
    return boxes.box(servers=(boxes.server(turns=(boxes.turn(24, 5, 95_736, 22_656, 45, 300, **known),)),))


async def test_a_long_wait_names_its_larger_share() -> None:
    assert "? 73.1k" in await look(long_wait(queue_s=45.0, ttft_s=108.0))
    screen = await look(long_wait(queue_s=45.0, ttft_s=61.0))
    assert "! queue 45 s" in screen and "anew" not in screen
    assert "· read 73.1k tokens" in await look(long_wait(queue_s=0.4, ttft_s=0.7, waited=False), 120, 36)
    assert "· queue 1.7 s" in await look(long_wait(queue_s=1.7, ttft_s=2.7, waited=False), 120, 36)


@pytest.mark.parametrize("state", ["down", "stale"])
async def test_where_nothing_can_be_read_nobody_is_said_to_have_been_silent(state: str) -> None:
    view = boxes.STATES[state]()
    screen = await look(replace(view, servers=(replace(view.servers[0], turns=(), turns_total=0),)))
    assert "which cannot be read" in screen
    assert "when requests come" not in screen and "None was seen" not in screen


async def test_the_parts_of_the_prompts_add_up() -> None:
    source = BySource(device=90_500, host=2_700, disk=2_300, p2p=0, external=0, computed=4_500)
    cached = Cached(100_000, 95_500, 0.955, 0.951, source)
    server = boxes.server(window=Window(State.UP, at=boxes.NOW, window_s=300.0, all=boxes.engine_window(cached=cached)))
    screen = await look(boxes.box(servers=(server,)), 120, 36)
    assert re.search(r"device 91 % +host 3 % +disk 2 % +computed 4 %", screen)


async def test_a_reason_for_low_clocks_stays_a_while() -> None:
    def at(seconds: float, *reasons: str) -> BoxView:
        gpu = GpuReading(
            (boxes.card(0, throttle=reasons), boxes.card(1, throttle=())), None, "580", boxes.NOW + seconds
        )
        return boxes.box(gpu=gpu)

    async with shown(at(0, "power cap")) as (app, pilot, held):
        panel = app.dashboard.query_one(GpuPanel)
        for seconds, said in ((1, True), (9, True), (11, False)):
            held.say(at(seconds))
            app.dashboard.look()
            await pilot.pause()
            assert ("held back: power cap" in panel.text_lines()[0]) is said, seconds


async def test_a_last_word_does_not_stand_alone_where_fewer_words_do() -> None:
    rest = " ".join(["word"] * 12)
    say = Sentence("OK", "ok", "95 % cached", f"{rest} and alone", (("95 % cached", rest),))
    rows = (await look(boxes.box(say))).splitlines()
    assert rows[0].endswith("word") and "alone" not in rows[1]
    rows = (await look(boxes.box(replace(say, shorter=())))).splitlines()
    assert rows[1].strip().startswith("alone "), "better alone than not at all"


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
@pytest.mark.parametrize("name", ["模型" * 350, "x" * 10_000, "org/" + "模x" * 70])
async def test_a_name_longer_than_the_row_is_cut_and_the_server_stays(name: str, size: tuple[int, int]) -> None:
    one = replace(boxes.server(), models=(Model(name),))
    row = (await look(boxes.box(boxes.HEALTHY, (one,)), *size)).splitlines()[1]
    named, _, place = row.strip().rpartition(" · ")
    assert place == "127.0.0.1:8000"
    assert named.rpartition(" · ")[2].endswith("…") and name.rpartition("/")[2][:3] in named
    assert size[0] / 2 < cell_len(row) <= size[0]


async def test_on_three_rows_the_sentence_is_shortened_and_not_cut() -> None:
    long = "one two three four five six seven eight nine ten " * 2
    say = Sentence("SLOW", "bad", "turn 812 waited 92 s:", long + "eleven", (("turn 812 waited 92 s:", "it is short"),))
    assert "it is short" in await look(boxes.box(say), 40, 15)


async def test_one_answer_has_its_speed_and_all_together_theirs() -> None:
    throughput = replace(boxes.engine_window().throughput, generation_tokens_per_s=114.6)
    window = boxes.engine_window(throughput=throughput)
    server = boxes.server(window=Window(State.UP, at=boxes.NOW, window_s=300.0, all=window))
    screen = await look(boxes.box(servers=(server,)), 200, 50)
    assert "writes 38 tok/s" in screen and "115 tok/s out" in screen


async def test_the_chart_marks_the_turn_that_the_sentence_tells_of() -> None:
    slow = {"slow": True, "waited": True, "verdict": "new_tokens"}
    turns = (boxes.turn(815, 200, 20_000, 0, 0.0, 30, **slow), *boxes.turns()[3:])
    view = boxes.box(servers=(boxes.server(turns=turns),))
    assert "turn 815 ▴" in await look(view, 120, 36), "the latest one, where the sentence tells of none"
    told = replace(view, sentence=replace(boxes.SLOW, turn=(boxes.URL, ("counted", 812))))
    screen = await look(told, 120, 36)
    assert "turn 812 ▴" in screen and "turn 815 ▴" not in screen
    waits = replace(view, sentence=replace(boxes.SLOW, turn=(boxes.URL, ("flight", 816))))
    assert "▴" not in await look(waits, 120, 36), "one in flight has no place on the chart yet"
    other = replace(view, sentence=replace(boxes.SLOW, turn=("http://other:8000", ("counted", 812))))
    assert "turn 815 ▴" in await look(other, 120, 36)


async def test_on_40_columns_a_turns_page_is_not_cut() -> None:
    async with shown(boxes.box(), 40, 15) as (app, pilot, _):
        await pilot.press("down", "down", "down", "enter")
        for _ in range(8):
            assert "…" not in text(app)
            await pilot.press("down")


async def test_the_footer_drops_what_does_not_fit() -> None:
    remap = {"quit": "x", "window": "ctrl+w", "history": "f6"}
    async with shown(boxes.box(demo=True), settings=Settings(keys=remap)) as (app, pilot, _):
        for w in range(20, 130, 3):
            await pilot.resize_terminal(w, 24)
            await pilot.pause()
            foot = "".join(part for part, _ in app.dashboard.query_one(Foot).all_lines(w, 1)[0])
            assert cell_len(foot) <= w, w
            assert "…" not in foot, w


async def test_the_footer_can_be_clicked() -> None:
    async with shown(boxes.box()) as (_, pilot, held):
        await pilot.click("#foot", offset=(20, 0))
        assert held.asked[-1][0] == "1h"


async def test_themes_change_keep_the_words_and_are_named() -> None:
    async with shown(boxes.box()) as (app, pilot, _):
        words = text(app)
        for _ in app.themes.names:
            await pilot.press("T")
            await pilot.pause()
            assert [n.message for n in app._notifications] == [f"theme {app.theme}"]
            assert text(app) == words


@pytest.mark.parametrize("theme", ["kvtop-16", "kvtop-dark"])
async def test_without_colour_words_are_not_drawn_on_themselves(monkeypatch: pytest.MonkeyPatch, theme: str) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with shown(boxes.box(), settings=Settings(theme=theme)) as (app, _, _):
        for y in range(6):
            for segment in app.dashboard.query_one("#cache").render_line(y):
                style = segment.style
                assert style is not None and style.color is not None
                assert style.color.is_default or style.color != style.bgcolor
        assert "███" in text(app) and "▄" not in text(app)


async def test_help_history_and_palette_open_and_close() -> None:
    async with shown(boxes.box(), 120, 36) as (app, pilot, _):
        before = text(app)
        await pilot.press("question_mark")
        assert "Help" in text(app)
        await pilot.press("escape", "h")
        assert "History" in text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert text(app) == before


async def test_without_a_server_it_says_where_it_looked_and_leaves_when_one_comes() -> None:
    nobody = boxes.STATES["nobody"]()
    async with shown(nobody) as (app, pilot, held):
        held.say(replace(nobody, discovery=Discovery(looked=(("processes", "412 seen, 0 are vLLM"),), at=boxes.NOW)))
        await until(app, pilot, "412 seen, 0 are vLLM")
        held.say(boxes.healthy())
        await until(app, pilot, "95 % cached (n=31")


async def test_a_collector_that_fails_is_a_line_and_not_the_end() -> None:
    class Broken(Held):
        async def run(self, changed: object) -> None:
            raise ValueError("boom")

    app = KvtopApp(Broken(boxes.box()), now=lambda: boxes.NOW)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert "collector failed (ValueError)" in text(app)
        await pilot.press("w")
        assert "turn 812" in text(app)


def wrong(n: int) -> list[Problem]:
    return [Problem("config", f"windw is no setting: did you mean 'window'? {i}", "mend it", FILE, i) for i in range(n)]


FILE = Path("/home/me/.config/kvtop/config.toml")


@pytest.mark.parametrize(("size", "room"), [((120, 36), 3), ((80, 24), 3), ((40, 15), 1)])
async def test_problems_are_said_on_the_screen_for_a_while(size: tuple[int, int], room: int) -> None:
    app = KvtopApp(Held(boxes.healthy()), problems=wrong(17), now=lambda: boxes.NOW)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        await pilot.pause()
        app.dashboard.look()
        app.dashboard._placed = None
        app.dashboard.on_resize()  # placing the panels anew leaves them there
        await pilot.pause()
        seen = text(app)
        said = " ".join(line.partition("▌")[2].strip() for line in seen.splitlines())
        assert said.count("did you mean 'window'?") == room
        assert f"and {17 - room} more: kvtop doctor lists them" in said
        assert {(n.severity, n.markup, n.timeout) for n in app._notifications} == {("warning", False, 8.0)}
        if size != (40, 15):
            assert "vLLM 0.32.0" in seen


async def test_what_the_disk_tells_is_said_with_the_rest() -> None:
    app = KvtopApp(Held(boxes.healthy()), problems=wrong(1), check=lambda: wrong(2)[1:], now=lambda: boxes.NOW)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        seen = await until(app, pilot, "'window'? 1")
        assert "'window'? 0" in seen and len(app.problems) == 2


async def test_a_disk_that_hangs_is_a_problem_and_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def hangs() -> list[Problem]:
        gate.wait(30)
        return []

    monkeypatch.setattr(kvtop.ui.app, "CHECK_S", 0.05)
    app = KvtopApp(Held(boxes.healthy()), check=hangs, now=lambda: boxes.NOW)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        seen = await until(app, pilot, "have not answered for 0.05 s")
        assert "95 % cached" in seen
    gate.set()


async def test_no_problem_no_word() -> None:
    app = KvtopApp(Held(boxes.healthy()), now=lambda: boxes.NOW)
    async with app.run_test(notifications=True) as pilot:
        await pilot.pause()
        assert len(app._notifications) == 0


async def test_keys_and_themes_are_problems_too() -> None:
    app = KvtopApp(Held(boxes.healthy()), Settings(theme="nope", keys={"window": "h"}), problems=wrong(1))
    assert [problem.about for problem in app.problems] == ["config", "keys", "theme"]
    assert app.problems[2].what == "theme 'nope' is not there; kvtop-dark is used"


async def test_demo_says_so() -> None:
    for size in ((80, 24), (120, 36), (40, 15)):
        assert "DEMO" in await look(boxes.box(demo=True), *size)


async def test_only_lines_that_changed_are_painted() -> None:
    async with shown(boxes.box()) as (app, pilot, held):
        queue = app.dashboard.query_one("#queue")
        before = dict(queue._strips)  # type: ignore[attr-defined]
        view = boxes.box()
        server = view.servers[0]
        more = replace(server.window.all, requests=replace(server.window.all.requests, running=3))
        held.say(replace(view, servers=(replace(server, window=replace(server.window, all=more)),)))
        app.dashboard.look()
        await pilot.pause()
        after = queue._strips  # type: ignore[attr-defined]
        assert [y for y in before if after[y] is not before[y]] == [1]


async def test_the_rows_of_the_tier_keep_their_place_in_every_window() -> None:
    async with shown(boxes.box(), 200, 50) as (app, pilot, _):
        places = set()
        for _ in range(5):
            await pilot.press("w")
            await pilot.pause()
            screen = lines(app)
            heads = next(i for i, line in enumerate(screen) if "store" in line and "load" in line)
            places.add(next(i for i, line in enumerate(screen) if " copies " in line) - heads)
        assert len(places) == 1
