"""Profiles to look at: one that starts, one that was stopped, one with findings, one that is watched, a broken file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kvtop.errors import KvtopError
from kvtop.live.errands import Done
from kvtop.live.failures import Failures
from kvtop.live.profile_asks import InTheWay
from kvtop.live.profile_view import Attached, Figures, ProfilesView, Tail
from kvtop.live.profiles import Checked, Profiles
from kvtop.profiles.check.report import Finding, Memory, Report
from kvtop.profiles.launch import Launch, Secret
from kvtop.profiles.running.record import Ask, Record, Setup, Stage, Start, Who
from kvtop.profiles.standing import Known, Standing

NOW = 1_795_953_600.0
GIB = 1 << 30
WHERE = Path("/home/me/.config/kvtop/profiles")
USUAL = {
    "before": 0.2,
    "process": 8.8,
    "weights": 230.0,
    "compile": 71.0,
    "kv_cache": 6.0,
    "graphs": 24.0,
    "port": 1.2,
}
STARTS = tuple(Start(NOW - 90_000 + i, took, USUAL) for i, took in enumerate((352.0, 360.0, 384.0)))
SETUP = Setup(("0", "1"), 64 * GIB, True, "1 as-started")
EVIL = "\x1b[31mred\x1b]0;title\x07[bold]\u202eevil\r"


def known(name: str, runner: str = "venv", model: str = "Qwen/Qwen3.8-27B-FP8", **more: object) -> Known:
    values: dict[str, object] = {"port": 8002, "host": "127.0.0.1", "gpus": ("0", "1"), "tier_bytes": 64 * GIB}
    run = Launch(
        argv=("vllm", "serve", model, "--port", "8002", "--api-key", "sk-secret-1234567890"),
        serve=(model, "--port", "8002"),
        set={"HF_HOME": "/data/hf", "HF_TOKEN": "hf_abcdefghijklmnop"},
        secrets={"VLLM_API_KEY": Secret("file", "/home/me/key")},
        unset=("LD_PRELOAD",),
    )
    return Known(name, WHERE / f"{name}.toml", runner, model, **{**values, "launch": run, **more})  # type: ignore[arg-type]


def starting(name: str = "coder-30b-lmcache") -> Standing:
    stages = [
        Stage("before", NOW - 161, NOW - 160.8),
        Stage("process", NOW - 160.8, NOW - 151.7),
        Stage("weights", NOW - 151.7),
    ]
    state = Record(
        name=name,
        state="starting",
        started_at=NOW - 161,
        model="Qwen3-Coder-30B",
        port=8002,
        setup=SETUP,
        stages=stages,
        shards_done=9,
        shards=14,
        server=Who(51877, "b"),
        log="/tmp/none.log",
    )
    return Standing(known(name, model="Qwen3-Coder-30B"), "starting", 51877, NOW - 161, state, STARTS)


def running(name: str = "qwen27-2x3090") -> Standing:
    state = Record(
        name=name,
        state="running",
        started_at=NOW - 38_600,
        model="Qwen/Qwen3.8-27B-FP8",
        port=8002,
        setup=SETUP,
        ready_at=NOW - 38_220,
        server=Who(41233, "b"),
        log="/tmp/none.log",
    )
    return Standing(known(name), "running", 41233, NOW - 38_220, state, STARTS)


def only(row: Standing) -> list[str]:
    """What of a command names the server that is to be ended."""
    assert row.record is not None
    return ["--only", row.record.mark]


def stopped(name: str = "qwen27-2x3090") -> Standing:
    state = Record(
        name=name,
        state="stopped",
        started_at=NOW - 38_800,
        ready_at=NOW - 38_400,
        ended_at=NOW - 180,
        ask=Ask("a switch to coder-30b-lmcache", NOW - 190),
        log="/tmp/none.log",
    )
    return Standing(known(name), "stopped", None, NOW - 180, state, STARTS)


def failed(
    name: str = "qwen27-2x3090", why: str = "OSError: no such model; it ended with exit code 1", former: str = ""
) -> Standing:
    state = Record(
        name=name,
        state="failed",
        started_at=NOW - 60,
        ended_at=NOW - 30,
        why=why,
        former=former,
        stages=[Stage("process", NOW - 60)],
        log="/tmp/none.log",
    )
    return Standing(known(name), "failed", None, NOW - 30, state, ())


ATTACHED = Standing(
    known("office-h200", "attach", "Qwen3-32B", gpus=(), tier_bytes=None, port=8000, host="10.0.0.7"), "stopped"
)
BROKEN = Standing(
    Known("broken", WHERE / "broken.toml", problem="broken.toml, line 14: expected “=” after the key"), "unreadable"
)
NEVER = Standing(known("gpt-oss-20b", "docker", "openai/gpt-oss-20b", gpus=("0",), tier_bytes=None), "stopped")
CHOSEN = Standing(known("qwen27-dflash2", "compose"), "stopped")
TAIL = Tail(
    (
        "(APIServer pid=1) INFO 11-29 13:01:49 [core.py:1] Initializing a V1 LLM engine (v0.32.0)",
        "(APIServer pid=1) WARNING 11-29 13:01:44 [cache.py:9] expandable_segments is on",
        "(APIServer pid=1) ERROR 11-29 13:01:58 [x.py:1] it broke",
        f"plain {EVIL}",
        "Loading safetensors checkpoint shards:  64% Completed | 9/14 [02:29<01:18, 15.6s/it]",
    ),
    "~/.local/state/kvtop/coder-30b-lmcache.log",
    "coder-30b-lmcache",
)


def view(*rows: Standing, **more: object) -> ProfilesView:
    rows = rows or (starting(), stopped(), CHOSEN, NEVER, ATTACHED, BROKEN)
    values: dict[str, object] = {
        "where": "~/.config/kvtop/profiles",
        "tail": TAIL,
        "figures": {"qwen27-2x3090": Figures(NOW - 500, 0.96, 31, 0.8)},
        "attached": {"office-h200": Attached(False, "10.0.0.7:8000 timed out", NOW - 12)},
    }
    return ProfilesView(NOW, rows=rows, **{**values, **more})  # type: ignore[arg-type]


def report(*findings: Finding) -> Report:
    memory = Memory(64 * GIB, int(62.8 * GIB), int(104.2 * GIB), (6 * GIB, 6 * GIB), (24 * GIB, 24 * GIB))
    return Report("qwen27-dflash2", findings, (), memory, (), ("vllm", "serve"), {})


ERROR = Finding(
    "error", "shm_too_small", "", "tier 64.0 GiB, /dev/shm has 62.8 GiB", "tier 56 GiB, or mount /dev/shm with size=80G"
)
WARNING = Finding(
    "warning",
    "exposed_without_key",
    "",
    "it is reached on every interface, without a key",
    "--host 127.0.0.1, or VLLM_API_KEY from a file",
)
NOTE = Finding("note", "no_kv_cache_metrics", "", "no evidence of eviction without a flag", "add --kv-cache-metrics")


class Held(Profiles):
    """Profiles that change only when a test says so; what it is asked to do is noted."""

    def __init__(self, now: ProfilesView, found: Report | KvtopError | None = None) -> None:
        self.view, self.found = now, found if found is not None else report()
        self.checked: Checked | None = None
        self.reports: dict[str, Report] = {}
        self.done: list[list[str]] = []
        self.chosen: list[str | None] = []
        self.replacing: list[str | None] = []
        self.answer: Callable[[Sequence[str]], Done] = lambda words: Done(0, "", ())
        self.standing_in_the_way: tuple[InTheWay, ...] = ()
        self.counted: int | None = None
        self.asks_vllm = False
        self._doing = []
        self.failures = Failures()

    def choose(self, name: str | None) -> None:
        self.chosen.append(name)

    def look_soon(self) -> None: ...

    def answered(self, new: Standing) -> None:
        self.failures.answered(new)

    def check_again(self) -> None: ...

    async def report(
        self, row: Standing, *, replacing: Standing | None, asking: Callable[[], None] = lambda: None
    ) -> Report:
        self.replacing.append(replacing.name if replacing is not None else None)
        if self.asks_vllm:
            asking()
        if isinstance(self.found, KvtopError):
            raise self.found
        return self.found

    async def in_the_way(self, row: Standing) -> tuple[InTheWay, ...]:
        return self.standing_in_the_way

    async def requests(self, row: Standing) -> int | None:
        return self.counted

    async def do(self, words: Sequence[str], meanwhile: str, *, beside: bool = False) -> Done:
        self.done.append(list(words))
        self.failures.begins(words, NOW - 80)
        return self.answer(words)
