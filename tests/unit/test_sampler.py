"""The upstream's counters beside a turn: when they are read, and what they add."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from capture_fakes import ANSWERS
from metrics_texts import made, raw, scrape

from kvtop.capture.recorder.counters import MAX_SAMPLES, finish, learnt, sample_of, thinned
from kvtop.capture.recorder.sampler import DEAF_S, FRESH_S, Sampler, Upstream, Watch
from kvtop.capture.turn import Captured, Sample, TurnState
from kvtop.errors import UsageError
from kvtop.readings import Scrape, SourceDown, State

DONE = Captured(state=TurnState.DONE, ended_at=1_000.0)


def real(name: str) -> Scrape:
    return scrape(raw(Path(ANSWERS / f"chat-stream.{name}.txt.gz")), 1_000.0)


BEFORE, AFTER = real("before"), real("after")


def counted(finished: int, *, prompt: float = 0, running: float = 0, started: float = 1_700_000_000.0) -> Scrape:
    """A small server: requests of 100 prompt tokens, of which 40 were cached."""
    names = ("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds")
    series = {f"{name}_count": float(finished) for name in names} | {f"{name}_sum": finished * 0.5 for name in names}
    for name, each in (
        ("request_prompt_tokens", 100),
        ("request_prefill_kv_computed_tokens", 60),
        ("request_generation_tokens", 7),
    ):
        series |= {f"{name}_count": float(finished), f"{name}_sum": float(finished * each)}
    series |= {
        "prompt_tokens_total": finished * 100.0 + prompt,
        "num_requests_running": running,
        "num_requests_waiting": 0.0,
        'request_success_total{finished_reason="stop"}': float(finished),
    }
    return made(series, 1_000.0, start=started)


# what two texts say


def test_a_sample_of_a_real_text() -> None:
    sample = sample_of(AFTER)
    assert sample is not None
    assert (sample.prompt_tokens, sample.cached_tokens, sample.finished) == (5701, 3968, 13)
    assert (sample.queries, sample.hits, sample.generation_tokens) == (5701, 3968, 109)
    assert sample.by_source == {
        "device": 3968, "host": 0, "disk": 0, "p2p": 0, "external": 0, "computed": 1733,
    }  # fmt: skip
    assert (sample.running, sample.waiting, sample.preempted, sample.at) == (0, 0, 0, 1_000)
    assert sample.started_at is not None
    assert sample.resets == 0
    assert sample.load_bytes is None


def test_requests_that_clear_the_cache_are_counted() -> None:
    def told(*lines: str) -> float | None:
        http = [f'http_requests_total{{handler="{line}\n' for line in lines]
        sample = sample_of(scrape("vllm:prompt_tokens_total 3\n" + "".join(http)))
        assert sample is not None
        return sample.resets

    reset = '/reset_prefix_cache",method="POST",status="2xx"}'
    assert told(f"{reset} 2.0", '/sleep",method="POST",status="2xx"} 1.0') == 3
    assert told(f"{reset} 2.0", '/reset_prefix_cache",method="POST",status="5xx"} 1.0') == 2
    assert told('/v1/models",method="GET",status="2xx"} 9.0') == 0
    assert told(f"{reset} NaN") is None
    assert told() is None, "nobody counts them"


def test_what_is_no_text_of_vllm_is_no_sample() -> None:
    assert sample_of(scrape("http_requests_total 3\n")) is None
    assert sample_of(scrape("vllm:prompt_tokens_total 3")) is None  # its last line is cut


def test_a_real_turn_that_was_alone() -> None:
    """The stream told no usage; its usage from another answer of the same prompt: 427 tokens, 384 cached, 6 out."""
    row = finish(BEFORE, AFTER).only
    turn = learnt(DONE, [Sample(at=1.0)], row, alone=True)
    assert (turn.prompt_tokens, turn.cached_tokens, turn.completion_tokens) == (427, 384, 6)
    assert (turn.cached_source, turn.alone) == ("metrics", True)
    assert turn.queue_s == pytest.approx(0.00008, abs=0.0005)
    assert turn.prefill_s is not None
    assert 0.0 < turn.prefill_s < 1.0


def test_usage_is_never_replaced() -> None:
    known = msgspec.structs.replace(
        DONE, prompt_tokens=427, cached_tokens=0, cached_source="usage", completion_tokens=9, queue_s=0.5, prefill_s=2.0
    )
    turn = learnt(known, [Sample(at=1.0)], finish(BEFORE, AFTER).only, alone=True)
    assert (turn.cached_tokens, turn.cached_source, turn.completion_tokens) == (0, "usage", 9)
    assert (turn.queue_s, turn.prefill_s) == (0.5, 2.0)


def test_the_finish_of_another_request_is_not_taken() -> None:
    known = msgspec.structs.replace(DONE, prompt_tokens=426)
    turn = learnt(known, [Sample(at=1.0)], finish(BEFORE, AFTER).only, alone=True)
    assert (turn.alone, turn.cached_tokens, turn.cached_source) == (False, None, None)


@pytest.mark.parametrize(
    "before, after, moved, alone",
    [
        (counted(3), counted(4), True, True),
        (counted(3), counted(3), False, False),
        (counted(3), counted(5), True, False),
        (counted(3), counted(4, prompt=50), True, False),
        (counted(3, prompt=100), counted(4), True, False),
        (counted(3, prompt=100, running=1), counted(4), True, True),
        (counted(3, prompt=100, running=2), counted(4, running=1), True, False),
        (counted(3, prompt=100, running=1), counted(5, prompt=-100), True, False),
        (counted(3), counted(4, started=1_700_000_900.0), False, False),
    ],
)
def test_alone(before: Scrape, after: Scrape, moved: bool, alone: bool) -> None:
    found = finish(before, after)
    assert (found.moved, found.only is not None) == (moved, alone)


def test_samples_are_thinned() -> None:
    kept: list[Sample] = []
    for n in range(1_000):
        kept = thinned([*kept, Sample(at=float(n))])
        assert len(kept) <= MAX_SAMPLES
    assert (kept[0].at, kept[-1].at) == (0.0, 999.0)
    assert [one.at for one in kept] == sorted(one.at for one in kept)


# when they are read


class Source:
    """A server that answers when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Queue[None]()
        self.answers = asyncio.Queue[Scrape | SourceDown]()
        self.open = 0
        self.most = 0
        self.closed = False

    async def scrape(self) -> Scrape | SourceDown:
        self.open += 1
        self.most = max(self.most, self.open)
        self.asked.put_nowait(None)
        try:
            return await self.answers.get()
        finally:
            self.open -= 1

    async def aclose(self) -> None:
        self.closed = True

    async def tell(self, answer: Scrape | SourceDown) -> None:
        """Answer the next question."""
        async with asyncio.timeout(5):
            await self.asked.get()
        self.answers.put_nowait(answer)
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Bench:
    def __init__(self) -> None:
        self.source = Source()
        self.now = 1_000.0
        self.slept: list[float] = []
        self.learnt: list[Captured] = []
        self.upstream = Upstream(self.source, mono=lambda: self.now, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    async def begins(self, *texts: Scrape | SourceDown) -> Watch:
        """A turn, and what the server says while it runs."""
        watch = self.upstream.begins()
        for text in texts:
            await self.source.tell(text)
        return watch

    async def ends(self, watch: Watch, *texts: Scrape | SourceDown, turn: Captured = DONE) -> None:
        """Its end, and what the server says after it."""
        self.now += 0.01
        watch.ended(turn, self.learnt.append)
        for text in texts:
            await self.source.tell(text)

    async def close(self) -> None:
        await self.upstream.drain(0.0)


async def test_before_while_and_after_and_the_turn_was_alone() -> None:
    bench = Bench()
    reads = counted(3, prompt=100, running=1)
    watch = await bench.begins(counted(3), reads, reads)
    await bench.ends(watch, reads, reads)  # the first was asked for before the end, the second has not counted yet
    assert bench.learnt == []
    await bench.source.tell(counted(4))
    (turn,) = bench.learnt
    assert (turn.alone, turn.prompt_tokens, turn.cached_tokens, turn.cached_source) == (True, 100, 40, "metrics")
    assert (turn.queue_s, turn.prefill_s, turn.completion_tokens) == (0.5, 0.5, 7)
    assert [one.finished for one in turn.samples] == [3, 3, 3, 3, 3, 4]
    assert bench.slept[:2] == [1.0, 1.0]
    assert bench.source.most == 1
    await bench.close()
    assert bench.source.asked.empty()


async def test_the_text_at_the_end_of_the_turn_before_is_just_before() -> None:
    """The fresh one may already hold what this turn did at its admission."""
    bench = Bench()
    await bench.ends(await bench.begins(counted(3)), counted(3), counted(4))
    bench.now += 60
    reads = counted(4, running=1)
    await bench.ends(await bench.begins(reads), reads, counted(5))
    turn = bench.learnt[1]
    assert [one.running for one in turn.samples] == [0, 1, 1, 0]
    assert turn.alone is True
    await bench.close()


@pytest.mark.parametrize("others", [0, 50])
async def test_a_first_text_that_came_after_the_first_token(others: int) -> None:
    """Then the text of the turn before tells what was cached. `others`: of a prompt that was aborted in between."""
    bench = Bench()
    await bench.ends(await bench.begins(counted(3)), counted(3), counted(4))
    bench.now += 60
    second = await bench.begins(counted(4, prompt=others or 100, running=1))
    await bench.ends(second, counted(4, prompt=others + 100, running=1), counted(5, prompt=others))
    turn = bench.learnt[1]
    assert (turn.alone, turn.prompt_tokens, turn.cached_tokens, turn.cached_source) == (True, 100, 40, "metrics")
    await bench.close()


async def test_what_others_did_since_the_turn_before_does_not_count() -> None:
    bench = Bench()
    await bench.ends(await bench.begins(counted(3)), counted(4), counted(4))
    bench.now += 60
    await bench.ends(await bench.begins(counted(9)), counted(9), counted(10))
    assert bench.learnt[1].alone is True
    await bench.close()


async def test_two_turns_at_a_time_are_not_alone_and_share_their_texts() -> None:
    bench = Bench()
    one, two = await bench.begins(counted(3)), await bench.begins()
    await bench.ends(one)
    await bench.ends(two, counted(5), counted(5))
    assert [turn.alone for turn in bench.learnt] == [False, False]
    assert [turn.cached_tokens for turn in bench.learnt] == [None, None]
    await bench.close()


async def test_another_request_on_the_server_is_seen() -> None:
    bench = Bench()
    await bench.ends(await bench.begins(counted(3), counted(3, running=2)), counted(4), counted(4))
    assert bench.learnt[0].alone is False
    await bench.close()


async def test_a_finish_that_never_shows_is_not_waited_for_long() -> None:
    bench = Bench()
    await bench.ends(await bench.begins(counted(3)))
    for _ in range(9):
        if bench.learnt:
            break
        await bench.source.tell(counted(3))
    (turn,) = bench.learnt
    assert (turn.alone, turn.cached_tokens) == (None, None)
    assert len(turn.samples) > 2
    await bench.close()


async def test_a_turn_that_was_over_before_the_first_text_says_nothing() -> None:
    """The recorder was behind: what finishes now is another turn."""
    bench = Bench()
    late = msgspec.structs.replace(DONE, ended_at=995.0)
    await bench.ends(await bench.begins(), counted(3, running=1), turn=late)
    (turn,) = bench.learnt
    assert (turn.alone, turn.prompt_tokens, turn.cached_tokens) == (None, None, None)
    await bench.close()


async def test_an_aborted_turn_gets_its_samples_at_once() -> None:
    bench = Bench()
    aborted = Captured(state=TurnState.ABORTED)
    await bench.ends(await bench.begins(counted(3)), counted(3, running=1), counted(3), turn=aborted)
    (turn,) = bench.learnt
    assert (turn.alone, len(turn.samples)) == (None, 3)
    await bench.close()


async def test_an_upstream_that_is_no_vllm_is_left_alone() -> None:
    bench = Bench()
    await bench.ends(await bench.begins(SourceDown(State.NOT_VLLM, "no", 0.0)))
    await bench.ends(await bench.begins())
    await settle()
    assert (bench.learnt, bench.source.asked.empty()) == ([], True)
    bench.now += DEAF_S
    await bench.begins(counted(3))
    await bench.close()


async def test_a_busy_upstream_is_asked_again() -> None:
    bench = Bench()
    busy = SourceDown(State.TIMEOUT, "slow", 0.0)
    await bench.ends(await bench.begins(busy, counted(3)), counted(4), counted(4))
    assert bench.learnt[0].alone is True
    await bench.close()


async def test_many_turns_ask_no_more_often_than_one_in_a_while() -> None:
    bench = Bench()
    asked = 0

    async def answering() -> None:
        nonlocal asked
        while True:
            await bench.source.tell(counted(3))
            asked += 1

    task = asyncio.create_task(answering())
    began = bench.now
    for _ in range(200):
        await bench.ends(await bench.begins())
        await bench.begins()
        await settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert asked <= 1.3 * (bench.now - began) / FRESH_S + 5
    await bench.close()


async def test_the_end_tells_what_there_is() -> None:
    bench = Bench()
    await bench.ends(await bench.begins(counted(3)))
    await bench.upstream.drain(0.0)
    assert [len(turn.samples) for turn in bench.learnt] == [1]
    assert bench.source.closed


async def test_upstreams_are_told_apart_and_a_bad_url_is_none() -> None:
    sources: dict[str, Source] = {}

    def source(url: str) -> Source:
        if not url:
            raise UsageError("no URL")
        return sources.setdefault(url, Source())

    sampler = Sampler(source, mono=lambda: 1.0)
    for url in ("http://a", "http://b", "http://a", ""):
        sampler.begins(url)
    await settle()
    assert sorted(sources) == ["http://a", "http://b"]
    await sampler.drain(0.0)
