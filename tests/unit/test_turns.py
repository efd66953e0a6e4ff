"""Rows from counters alone: exact where one request finished, a mean where several did, none where none did."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from metrics_texts import made, raw, scrape, texts_of

from kvtop.model.shown_turn import Turn
from kvtop.model.turns import TurnTracker
from kvtop.model.window import between

FIRST_POLL_AT = 0.0


def events_between_texts(folder: Path) -> list[list[dict[str, Any]]]:
    """The usages that arrived before each text but after the one before it, by the poll that made the text."""
    groups: list[list[dict[str, Any]]] = [[]]
    for _, event in json.loads((folder / "events.json").read_text()):
        if isinstance(event, str):
            continue
        if "poll" in event:
            groups.append([])
        else:
            groups[-1] += event.values()
    return groups[:-1]  # groups[k] ended before poll k; the last is empty


def test_series_matches_what_was_sent(captures: Callable[[str], Path]) -> None:
    folder = captures("series-0.32.0")
    tracker = TurnTracker()
    rows: list[Turn] = []
    exact = groups = 0
    for path, usages in zip(texts_of(folder), events_between_texts(folder), strict=True):
        new = tracker.add(scrape(raw(path)))
        rows += new
        assert len(new) == (1 if usages else 0), f"{path.name}: a row was invented or lost"
        if not usages:
            continue
        (row,) = new
        n = len(usages)
        assert row.n == n
        exact, groups = exact + (n == 1), groups + (n > 1)
        assert row.prompt_tokens == pytest.approx(sum(u["prompt_tokens"] for u in usages) / n)
        assert row.completion_tokens == pytest.approx(sum(u["completion_tokens"] for u in usages) / n)
        cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
        assert row.cached_tokens == pytest.approx(cached / n)
        assert row.new_tokens == pytest.approx((row.prompt_tokens or 0) - cached / n)
        if n == 1:
            assert all(type(t) is int for t in (row.prompt_tokens, row.cached_tokens, row.completion_tokens))
        assert row.ttft_s == pytest.approx((row.queue_s or 0) + (row.prefill_s or 0))
        assert row.duration_s is not None and row.duration_s >= row.ttft_s
        assert (row.finish_reason, row.state, row.engine) == ("length", "done", None)
    assert (exact, [row.n for row in rows if row.n > 1]) == (11, [3, 2, 2, 3])
    assert [row.id for row in rows] == list(range(1, 16))
    assert tracker.in_flight() == ()


def test_the_first_request_of_the_series_was_served_alone_in_every_folder(captures: Callable[[str], Path]) -> None:
    for name in (
        "vllm-0.32.0",
        "vllm-0.28.0",
        "vllm-0.32.0-offload",
        "vllm-0.32.0-tier",
        "vllm-0.32.0-hybrid",
        "ev-qwen3",
    ):
        folder = captures(name)
        tracker = TurnTracker()
        tracker.add(scrape(raw(folder / "00-idle.txt")))
        for step in json.loads((folder / "summary.json").read_text())["rows"]:
            (row,) = tracker.add(scrape(raw(folder / f"{step['step']}.txt")))
            usage = step["usage"]
            details = usage["prompt_tokens_details"] or {"cached_tokens": 0}
            assert (row.n, row.prompt_tokens, row.cached_tokens) == (1, step["prompt"], details["cached_tokens"])
            assert row.completion_tokens == usage["completion_tokens"]


def test_two_engines_have_rows_of_their_own_and_none_is_lost(captures: Callable[[str], Path]) -> None:
    scrapes = [scrape(raw(path)) for path in texts_of(captures("dp2"))]
    tracker = TurnTracker()
    rows = [row for one in scrapes for row in tracker.add(one)]
    whole = between(scrapes[0], scrapes[-1], None)
    for engine in whole.engines:
        of_engine = [row for row in rows if row.engine == engine.engine]
        assert sum(row.n for row in of_engine) == engine.latency.e2e.n
        assert sum((row.completion_tokens or 0) * row.n for row in of_engine) == pytest.approx(
            40 * sum(r.n for r in of_engine)
        )
    assert all(row.completion_tokens == 40 for row in rows if row.n == 1)


def test_texts_of_two_servers_that_take_turns(captures: Callable[[str], Path]) -> None:
    folder = captures("pd")
    tracker = TurnTracker()
    rows = [row for path in texts_of(folder) for row in tracker.add(scrape(raw(path)))]
    expected = sorted((row["prompt"], row["cached"]) for row in json.loads((folder / "summary.json").read_text()))
    assert sorted((row.prompt_tokens, row.cached_tokens) for row in rows) == expected


def test_what_is_in_flight_in_a_starved_queue(captures: Callable[[str], Path]) -> None:
    tracker = TurnTracker()
    for path in texts_of(captures("starve288")):
        assert tracker.add(scrape(raw(path))) == ()
    assert [(row.n, row.phase, row.state) for row in tracker.in_flight()] == [
        (2, "waits", "in_flight"),
        (1, "writes", "in_flight"),
    ]


class Server:
    """A toy vLLM's counters: what a request moves when it is admitted, at its first token and at its finish."""

    def __init__(self, engine: str = "0", start: float | None = 1_700_000_000.0, version: str = "new") -> None:
        self.engine, self.start, self.new = engine, start, version == "new"
        self.at = 1_700_000_100.0
        self.values: dict[str, float] = {}
        for name in ("num_requests_running", "num_requests_waiting", "generation_tokens_total"):
            self.move(name, 0)
        for reason in ("stop", "length", "abort", "error"):
            self.move("request_success_total", 0, f'finished_reason="{reason}"')
        self.admit(0, 0)
        self.first_token(0, 0, n=0)
        self.finish(0, 0, 0, n=0)
        self.values[self.name("num_requests_running")] = 0

    def name(self, family: str, label: str = "") -> str:
        return f'{family}{{engine="{self.engine}"{"," + label if label else ""}}}'

    def move(self, family: str, by: float, label: str = "") -> None:
        name = self.name(family, label)
        self.values[name] = self.values.get(name, 0.0) + by

    def admit(self, prompt: float, cached: float) -> None:
        self.move("prefix_cache_queries_total", prompt)
        self.move("prefix_cache_hits_total", cached)
        self.move("num_requests_running", 1)

    def first_token(self, prompt: float, cached: float, n: int = 1) -> None:
        self.move("prompt_tokens_total", prompt)
        if self.new:
            self.move("prompt_tokens_cached_total", cached)
        self.move("time_to_first_token_seconds_count", n)
        self.move("time_to_first_token_seconds_sum", 0.1 * n)
        self.move("generation_tokens_total", n)

    def finish(
        self,
        prompt: float,
        cached: float,
        out: float,
        *,
        n: int = 1,
        queue: float = 0.0,
        prefill: float = 0.5,
        decode: float = 1.0,
        reason: str = "stop",
        skip: tuple[str, ...] = (),
    ) -> None:
        sums = {
            "request_prompt_tokens": prompt,
            "request_generation_tokens": out,
            "request_queue_time_seconds": queue * n,
            "request_prefill_time_seconds": prefill * n,
            "request_decode_time_seconds": decode * n,
            "e2e_request_latency_seconds": (queue + prefill + decode) * n,
        } | ({"request_prefill_kv_computed_tokens": prompt - cached} if self.new else {})
        for family, total in sums.items():
            if family not in skip:
                self.move(f"{family}_count", n)
                self.move(f"{family}_sum", total)
        self.move("request_success_total", n, f'finished_reason="{reason}"')
        self.move("num_requests_running", -n)

    def hang_up(self) -> None:
        self.move("num_requests_running", -1)

    def scrape(self, other: Mapping[str, float] | None = None) -> Any:
        self.at += 0.5
        return made(self.values | dict(other or {}), self.at, start=self.start)


def test_the_first_scrape_is_only_the_start() -> None:
    server, tracker = Server(), TurnTracker()
    server.admit(100, 0)
    server.first_token(100, 0)
    server.finish(100, 0, 5)
    assert tracker.add(server.scrape()) == ()


def test_prompt_counters_are_never_paired_with_a_finish() -> None:
    """One reads its prompt while another finishes: the row is that of the one that finished."""
    server, tracker = Server(), TurnTracker()
    tracker.add(server.scrape())
    server.admit(100, 0)
    server.first_token(100, 0)
    tracker.add(server.scrape())
    server.admit(9000, 4000)
    server.first_token(9000, 4000)
    server.finish(100, 0, 5)
    (row,) = tracker.add(server.scrape())
    assert (row.n, row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (1, 100, 0, 5)


def test_a_client_that_hangs_up_makes_no_row() -> None:
    server, tracker = Server(), TurnTracker()
    tracker.add(server.scrape())
    server.admit(100, 0)
    server.first_token(100, 0)
    tracker.add(server.scrape())
    assert [row.phase for row in tracker.in_flight()] == ["writes"]
    server.hang_up()
    assert tracker.add(server.scrape()) == ()
    assert tracker.in_flight() == ()
    server.admit(300, 200)
    server.first_token(300, 200)
    server.finish(300, 200, 7)
    (row,) = tracker.add(server.scrape())
    assert (row.prompt_tokens, row.cached_tokens, row.new_tokens) == (300, 200, 100)


def test_a_hang_up_beside_another_request_leaves_its_tokens_unknown() -> None:
    server, tracker = Server(), TurnTracker()
    tracker.add(server.scrape())
    for _ in range(2):
        server.admit(100, 0)
        server.first_token(100, 0)
    tracker.add(server.scrape())
    server.hang_up()
    tracker.add(server.scrape())
    (row,) = tracker.in_flight()
    assert (row.n, row.phase, row.prompt_tokens) == (1, None, None)


def test_a_request_alone_waits_reads_and_writes() -> None:
    server, tracker = Server(), TurnTracker()
    tracker.add(server.scrape())
    waiting = {server.name("num_requests_waiting"): 1.0}
    tracker.add(server.scrape(waiting))
    (row,) = tracker.in_flight()
    seen_at = server.at
    assert (row.phase, row.started_at, row.prompt_tokens) == ("waits", seen_at, None)
    server.admit(1000, 900)
    tracker.add(server.scrape())
    (row,) = tracker.in_flight()
    assert (row.phase, row.started_at) == ("reads", seen_at)
    assert (row.prompt_tokens, row.cached_tokens, row.new_tokens) == (1000, 900, 100)
    server.first_token(1000, 900)
    tracker.add(server.scrape())
    (row,) = tracker.in_flight()
    assert (row.phase, row.prompt_tokens, row.cached_tokens) == ("writes", 1000, 900)
    alone = row.id
    server.finish(1000, 900, 20)
    (done,) = tracker.add(server.scrape())
    assert done.id == alone
    assert done.started_at == pytest.approx(server.at - 1.5)
    assert done.ended_at == server.at


def test_several_in_flight_are_counted_by_phase() -> None:
    server, tracker = Server(), TurnTracker()
    tracker.add(server.scrape())
    for _ in range(3):
        server.admit(100, 0)
    server.first_token(100, 0)
    tracker.add(server.scrape({server.name("num_requests_waiting"): 4.0}))
    assert [(row.n, row.phase) for row in tracker.in_flight()] == [(4, "waits"), (2, "reads"), (1, "writes")]
    assert len({row.id for row in tracker.in_flight()}) == 3


def test_a_finish_of_several_is_one_row_of_means() -> None:
    server, tracker = Server(), TurnTracker()
    tracker.add(server.scrape())
    for prompt, out in ((100, 10), (200, 30)):
        server.admit(prompt, 0)
        server.first_token(prompt, 0)
        server.finish(prompt, 0, out)
    (row,) = tracker.add(server.scrape())
    assert (row.n, row.prompt_tokens, row.completion_tokens, row.finish_reason) == (2, 150.0, 20.0, "stop")
    server.admit(1, 0)
    server.finish(1, 0, 1, reason="abort")
    server.admit(1, 0)
    server.finish(1, 0, 1)
    (row,) = tracker.add(server.scrape())
    assert (row.n, row.finish_reason) == (2, None), "they ended differently"


def test_a_restart_counts_from_zero_and_an_older_process_does_not() -> None:
    server, tracker = Server(), TurnTracker()
    for _ in range(5):
        server.finish(100, 0, 5)
    tracker.add(server.scrape())
    again = Server(start=server.at + 0.1)
    again.at = server.at + 1.0
    again.finish(70, 20, 3)
    (row,) = tracker.add(again.scrape())
    assert (row.n, row.prompt_tokens, row.cached_tokens) == (1, 70, 20)
    foreign = Server(start=1_600_000_000.0)
    foreign.at = again.at + 1.0
    foreign.finish(5, 0, 5)
    assert tracker.add(foreign.scrape()) == (), "it ran before: its finishes are not of this window"


def test_replicas_that_take_turns_keep_their_own_rows() -> None:
    one, two, tracker = Server(start=1_600_000_000.0), Server(start=1_600_000_900.0), TurnTracker()
    for server in (one, two):
        server.finish(100, 0, 5)
        assert tracker.add(server.scrape()) == ()
    for prompt in (200, 300):
        for server in (one, two):
            server.finish(prompt, 0, 5)
            (row,) = tracker.add(server.scrape())
            assert (row.n, row.prompt_tokens) == (1, prompt)


def test_an_unknown_gauge_is_not_idle() -> None:
    server, tracker = Server(), TurnTracker()
    tracker.add(server.scrape())
    server.admit(100, 0)
    tracker.add(server.scrape())
    tracker.add(server.scrape({server.name("num_requests_running"): float("nan")}))
    assert tracker.in_flight() == ()
    server.first_token(100, 0)
    tracker.add(server.scrape({server.name("num_requests_running"): 1e300}))
    tracker.add(server.scrape())
    assert [(row.n, row.phase) for row in tracker.in_flight()] == [(1, None)], "what it did before is lost from sight"


def test_counters_that_fell_in_multiprocess_mode() -> None:
    server, tracker = Server(start=None), TurnTracker()
    for _ in range(5):
        server.finish(100, 0, 5)
    tracker.add(server.scrape())
    again = Server(start=None)
    again.finish(70, 20, 3)
    (row,) = tracker.add(again.scrape())
    assert (row.n, row.prompt_tokens) == (1, 70)


def test_half_of_a_finish_waits_for_the_other_half() -> None:
    """Several API processes write the series one by one: a text may hold a finish in some of them only."""
    server, tracker = Server(start=None), TurnTracker()
    tracker.add(server.scrape())
    late = ("request_decode_time_seconds", "e2e_request_latency_seconds")
    server.finish(100, 40, 5, skip=late)
    assert tracker.add(server.scrape()) == ()
    for family, total in zip(late, (1.0, 1.5), strict=True):
        server.move(f"{family}_count", 1)
        server.move(f"{family}_sum", total)
    (row,) = tracker.add(server.scrape())
    assert (row.n, row.prompt_tokens, row.cached_tokens, row.decode_s, row.duration_s) == (1, 100, 40, 1.0, 1.5)


def test_a_half_that_never_comes_is_given_up_with_what_is_known() -> None:
    server, tracker = Server(start=None), TurnTracker()
    tracker.add(server.scrape())
    server.finish(100, 40, 5, skip=("request_decode_time_seconds",))
    rows = [row for _ in range(6) for row in tracker.add(server.scrape())]
    assert [(row.n, row.prompt_tokens, row.decode_s) for row in rows] == [(1, 100, None)]


def test_a_cut_or_foreign_text_changes_nothing() -> None:
    server, tracker = Server(), TurnTracker()
    tracker.add(server.scrape())
    server.finish(100, 40, 5)
    assert tracker.add(scrape("vllm:prompt_tokens_total 1\nvllm:e2e_req")) == ()
    assert tracker.add(scrape("<html></html>\n")) == ()
    assert tracker.add(scrape('vllm:cache_config_info{block_size="16"} 1.0\n')) == ()
    (row,) = tracker.add(server.scrape())
    assert row.prompt_tokens == 100


class TestBelow013:
    """No histogram of computed tokens: cached is told only for a request that nothing else ran beside."""

    def test_alone(self) -> None:
        server, tracker = Server(version="old"), TurnTracker()
        tracker.add(server.scrape())
        server.admit(100, 64)
        server.first_token(100, 64)
        tracker.add(server.scrape())
        server.finish(100, 64, 5)
        (row,) = tracker.add(server.scrape())
        assert (row.prompt_tokens, row.cached_tokens, row.new_tokens) == (100, 64, 36)

    def test_not_alone(self) -> None:
        server, tracker = Server(version="old"), TurnTracker()
        tracker.add(server.scrape())
        for _ in range(2):
            server.admit(100, 64)
            server.first_token(100, 64)
        tracker.add(server.scrape())
        server.finish(100, 64, 5)
        (row,) = tracker.add(server.scrape())
        assert (row.prompt_tokens, row.cached_tokens, row.new_tokens) == (100, None, None)
        server.finish(100, 64, 5)
        (row,) = tracker.add(server.scrape())
        assert row.cached_tokens is None, "it ran beside the other one"

    def test_beside_one_that_hung_up(self) -> None:
        server, tracker = Server(version="old"), TurnTracker()
        tracker.add(server.scrape())
        server.admit(300, 256)
        server.first_token(300, 256)
        server.hang_up()
        server.admit(100, 64)
        server.first_token(100, 64)
        server.finish(100, 64, 5)
        (row,) = tracker.add(server.scrape())
        assert (row.prompt_tokens, row.cached_tokens) == (100, None)


class TestVerdict:
    def served(self, tracker: TurnTracker, server: Server, prompt: int, cached: int, **more: Any) -> Turn:
        server.admit(prompt, cached)
        server.first_token(prompt, cached)
        server.finish(prompt, cached, 5, **more)
        (row,) = tracker.add(server.scrape())
        return row

    def start(self) -> tuple[TurnTracker, Server]:
        tracker, server = TurnTracker(), Server()
        tracker.add(server.scrape())
        return tracker, server

    def test_quick_is_no_fault(self) -> None:
        row = self.served(*self.start(), 1000, 0, prefill=1.0)
        assert (row.slow, row.verdict) == (False, "no_fault")

    def test_the_first_prompt_ever_is_all_new(self) -> None:
        row = self.served(*self.start(), 20_000, 0, prefill=25.0)
        assert (row.slow, row.verdict) == (True, "new_tokens")

    def test_a_long_input_behind_a_fully_reused_prompt_is_new(self) -> None:
        tracker, server = self.start()
        self.served(tracker, server, 1000, 0, prefill=1.0)
        # every token of the earlier prompt came back (no block size is known here, so the first prompt is the bound)
        server.values['cache_config_info{engine="0",block_size="16"}'] = 1
        row = self.served(tracker, server, 20_000, 992, prefill=20.0)
        assert (row.slow, row.verdict) == (False, "new_tokens")

    def test_a_long_read_of_what_may_have_been_cached_is_not_judged(self) -> None:
        tracker, server = self.start()
        self.served(tracker, server, 20_000, 0, prefill=20.0)
        server.values['cache_config_info{engine="0",block_size="16"}'] = 1
        row = self.served(tracker, server, 20_100, 512, prefill=20.0)
        assert (row.slow, row.verdict) == (False, None), "the expected reuse decides, and is not known here"
        assert row.waited == (row.ttft_s is not None and row.ttft_s >= 10.0)

    def test_slow_by_the_rate_of_this_server(self) -> None:
        tracker, server = self.start()
        self.served(tracker, server, 1000, 0, prefill=1.0)
        fast = self.served(tracker, server, 1000, 0, prefill=3.9)
        assert fast.slow is False
        tracker, server = self.start()
        self.served(tracker, server, 1000, 0, prefill=1.0)
        assert self.served(tracker, server, 1000, 0, prefill=4.1).slow is True

    def test_queued(self) -> None:
        tracker, server = self.start()
        self.served(tracker, server, 1000, 0, prefill=1.0)
        row = self.served(tracker, server, 1000, 0, queue=8.0, prefill=1.0)
        assert (row.slow, row.verdict) == (True, "queued")

    @pytest.mark.parametrize(("load_s", "verdict"), [(0.1, "queued"), (7.0, None)])
    def test_a_kv_load_counts_as_queue_time(self, load_s: float, verdict: str | None) -> None:
        tracker, server = TurnTracker(), Server()
        for name in ("kv_offload_load_bytes_total", "kv_offload_load_time_total"):
            server.move(name, 0)
        tracker.add(server.scrape())
        self.served(tracker, server, 1000, 0, prefill=1.0)
        server.move("kv_offload_load_time_total", load_s)
        server.move("kv_offload_load_bytes_total", 1e9)
        assert self.served(tracker, server, 1000, 0, queue=8.0, prefill=1.0).verdict == verdict

    def test_thresholds(self) -> None:
        tracker, server = TurnTracker(slow_no_rate_s=2.0), Server()
        tracker.add(server.scrape())
        assert self.served(tracker, server, 1000, 0, prefill=2.5).slow is True


def test_ids_grow_across_engines(captures: Callable[[str], Path]) -> None:
    tracker = TurnTracker()
    ids = [row.id for path in texts_of(captures("dp2")) for row in tracker.add(scrape(raw(path)))]
    assert all(b == a + 1 for a, b in pairwise(ids))
