"""Boxes to look at: one healthy server with a tier, and what can befall it. Numbers are made up, but agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

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
from kvtop.model.shown_turn import Estimate, Turn
from kvtop.model.view import BoxView, Chart, EngineLine, Savings, Sentence, ServerView, TapView
from kvtop.readings import Gpu, GpuReading, HostReading, Model, OffloadFile, State, VllmProcess

NOW = 1_795_957_461.0
GIB = 2**30
URL = "http://127.0.0.1:8000"

HEALTHY = Sentence("OK", "ok", "95 % cached (n=31 in 5 min),", "TTFT p50 0.8 s, no queue, tier 3.1 GB/h out, 0 back")
SLOW = Sentence(
    "SLOW",
    "bad",
    "turn 812 waited 92 s:",
    "111k new tokens, a long input; three more requests waited behind it",
)


def latency(mean: float, n: int, lo: float, hi: float, p95: tuple[float, float, float] | None = None) -> Latency:
    return Latency(n, mean, Quantile(mean, lo, hi), Quantile(*p95) if p95 else None)


def engine_window(**changes: object) -> EngineWindow:
    """Five minutes of one busy server."""
    made = EngineWindow(
        cached=Cached(566_000, 435_000, 435 / 566, 0.951, BySource(435_000, 0, 0, 0, 0, 131_000)),
        requests=Requests(2, 1, WaitingByReason(1, 0), 0, 2, 0.96, Finished(6, 1, 0, 0, 0)),
        latency=Latencies(
            ttft=latency(4.3, 7, 2.5, 5),
            queue=latency(1.1, 7, 1, 2.5),
            prefill=latency(16.2, 7, 10, 20),
            decode=latency(15.8, 7, 10, 20),
            e2e=latency(33.1, 7, 20, 60),
            inter_token=latency(0.026, 4_000, 0.025, 0.05, (0.041, 0.025, 0.05)),
        ),
        throughput=Throughput(1_887.0, 437.0, 38.2, 11_460, 2_144.0, 1_216.0),
        offload=Offload(
            True, store_bytes=867_000_000, load_bytes=0, store_bytes_per_s=2.89e6, load_bytes_per_s=0.0,
            load_bytes_total=0, store_bytes_total=32_900_000_000, load_time_s=0.0, store_time_s=0.09, loads=0,
            stores=16, loads_total=0, stores_total=612,
        ),
        config=Config(1_072, 1_072, 180_000, True, 48 * GIB, False),
    )  # fmt: skip
    return replace(made, **changes)


def turn(id: int, ago: float, prompt: int, cached: int, *timing: float, **changes: object) -> Turn:
    """A finished one that went by the numbers of this server: 1,216 tokens a second in, 38 out."""
    queue, out = timing
    prefill, decode = (prompt - cached) / 1_216 + 0.25, out / 38
    took = queue + prefill + decode
    made = Turn(
        id, NOW - ago, started_at=NOW - ago - took, prompt_tokens=prompt, cached_tokens=cached,
        new_tokens=prompt - cached, completion_tokens=int(out), queue_s=queue, prefill_s=prefill, decode_s=decode,
        ttft_s=queue + prefill, duration_s=took, inter_token_s=1 / 38, finish_reason="stop", verdict="no_fault",
    )  # fmt: skip
    return replace(made, **changes)


def turns() -> tuple[Turn, ...]:
    flying = (
        Turn(817, None, state="in_flight", phase="waits", started_at=NOW - 2.1),
        Turn(816, None, state="in_flight", phase="reads", started_at=NOW - 2.6),
        Turn(815, None, state="in_flight", phase="writes", started_at=NOW - 51),
    )
    done = [
        turn(814, 60, 126_310, 123_280, 0.0, 611),
        turn(813, 140, 41_220, 39_664, 7.4, 842, verdict="queued"),
        turn(812, 150, 123_180, 11_792, 0.4, 418, verdict="new_tokens", slow=True, waited=True),
        turn(811, 260, 119_420, 113_632, 0.0, 512),
        turn(808, 300, 114_216, 109_344, 0.0, 740, n=3, verdict=None),
        turn(807, 340, 20_330, 2_144, 0.0, 1_530, verdict="new_tokens"),
        turn(806, 380, 109_870, 105_056, 0.0, 466, finish_reason="abort"),
    ]
    return (
        *flying,
        *done,
        *(turn(805 - i, 420 + 40 * i, 90_000 - 900 * i, 88_976 - 1_072 * i, 0.0, 300) for i in range(40)),
    )


def chart(f: Callable[[int], float | None], n: int = 400) -> Chart:
    return Chart(tuple(f(i) for i in range(n)), 1800.0)


def server(**changes: object) -> ServerView:
    window = engine_window()
    hour = engine_window(
        latency=replace(window.latency, ttft=latency(3.4, 104, 2.5, 5, (6.9, 5, 7.5))),
        offload=replace(window.offload, store_bytes_per_s=0.86e6),
    )
    life = engine_window(
        cached=replace(window.cached, share=0.951),
        offload=replace(window.offload, store_bytes=32_900_000_000, store_time_s=3.36),
    )
    made = ServerView(
        URL, "127.0.0.1:8000", State.UP, last_good_at=NOW - 0.2, version="0.32.0",
        models=(Model("Qwen/Qwen3.8-27B", 131_072),), started_at=NOW - 38_220, config=window.config, window_key="5m",
        window=Window(State.UP, at=NOW, window_s=300.0, all=window), hour=Window(State.UP, window_s=3600.0, all=hour),
        life=Window(State.UP, all=life), savings=Savings(435_000, 357.0, 1_216.0),
        share_chart=chart(lambda i: None if 90 < i < 130 else 0.36 if 340 < i < 350 else 0.96 - 0.03 * math.sin(i / 9)),
        store_chart=chart(lambda i: 8e6 if i % 23 < 2 else 0.0), load_chart=chart(lambda i: 0.0),
        running_chart=chart(lambda i: float(1 + (i % 40 > 20))), waiting_chart=chart(lambda i: float(i > 390)),
        no_room=True, waiting_since=NOW - 41, turns=turns(), turns_total=812,
    )  # fmt: skip
    return replace(made, **changes)


def card(index: int, **changes: object) -> Gpu:
    made = Gpu(
        index, "NVIDIA GeForce RTX 3090", 0.98 - index / 100, int(23.1 * GIB), 24 * GIB, 341.0, 350.0, 71, 1_100_000,
        12_400_000, ("power cap",),
    )  # fmt: skip
    return replace(made, **changes)


HOST = HostReading(
    int(125.6 * GIB), int(41.2 * GIB), int(62.8 * GIB), int(48.2 * GIB), 0, 0.0,
    (OffloadFile("/dev/shm/vllm_offload_3f2a91.mmap", 48 * GIB, (41233, 41310, 41311), unlinked=True),),
    (VllmProcess(41233, "api", ("vllm", "serve", "Qwen/Qwen3.8-27B"), 8000, "127.0.0.1", NOW - 38_220),),
    NOW,
)  # fmt: skip


def box(sentence: Sentence = SLOW, servers: Sequence[ServerView] | None = None, **changes: object) -> BoxView:
    made = BoxView(
        NOW, sentence, tuple(servers) if servers is not None else (server(),),
        gpu=GpuReading((card(0), card(1)), None, "580.65", NOW), host=HOST,
    )  # fmt: skip
    return replace(made, **changes)


def healthy() -> BoxView:
    window = engine_window(
        cached=Cached(566_000, 538_000, 0.9505, 0.951, BySource(538_000, 0, 0, 0, 0, 28_000)),
        requests=Requests(1, 0, WaitingByReason(0, 0), 0, 2, 0.72, Finished(31, 0, 0, 0, 0)),
    )
    one = server(
        window=Window(State.UP, at=NOW, window_s=300.0, all=window), waiting_since=None,
        turns=tuple(t for t in turns() if t.id not in (817, 813, 812, 807, 806)),
    )  # fmt: skip
    return box(HEALTHY, (one,))


def stale() -> BoxView:
    say = Sentence("STALE", "warn", "/metrics has not answered for 12 s", "(3 tries of 2 s); what it fed is grey")
    return box(say, (server(state=State.TIMEOUT, last_good_at=NOW - 12, failed_tries=3, cause="no answer"),))


def down() -> BoxView:
    say = Sentence("DOWN", "bad", "127.0.0.1:8000 refuses since 13:03:39:", "process 41233 is gone")
    return box(say, (server(state=State.REFUSED, last_good_at=NOW - 42, failed_tries=9, turns=turns()[3:]),))


def loading() -> BoxView:
    say = Sentence("LOADING", "dim", "process 51877 loads since 13:01:40,", "2 m 41 s so far")
    process = VllmProcess(
        51877,
        "api",
        ("vllm", "serve", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "--port", "8000"),
        8000,
        "127.0.0.1",
        NOW - 161,
    )
    worker = VllmProcess(51901, "engine", ("VLLM::EngineCore",), None, None, NOW - 150, 51877)
    one = ServerView(URL, "127.0.0.1:8000", State.LOADING, "process 51877 is alive, its port refuses", NOW - 161)
    return box(say, (one,), host=replace(HOST, processes=(process, worker), offload_files=()))


def no_gpu() -> BoxView:
    return replace(healthy(), gpu=GpuReading((), "no NVIDIA driver here: libnvidia-ml.so.1 not found", None, NOW))


def no_turns() -> BoxView:
    return box(HEALTHY, (server(turns=(), turns_total=0),))


def several(n: int = 3) -> BoxView:
    """n servers, the second one down."""
    states = [State.UP, State.REFUSED, *[State.UP] * n][:n]
    servers = [
        server(url=f"http://127.0.0.1:{8000 + i}", label=f"127.0.0.1:{8000 + i}", state=state)
        for i, state in enumerate(states)
    ]
    lines = tuple(
        EngineLine(s.url, s.label, s.state, 0.77, 2, 1, 4.3, 0.96, 0.2, selected=i == 0)
        if s.state.good
        else EngineLine(s.url, s.label, s.state, age_s=57.0, state_s=42.0)
        for i, s in enumerate(servers)
    )
    warning = "load is spread over 3 servers and each finds little: route a conversation to one server" if n > 3 else ""
    return box(SLOW, servers, lines=lines, warning=warning)


def hostile() -> BoxView:
    name = "\x1b[31mred\x1b[0m/[bold]模型-🚀\u202eevil\nnext\u200b"
    one = server(
        label=name,
        models=(Model(name),),
        version="0.32\x07",
        turns=(
            turn(1, 5, 10, 5, 0, 3, engine=name, finish_reason=name),
            replace(
                captured_turn(2, 6, 10, 5, 0, 3, state="failed", error=name),
                agent=name,
                model=name,
                conversation=name,
                route=name,
                finish_reason=name,
            ),
        ),
        tap=TapView(1, (name,), problem=""),
    )
    say = Sentence("OK", "ok", f"{name} is fine", name)
    return box(say, (one,), gpu=GpuReading((card(0, name=name, throttle=(name,)), card(1, lost=name))))


def captured_turn(id: int, ago: float, prompt: int, cached: int, *timing: float, **changes: object) -> Turn:
    """As `turn`, seen by a tap too."""
    made = turn(id, ago, prompt, cached, *timing)
    known: dict[str, object] = {
        "source": "tap",
        "agent": "opencode",
        "route": "chat",
        "model": "Qwen/Qwen3.8-27B",
        "conversation": "c800",
        "relation": "next",
        "cached_source": "usage",
        "status": 200,
    }
    return replace(made, **{**known, **changes})


def captured_turns() -> tuple[Turn, ...]:
    flying = {"state": "in_flight", "ended_at": None, "prompt_tokens": None, "cached_tokens": None, "new_tokens": None,
              "completion_tokens": None, "queue_s": None, "prefill_s": None, "decode_s": None, "ttft_s": None,
              "duration_s": None, "finish_reason": None, "verdict": None, "status": None}  # fmt: skip
    untold = {"prompt_tokens": None, "cached_tokens": None, "new_tokens": None, "ttft_s": None, "finish_reason": None}
    return (
        captured_turn(817, 0, 1, 0, 0, 1, agent="pi", phase="waits", started_at=NOW - 2.1,
                      estimate=Estimate(22_400, 20_400, 2_000), **flying),
        captured_turn(816, 0, 1, 0, 0, 1, phase="reads", started_at=NOW - 2.6,
                      estimate=Estimate(130_000, 125_800, 4_200, 1.2), **flying),
        captured_turn(815, 0, 1, 0, 0, 1, agent="claude-code", phase="writes", started_at=NOW - 51,
                      estimate=Estimate(43_900, 40_700, 3_200), **{**flying, "ttft_s": 2.6}),
        captured_turn(814, 60, 126_310, 123_280, 0.0, 611),
        captured_turn(813, 140, 41_220, 39_664, 7.4, 842, agent="claude-code", verdict="queued"),
        captured_turn(812, 150, 123_180, 11_792, 0.4, 418, slow=True, waited=True, verdict=None, lost=True),
        turn(77, 200, 8_000, 0, 0.0, 100, past_tap=True),
        captured_turn(811, 260, 1_900, 1_072, 0.0, 14, relation="side"),
        captured_turn(810, 300, 1, 0, 0, 1, state="failed", status=400, verdict=None, error="This model's maximum "
                      "context length is 131072 tokens. However, you requested 139000 tokens.", **untold),
        captured_turn(809, 320, 1, 0, 0, 1, state="aborted", verdict=None, **untold),
        captured_turn(808, 340, 1, 0, 0, 1, state="cut", verdict=None, **untold),
        captured_turn(807, 350, 1, 0, 0, 1, state=None, verdict=None, started_at=NOW - 360,
                      **{**untold, "ended_at": None}),
        captured_turn(806, 360, 9_000, 8_576, 0, 60, record="truncated"),
        captured_turn(805, 380, 9_000, 8_576, 0, 60, cached_tokens=None, new_tokens=None, cached_source=None),
        *(captured_turn(804 - i, 420 + 40 * i, 90_000 - 900 * i, 88_976 - 1_072 * i, 0.0, 300) for i in range(30)),
    )  # fmt: skip


def captured(**tap: object) -> BoxView:
    """The same server behind a tap."""
    made = replace(TapView(812, ("127.0.0.1:8001",), 1.0, 0), **tap)
    return box(servers=(server(turns=captured_turns(), tap=made),))


STATES: dict[str, Callable[[], BoxView]] = {
    "slow": box, "healthy": healthy, "stale": stale, "down": down, "loading": loading, "no-gpu": no_gpu,
    "no-turns": no_turns, "several": several, "hostile": hostile, "captured": captured,
    "nobody": lambda: BoxView(NOW, Sentence("NO SERVER", "dim", "No vLLM server found on this box."), ()),
}  # fmt: skip
