"""What is remembered of a server: windows from thinned scrapes, resets, silences, charts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_texts import BASE, Server

from kvtop.model import fleet
from kvtop.model.archive import LEVELS, Archive
from kvtop.model.history import ServerHistory
from kvtop.model.view import WINDOWS
from kvtop.model.window import between
from kvtop.readings import Model, Scrape, ServerFacts, SourceDown, State, VllmProcess
from kvtop.sources.exposition import Reader

Captures = Callable[[str], Path]


def history() -> ServerHistory:
    return ServerHistory("http://127.0.0.1:8000", "127.0.0.1:8000")


@pytest.fixture(scope="module")
def series(captures: Captures) -> tuple[list[Scrape], list[tuple[float, dict[str, int]]]]:
    """The 63 texts at 0.5 s, and (second, usage) of each request in them."""
    folder = captures("series-0.32.0")
    events = json.loads((folder / "events.json").read_text())
    polls = {event["poll"]: at for at, event in events if isinstance(event, dict) and "poll" in event}
    usages = []
    for at, event in events:
        if isinstance(event, dict) and "poll" not in event:
            usages += [(at, usage) for usage in event.values()]
    reader = Reader()
    scrapes = []
    for number, path in enumerate(sorted(folder.glob("[0-9]*.txt"))):
        scrapes.append(reader.read(path.read_text(), BASE + polls.get(number, number * 0.5)))
    assert len(scrapes) == 63
    return scrapes, usages


def test_windows_of_a_real_server_are_those_of_its_own_texts(
    series: tuple[list[Scrape], list[tuple[float, dict[str, int]]]],
) -> None:
    scrapes, _ = series
    told, compared = history(), 0
    for number, scrape in enumerate(scrapes):
        told.scrape(scrape)
        assert scrape.at is not None
        for key, seconds, _ in WINDOWS:
            if seconds is None or number == 0:
                continue
            view = told.view(scrape.at, key)
            starts = [s for s in scrapes[:number] if s.at is not None]
            best = min(starts, key=lambda s: abs((s.at or 0.0) - (scrape.at or 0.0) + seconds))
            asked = min(seconds, scrape.at - (scrapes[0].at or 0.0))
            assert view.window.window_s == pytest.approx(asked, abs=0.8)
            if view.window.window_s == scrape.at - (best.at or 0.0):
                assert view.window == between(best, scrape, view.window.window_s)
                compared += 1
    assert compared > 100


def test_a_window_over_all_of_it_is_the_sum_of_the_usage(
    series: tuple[list[Scrape], list[tuple[float, dict[str, int]]]],
) -> None:
    scrapes, usages = series
    told = history()
    for scrape in scrapes:
        told.scrape(scrape)
    end = scrapes[-1].at or 0.0
    window = told.view(end, "5m").window
    assert window.all.cached.prompt_tokens == sum(u["prompt_tokens"] for _, u in usages)
    assert window.all.cached.cached_tokens == sum(u["prompt_tokens_details"]["cached_tokens"] for _, u in usages)  # type: ignore[index]
    assert window.all.throughput.generation_tokens == sum(u["completion_tokens"] for _, u in usages)
    assert window.all.latency.ttft.n == len(usages)
    assert window.window_s == pytest.approx(end - (scrapes[0].at or 0.0))
    assert told.view(end, "1h").window == told.view(end, "5m").hour
    shares = told.series("share", 60.0, 60, end)
    assert any(shares) and all(0 <= value <= 1 for value in shares if value is not None)
    medians = [m for m in told.series("ttft_p50_s", 60.0, 60, end) if m is not None]
    assert len(medians) > 8 and all(0 < m < 30 for m in medians)
    for name in ("kv_cache_usage_share", "generation_tokens_per_s", "store_bytes_per_s", "load_bytes_per_s"):
        assert max(v or 0.0 for v in told.series(name, 60.0, 60, end)) > 0, name
    assert told.series("no such thing", 60.0, 3, end) == (None, None, None)
    stored = told.view(end, "5m").store_chart.values
    assert max(v for v in stored if v is not None) > 0


def test_turns_of_a_real_server_come_newest_first_after_what_is_in_flight(
    series: tuple[list[Scrape], list[tuple[float, dict[str, int]]]],
) -> None:
    scrapes, usages = series
    told = history()
    for scrape in scrapes:
        told.scrape(scrape)
        view = told.view(scrape.at or 0.0, "5m")
        flying = [t for t in view.turns if t.state == "in_flight"]
        done = [t for t in view.turns if t.state == "done"]
        assert list(view.turns) == flying + done
        assert [t.id for t in done] == sorted((t.id for t in done), reverse=True)
    assert sum(t.n for t in view.turns if t.state == "done") == len(usages)
    assert view.turns_total == len(usages), "requests, not rows"


def test_the_first_reading_claims_nothing() -> None:
    told = history()
    assert told.view(BASE, "5m").last_good_at is None
    server = Server(prompt=1_000, cached=900, running=2)
    told.scrape(server.scrape(BASE))
    view = told.view(BASE, "5m")
    assert view.state is State.UP
    assert view.window.window_s is None
    assert view.window.all.cached.prompt_tokens is None
    assert view.window.all.requests.running == 2
    assert view.life.all.cached.lifetime_share == pytest.approx(0.9)


def test_polling_at_two_seconds_still_gives_ten() -> None:
    told, server = history(), Server()
    for second in range(0, 40, 2):
        server.turn(100, 50)
        told.scrape(server.scrape(BASE + second))
    window = told.view(BASE + 38, "10s").window
    assert window.window_s == 10.0
    assert window.all.cached.prompt_tokens == 500


def test_five_polls_a_second_are_thinned_and_the_windows_stay_right() -> None:
    told, server = history(), Server()
    for tick in range(5 * 1_200):
        if tick % 5 == 0:
            server.turn(100, 50)
        told.scrape(server.scrape(BASE + tick / 5))
    now = BASE + 6_000 / 5 - 0.2
    for key, seconds in (("10s", 10), ("1m", 60), ("5m", 300)):
        window = told.view(now, key).window
        assert window.window_s == pytest.approx(seconds, rel=0.03)
        assert window.all.throughput.prompt_tokens_per_s == pytest.approx(100, rel=0.1)
    assert told.view(now, "1h").window.window_s == pytest.approx(1_200, abs=0.5)
    assert len(told._archive) < 260


def test_an_hour_and_a_half_at_one_second() -> None:
    told, server = history(), Server()
    for second in range(5_400):
        server.prompt += 10
        told.scrape(server.scrape(BASE + second))
    hour = told.view(BASE + 5_399, "1h").window
    assert hour.window_s == pytest.approx(3_600, abs=31)
    assert hour.all.cached.prompt_tokens == round((hour.window_s or 0) * 10)
    assert len(told._archive) < 260


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.floats(0.05, 40.0), min_size=2, max_size=200))
def test_a_kept_scrape_is_near_any_moment_that_was_seen(gaps: list[float]) -> None:
    archive, at, seen = Archive(), BASE, []
    for number, gap in enumerate(gaps):
        at += gap
        archive.add(Server(prompt=number).scrape(at), at)
        seen.append(at)
    for back in (10.0, 60.0, 300.0, 3_600.0):
        found = archive.nearest(at - back, at)
        assert found is not None and found.at is not None
        best = min(seen[:-1], key=lambda t: abs(t - (at - back)))
        spacing = next(apart for apart, reach in LEVELS if reach > back)
        assert abs(found.at - (at - back)) <= abs(best - (at - back)) + spacing + 0.11
        number = seen.index(found.at)
        assert dict(found.values) == dict(Server(prompt=number).scrape(found.at).values)


def test_a_restart_is_where_every_window_begins() -> None:
    told, server = history(), Server(prompt=10_000, cached=9_000, first_tokens=10)
    for second in range(30):
        server.turn(100, 90)
        told.scrape(server.scrape(BASE + second))
    told.down(SourceDown(State.REFUSED, "refused", BASE + 30))
    fresh = Server(started=BASE + 34.0)
    fresh.turn(1_000, 0)
    told.scrape(fresh.scrape(BASE + 40))
    for second in range(41, 60):
        fresh.turn(100, 90)
        told.scrape(fresh.scrape(BASE + second))
        # by now the counters are far above those of before: nothing but memory tells that they began again
    for key in ("1m", "5m", "1h"):
        window = told.view(BASE + 59, key).window
        assert window.state is State.RESET
        assert window.window_s == pytest.approx(25.0)
        assert window.all.cached.prompt_tokens == 1_000 + 19 * 100
    ten = told.view(BASE + 59, "10s").window
    assert (ten.state, ten.window_s, ten.all.cached.prompt_tokens) == (State.UP, 10.0, 1_000)
    view = told.view(BASE + 59, "5m")
    assert view.reset_at == BASE + 34.0
    assert view.started_at == BASE + 34.0


def test_what_was_before_a_restart_is_not_told_of_the_new_process() -> None:
    told, server = history(), Server(started=BASE - 500)
    for second in range(30):
        server.turn(100, 90)
        server.running = 1
        told.scrape(server.scrape(BASE + second))
    told.down(SourceDown(State.REFUSED, "refused", BASE + 30))
    fresh = Server(started=BASE + 34.0)
    told.scrape(fresh.scrape(BASE + 400))
    told.scrape(fresh.scrape(BASE + 401))
    view = told.view(BASE + 401, "5m")
    assert (view.reset_at, view.reset_seen_at) == (BASE + 34.0, BASE + 400)
    assert view.last_traffic is None
    assert view.last_busy_at == BASE + 400


@pytest.mark.parametrize(("usage", "no_room"), [(0.08, False), (0.949, False), (0.95, True), (None, False)])
def test_room_is_wanting_only_where_the_pool_is_full(usage: float | None, no_room: bool) -> None:
    told, server = history(), Server(waiting=2)
    labels = (("engine", "0"), ("model_name", "m"))
    server.extra["vllm:num_requests_waiting_by_reason", (*labels, ("reason", "capacity"))] = 2.0
    if usage is not None:
        server.extra["vllm:kv_cache_usage_perc", labels] = usage
    for second in range(3):
        told.scrape(server.scrape(BASE + second))
    assert told.view(BASE + 2, "5m").no_room is no_room


def test_counters_that_fall_without_a_start_time_are_a_reset_too() -> None:
    told, server = history(), Server(started=None, prompt=10_000)
    told.scrape(server.scrape(BASE))
    told.scrape(server.scrape(BASE + 1))
    small = Server(started=None, prompt=500)
    told.scrape(small.scrape(BASE + 2))
    view = told.view(BASE + 2, "5m")
    assert view.reset_at == BASE + 2
    small.prompt = 20_000
    told.scrape(small.scrape(BASE + 3))
    window = told.view(BASE + 3, "5m").window
    assert window.window_s == pytest.approx(1.0)
    assert window.all.cached.prompt_tokens == 20_000


def test_a_silence_of_hours_is_no_ten_second_window() -> None:
    told, server = history(), Server()
    told.scrape(server.scrape(BASE))
    server.turn(5_000, 0)
    told.scrape(server.scrape(BASE + 7_200))
    assert told.view(BASE + 7_200, "10s").window.window_s is None
    server.turn(100, 50)
    told.scrape(server.scrape(BASE + 7_201))
    window = told.view(BASE + 7_201, "10s").window
    assert (window.window_s, window.all.cached.prompt_tokens) == (1.0, 100)


def test_a_clock_set_back_loses_no_count_and_makes_no_negative_window() -> None:
    told, server = history(), Server()
    for second in range(20):
        server.turn(100, 50)
        told.scrape(server.scrape(BASE + second))
    for second in range(5, 30):
        server.turn(100, 50)
        told.scrape(server.scrape(BASE + second))
        window = told.view(BASE + second, "10s").window
        assert window.window_s is None or window.window_s > 0
        assert (window.all.cached.prompt_tokens or 0) >= 0
    last = told.view(BASE + 29, "10s").window
    assert (last.window_s, last.all.cached.prompt_tokens) == (10.0, 1_000)


def test_states_and_tries() -> None:
    told, server = history(), Server()
    told.down(SourceDown(State.REFUSED, "nothing listens", BASE))
    told.down(SourceDown(State.REFUSED, "nothing listens", BASE + 1))
    view = told.view(BASE + 1, "5m")
    assert (view.state, view.failed_tries, view.state_since, view.last_good_at) == (State.REFUSED, 2, BASE, None)
    assert not view.stale
    told.down(SourceDown(State.LOADING, "loads", BASE + 2))
    assert told.view(BASE + 2, "5m").state_since == BASE + 2
    told.scrape(server.scrape(BASE + 3))
    view = told.view(BASE + 3, "5m")
    assert (view.state, view.failed_tries, view.state_since, view.cause) == (State.UP, 0, BASE + 3, "")
    told.down(SourceDown(State.TIMEOUT, "no answer within 2 s", BASE + 5))
    view = told.view(BASE + 9, "5m")
    assert view.stale and view.last_good_at == BASE + 3 and view.cause == "no answer within 2 s"
    assert view.window.all.requests.running == 0


def test_a_server_loads_since_its_process_began_and_its_end_is_known() -> None:
    h, process = history(), VllmProcess(7, "api", ("vllm", "serve"), 8000, started_at=BASE - 31)
    h.down(SourceDown(State.LOADING, "starts", BASE, loader=process))
    view = h.view(BASE + 1, "5m")
    assert (view.state_since, view.loader_pid) == (BASE - 31, 7)
    assert fleet.server_lines((view, view), 0, BASE + 1)[0].state_s == 32, "as long as the sentence says"
    h.down(SourceDown(State.REFUSED, "nothing listens", BASE + 5))
    view = h.view(BASE + 6, "5m")
    assert (view.state, view.state_since, view.loader_pid) == (State.REFUSED, BASE + 5, 7)
    h.scrape(Server(started=BASE).scrape(BASE + 9))
    assert h.view(BASE + 9, "5m").loader_pid is None, "what came after it has answered"


def test_a_text_without_engine_series_is_a_state() -> None:
    told = history()
    told.scrape(Scrape({}, {}, BASE, has_vllm=False, has_http=True))
    assert told.view(BASE, "5m").state is State.NO_STATS
    told.scrape(Scrape({}, {}, BASE + 1, has_vllm=False))
    assert told.view(BASE + 1, "5m").state is State.NOT_VLLM


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("/v1/models: HTTP 401: the configured API key is refused", "refused"),
        ("/v1/models: HTTP 401: wants an API key (api_key_env or api_key_file in config.toml)", "wanted"),
        ("/v1/models: HTTP 500", ""),
    ],
)
def test_why_the_models_are_not_told(words: str, key: str) -> None:
    h = history()
    h.facts(ServerFacts("0.32.0", problems=(words,)))
    assert h.view(BASE, "5m").api_key == key
    h.facts(ServerFacts("0.32.0", (Model("qwen"),)))
    assert h.view(BASE, "5m").api_key == ""


def test_facts_are_kept_and_sleep_is_shown() -> None:
    told = history()
    told.scrape(Server().scrape(BASE))
    told.facts(ServerFacts("0.32.0", (Model("qwen"),)))
    told.facts(ServerFacts(sleeping=True))
    view = told.view(BASE, "5m")
    assert (view.version, view.models[0].id, view.state) == ("0.32.0", "qwen", State.SLEEPING)
    told.facts(ServerFacts("0.33.0", sleeping=False))
    assert told.view(BASE, "5m").version == "0.33.0"
    assert told.view(BASE, "5m").state is State.UP


def test_waiting_since_is_without_a_break() -> None:
    told, server = history(), Server()
    for second, waiting in enumerate((0, 2, 1, 0, 3, 3)):
        server.waiting = waiting
        told.scrape(server.scrape(BASE + second))
    assert told.view(BASE + 5, "5m").waiting_since == BASE + 4


def test_savings_are_priced_at_the_servers_own_rate() -> None:
    told, server = history(), Server()
    told.scrape(server.scrape(BASE))
    server.turn(10_000, 8_000)
    told.scrape(server.scrape(BASE + 1))
    for second in range(2, 60):
        told.scrape(server.scrape(BASE + second))
    wide = told.view(BASE + 59, "5m").savings
    assert (wide.tokens, wide.prefill_tokens_per_s, wide.prefill_s) == (8_000, 1_000.0, 8.0)
    narrow = told.view(BASE + 59, "10s").savings
    assert (narrow.tokens, narrow.prefill_tokens_per_s, narrow.prefill_s) == (0, 1_000.0, 0.0)


def test_no_rate_means_no_seconds() -> None:
    told, server = history(), Server()
    told.scrape(server.scrape(BASE))
    told.scrape(server.scrape(BASE + 1))
    assert told.view(BASE + 1, "5m").savings.prefill_s is None


def test_the_share_chart_holds_and_then_has_a_gap() -> None:
    told, server = history(), Server()
    told.scrape(server.scrape(BASE))
    server.turn(1_000, 750)
    for second in range(1, 460):
        told.scrape(server.scrape(BASE + second))
    chart = told.view(BASE + 459, "5m").share_chart
    assert chart.span_s == 1_800
    values = [v for v in chart.values if v is not None]
    assert values and all(v == pytest.approx(0.75) for v in values)
    held_s = len(values) * 5
    assert 150 + 60 - 15 <= held_s <= 150 + 60 + 15
    assert chart.values[-1] is None and chart.values[0] is None


def test_charts_made_bit_by_bit_are_those_made_at_once() -> None:
    told, server = history(), Server()
    for tick in range(400):
        if tick % 17 == 0:
            server.turn(1_000, 40 * (tick % 25))
            server.store += 1e6
        server.running = tick % 3
        if tick % 90 < 70:
            told.scrape(server.scrape(BASE + tick * 0.7))
            told.view(BASE + tick * 0.7, "1m")
    end = told._last_at
    view = told.view(end, "1m")
    for name, chart in (
        ("store_bytes_per_s", view.store_chart),
        ("running", view.running_chart),
        ("share", view.share_chart),
    ):
        assert chart.values == pytest.approx(told.series(name, 360.0, 360, end)), name


def test_an_outage_is_a_gap_in_the_gauges() -> None:
    told, server = history(), Server(running=1)
    for second in [*range(10), *range(40, 50)]:
        told.scrape(server.scrape(BASE + second))
    values = told.view(BASE + 49, "10s").running_chart.values
    assert values[-5] == 1
    assert values[-25] is None


def test_idle_remembers_the_last_traffic() -> None:
    told, server = history(), Server()
    for second in range(100):
        server.running = 1
        server.turn(100, 96)
        told.scrape(server.scrape(BASE + second))
    server.running = 0
    for second in range(100, 900):
        told.scrape(server.scrape(BASE + second))
    view = told.view(BASE + 899, "5m")
    assert view.last_busy_at == BASE + 99
    assert view.last_traffic is not None
    assert view.last_traffic.all.cached.share == pytest.approx(0.96)
    assert view.window.all.cached.prompt_tokens == 0


def test_engines_are_lines_and_one_can_be_chosen() -> None:
    told, server = history(), Server(engines=("0", "1"))
    told.scrape(server.scrape(BASE))
    server.turn(100, 25)
    told.scrape(server.scrape(BASE + 1))
    view = told.view(BASE + 1, "5m")
    assert [line.label for line in view.engines] == ["engine 0", "engine 1"]
    assert view.window.all.cached.prompt_tokens == 200
    one = told.view(BASE + 1, "5m", "1")
    assert one.engine == "1" and one.window.all.engine == "1"
    assert one.window.all.cached.prompt_tokens == one.hour.all.cached.prompt_tokens == 100
    assert [line.selected for line in one.engines] == [False, True]
    assert told.view(BASE + 1, "5m", "9").engine is None


def test_two_real_engines_add_up(captures: Captures) -> None:
    reader, told = Reader(), history()
    texts = sorted(captures("dp2").glob("0*.txt"))
    for number, path in enumerate(texts):
        told.scrape(reader.read(path.read_text(), BASE + number * 0.5))
    at = BASE + (len(texts) - 1) * 0.5
    whole = told.view(at, "5m").window.all.cached.prompt_tokens
    parts = [told.view(at, "5m", line.key).window.all.cached.prompt_tokens for line in told.view(at, "5m").engines]
    done = [told.view(at, "5m", line.key).turns_total for line in told.view(at, "5m").engines]
    assert told.view(at, "5m").turns_total == sum(done) and all(done)
    assert len(parts) == 2 and whole == sum(p or 0 for p in parts) and (whole or 0) > 0


def test_a_view_is_made_once_for_what_was_fed() -> None:
    told, server = history(), Server()
    told.scrape(server.scrape(BASE))
    assert told.view(BASE, "5m") is told.view(BASE + 0.4, "5m")
    told.scrape(server.scrape(BASE + 1))
    assert told.view(BASE + 1, "5m") is not told.view(BASE, "10s")


def test_a_text_without_a_time_lies_a_second_later() -> None:
    told, server = history(), Server()
    told.scrape(server.scrape(BASE))
    told.scrape(replace(server.scrape(BASE), at=None))
    assert told.view(BASE + 1, "5m").window.window_s == 1.0


def test_values_that_are_no_numbers_reach_no_chart_and_no_window() -> None:
    told, server = history(), Server()
    told.scrape(server.scrape(BASE))
    for second, bad in enumerate((float("nan"), float("inf"), 0.0, float("nan"), 5e300), start=1):
        server.prompt = server.store = server.running = bad
        told.scrape(server.scrape(BASE + second))
        view = told.view(BASE + second, "10s")
        for chart in (view.share_chart, view.store_chart, view.running_chart):
            assert all(v is None or 0 <= v < 1e301 for v in chart.values)
        assert view.window.window_s is None or view.window.window_s >= 0
