"""Profiles whose server is the stand-in, in a home of their own; afterwards nothing may be left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from kvtop.profiles.launch import Launch, Secret
from kvtop.profiles.profile import Profile
from kvtop.profiles.running import client, look, record
from kvtop.profiles.running.client import Chosen
from kvtop.profiles.running.lock import Lock
from kvtop.profiles.running.look import Seen

HERE = Path(__file__).parent
LOGS = HERE.parent / "fixtures" / "profile-logs"
MARK = "KVTOP_TEST_BOX"
LIMIT_S = 30.0
PYTHON = sys.executable
"""Also for tests that give keepers another one."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Box:
    """A home with profiles."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.mark = f"{home}"
        program = home / "bin" / "vllm"
        program.parent.mkdir(parents=True)
        program.write_text((HERE / "servestandin.py").read_text())
        self.program = program

    def chosen(
        self,
        name: str,
        *words: str,
        port: int | None = None,
        secrets: dict[str, Secret] | None = None,
        unset: tuple[str, ...] = (),
        profile: dict[str, object] | None = None,
        **env: str,
    ) -> Chosen:
        """A profile; variables with STANDIN_ in front go to the server."""
        port = port or free_port()
        told = {f"STANDIN_{key.upper()}": value for key, value in env.items()}
        serve = ("/models/tiny", "--port", str(port), *words)
        argv = (PYTHON, str(self.program), "serve", *serve)
        launch = Launch(argv=argv, serve=serve, set=told, unset=unset, secrets=secrets or {}, port=port)
        made = msgspec.convert(profile or {}, Profile)
        return Chosen(name, f"{self.home}/{name}.toml", made, launch, ["tiny"])

    def start(self, chosen: Chosen) -> record.Record:
        with Lock(f"starts {chosen.name}") as lock:
            return client.start(chosen, lock)

    def until(self, name: str, *states: str) -> Seen:
        end = time.monotonic() + LIMIT_S
        for step in client.follow(name, lambda seen: seen.state in states or time.monotonic() > end):
            last = step.seen
        assert last.state in states, (last.state, last.record)
        return last

    def ready(self, chosen: Chosen) -> Seen:
        self.start(chosen)
        return self.until(chosen.name, "running", "failed")

    def processes(self) -> list[int]:
        """All that were started under this home: the keepers, their servers, and theirs."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return [pid for pid in found if pid != os.getpid() and record.Who.of(pid) is not None]

    def gone(self) -> None:
        """Nothing of it is left: no process, no half-written file, no file in shared memory."""
        end = time.monotonic() + 5
        while self.processes() and time.monotonic() < end:
            time.sleep(0.02)
        assert self.processes() == []
        assert [file.name for file in record.folder().iterdir() if file.name.startswith(".")] == []
        assert list(record.folder().glob("*.ask.json")) == []
        assert list(Path("/dev/shm").glob(f"vllm_offload_{os.getpid()}*")) == []

    def close(self) -> None:
        for state in record.every():
            if look.look(state.name).state in ("starting", "running", "stopping"):
                client.stop(state.name, "the end of a test")


def own(notes: Sequence[str]) -> list[str]:
    """Without what is said of files that others left on this machine."""
    return [note for note in notes if not note.startswith("/dev/shm/")]


def wait(done: Callable[[], bool], why: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < end, why
        time.sleep(0.02)


@contextlib.contextmanager
def box(home: Path, setenv: Callable[[str, str], None]) -> Iterator[Box]:
    setenv("KVTOP_HOME", str(home))
    made = Box(home)
    setenv(MARK, made.mark)
    try:
        yield made
        made.close()
        made.gone()
    finally:
        for pid in made.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
