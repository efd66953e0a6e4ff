"""Start, watch and stop the servers. Each is known by its name; its state is a small file under run/."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from install import make_model, usable
from places import PLUGIN, Places, Problem

MIB = 1 << 20
SMALL = ("--num-gpu-blocks-override", "130", "--max-model-len", "16384")
"""A device cache of 130 blocks of 128 tokens: two conversations evict each other."""

STOP_S = 15.0
"""How long a server may take after SIGINT before its process group is killed."""

CAUSE = re.compile(r"[A-Za-z]+(Error|Exception): |error: |No module named")
WRAPPER = re.compile(r"(Engine core|WorkerProc) initialization failed|ulimit")


def connector(spec: str, **more: object) -> tuple[str, ...]:
    extra = {"spec_name": spec, "spec_module_path": "host_offload_spec", "cpu_bytes_to_use": 256 * MIB} | more
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return ("--kv-transfer-config", json.dumps(config))


@dataclass(frozen=True)
class Kind:
    """A named configuration: which model, and the arguments that make it what it is."""

    says: str
    model: str = "tiny"
    arguments: Callable[[Path], tuple[str, ...]] = lambda _: ()
    """Given a folder of its own for what it writes."""


KINDS = {
    "plain": Kind("plain attention, block 128, prefix caching"),
    "small": Kind("the same with a device cache of 130 blocks", arguments=lambda _: SMALL),
    "offload": Kind(
        "130 blocks and a host tier of 256 MiB", arguments=lambda _: SMALL + connector("HostOffloadingSpec")
    ),
    "tier": Kind(
        "130 blocks, a host tier of 256 MiB and a disk tier behind it",
        arguments=lambda own: (
            SMALL + connector("HostTieringSpec", secondary_tiers=[{"type": "fs", "root_dir": str(own)}])
        ),
    ),
    # Left to itself the CPU platform sets the scheduler's copy of the block size back to 128 and the cache goes wrong.
    "hybrid": Kind(
        "linear and full attention, block 288, state saved at block ends",
        model="hybrid",
        arguments=lambda _: ("--block-size", "288", "--mamba-cache-mode", "align"),
    ),
}


@dataclass(frozen=True)
class Record:
    """A server that was started. pid and its start time together name one process."""

    name: str
    pid: int
    ticks: int
    port: int
    log: str
    at: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def alive(record: Record) -> bool:
    return start_ticks(record.pid) == record.ticks


def group_alive(pid: int) -> bool:
    """Anything of this process group is left, apart from zombies."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == pid and fields[0] not in "ZX":
                return True
    return False


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def load(places: Places, name: str) -> Record | None:
    try:
        return Record(**json.loads((places.run / f"{name}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def known(places: Places) -> list[Record]:
    found = (load(places, path.stem) for path in sorted(places.run.glob("*.json")))
    return [record for record in found if record]


def taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(places: Places) -> dict[str, str]:
    mine = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_CACHE_ROOT": str(places.home / "cache"),
    }
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    path = os.pathsep.join(filter(None, (str(PLUGIN), os.environ.get("PYTHONPATH", ""))))
    return mine | os.environ | quiet | {"PYTHONPATH": path}


def start(places: Places, name: str, port: int | None, extra: list[str]) -> Record:
    """Start a server and return at once; it answers after half a minute or so. `wait` waits."""
    kind = KINDS.get(name)
    if kind is None:
        raise Problem(f"no server is called {name}: there are {', '.join(KINDS)}")
    if not usable(places):
        raise Problem(f"no vLLM in {places.venv}: run scripts/real-vllm install")
    before = load(places, name)
    if before and alive(before):
        raise Problem(f"{name} runs already: pid {before.pid}, {before.url}")
    if port and taken(port):
        raise Problem(f"port {port} is taken")
    make_model(places, kind.model)
    own = places.run / f"{name}.data"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    port = port or free_port()
    log = places.run / f"{name}.log"
    command = [str(places.venv / "bin" / "vllm"), "serve", str(places.model(kind.model)), "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "bfloat16"]
    command += ["--max-model-len", "32768", "--max-num-seqs", "8", "--enable-prefix-caching"]
    command += ["--enable-prompt-tokens-details", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    command += [*kind.arguments(own), *extra]
    with log.open("w") as out:
        # A session of its own: nothing of the caller's terminal reaches it, and its group can be killed as one.
        server = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment(places),
            cwd=own,
            start_new_session=True,
        )
    record = Record(name, server.pid, start_ticks(server.pid) or 0, port, str(log), time.time())
    (places.run / f"{name}.json").write_text(json.dumps(asdict(record)) + "\n")
    return record


def cause(log: Path) -> str:
    """The likely reason of a failed start: the last lines of the log are only the outer traceback."""
    lines = log.read_text(errors="replace").splitlines()
    found = [line for line in lines if CAUSE.search(line) and not WRAPPER.search(line)]
    words = [re.sub(r"^\([^)]*\) [A-Z]+ [^]]*\] *", "", line).strip() for line in found]
    return "; ".join(list(dict.fromkeys(words))[:3]) or "no error in the log"


def wait(places: Places, name: str, timeout_s: float) -> float:
    """Wait until the server answers; the seconds since its start. A server that died is a Problem with its cause."""
    record = load(places, name)
    if record is None:
        raise Problem(f"{name} was not started")
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if healthy(record.url):
            return time.time() - record.at
        if not alive(record):
            raise Problem(f"{name} died: {cause(Path(record.log))}\n  the whole log: {record.log}")
        time.sleep(0.2)
    raise Problem(f"{name} does not answer after {timeout_s:.0f} s (pid {record.pid})\n  its log: {record.log}")


def remove_tier_files(log: Path) -> None:
    """What a tiering server of 0.32 leaves in /dev/shm when it ends; its log names each file that it made."""
    with contextlib.suppress(OSError):
        for path in re.findall(r"Created mmap file (/dev/shm/vllm_offload_\S+\.mmap)", log.read_text(errors="replace")):
            Path(path).unlink(missing_ok=True)


def stop(places: Places, name: str) -> str:
    """One SIGINT, then the whole process group; what happened, in words."""
    record = load(places, name)
    if record is None:
        raise Problem(f"{name} was not started")
    started = time.monotonic()
    how = "was not running"
    if alive(record):
        how = "stopped"
        os.kill(record.pid, signal.SIGINT)
        while alive(record) and time.monotonic() < started + STOP_S:
            time.sleep(0.05)
    # Engine and workers end with the API process, or shortly after it.
    while group_alive(record.pid) and not alive(record) and time.monotonic() < started + STOP_S:
        time.sleep(0.05)
    if group_alive(record.pid):
        how = "killed"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(record.pid, signal.SIGKILL)
        while group_alive(record.pid) and time.monotonic() < started + 2 * STOP_S:
            time.sleep(0.05)
    if not group_alive(record.pid):
        remove_tier_files(Path(record.log))
    (places.run / f"{name}.json").unlink(missing_ok=True)
    shutil.rmtree(places.run / f"{name}.data", ignore_errors=True)
    return f"{how} after {time.monotonic() - started:.1f} s"
