"""The stages of a start, from logs: real ones, and cut, mixed and torn ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.profiles.running import progress
from kvtop.profiles.running.progress import COMPILE, GRAPHS, KV_CACHE, PORT, PROCESS, STAGES, WEIGHTS, Progress
from kvtop.profiles.running.record import Stage, Start
from kvtop.profiles.running.text import MAX_LINE, Lines, split

LOGS = Path(__file__).parents[1] / "fixtures" / "profile-logs"
GOOD = (LOGS / "good-0.32.txt").read_bytes()
P = b"(EngineCore pid=7) INFO 11-30 12:00:00 [x.py:1] "
GPU = (
    P + b"Starting to load model Qwen/Qwen3-Coder-30B...\n"
    b"\rLoading safetensors checkpoint shards:   0% Completed | 0/14 [00:00<?, ?it/s]\n"
    b"\rLoading safetensors checkpoint shards:  64% Completed | 9/14 [02:29<01:18, 15.6s/it]\n",
    P + b"Loading weights took 230.11 seconds\n" + P + b"Model loading took 14.2 GiB memory and 231.000000 seconds\n",
    P + b"Dynamo bytecode transform time: 8.21 s\n" + P + b"torch.compile took 61.3 s in total\n",
    P
    + b"Available KV cache memory: 4.81 GiB\n"
    + P
    + b"GPU KV cache size: 180,224 tokens\n"
    + P
    + b"Maximum concurrency for 131,072 tokens per request: 1.38x\n",
    b"\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|#####     | 34/67 [00:05<00:05]\n",
    P + b"Graph capturing finished in 24 secs, took 0.61 GiB\n",
)
"""Of a start on a GPU, put together from the messages in vLLM's source: no GPU was at hand."""


def read(*pieces: bytes, begun: str = PROCESS) -> Progress:
    found = Progress()
    found.begin(begun, 0.0)
    for at, piece in enumerate(pieces, 1):
        found.feed(piece, float(at))
    return found


def names(found: Progress) -> list[str]:
    return [stage.name for stage in found.stages]


def test_a_real_start_without_compiling() -> None:
    found = read(GOOD)
    assert (names(found), found.now) == ([PROCESS, WEIGHTS, KV_CACHE, PORT], PORT)
    assert (found.shards, found.kv_cache_tokens) == ((1, 1), 2_097_152)
    found.ready(9.0)
    assert found.now == "" and found.stages[-1] == Stage(PORT, 1.0, 9.0)


def test_a_start_on_a_gpu_has_all_stages_with_their_lengths() -> None:
    found = read(*GPU)
    found.ready(7.0)
    assert {stage.name: (stage.began_at, stage.ended_at) for stage in found.stages} == {
        PROCESS: (0.0, 1.0),
        WEIGHTS: (1.0, 2.0),
        COMPILE: (2.0, 4.0),  # from the end of the weights on
        KV_CACHE: (4.0, 5.0),
        GRAPHS: (5.0, 6.0),
        PORT: (6.0, 7.0),
    }
    assert (found.shards, found.kv_cache_tokens) == ((9, 14), 180_224)


def test_a_start_that_compiles_on_a_cpu_tells_that_and_not_the_kv_cache() -> None:
    """Lines of vLLM 0.32 on a CPU, without --enforce-eager."""
    said = (
        "Starting to load model /models/tiny...",
        "Loading weights took 0.02 seconds",
        "Warming up model for the compilation...",
        "No available shared memory broadcast block found in 60 seconds.",
        "Warming up done.",
        "CPU KV cache size: 2,097,152 tokens, Maximum concurrency for 8,192 tokens per request: 256.00x",
        "init engine (profile, create kv cache, warmup model) took 66.42 s",
    )
    found = read(*(P + line.encode() + b"\n" for line in said[:4]))
    assert found.now == COMPILE
    found = read(*(P + line.encode() + b"\n" for line in said))
    assert [(stage.name, stage.began_at, stage.ended_at) for stage in found.stages] == [
        (PROCESS, 0.0, 1.0),
        (WEIGHTS, 1.0, 2.0),
        (COMPILE, 2.0, 5.0),
        (KV_CACHE, 5.0, 7.0),
        (PORT, 7.0, None),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"GPU KV cache size: 180,224 tokens, Maximum concurrency for 131,072 tokens per request: 1.38x\n",
        b"GPU KV cache size: 180,224 tokens\n",
        b"CPU KV cache size: 180,224 tokens, Maximum concurrency for 8 tokens per request: 1x\n",
    ],
)
def test_the_size_of_the_kv_cache_in_both_wordings(line: bytes) -> None:
    assert read(GPU[0], GPU[1], P + line).kv_cache_tokens == 180_224


def test_a_second_model_is_loaded_behind_the_first() -> None:
    bar = b"\rLoading safetensors checkpoint shards: 100% Completed | 1/2 [00:01<00:01, 1it/s]\n"
    found = read(GPU[0], P + b"Loading weights took 230.11 seconds\n", bar)
    assert (found.now, found.shards) == (WEIGHTS, (1, 2))
    found.feed(P + b"Loading weights took 1 seconds\n", 9.0)
    assert found.stages[-1] == Stage(KV_CACHE, 9.0, None) and found.stages[-2] == Stage(WEIGHTS, 1.0, 9.0)


def test_a_tier_file_is_named() -> None:
    line = P + b"Created mmap file /dev/shm/vllm_offload_ab12.mmap (0.06 GB)\n"
    assert read(line).tier_files == ["/dev/shm/vllm_offload_ab12.mmap"]


def test_nothing_is_read_before_it_began() -> None:
    found = Progress()
    found.feed(GOOD, 1.0)
    assert found.stages == ()


def state(found: Progress) -> tuple[object, ...]:
    return found.stages, found.now, found.shards, found.kv_cache_tokens, found.tier_files


@given(st.lists(st.integers(0, len(GOOD))), st.sampled_from([GOOD, b"".join(GPU)]))
def test_however_a_log_is_cut_it_says_the_same(cuts: list[int], log: bytes) -> None:
    whole = read(log)
    cut = Progress()
    cut.begin(PROCESS, 0.0)
    places = sorted({0, len(log), *(place for place in cuts if place < len(log))})
    for start, end in pairwise(places):
        cut.feed(log[start:end], 1.0)
    assert state(cut) == state(whole)


@given(st.permutations(b"".join(GPU).splitlines(keepends=True)), st.data())
def test_in_whatever_order_stages_are_in_their_own(lines: list[bytes], data: st.DataObject) -> None:
    noise = data.draw(st.lists(st.binary(max_size=60), max_size=5))
    found = Progress()
    found.begin(PROCESS, 0.0)
    for at, line in enumerate([*lines, *noise], 1):
        before = found.now
        found.feed(line, float(at))
        assert STAGES.index(found.now) >= STAGES.index(before) or (before, found.now) in (
            (KV_CACHE, WEIGHTS),
            (KV_CACHE, COMPILE),
        )
    order = [STAGES.index(stage.name) for stage in found.stages]
    assert order == sorted(order)
    assert [stage for stage in found.stages[:-1] if stage.ended_at is None] == []
    assert found.shards is None or 0 <= found.shards[0] <= found.shards[1]


@given(st.lists(st.binary(max_size=300)))
def test_lines_are_the_same_however_they_are_cut(pieces: list[bytes]) -> None:
    one, many = Lines(), Lines()
    whole = list(one.feed(b"".join(pieces) + b"\n"))
    assert [line for piece in [*pieces, b"\n"] for line in many.feed(piece)] == whole
    assert not any("\n" in line or "\r" in line for line in whole)


@pytest.mark.parametrize("step", [1000, MAX_LINE - 1, MAX_LINE + 7, 3 * MAX_LINE])
def test_a_line_without_an_end_is_cut_at_the_same_places(step: int) -> None:
    text = b"".join(b"%09d" % number for number in range(MAX_LINE // 4)) + b"\nend\n"
    lines = Lines()
    found = [line for start in range(0, len(text), step) for line in lines.feed(text[start : start + step])]
    assert found == list(Lines().feed(text)) and found[-1] == "end" and max(map(len, found)) == MAX_LINE


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("(EngineCore pid=7) ERROR 11-30 20:45:00 [core.py:1510] boom", ("EngineCore pid=7", "ERROR", "boom")),
        ("INFO 11-30 20:45:00 [core.py:1510] boom", ("", "INFO", "boom")),
        ("INFO:     Application startup complete.", ("", "INFO", "Application startup complete.")),
        ("(Worker pid=1) boom", ("Worker pid=1", "", "boom")),
        ("  boom", ("", "", "  boom")),
    ],
)
def test_a_line_is_taken_apart(line: str, parts: tuple[str, str, str]) -> None:
    assert split(line) == parts


def start(**stages: float) -> Start:
    return Start(0.0, sum(stages.values()), stages)


PAST = [
    start(process=8.0, weights=200.0, compile=70.0, kv_cache=6.0, graphs=24.0, port=1.0),
    start(process=9.0, weights=230.0, compile=71.0, kv_cache=6.0, graphs=24.0, port=1.2),
    start(process=10.0, weights=260.0, kv_cache=6.0, graphs=24.0, port=1.4),
]


def test_the_time_left_is_what_is_usual_of_the_stages_to_come() -> None:
    stages = [Stage(PROCESS, 0.0, 9.0), Stage(WEIGHTS, 9.0)]
    found = progress.left(stages, None, PAST, 39.0)
    assert found is not None
    # weights: 230 - 30; compile: the median of those that had one
    assert found.seconds == pytest.approx(200 + 70.5 + 6 + 24 + 1.2)
    assert found.of_starts == 3 and found.fraction == pytest.approx(39 / (39 + found.seconds))
    assert (found.fastest_s, found.slowest_s) == (pytest.approx(301.4), pytest.approx(341.2))


def test_shards_tell_more_the_further_they_are() -> None:
    stages = [Stage(WEIGHTS, 0.0)]
    past = [start(weights=100.0)]
    slow = progress.left(stages, (5, 10), past, 100.0)  # half in the usual time of all
    assert slow is not None and slow.seconds == pytest.approx(0.5 * 0 + 0.5 * 100)
    none = progress.left(stages, (0, 10), past, 40.0)
    assert none is not None and none.seconds == pytest.approx(60.0)


def test_a_stage_that_takes_longer_than_usual_leaves_nothing_of_itself() -> None:
    found = progress.left([Stage(PORT, 0.0)], None, PAST, 50.0)
    assert found is not None and found.seconds == 0.0


def test_what_is_left_is_not_known_without_a_start_before_or_without_a_watcher() -> None:
    assert progress.left([Stage(WEIGHTS, 0.0)], None, [], 1.0) is None
    assert progress.left([Stage(WEIGHTS, None)], None, PAST, 1.0) is None
    assert progress.left([Stage(PORT, 0.0, 1.0)], None, PAST, 1.0) is None


def test_a_size_without_a_digit_is_no_size() -> None:
    assert read(P + b"GPU KV cache size: , tokens\n" + P + b"GPU KV cache size: ,,, tokens\n").kv_cache_tokens is None
