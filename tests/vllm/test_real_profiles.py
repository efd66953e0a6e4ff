"""Profiles of a real vLLM: started, followed, switched, stopped, and what each way to fail is told as.

After each: no process, and no file in /dev/shm, is left.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_servers import status

from kvtop.cli import profile
from kvtop.cli.profile import checking
from kvtop.cli.profile.chosen import choose
from kvtop.profiles import folder
from kvtop.profiles.running import client, look, record
from kvtop.profiles.running.lock import Lock
from kvtop.profiles.running.look import Seen

pytestmark = pytest.mark.vllm

PLUGIN = Path(__file__).parents[2] / "scripts" / "realvllm" / "plugin"
PORT, SECOND, TAKEN = 18710, 18711, 18712
MIB = 1 << 20
QUIET = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONPATH": str(PLUGIN),
}
ARGS = ["--enforce-eager", "--dtype", "bfloat16", "--max-model-len", "8192", "--max-num-seqs", "4"]
MARK = "KVTOP_TEST_REAL_PROFILES"
SESSIONS: dict[Path, set[int]] = {}
"""Home -> the sessions of what was started under it."""


def in_shm() -> set[str]:
    return {file.name for file in Path("/dev/shm").iterdir() if file.name.startswith(("vllm_offload_", "psm_"))}


def processes_of(home: Path) -> list[int]:
    """What was started under this home: by a variable, or by the session, since some take the place of their
    variables for a title."""
    found = set()
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={home}".encode() in (one / "environ").read_bytes().split(b"\0"):
                found.add(int(one.name))
                SESSIONS.setdefault(home, set()).add(os.getsid(int(one.name)))
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(one.name)) in SESSIONS.get(home, set()) - {os.getsid(0)}:
                found.add(int(one.name))
    return sorted(pid for pid in found - {os.getpid()} if record.Who.of(pid) is not None)


def title(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def shm_of(pids: list[int]) -> set[str]:
    """Files in shared memory that these processes map."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if "/dev/shm/" in line:
                    found.add(line.split("/dev/shm/")[1].split()[0])
    return found


class Home:
    """A folder of profiles, and what they left so far."""

    def __init__(self, own: Path) -> None:
        self.folder = own
        found = status()
        self.vllm = Path(found["venv"]) / "bin" / "vllm"
        self.model = Path(found["folder"]) / "models" / "tiny"
        self.cache = Path(found["folder"]) / "cache"
        self.mapped: set[str] = set()

    def write(self, name: str, *args: str, port: int = PORT, model: str = "", **tier: object) -> None:
        words = json.dumps([*ARGS, *args])
        env = "".join(
            f"{key} = {json.dumps(value)}\n" for key, value in {**QUIET, "VLLM_CACHE_ROOT": str(self.cache)}.items()
        )
        text = (
            f'[serve]\nmodel = {json.dumps(model or str(self.model))}\nnames = ["tiny"]\nhost = "127.0.0.1"\n'
            f"port = {port}\nargs = {words}\n[venv]\ncommand = {json.dumps([str(self.vllm), 'serve'])}\n"
            f"[start]\ntimeout_s = 300\nstop_wait_s = 10\n[env.set]\n{env}"
        )
        if tier:
            extra = "".join(f"{key} = {json.dumps(value)}\n" for key, value in tier.items())
            text += (
                '[serve.json.kv-transfer-config]\nkv_connector = "OffloadingConnector"\nkv_role = "kv_both"\n'
                '[serve.json.kv-transfer-config.kv_connector_extra_config]\nspec_module_path = "host_offload_spec"\n'
                f"{extra}"
            )
        where = self.folder / "config" / "profiles"
        where.mkdir(parents=True, exist_ok=True)
        (where / f"{name}.toml").write_text(text)

    def look(self, name: str) -> Seen:
        seen = look.look(name)
        self.mapped |= shm_of(processes_of(self.folder))
        return seen

    def end_of(self, name: str, state: str) -> Seen:
        """Follow it to its end, which must be that state."""
        for step in client.follow(name, lambda seen: seen.state in ("stopped", "failed")):
            self.mapped |= shm_of(processes_of(self.folder))
            last = step.seen
        assert last.state == state, last.record
        return last

    def gone(self) -> None:
        end = time.monotonic() + 10
        while processes_of(self.folder) and time.monotonic() < end:
            time.sleep(0.05)
        assert processes_of(self.folder) == []
        assert self.mapped & in_shm() == set()


def lose_engine(home: Home) -> None:
    """Wait until its server answers, and kill that one's engine."""
    *_, step = client.follow("crash", lambda seen: seen.state != "starting")
    assert step.seen.state == "running", step.seen.record
    state = home.look("crash").record
    assert state is not None
    (engine,) = (who.pid for who in state.family if title(who.pid).startswith(b"VLLM::EngineCore"))
    os.kill(engine, signal.SIGKILL)


@pytest.fixture
def home(installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    monkeypatch.setenv(MARK, str(tmp_path))
    made = Home(tmp_path)
    try:
        yield made
        made.gone()
    finally:
        for state in record.every():
            with contextlib.suppress(Exception):
                client.stop(state.name, "the end of a test")
        for pid in processes_of(tmp_path):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_servers_that_fail_say_why(home: Home) -> None:
    """Starts that cannot work, and one that loses its engine when it runs. Each in a home of its own, so that they can
    fail at the same time."""
    homes = {name: Home(home.folder / name) for name in ("flag", "path", "port", "tier", "crash")}
    homes["flag"].write("flag", "--no-such-flag", "3")
    homes["path"].write("path", model="/nowhere/model")
    homes["port"].write("port", port=TAKEN)
    homes["crash"].write("crash")
    room = {"spec_name": "HostTieringSpec", "cpu_bytes_to_use": 100_000_000 * MIB}
    homes["tier"].write("tier", "--num-gpu-blocks-override", "130", **room)
    whys = {
        "flag": "unrecognized arguments: --no-such-flag 3; it ended with exit code 2 before it answered",
        "path": "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/nowhere/model'",
        "port": "OSError: [Errno 98] Address already in use (the port is taken: another server listens on it); "
        "it ended with exit code 1 before it answered",
        "tier": "Insufficient space in /dev/shm for CPU KV offload shared region",
        "crash": "engine core exited unexpectedly; starting cleanup "
        "(its log does not say why: killed, or out of memory?); "
        "it ended with exit code 0 though nobody asked for that",
    }
    with socket.socket() as other:
        other.bind(("127.0.0.1", TAKEN))
        other.listen()
        for name, one in homes.items():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("KVTOP_HOME", str(one.folder))
                with Lock(f"starts {name}") as lock:
                    client.start(choose(folder.find(name)), lock)
        for name, one in homes.items():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("KVTOP_HOME", str(one.folder))
                if name == "crash":
                    lose_engine(one)
                seen = one.end_of(name, "failed")
                assert seen.record is not None
                assert whys[name] in seen.record.why
        home.mapped |= {file for one in homes.values() for file in one.mapped}


def test_start_switch_and_stop(home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(checking, "allowed", lambda entry, **_: True)
    home.write("plain")
    home.write(
        "offload",
        "--block-size",
        "32",
        "--num-gpu-blocks-override",
        "520",
        port=SECOND,
        spec_name="HostTieringSpec",
        cpu_bytes_to_use=64 * MIB,
    )
    assert profile.main(["start", "plain"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("plain is ready after")
    assert [line.split("  ")[1] for line in said.err.splitlines()] == [
        "process up",
        "weights, 1 of 1 shards",
        "KV cache",
        f"port {PORT} answers",
    ]
    plain = home.look("plain")
    assert plain.record is not None
    assert (plain.record.block_tokens, plain.record.exit_code) == (128, None)
    (good,) = record.starts("plain")
    assert (good.block_tokens, good.hybrid, good.model) == (128, False, str(home.model))
    assert good.kv_cache_tokens == plain.record.kv_cache_tokens is not None
    assert good.kv_cache_rank_bytes is None  # vLLM for CPUs does not say it
    assert len(plain.record.family) >= 3  # the web server, the engine, a worker

    assert profile.main(["switch", "offload"]) == 0
    assert capsys.readouterr().err.startswith("stops plain\n")
    stopped = look.look("plain")
    assert stopped.record is not None and (stopped.state, stopped.record.exit_code) == ("stopped", 0)
    assert stopped.record.family == [] and stopped.record.notes == []
    seen = home.look("offload")
    assert seen.record is not None and seen.record.block_tokens == 32

    # an open stream keeps the web server from ending, unless its end gets out in time; a body that does not come does
    half = socket.create_connection(("127.0.0.1", SECOND))
    half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    stream = http.client.HTTPConnection("127.0.0.1", SECOND, timeout=30)
    body = {"model": "tiny", "prompt": "a", "max_tokens": 6000, "stream": True, "ignore_eos": True}
    stream.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = stream.getresponse()
    assert answer.read(1)
    home.look("offload")
    state = client.stop("offload", "a test")
    for one in (answer, stream, half):
        one.close()
    assert (state.state, state.exit_code) == ("stopped", 137)
    assert state.notes[0] == "it did not end within 10 s of SIGINT and was killed"
    home.gone()
    assert client.running() == []
