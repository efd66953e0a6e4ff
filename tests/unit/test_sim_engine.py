"""The scheduler of the embedded box: moments, laws, and what it counts."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.model.window import between
from kvtop.readings import Scrape
from kvtop.sim.cache import extend_chain
from kvtop.sim.engine import Engine, Request
from kvtop.sim.spec import EngineSpec

SPEC = EngineSpec(
    block_tokens=16, blocks=400, max_model_len=4_096, prefill_tokens_per_s=1_000.0, max_batched_tokens=512,
    long_prefill_tokens=256, bytes_per_token=1_000, pcie_bytes_per_s=1e6, max_running=4,
)  # fmt: skip
T0 = 1_000.0
few = settings(derandomize=True, max_examples=25, deadline=None)


def request(ids: list[int], reply: list[int], spec: EngineSpec = SPEC) -> Request:
    return Request(len(ids), extend_chain([], array("I", ids + reply), spec.block_tokens), len(reply))


def engine(**changes: object) -> Engine:
    return Engine(replace(SPEC, **changes), T0, T0)  # type: ignore[arg-type]


def scrape(box: Engine) -> Scrape:
    box.gauges()
    return box.metrics.scrape(box.now)


def drain(box: Engine, until: float = T0 + 10_000) -> list[Request]:
    done: list[Request] = []
    while more := box.run(until):
        done += more
    return done


def serve(box: Engine, ids: list[int], reply: list[int]) -> Request:
    one = request(ids, reply, box.spec)
    box.submit(one, box.now)
    while box.run(box.now + 10_000):
        if one.finished_at is not None:
            break
    return one


def common(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def ids_of(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(300, 999), k=n)


def test_phases_of_a_request_alone() -> None:
    box = engine()
    one = serve(box, ids_of(1, 1_000), ids_of(2, 11))
    w = between(scrape(engine()), scrape(box), None).all
    assert w.latency.queue.mean_s == pytest.approx(0.0, abs=1e-9)
    assert w.latency.prefill.mean_s == pytest.approx(1_000 / 1_000.0)
    assert w.latency.decode.mean_s == pytest.approx(10 * SPEC.decode_step_s)
    assert w.latency.ttft.mean_s == pytest.approx(1.0 + 2 * SPEC.frontend_s)
    assert w.latency.e2e.mean_s == pytest.approx(1.0 + 10 * SPEC.decode_step_s + 2 * SPEC.frontend_s)
    assert w.latency.inter_token.n == 10
    assert w.throughput.prefill_tokens_per_s == pytest.approx(1_000.0)
    assert (one.generated, box.idle, box.cache.room) == (11, True, 400)


def test_moments_at_which_counters_move() -> None:
    box = engine()
    start = scrape(box)
    one = request(ids_of(1, 1_000), ids_of(2, 100))
    box.submit(one, T0)
    box.run(T0 + 0.5)
    mid = between(start, scrape(box), None).all
    name = ("vllm:prefix_cache_queries_total", (("engine", "0"), ("model_name", SPEC.model)))
    assert scrape(box).values[name] == 1_000
    assert (mid.cached.prompt_tokens, mid.latency.ttft.n, mid.latency.queue.n) == (0, 0, 0)
    assert (mid.requests.running, mid.requests.waiting) == (1, 0)
    box.run(T0 + 1.5)
    after = between(start, scrape(box), None).all
    assert (after.cached.prompt_tokens, after.latency.ttft.n, after.latency.queue.n) == (1_000, 1, 0)
    assert after.requests.finished.total == 0
    drain(box)
    end = between(start, scrape(box), None).all
    assert (end.latency.queue.n, end.requests.finished.stop) == (1, 1)
    assert end.throughput.generation_tokens == 100


talks = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 120), st.integers(1, 40)), min_size=1, max_size=12)


@few
@given(talks)
def test_law_counts_replies_too(turns: list[tuple[int, int, int]]) -> None:
    """Serial turns of three conversations; replies count too, but for their last token."""
    box = engine(blocks=2_000)
    start = scrape(box)
    histories: dict[int, list[int]] = {i: ids_of(i, 20) for i in range(3)}
    computed: list[list[int]] = []
    prompt_sum = cached_sum = reply_sum = 0
    for n, (which, grow, reply_tokens) in enumerate(turns):
        prompt = histories[which] + ids_of(100 + n, grow)
        reply = ids_of(500 + n, reply_tokens)
        longest = max((common(prompt, old) for old in computed), default=0)
        one = serve(box, prompt, reply)
        assert one.device == 16 * (min(longest, len(prompt) - 1) // 16)
        computed.append(prompt + reply[:-1])
        histories[which] = prompt + reply
        prompt_sum, cached_sum, reply_sum = prompt_sum + len(prompt), cached_sum + one.device, reply_sum + len(reply)
    w = between(start, scrape(box), None).all
    assert (w.cached.prompt_tokens, w.cached.cached_tokens) == (prompt_sum, cached_sum)
    assert w.cached.by_source.computed == prompt_sum - cached_sum
    assert w.throughput.generation_tokens == reply_sum
    assert box.cache.stats.evicted == 0


bursts = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 3), st.integers(1, 700), st.integers(1, 60)), max_size=14)


def play(requests: list[tuple[float, int, int, int]], step_s: float, **changes: object) -> tuple[Engine, list[Request]]:
    """Send requests at their times, letting time pass in slices of `step_s`."""
    box = engine(**changes)
    sent, done = [], []
    todo = sorted(requests)
    at = T0
    while todo or not box.idle:
        wake = todo[0][0] + T0 if todo else float("inf")
        at = min(at + step_s, wake) if wake < float("inf") else at + step_s
        while more := box.run(at):
            done += more
        if at >= wake:
            _, which, grow, reply = todo.pop(0)
            one = request(ids_of(which, 64) + ids_of(grow, grow), ids_of(reply, reply), box.spec)
            box.submit(one, at)
            sent.append(one)
        assert at < T0 + 5_000, "the queue stands still"
    assert all(r.finished_at is not None for r in sent)
    return box, sent


@few
@given(bursts)
def test_small_pool_serves_everyone_and_gives_all_blocks_back(requests: list[tuple[float, int, int, int]]) -> None:
    box, sent = play(requests, 0.7, blocks=60, max_model_len=900)
    assert box.cache.room == 60
    w = between(scrape(engine()), scrape(box), None).all
    assert w.cached.prompt_tokens == sum(r.prompt for r in sent)
    assert w.cached.cached_tokens == sum(r.device + r.host for r in sent)
    assert w.throughput.generation_tokens == sum(r.reply for r in sent)
    assert w.requests.preempted == sum(r.preemptions for r in sent)
    assert w.latency.e2e.n == w.requests.finished.total == len(sent)
    for r in sent:
        assert r.scheduled_at is not None and r.first_token_at is not None and r.finished_at is not None
        assert r.queued_at <= r.scheduled_at < r.first_token_at <= r.finished_at


@few
@given(bursts)
def test_how_time_is_cut_does_not_change_what_happens(requests: list[tuple[float, int, int, int]]) -> None:
    (a, first), (b, second) = play(requests, 0.03), play(requests, 50.0)
    assert [r.finished_at for r in first] == pytest.approx([r.finished_at for r in second], abs=1e-6)
    assert [r.device for r in first] == [r.device for r in second]
    one, two = scrape(a).values, scrape(b).values
    assert {k: v for k, v in one.items() if "le" not in dict(k[1])} == pytest.approx(
        {k: v for k, v in two.items() if "le" not in dict(k[1])}, rel=1e-6, abs=1e-6
    )


def test_waits_for_room_and_is_counted_as_capacity() -> None:
    box = engine(blocks=60, max_model_len=900)
    first, second = request(ids_of(1, 640), ids_of(2, 50)), request(ids_of(3, 640), ids_of(4, 50))
    box.submit(first, T0)
    box.submit(second, T0)
    box.run(T0 + 0.3)
    w = between(scrape(engine()), scrape(box), None).all
    assert (w.requests.running, w.requests.waiting_by_reason.capacity) == (1, 1)
    drain(box)
    assert first.finished_at is not None and second.scheduled_at is not None
    assert second.scheduled_at >= first.finished_at


def test_preempted_requests_are_recomputed_and_counted_once() -> None:
    box = engine(blocks=40, max_model_len=640)
    sent = [request(ids_of(i, 300), ids_of(10 + i, 200)) for i in (1, 2)]
    for one in sent:
        box.submit(one, T0)
    drain(box)
    w = between(scrape(engine()), scrape(box), None).all
    assert sum(r.preemptions for r in sent) >= 1
    assert w.requests.preempted == sum(r.preemptions for r in sent)
    assert (w.cached.prompt_tokens, w.cached.cached_tokens, w.latency.ttft.n) == (600, 0, 2)
    assert w.throughput.generation_tokens == 400


def test_tier_gives_back_what_the_device_lost_and_the_load_is_queue_time() -> None:
    box = engine(blocks=60, max_model_len=900, tier_bytes=200 * 16 * 1_000)
    mine, reply = ids_of(1, 640), ids_of(2, 5)
    serve(box, mine, reply)
    for other in range(3):
        serve(box, ids_of(50 + other, 800), ids_of(60, 5))
    before = scrape(box)
    again = serve(box, mine + reply + ids_of(9, 30), ids_of(3, 5))
    w = between(before, scrape(box), 1.0).all
    assert again.device < 640 and again.host > 0
    assert again.device + again.host == 640
    assert w.cached.by_source.host == again.host
    assert w.offload.load_bytes == again.host * 1_000
    assert w.offload.load_time_s == pytest.approx(again.host * 1_000 / 1e6)
    assert w.latency.queue.mean_s is not None and w.offload.load_time_s is not None
    assert w.latency.queue.mean_s >= w.offload.load_time_s - 1e-6
    assert w.offload.loads == 1


def test_a_load_under_way_waits_as_deferred() -> None:
    box = engine(blocks=60, max_model_len=900, tier_bytes=200 * 16 * 1_000)
    mine = ids_of(1, 640)
    serve(box, mine, ids_of(2, 5))
    serve(box, ids_of(50, 890), ids_of(60, 5))
    box.submit(request(mine, ids_of(2, 5)), box.now)
    box.run(box.now + 0.1)
    w = between(scrape(engine(tier_bytes=1_000_000)), scrape(box), None).all
    assert (w.requests.running, w.requests.waiting_by_reason.deferred) == (0, 1)


def test_an_abort_frees_the_blocks_and_leaves_no_trace() -> None:
    box = engine()
    one = request(ids_of(1, 1_000), ids_of(2, 100))
    box.submit(one, T0)
    box.run(T0 + 1.2)
    assert box.cache.room < 400
    box.abort(one)
    assert drain(box) == []
    w = between(scrape(engine()), scrape(box), None).all
    assert (box.cache.room, w.requests.running, w.requests.finished.total, w.latency.e2e.n) == (400, 0, 0, 0)
    assert w.latency.ttft.n == 1
