"""How far a start has come, from its log: pure, fed with bytes as they come, cut anywhere.

The markers are those of vLLM 0.9 to 0.33. Where a stage ends is known only when the next one begins, and not every
start has every stage: what is compiled, or captured, shows by its own marker and is otherwise left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from kvtop.profiles.running.record import Stage, Start
from kvtop.profiles.running.text import Lines

BEFORE, PROCESS, WEIGHTS, COMPILE, KV_CACHE, GRAPHS, PORT = STAGES = (
    "before",
    "process",
    "weights",
    "compile",
    "kv_cache",
    "graphs",
    "port",
)
"""In their order. before: pre-start commands and sidecars; process: until the model is loaded."""

WORDS = {
    BEFORE: "pre-start",
    PROCESS: "process up",
    WEIGHTS: "weights",
    COMPILE: "compile",
    KV_CACHE: "KV cache",
    GRAPHS: "CUDA graphs",
    PORT: "port answers",
}
"""For screens, of a stage that is over."""

_LOADS = re.compile(r"Starting to load model ")
_SHARDS = re.compile(r"checkpoint shards:.*?\| *(\d{1,7})/(\d{1,7})\b")
_LOADED = re.compile(r"Model loading took |Loading weights took ")
_COMPILES = re.compile(
    r"Dynamo bytecode transform time|torch\.compile (?:takes|took) |Directly load (?:the )?(?:AOT )?compil|"
    r"Compiling a graph for |Warming up model for the compilation"
)
_COMPILED = re.compile(r"Warming up done\.")
"""On a CPU, which compiles in a forward pass of its own; what comes then is the KV cache."""
KV_ROOM = re.compile(r"Available KV cache memory: (\d{1,6}(?:\.\d{1,4})?) GiB")
KV_SIZE = re.compile(r"KV cache size: (\d[\d,]{0,19}) tokens")
BLOCK = re.compile(r"Setting attention block size to (\d{1,7}) tokens")
"""Of a hybrid model alone, before its KV cache is made; not where --block-size fits already."""
MAMBA = re.compile(r"Padding mamba page size by ")
"""Of a hybrid model alone, in every start."""
UNIT = re.compile(r"kv lcm block sizes (\d{1,7})\b")
"""The block in which all groups of a KV cache agree, where it has several."""
_CAPTURES = re.compile(r"Capturing CUDA graph")
_READY_TO_LISTEN = re.compile(
    r"Graph capturing finished in |init engine \(.*\) took |Supported tasks: |Starting vLLM (?:API )?server"
)
_TIER_FILE = re.compile(r"Created mmap file (/\S*/vllm_offload_\S*)")


class Progress:
    """The stages so far. `feed` takes the log, `begin` what is known without it."""

    def __init__(self) -> None:
        self._lines = Lines()
        self._began: dict[str, float | None] = {}
        self._ended: dict[str, float | None] = {}
        self._now = ""
        self.shards: tuple[int, int] | None = None
        """(done, of) as the last bar had it."""
        self.kv_cache_tokens: int | None = None
        self.kv_cache_rank_bytes: int | None = None
        """Of one GPU, as the log rounds it."""
        self.tier_files: list[str] = []
        """Files in shared memory that the log names as made."""
        self._fitted = False

    @property
    def now(self) -> str:
        """The stage that runs; empty before the first and after the last."""
        return self._now

    @property
    def hybrid(self) -> bool | None:
        """Whether attention blocks were fitted to a Mamba state; None before the KV cache is made."""
        return None if self.kv_cache_tokens is None else self._fitted

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(Stage(name, self._began[name], self._ended.get(name)) for name in STAGES if name in self._began)

    def begin(self, name: str, at: float | None) -> None:
        """A stage begins, and with it the one before it ends. One that is behind the present one is no news."""
        if self._now and STAGES.index(name) <= STAGES.index(self._now):
            return
        self._close(at)
        self._now = name
        self._began[name] = at

    def ready(self, at: float | None) -> None:
        """The server answers."""
        self._close(at)
        self._now = ""

    def feed(self, data: bytes, at: float | None) -> None:
        """More of the log. `at`: when it came; None where nobody watched."""
        for line in self._lines.feed(data):
            self._read(line, at)

    def _close(self, at: float | None) -> None:
        if self._now:
            self._ended[self._now] = at

    def _read(self, line: str, at: float | None) -> None:
        if not self._now:
            return
        if found := _SHARDS.search(line):
            self._bar(int(found[1]), int(found[2]), at)
        elif _LOADS.search(line):
            self.begin(WEIGHTS, at)
        elif _LOADED.search(line):
            self.begin(KV_CACHE, at)
        elif found := KV_ROOM.search(line):
            self.begin(KV_CACHE, at)
            self.kv_cache_rank_bytes = int(float(found[1]) * (1 << 30))
        elif BLOCK.search(line) or MAMBA.search(line):
            self._fitted = True
        elif _COMPILES.search(line):
            self._compile(at)
        elif _COMPILED.search(line):
            self.begin(KV_CACHE, at)
        elif found := KV_SIZE.search(line):
            self.begin(KV_CACHE, at)
            self.kv_cache_tokens = int(found[1].replace(",", ""))
        elif _CAPTURES.search(line):
            self.begin(GRAPHS, at)
        elif _READY_TO_LISTEN.search(line):
            self.begin(PORT, at)
        elif found := _TIER_FILE.search(line):
            self.tier_files.append(found[1])

    def _bar(self, done: int, of: int, at: float | None) -> None:
        if self._now == KV_CACHE and self.kv_cache_tokens is None and WEIGHTS in self._began:
            # A second model, a drafter, is loaded behind the first.
            del self._began[KV_CACHE]
            self._ended.pop(WEIGHTS, None)
            self._now = WEIGHTS
        self.begin(WEIGHTS, at)
        if self._now == WEIGHTS and done <= of:
            self.shards = (done, of)

    def _compile(self, at: float | None) -> None:
        """What came behind the weights was no KV cache yet."""
        if self._now == KV_CACHE and self.kv_cache_tokens is None and COMPILE not in self._began:
            self._began[COMPILE] = self._began.pop(KV_CACHE)
            self._now = COMPILE
        elif self._now in (PROCESS, WEIGHTS):
            self.begin(COMPILE, at)


@dataclass(frozen=True, slots=True)
class Left:
    """How long it will take, by the last good starts."""

    seconds: float
    of_starts: int
    fraction: float
    """Of the way, 0 to 1."""
    slowest_s: float
    fastest_s: float


def usual(starts: Sequence[Start]) -> dict[str, float]:
    """Stage -> seconds, the median of the last starts that had it."""
    names = {name for start in starts for name in start.stages}
    return {name: median([start.stages[name] for start in starts if name in start.stages]) for name in names}


def left(stages: Sequence[Stage], shards: tuple[int, int] | None, starts: Sequence[Start], now: float) -> Left | None:
    """None where no start of this profile went well before, or where it stands is not known."""
    running = next((stage for stage in stages if stage.ended_at is None), None)
    if not starts or running is None or running.began_at is None:
        return None
    usually = usual(starts)
    here = STAGES.index(running.name)
    spent = max(0.0, now - running.began_at)
    rest = sum(seconds for name, seconds in usually.items() if name in STAGES and STAGES.index(name) > here)
    rest += _of_stage(running.name, usually, spent, shards)
    begun = [stage.began_at for stage in stages if stage.began_at is not None]
    elapsed = max(0.0, now - min(begun))
    lengths = [start.took_s for start in starts]
    fraction = elapsed / (elapsed + rest) if elapsed + rest > 0 else 0.0
    return Left(rest, len(starts), fraction, max(lengths), min(lengths))


def _of_stage(name: str, usually: Mapping[str, float], spent: float, shards: tuple[int, int] | None) -> float:
    rest = max(0.0, usually.get(name, 0.0) - spent)
    if name == WEIGHTS and shards is not None and 0 < shards[0] <= shards[1]:
        # What this start itself has shown counts more, the further it is.
        done = shards[0] / shards[1]
        rest = (1 - done) * rest + done * spent * (1 - done) / done
    return rest
