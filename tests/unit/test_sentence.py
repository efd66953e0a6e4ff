"""One row a chip: what the header says, word for word, and that it never grows too long for it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.model import sentence
from kvtop.model.box import (
    BySource,
    Cached,
    Config,
    EngineWindow,
    Finished,
    Latencies,
    Latency,
    Offload,
    Quantile,
    Requests,
    Throughput,
    WaitingByReason,
    Window,
)
from kvtop.model.downs import BRIEF, Around
from kvtop.model.shown_turn import Turn
from kvtop.model.view import Sentence, ServerView
from kvtop.model.waits import parts
from kvtop.readings import Discovery, HostReading, OffloadFile, State, VllmProcess

NOW = 1_795_953_600.0


def hms(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def window(seconds: float = 300.0, **groups: object) -> Window:
    return Window(State.UP, at=NOW, window_s=seconds, all=EngineWindow(**groups))  # type: ignore[arg-type]


WELL = window(
    cached=Cached(prompt_tokens=566_000, cached_tokens=538_000, share=0.95, lifetime_share=0.951),
    latency=Latencies(ttft=Latency(n=31, mean_s=0.9, p50=Quantile(0.8, 0.75, 1.0))),
    requests=Requests(running=1, waiting=0),
    offload=Offload(
        supported=True, store_bytes=258_000_000, load_bytes=0, store_bytes_per_s=861_111.0, load_bytes_per_s=0.0
    ),
)
LIFE = window(
    38_220.0,
    cached=Cached(share=0.951, lifetime_share=0.951),
    offload=Offload(supported=True, store_bytes_total=32_900_000_000, load_bytes_total=250_000_000),
)
UP = ServerView(
    url="http://127.0.0.1:8000",
    label="127.0.0.1:8000",
    state=State.UP,
    last_good_at=NOW,
    last_busy_at=NOW,
    watched_since=NOW - 900,
    window=WELL,
    life=LIFE,
)
HOST = HostReading(
    offload_files=(OffloadFile("/dev/shm/vllm_offload_3f2a91.mmap", 48 * 2**30, stale=True),),
    processes=(VllmProcess(51877, "api", port=8002, started_at=NOW - 161),),
)
AROUND = Around(NOW)


def flies(phase: str | None, id: int = 1, n: int = 1, **more: object) -> Turn:
    return Turn(id, None, n, state="in_flight", phase=phase, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("running", "turns", "generated", "said"),
    [
        (2, (flies("writes", source="tap"), flies("writes", 2, source="tap")), 40, "2 run, both write, no queue"),
        (1, (flies("writes", source="tap"),), None, "1 runs, it writes, no queue"),
        (3, (flies("writes", n=3),), 0, "3 run, all write, no queue"),
        (2, (flies("writes", source="tap"), flies("reads", 2, source="tap")), 40, "2 run, 1 writes, no queue"),
        (2, (flies(None, n=2),), 40, "2 run, tokens are written, no queue"),
        (2, (), 40, "2 run, tokens are written, no queue"),
        (2, (flies(None, n=2),), 0, "2 run, no queue"),
        (2, (flies("reads", n=2),), 0, "2 run, no first token in 6 s yet, no queue"),
    ],
)
def test_requests_that_began_before_the_window_do_not_look_like_a_hang(
    running: int, turns: tuple[Turn, ...], generated: int | None, said: str
) -> None:
    seen = window(
        6.0,
        cached=Cached(prompt_tokens=0),
        requests=Requests(running=running, waiting=0),
        throughput=Throughput(generation_tokens=generated),
    )
    view = replace(UP, window=seen, life=window(6.0), turns=turns)
    assert sentence.make([view], 0, AROUND).text.replace("\u00a0", " ") == said


def down(state: State, **more: object) -> ServerView:
    base = replace(UP, state=state, failed_tries=3, state_since=NOW - 42, last_good_at=NOW - 12)
    return replace(base, **more)  # type: ignore[arg-type]


def turn(**more: object) -> ServerView:
    one = Turn(812, NOW - 100, prompt_tokens=123_008, cached_tokens=12_386, new_tokens=110_622, slow=True, waited=True)
    return replace(UP, turns=(replace(one, **more),))  # type: ignore[arg-type]


def said(view: ServerView, around: Around = AROUND) -> Sentence:
    return sentence.make([view], 0, around)


def plain(made: Sentence) -> str:
    assert len(made.text) <= sentence.LENGTH
    return made.text.replace("\N{NO-BREAK SPACE}", " ")


QUEUED = replace(
    UP,
    waiting_since=NOW - 41,
    config=Config(kv_cache_tokens=180_224),
    window=replace(
        WELL,
        all=replace(
            WELL.all,
            requests=Requests(
                running=2,
                waiting=3,
                waiting_by_reason=WaitingByReason(3, 0),
                kv_cache_usage_share=0.96,
            ),
        ),
    ),
)


def with_requests(view: ServerView, **more: object) -> ServerView:
    requests = replace(view.window.all.requests, **more)  # type: ignore[arg-type]
    return replace(view, window=replace(view.window, all=replace(view.window.all, requests=requests)))


QUIET = replace(
    with_requests(UP, running=0),
    last_busy_at=NOW - 840,
    last_traffic=window(
        300.0, cached=Cached(share=0.96), latency=Latencies(ttft=Latency(n=12, mean_s=0.9, p50=Quantile(0.8, 0.7, 1.0)))
    ),
)
EMPTY = window(cached=Cached(prompt_tokens=0), requests=Requests(running=0, waiting=0))

LOW = window(
    cached=Cached(100_123, 12_023, 0.12, 0.951, BySource(12_023, 0, 0, 0, 0, 88_100)),
    latency=Latencies(ttft=Latency(n=9, mean_s=8.1), prefill=Latency(n=9, mean_s=8.0)),
    requests=Requests(running=1, waiting=0),
)

TABLE: list[tuple[str, str, ServerView, Around, str]] = [
    (
        "OK",
        "ok",
        UP,
        AROUND,
        "95 % cached (n=31 in 5 min), TTFT p50 800 ms, no queue, tier 3.1 GB/h out, nothing back",
    ),
    (
        "OK",
        "ok",
        replace(UP, life=replace(LIFE, all=replace(LIFE.all, offload=replace(LIFE.all.offload, load_bytes_total=0)))),
        AROUND,
        "95 % cached (n=31 in 5 min), TTFT p50 800 ms, no queue, tier 3.1 GB/h out, never read",
    ),
    (
        "OK",
        "ok",
        replace(UP, window=replace(WELL, window_s=40.0, all=replace(WELL.all, offload=Offload(supported=False)))),
        AROUND,
        "95 % cached (n=31 in 40 s), TTFT p50 800 ms, no queue",
    ),
    (
        "OK",
        "ok",
        replace(UP, window_key="start", window=replace(WELL, all=replace(WELL.all, offload=Offload()))),
        AROUND,
        "95 % cached (n=31 since start), TTFT p50 800 ms, no queue",
    ),
    (
        "OK",
        "ok",
        replace(UP, window=replace(EMPTY, all=replace(EMPTY.all, requests=Requests(running=1, waiting=0)))),
        AROUND,
        "1 runs, no first token in 5 min yet, since start 95.1 % cached, no queue",
    ),
    (
        "OK",
        "ok",
        replace(UP, window=Window(State.UP, at=NOW)),
        AROUND,
        "the first reading; a window needs two, since start 95.1 % cached",
    ),
    (
        "OK",
        "ok",
        replace(UP, window_key="10s", window=replace(EMPTY, window_s=10.0)),
        AROUND,
        "no turn in 10 s, since start 95.1 % cached, no queue",
    ),
    (
        "SLOW",
        "bad",
        turn(ttft_s=92.0, prefill_s=91.4, queue_s=0.4),
        AROUND,
        "turn 812 waited 92 s: 110,622 of 123,008 prompt tokens read anew in 91 s; why is not in the counters, "
        "1 min ago",
    ),
    (
        "SLOW",
        "bad",
        turn(ttft_s=14.2, prefill_s=6.8, queue_s=7.4, verdict="queued"),
        AROUND,
        "turn 812 waited 14 s: queued 7.4 s, then 110,622 of 123,008 prompt tokens read in 6.8 s, 1 min ago",
    ),
    (
        "SLOW",
        "bad",
        turn(ttft_s=107.9, prefill_s=63.4, queue_s=44.5, prompt_tokens=95_736, new_tokens=73_080, ended_at=NOW - 250),
        AROUND,
        "turn 812 waited 108 s: queue 44 s, then 73,080 of 95,736 prompt tokens read anew in 64 s, 4 min ago",
    ),
    (
        "SLOW",
        "bad",
        turn(ttft_s=50.0, prefill_s=2.0, queue_s=48.0, ended_at=NOW - 20),
        AROUND,
        "turn 812 waited 50 s: queue 48 s, in line or for a KV load",
    ),
    (
        "SLOW",
        "bad",
        turn(ttft_s=50.0, prefill_s=2.0, queue_s=48.0, ended_at=NOW - 20, verdict="queued"),
        AROUND,
        "turn 812 waited 50 s: queued 48 s",
    ),
    (
        "SLOW",
        "warn",
        turn(ttft_s=16.0, prefill_s=12.0, queue_s=4.0, verdict="new_tokens", new_tokens=18_204, ended_at=NOW),
        AROUND,
        "turn 812 waited 16 s: queue 4.0 s, then 18,204 new tokens, a long input",
    ),
    (
        "SLOW",
        "bad",
        turn(ttft_s=31.0, prefill_s=15.0, queue_s=16.0, new_tokens=None, ended_at=NOW),
        AROUND,
        "turn 812 waited 31 s: queue 16 s, prefill 15 s",
    ),
    (
        "SLOW",
        "warn",
        turn(
            ttft_s=15.0, prefill_s=15.0, verdict="new_tokens", cached_tokens=0, prompt_tokens=18_204, new_tokens=18_204
        ),
        AROUND,
        "turn 812 waited 15 s: 18,204 new tokens, a long input; nothing to mend, 1 min ago",
    ),
    (
        "SLOW",
        "bad",
        turn(ttft_s=31.0, n=3, new_tokens=None),
        AROUND,
        "turn 812, 3 requests, waited 31 s on average: why is not in the counters, 1 min ago",
    ),
    (
        "QUEUE",
        "warn",
        QUEUED,
        AROUND,
        "3 wait, a queue for 41 s: no room in the KV pool (96 % of 180k tokens)",
    ),
    (
        "QUEUE",
        "warn",
        with_requests(QUEUED, kv_cache_usage_share=0.40, running=8),
        AROUND,
        "3 wait, a queue for 41 s: 8 run, KV pool 40 % of 180k tokens",
    ),
    (
        "QUEUE",
        "warn",
        with_requests(QUEUED, kv_cache_usage_share=0.4, waiting=1, waiting_by_reason=WaitingByReason(0, 1)),
        AROUND,
        "1 waits, a queue for 41 s: put off for a KV transfer, an adapter or a grammar",
    ),
    (
        "STALE",
        "warn",
        down(State.TIMEOUT),
        AROUND,
        f"/metrics has not answered for 12 s (3 tries of 2 s); what it fed is grey and from {hms(NOW - 12)}",
    ),
    (
        "STALE",
        "warn",
        down(State.TIMEOUT, last_good_at=None, failed_tries=1, state_since=NOW - 2),
        AROUND,
        "/metrics has not answered for 2 s (1 try of 2 s)",
    ),
    (
        "DOWN",
        "bad",
        down(State.REFUSED, pid=41233, tier_files=frozenset({HOST.offload_files[0].path})),
        replace(AROUND, host=HOST),
        f"127.0.0.1:8000 refuses since {hms(NOW - 42)}: process 41233 is gone; its tier file (48 GiB) is left over",
    ),
    (
        "DOWN",
        "bad",
        down(
            State.REFUSED,
            last_good_at=None,
            cause="nothing listens on 127.0.0.1:8000, and no vLLM server process wants this port",
        ),
        AROUND,
        "127.0.0.1:8000 refuses: nothing listens there, and no vLLM server process wants this port",
    ),
    (
        "DOWN",
        "bad",
        down(
            State.REFUSED,
            last_good_at=None,
            loader_pid=41233,
            tier_files=frozenset({HOST.offload_files[0].path}),
        ),
        replace(AROUND, host=HOST),
        "127.0.0.1:8000 refuses: process 41233 ended while it loaded; its tier file (48 GiB) is left over",
    ),
    (
        "UNAUTHORIZED",
        "bad",
        down(State.UNAUTHORIZED, http_status=401, cause="HTTP 401: the configured API key is refused"),
        AROUND,
        "127.0.0.1:8000: HTTP 401: the configured API key is refused",
    ),
    (
        "LOADING",
        "dim",
        down(State.LOADING, url="http://127.0.0.1:8002", label="127.0.0.1:8002"),
        replace(AROUND, host=HOST),
        "process 51877 runs, port 8002 refuses: it loads the model, 2 m 41 s so far",
    ),
    ("LOADING", "dim", down(State.LOADING), AROUND, "127.0.0.1:8000 loads its model, 42 s so far"),
    (
        "DEAD",
        "bad",
        down(State.DEAD_ENGINE, http_status=503),
        AROUND,
        f"the engine died (503), seen at {hms(NOW - 42)}: the API process answers, no model runs behind it",
    ),
    ("NOT VLLM", "bad", down(State.NOT_VLLM), AROUND, "127.0.0.1:8000 answers, but without vllm: series"),
    (
        "NO STATS",
        "warn",
        down(State.NO_STATS),
        AROUND,
        "127.0.0.1:8000 was started with --disable-log-stats: it counts nothing; start it without that flag",
    ),
    (
        "UNAUTHORIZED",
        "bad",
        down(State.UNAUTHORIZED, http_status=403),
        AROUND,
        "127.0.0.1:8000 wants an API key (403): name its variable or file in config.toml, api_key_env or api_key_file",
    ),
    (
        "TLS",
        "bad",
        down(State.TLS_ERROR, cause="the certificate is self-signed"),
        AROUND,
        "no TLS connection to 127.0.0.1:8000: the certificate is self-signed",
    ),
    (
        "NO HOST",
        "bad",
        down(State.DNS_ERROR, url="http://gpubox:8000", cause="no address is known for the name 'gpubox'"),
        AROUND,
        "gpubox is not found: no address is known for the name 'gpubox'",
    ),
    (
        "HTTP ERROR",
        "bad",
        down(State.HTTP_ERROR, http_status=500, cause="/metrics answers HTTP 500"),
        AROUND,
        "127.0.0.1:8000: /metrics answers HTTP 500; what it fed is grey and from " + hms(NOW - 12),
    ),
    (
        "TOO LARGE",
        "bad",
        down(
            State.TOO_LARGE, last_good_at=None, cause="the answer is over 16,000,000 bytes (unpacked) and was dropped"
        ),
        AROUND,
        "127.0.0.1:8000: the answer is over 16,000,000 bytes (unpacked) and was dropped",
    ),
    (
        "RESTARTED",
        "warn",
        replace(UP, reset_at=NOW - 40),
        AROUND,
        "counters began again 40 s ago, the window counts from there",
    ),
    (
        "SLEEPING",
        "dim",
        replace(UP, state=State.SLEEPING, state_since=NOW - 42),
        AROUND,
        f"the model sleeps since {hms(NOW - 42)}: its weights are off the GPU until /wake_up",
    ),
    (
        "CACHE OFF",
        "warn",
        replace(UP, config=Config(prefix_caching=False)),
        AROUND,
        "prefix caching is off: every prompt is read whole; --enable-prefix-caching turns it on",
    ),
    (
        "LOW",
        "warn",
        replace(UP, window=LOW),
        AROUND,
        "12 % cached (n=9 in 5 min): 88,100 of 100,123 prompt tokens read anew, 72 s of prefill",
    ),
    (
        "IDLE",
        "dim",
        QUIET,
        AROUND,
        "nobody asked anything for 14 min; the last 5 min with traffic: 96 % cached (n=12)",
    ),
    (
        "IDLE",
        "dim",
        replace(QUIET, last_busy_at=None, last_traffic=None),
        AROUND,
        "nobody asked anything for 15 min; since start 95.1 % cached",
    ),
    (
        "UNSURE",
        "warn",
        replace(UP, window=window(300.0)),
        AROUND,
        "turns in 5 min are not known: /metrics gives no number that counts them",
    ),
    ("FIRST LOOK", "dim", replace(UP, last_good_at=None), AROUND, "first look at 127.0.0.1:8000"),
    (
        "FIRST LOOK",
        "dim",
        replace(UP, last_good_at=None, waits_for="reading 14 MB of /metrics"),
        AROUND,
        "first look at 127.0.0.1:8000: reading 14 MB of /metrics",
    ),
]


@pytest.mark.parametrize(("chip", "tone", "view", "around", "text"), TABLE)
def test_each_chip_word_for_word(chip: str, tone: str, view: ServerView, around: Around, text: str) -> None:
    made = said(view, around)
    assert plain(made) == text
    assert (made.chip, made.tone) == (chip, tone)


def test_every_state_of_an_endpoint_has_its_sentence() -> None:
    for state in State:
        made = said(replace(down(state), last_good_at=NOW))
        assert made.first and made.tone in {"ok", "warn", "bad", "dim"}
    assert {chip for chip, *_ in TABLE} >= {chip for _, chip, _, _ in sentence.DOWNS} | {c for c, _ in sentence._CHIPS}


def test_worst_first() -> None:
    restarted = replace(turn(ttft_s=92.0), reset_at=NOW - 3, waiting_since=NOW - 41, window=QUEUED.window)
    assert said(restarted).chip == "QUEUE"
    fresh = replace(restarted, turns=(replace(restarted.turns[0], ended_at=NOW - 10),))
    assert said(fresh).chip == "SLOW"
    assert said(replace(restarted, waiting_since=None)).chip == "SLOW"
    assert said(replace(restarted, turns=())).chip == "QUEUE"
    alone = replace(restarted, turns=(), waiting_since=None)
    assert said(alone).chip == "RESTARTED"
    late = said(replace(alone, reset_at=NOW - 400, reset_seen_at=NOW - 4))
    assert (late.chip, plain(late)) == ("RESTARTED", "counters began again 6 m 40 s ago, the window counts from there")
    assert said(replace(restarted, state=State.REFUSED)).chip == "DOWN"


def test_slow_holds_for_the_window_and_until_somebody_looked() -> None:
    view = turn(ttft_s=92.0)
    assert said(view).chip == "SLOW"
    assert said(replace(view, window_key="1m")).chip == "OK"
    assert said(replace(view, window_key="start")).chip == "SLOW"
    assert said(view, replace(AROUND, opened=frozenset({(UP.url, ("counted", 812))}))).chip == "OK"


def test_who_has_looked_at_a_slow_turn_is_not_told_of_an_older_one() -> None:
    view = turn(ttft_s=30.0)
    (second,) = view.turns
    first = replace(second, id=811, ended_at=(second.ended_at or 0) - 10, ttft_s=92.0)
    third = replace(second, id=813, ended_at=(second.ended_at or 0) + 1, ttft_s=11.0)
    both, looked = replace(view, turns=(second, first)), frozenset({(UP.url, ("counted", 812))})
    assert plain(said(both)).startswith("turn 811 waited 92 s")
    assert said(both, replace(AROUND, opened=looked)).chip == "OK"
    newer = replace(view, turns=(third, second, first))
    assert plain(said(newer, replace(AROUND, opened=looked))).startswith("turn 813 waited 11 s")
    oldest = frozenset({(UP.url, ("counted", 811))})
    assert plain(said(both, replace(AROUND, opened=oldest))).startswith("turn 812 waited 30 s")


def test_a_long_wait_is_told_even_where_the_counters_expect_it() -> None:
    assert said(turn(ttft_s=10.0, slow=False)).chip == "SLOW"
    assert said(turn(ttft_s=9.9, slow=False, waited=False)).chip == "OK"


def test_a_long_input_is_news_for_a_minute_at_most() -> None:
    view = replace(turn(ttft_s=31.0, slow=False, verdict="new_tokens", ended_at=NOW - 61), window_key="start")
    assert said(view).chip == "OK"
    assert said(replace(view, turns=(replace(view.turns[0], ended_at=NOW - 59),))).chip == "SLOW"
    assert said(replace(view, turns=(replace(view.turns[0], verdict=None),))).chip == "SLOW"


def test_the_longest_wait_is_told() -> None:
    short = turn(ttft_s=12.0).turns[0]
    long = replace(short, id=813, ttft_s=20.0)
    made = said(replace(UP, turns=(short, long)))
    assert made.first.startswith("turn 813") and made.turn == (UP.url, ("counted", 813))
    assert said(UP).turn is None


def test_when_gives_way_before_what() -> None:
    long = turn(ttft_s=92.0, prefill_s=91.4, queue_s=0.4, id=812_345_678, n=12, ended_at=NOW - 200)
    text = plain(said(long))
    assert "110,622 of 123,008 prompt tokens read anew in 91 s" in text and text.endswith("3 min ago")
    assert "counters" not in text


@given(st.floats(0, 200), st.floats(0, 200))
def test_the_parts_of_a_wait_add_up_and_the_larger_one_is_named(queue_s: float, prefill_s: float) -> None:
    one = turn(ttft_s=queue_s + prefill_s, queue_s=queue_s, prefill_s=prefill_s).turns[0]
    queue, prefill = parts(one)
    assert queue or not one.queue_ruled
    assert prefill or one.queue_ruled or not one.ttft_s
    if queue.endswith("\N{NO-BREAK SPACE}s") and prefill and "." not in queue + prefill and "m" not in queue + prefill:
        assert int(queue[:-2]) + int(prefill[:-2]) == round(one.ttft_s or 0)


def low(**changes: object) -> ServerView:
    cached = replace(LOW.all.cached, share=changes.get("share", 0.12))
    prefill = Latency(n=changes.get("n", 9), mean_s=changes.get("each_s", 8.0))  # type: ignore[arg-type]
    groups = replace(LOW.all, cached=cached, latency=replace(LOW.all.latency, prefill=prefill))
    return replace(UP, window=replace(LOW, all=groups))


def test_a_low_share_is_told_only_where_it_costs_something() -> None:
    assert said(low()).chip == "LOW"
    assert said(low(share=0.6)).chip == "OK"
    assert said(low(), replace(AROUND, share_poor=0.1)).chip == "OK"
    assert said(low(n=2)).chip == "OK"
    assert said(low(each_s=1.66)).chip == "OK"
    assert said(low(each_s=1.67)).chip == "LOW"
    assert said(low(each_s=None)).chip == "OK"
    assert said(replace(low(), config=Config(prefix_caching=False))).chip == "CACHE OFF"


def test_shorter_wordings_are_handed_on_for_a_narrow_header() -> None:
    assert said(UP).shorter[-1] == ("95\N{NO-BREAK SPACE}% cached", "(n=31 in 5\N{NO-BREAK SPACE}min)")


def test_a_10_second_window_is_told_in_seconds() -> None:
    assert "tier 0.9 MB/s out, nothing back" in plain(
        said(replace(UP, window_key="10s", window=replace(WELL, window_s=10.0)))
    )


def test_what_came_back_from_the_tier_is_unknown_and_not_0() -> None:
    unknown = replace(WELL.all.offload, load_bytes=None, load_bytes_per_s=None)
    window = replace(WELL, all=replace(WELL.all, offload=unknown))
    assert "tier 3.1 GB/h out, – back" in plain(said(replace(UP, window=window)))


def test_a_tier_that_moved_nothing_is_idle() -> None:
    still = replace(WELL.all.offload, store_bytes=0, load_bytes=0, store_bytes_per_s=0.0, load_bytes_per_s=0.0)
    window = replace(WELL, all=replace(WELL.all, offload=still))
    assert plain(said(replace(UP, window=window))).endswith("no queue, tier idle")
    unread = replace(UP.life, all=replace(UP.life.all, offload=replace(UP.life.all.offload, load_bytes_total=0)))
    assert plain(said(replace(UP, window=window, life=unread))).endswith("no queue, tier idle, never read")


def test_a_request_that_waits_one_step_is_no_queue() -> None:
    assert said(replace(QUEUED, waiting_since=NOW - 1)).chip == "OK"


def test_a_lull_is_not_idle_at_once() -> None:
    assert said(replace(QUIET, last_busy_at=NOW - 120)).chip == "OK"
    assert said(replace(QUIET, last_busy_at=NOW - 61, window_key="1m")).chip == "IDLE"
    assert said(replace(QUIET, last_busy_at=NOW - 30, window_key="10s")).chip == "OK"


def test_a_restart_is_told_for_five_minutes_at_most() -> None:
    assert said(replace(UP, reset_at=NOW - 400, window_key="1h")).chip == "OK"
    assert said(replace(UP, reset_at=NOW - 20, window_key="10s")).chip == "OK"


def test_a_restart_gives_way_after_a_minute_once_the_window_has_turns() -> None:
    """A window without any still says why there are none."""
    assert [said(replace(UP, reset_at=NOW - ago)).chip for ago in (59, 61)] == ["RESTARTED", "OK"]
    empty = replace(UP, window=window(), reset_at=NOW - 61)
    assert said(empty).chip == "RESTARTED"
    seen_late = replace(UP, reset_at=NOW - 600, reset_seen_at=NOW - 59)
    assert said(seen_late).chip == "RESTARTED"


def test_of_several_servers_the_worst_is_named() -> None:
    other = replace(down(State.TIMEOUT), label="office", url="http://office:8000")
    made = sentence.make([UP, other], 0, AROUND)
    assert made.chip == "STALE" and made.first.startswith("office: ")
    down_one = replace(down(State.REFUSED, last_good_at=None, cause="no route to office:8000"), label="office")
    assert plain(sentence.make([UP, down_one], 0, AROUND)) == "office refuses: no route to office:8000"


def others(*states: State) -> list[ServerView]:
    labels = [f"127.0.0.1:{8000 + i}" for i in range(len(states))]
    return [
        down(
            state,
            label=label,
            url=f"http://{label}",
            state_since=NOW - 42 - 200 * i,
            cause=f"nothing listens on {label}",
        )
        for i, (state, label) in enumerate(zip(states, labels, strict=True))
    ]


def test_several_that_are_down_are_counted_and_named() -> None:
    both = others(State.REFUSED, State.TIMEOUT)
    assert (
        plain(sentence.make(both, 0, AROUND))
        == f"both servers are down: 127.0.0.1:8000 refuses since {hms(NOW - 42)}: nothing listens there; "
        ":8001 (no answer, 4 m 02 s)"
    )
    three = others(State.REFUSED, State.TIMEOUT, State.DEAD_ENGINE)
    made = sentence.make(three, 0, AROUND)
    assert (made.chip, made.tone) == ("DEAD", "bad")
    assert (
        plain(made)
        == "all 3 servers are down: :8002 (engine died, 7 m 22 s), :8000 (refuses, 42 s), :8001 (no answer, 4 m 02 s)"
    )
    assert [rest.count("(") for _, rest in made.shorter] == [2, 1, 0], "narrow headers name fewer"
    assert plain(replace(made, rest=made.shorter[1][1])).endswith(":8002 (engine died, 7 m 22 s) and 2 more")
    four = [*three, UP]
    assert plain(sentence.make(four, 3, AROUND)).startswith("3 of 4 servers are down: :8002 (engine died")


def test_of_several_that_are_down_the_cause_of_a_profiles_server_is_told_as_far_as_it_fits() -> None:
    first, second = others(State.REFUSED, State.REFUSED)
    why = "ValidationError: User-specified max_model_len (8000000) is greater than the derived max_model_len (40960)"
    first = replace(first, profile="longctx", failed=why, failed_loading=True)
    told = plain(sentence.make([first, second], 0, AROUND))
    assert told.startswith("both servers are down: longctx ended while it loaded: ValidationError: User-specified max_")
    assert told.endswith("…; :8001 (refuses, 4 m 02 s)") and len(told) <= 125


def test_one_that_loads_is_not_counted_as_down() -> None:
    made = sentence.make(others(State.REFUSED, State.LOADING), 1, AROUND)
    assert made.first.startswith("127.0.0.1:8000 refuses")


def test_every_state_that_cannot_be_read_has_its_word() -> None:
    assert BRIEF.keys() == {state for state, *_ in sentence.DOWNS} - {State.LOADING}


def test_another_server_that_is_idle_or_has_no_cache_does_not_speak() -> None:
    for other in (QUIET, replace(UP, config=Config(prefix_caching=False)), replace(UP, last_good_at=None)):
        assert sentence.make([UP, other], 0, AROUND).chip == "OK"


def test_no_server() -> None:
    assert sentence.make([], 0, AROUND).chip == "NO SERVER"
    made = sentence.make([], 0, AROUND, Discovery())
    assert plain(made) == "No vLLM server found on this box. kvtop goes on looking."


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    st.sampled_from(list(State)),
    st.text(max_size=300),
    st.text(max_size=300),
    st.integers(0, 10**12),
    st.booleans(),
)
def test_no_text_from_outside_makes_it_long_or_dangerous(
    state: State, label: str, cause: str, count: int, many: bool
) -> None:
    view = down(state, label=label, cause=cause, failed_tries=count, pid=count % 10**7, url=f"http://{label}")
    view = replace(view, turns=turn(ttft_s=float(count), new_tokens=float(count), prompt_tokens=float(count)).turns)
    made = sentence.make([view, UP] if many else [view], 0, replace(AROUND, host=HOST))
    assert len(made.text) <= sentence.LENGTH
    assert made.first
    assert all(c.isprintable() or c == "\N{NO-BREAK SPACE}" for c in made.text)


UNKNOWN = replace(UP, window=window(6.0), life=window(38_220.0), last_busy_at=NOW - 900)


def test_where_no_number_counts_turns_neither_calm_nor_a_lull_is_claimed() -> None:
    assert (said(UNKNOWN).chip, said(UNKNOWN).tone) == ("UNSURE", "warn")
    assert plain(said(UNKNOWN)) == "turns in 6 s are not known: /metrics gives no number that counts them"
    gauges = replace(UNKNOWN, window=window(300.0, requests=Requests(running=0, waiting=0)))
    assert plain(said(gauges)) == (
        "turns in 5 min are not known: /metrics gives no number that counts them; nothing runs, no queue"
    )
    counted = replace(UNKNOWN, window=window(300.0, latency=Latencies(ttft=Latency(n=3))), last_busy_at=NOW)
    assert (said(counted).chip, plain(said(counted))) == ("OK", "3 turns in 5 min, cached not known")


@settings(max_examples=400, deadline=None, derandomize=True)
@given(data=st.data())
def test_whatever_is_unknown_nothing_is_made_of_it(data: st.DataObject) -> None:
    running, waiting, prompt, n, stop = data.draw(st.tuples(*[st.sampled_from([None, 0, 1, 7])] * 5))
    share = data.draw(st.sampled_from([None, 0.0, 0.9])) if prompt else None
    seconds = data.draw(st.sampled_from([None, 6.0, 300.0]))
    blocks = Offload(supported=True, unit="blocks", stores=3)
    shown = window(
        cached=Cached(prompt_tokens=prompt, share=share),
        requests=Requests(running=running, waiting=waiting, finished=Finished(stop=stop)),
        latency=Latencies(ttft=Latency(n=n)),
        offload=data.draw(st.sampled_from([Offload(), WELL.all.offload, blocks])),
    )
    before = window(900.0, cached=Cached(lifetime_share=data.draw(st.sampled_from([None, 0.5]))))
    busy = data.draw(st.sampled_from([None, NOW, NOW - 900]))
    view = replace(UP, window=replace(shown, window_s=seconds), life=before, last_busy_at=busy)
    for one in (made := said(view), *(Sentence(made.chip, made.tone, *words) for words in made.shorter)):
        assert not one.text.endswith((",", ";", ":"))
        assert ",," not in one.text
    if "no turn" in made.text:
        assert not prompt
        assert not n
    if "no turn" in made.text or "nobody" in made.text:
        assert (prompt, n, stop) != (None, None, None)
    if made.chip == "OK" and seconds is not None:
        assert (prompt, n, stop) != (None, None, None)


def flying(**more: object) -> ServerView:
    one = Turn(
        813, None, state="in_flight", phase="reads", started_at=NOW - 42, prompt_tokens=78_800, new_tokens=72_704
    )
    return replace(UP, turns=(replace(one, **more),))  # type: ignore[arg-type]


def test_a_wait_is_told_while_it_lasts() -> None:
    made = said(flying())
    assert (made.chip, made.tone, made.turn) == ("SLOW", "warn", (UP.url, ("flight", 813)))
    assert plain(made) == "a request waits for 42 s: 72,704 of 78,800 prompt tokens are read anew, no first token yet"
    assert plain(said(flying(prompt_tokens=None, new_tokens=None))) == "a request waits for 42 s: no first token yet"
    assert said(flying(started_at=NOW - 9.9)).chip == "OK"
    assert said(flying(phase="writes")).chip == "OK"
    assert said(flying(started_at=None)).chip == "OK"


def test_what_is_down_since_another_day_says_which() -> None:
    days = 3 * 86_400
    date = time.strftime("%d %b %H:%M", time.localtime(NOW - days))
    view = down(State.HTTP_ERROR, cause="/metrics answers HTTP 500", state_since=NOW - days, last_good_at=NOW - days)
    assert f"grey and from {date}" in plain(said(view))
    asleep = replace(UP, state=State.SLEEPING, state_since=NOW - days)
    assert plain(said(asleep)).startswith(f"the model sleeps since {date}:")


def tapped(**more: object) -> ServerView:
    known = {"source": "tap", "relation": "first", "ttft_s": 11.0, "ended_at": NOW - 5, "prompt_tokens": 15_980}
    return turn(**{**known, "new_tokens": 15_980, "cached_tokens": 0, **more})


@pytest.mark.parametrize(
    ("relation", "says"),
    [
        ("first", "first turn of a conversation, 15,980 new tokens"),
        ("subagent", "first turn of a subagent, 15,980 new tokens"),
        ("compaction", "its history was compacted, 15,980 new tokens"),
    ],
)
def test_what_no_cache_could_have_held_is_no_alarm_and_news_for_a_minute(relation: str, says: str) -> None:
    made = said(tapped(relation=relation))
    assert (made.chip, made.tone, plain(made)) == ("SLOW", "warn", f"turn 812 waited 11 s: {says}")
    assert said(tapped(relation=relation, ended_at=NOW - 61)).chip == "OK"
    queued = said(tapped(relation=relation, queue_s=9.0, prefill_s=2.0, ended_at=NOW - 120))
    assert (queued.chip, queued.tone) == ("SLOW", "bad"), "the queue is a reason of its own"


def test_a_lost_cache_is_told_before_a_longer_first_turn() -> None:
    first = tapped(ttft_s=40.0).turns[0]
    lost = replace(first, id=813, relation="next", ttft_s=12.0)
    assert said(replace(UP, turns=(first, lost))).first.startswith("turn 813")


def test_what_was_captured_is_never_said_to_be_missing_in_the_counters() -> None:
    text = plain(said(tapped(relation="next", lost=True)))
    assert text == (
        "turn 812 waited 11 s: 15,980 of 15,980 prompt tokens read anew; the prompt changed or the cache was lost: "
        "which is not known"
    )
    text = plain(said(tapped(relation="branch", changed=("system", "tools"))))
    assert text.endswith("15,980 of 15,980 prompt tokens read anew; it has another system prompt and other tools")
    for relation in ("next", "side", None):
        assert "counters" not in plain(said(tapped(relation=relation)))
        assert "counters" not in plain(said(tapped(relation=relation, new_tokens=None)))
    whole = plain(said(tapped(relation="next", new_tokens=None, lost=True)))
    assert whole.endswith("the prompt differs from the turn before, or the cache was lost: kvtop cannot tell which yet")


@pytest.mark.parametrize("relation", ["next", "retry", "branch", "first", "subagent", "side", None])
def test_a_wait_that_reading_does_not_explain_is_put_down_to_the_queue_or_not_known(relation: str | None) -> None:
    """180 new tokens at 2,000 a second do not take 9 s, whatever was read anew."""
    known = {"relation": relation, "ttft_s": 9.1, "new_tokens": 180, "prompt_tokens": 948, "read_s": 0.09, "lost": True}
    unknown, queued = said(tapped(**known)), said(tapped(**known, queue_seen=True))
    assert plain(unknown) == "turn 812 waited 9.1 s: reading its prompt takes 90 ms; why is not known"
    assert plain(queued) == "turn 812 waited 9.1 s: it queued for ~9.0 s while others ran"
    assert (unknown.tone, queued.tone) == ("bad", "bad")


@pytest.mark.parametrize("relation", ["next", "first", "subagent"])
def test_while_a_verdict_is_on_its_way_nothing_is_guessed(relation: str) -> None:
    for known in ({"lost": True}, {"queue_seen": True, "read_s": 0.1}, {"changed": ("system",)}):
        told = said(tapped(relation=relation, judging=True, **known))
        assert (plain(told), told.tone) == ("turn 812 waited 11 s: why is being worked out", "warn")


def test_without_evidence_neither_the_prompt_nor_the_cache_is_accused() -> None:
    for lost in (False, None):
        text = plain(said(tapped(relation="next", lost=lost, read_s=8.0)))
        assert text == "turn 812 waited 11 s: 15,980 of 15,980 prompt tokens read anew; why is not known"
    grown = plain(said(tapped(relation="next", lost=False, read_s=8.0, verdict="new_tokens")))
    assert grown == "turn 812 waited 11 s: 15,980 new tokens, a long input; nothing to mend"


def test_a_wait_of_another_server_is_told_while_it_is_fresh() -> None:
    other = replace(turn(ttft_s=92.0, ended_at=NOW - 14), label="office", url="http://office:8000")
    assert sentence.make([UP, other], 0, AROUND).first.startswith("office: turn 812")
    over = replace(other, turns=(replace(other.turns[0], ended_at=NOW - 16),))
    assert sentence.make([UP, over], 0, AROUND).chip == "OK"
    assert sentence.make([UP, over], 1, AROUND).chip == "SLOW"


@pytest.mark.parametrize(
    ("key", "seen", "words"),
    [("1h", 3_350.0, "1 hour"), ("1h", 3_200.0, "53 min"), ("10s", 9.2, "10 s"), ("start", 50.0, "since start")],
)
def test_sentence_and_panels_call_a_window_the_same(key: str, seen: float, words: str) -> None:
    view = replace(UP, window_key=key, window=replace(UP.window, window_s=seen))
    assert view.window_words == words
    assert words in plain(sentence.make([view], 0, AROUND))
