"""The vLLM processes of this machine, from /proc: their role, command line, age, and the ports they listen on.

Command lines leave this module with their secrets masked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvtop.readings import VllmProcess
from kvtop.sources.base import printable
from kvtop.sources.url import VLLM_PORT

RESCAN_READS = 10
"""Every so many reads each process is looked at anew: it may have become another program, or taken a new title."""
MASK = "***"

_MAX_COMMAND = 65_536
_SECRET_FLAG = re.compile(r"^--?[\w-]*(api[-_]?key|token|password|passwd|secret|credential)s?$", re.IGNORECASE)
_NOT_SECRET = re.compile(r"(num|max|min|batched|long|prefill|special|skip|add)[\w-]*token", re.IGNORECASE)
_ENV_SECRET = re.compile(r"^\w*(key|token|password|passwd|secret)=", re.IGNORECASE)
_JSON_SECRET = re.compile(
    r"""(["'][\w-]*(?:api[-_]?key|token|password|passwd|secret)["']\s*:\s*["'])[^"']*""", re.IGNORECASE
)
_URL_SECRET = re.compile(r"(://)[^/@\s]+@")
_PYTHON = re.compile(r"^(python|pypy)[\d.]*$")
_MODULE = re.compile(r"^vllm\.entrypoints\.(openai\.api_server|cli(\.main)?|api_server|grpc_server)$")
_TITLES = (("VLLM::EngineCore", "engine"), ("VLLM::APIServer", "api"), ("VLLM::", "worker"))


@dataclass(frozen=True, slots=True)
class Processes:
    """What a look at all processes found."""

    vllm: tuple[VllmProcess, ...]
    seen: int
    """Processes looked at, of all kinds."""
    published: tuple[int, ...]
    """Host ports that container proxies hold."""


def role(command: Sequence[str]) -> str | None:
    """`api`, `engine` or `worker`; None for what is not vLLM. A wrapper (a shell, uv, docker) is not: its child is."""
    if not command:
        return None
    for title, name in _TITLES:
        if command[0].startswith(title):
            return name
    program = Path(command[0]).name
    rest = list(command[1:])
    if _PYTHON.match(program):
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
            # -W and -X take a value.
            rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
        if len(rest) > 1 and rest[0] == "-m":
            if _MODULE.match(rest[1]):
                return "api"
            if rest[1] != "vllm":
                return None
            rest = rest[1:]
        if not rest:
            return None
        program, rest = Path(rest[0]).name, rest[1:]
    if program == "vllm":
        return "api" if rest[:1] == ["serve"] else None
    return "api" if program == "vllm-rs" else None


def option(command: Sequence[str], name: str) -> str | None:
    """The value of `--name VALUE` or `--name=VALUE`, with dashes or underscores; the last one counts."""
    value = None
    for position, word in enumerate(command):
        flag, equals, inline = word.partition("=")
        if flag.replace("_", "-") != name:
            continue
        if equals:
            value = inline
        elif position + 1 < len(command):
            value = command[position + 1]
    return value


def port_of(command: Sequence[str]) -> int | None:
    """The HTTP port that a server's command line asks for; None where it cannot be told from it."""
    if (
        option(command, "--uds") is not None
        or "--headless" in command
        or not command
        or command[0].startswith("VLLM::")
    ):
        return None
    given = option(command, "--port")
    if given is None:
        # A configuration file may name another one.
        return None if option(command, "--config") is not None else VLLM_PORT
    return int(given) if given.isdecimal() and 0 < int(given) < 65536 else None


def masked(command: Sequence[str]) -> tuple[str, ...]:
    """A command line without its secrets, fit to be shown."""
    out: list[str] = []
    hide = False
    for word in command:
        flag, equals, _ = word.partition("=")
        if _SECRET_FLAG.match(flag) and not _NOT_SECRET.search(flag):
            out.append(f"{flag}={MASK}" if equals else flag)
            hide = not equals
            continue
        if word.startswith("-"):
            hide = False
        if hide:
            # --api-key takes any number of values.
            out.append(MASK)
        elif _ENV_SECRET.match(word):
            out.append(f"{flag}={MASK}")
        else:
            out.append(_URL_SECRET.sub(rf"\1{MASK}@", _JSON_SECRET.sub(rf"\1{MASK}", word)))
    return tuple(printable(word, 4000) for word in out)


def listening(table: str) -> dict[int, int]:
    """Socket inode -> port of the listening rows of a /proc/net/tcp text."""
    found = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == "0A":
            found[int(fields[9])] = int(fields[1].rpartition(":")[2], 16)
    return found


class ProcessTable:
    """Looks at all processes cheaply: what was not vLLM at the last look is skipped for a while."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._reads = 0
        self._others: set[str] = set()
        self._proxies: dict[str, int] = {}
        self._listens: dict[tuple[str, float | None], tuple[int, bool, tuple[int, ...]]] = {}
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._boot: float | None = None

    def read(self) -> Processes:
        if self._reads % RESCAN_READS == 0:
            self._others.clear()
            self._proxies.clear()
        self._reads += 1
        try:
            with os.scandir(self._proc) as entries:
                pids = [entry.name for entry in entries if entry.name.isdecimal()]
        except OSError:
            return Processes((), 0, ())
        found: list[VllmProcess] = []
        for pid in pids:
            if pid in self._others:
                continue
            process = self._look(pid)
            if process is None:
                self._others.add(pid)
            else:
                found.append(process)
        self._others.intersection_update(pids)
        here = set(pids)
        self._listens = {key: known for key, known in self._listens.items() if key[0] in here}
        self._proxies = {pid: port for pid, port in self._proxies.items() if pid in here}
        return Processes(
            vllm=tuple(sorted(found, key=lambda process: process.pid)),
            seen=len(pids),
            published=tuple(sorted(set(self._proxies.values()))),
        )

    def _look(self, pid: str) -> VllmProcess | None:
        raw = self._bytes(pid, "cmdline", _MAX_COMMAND)
        if not raw:
            return None
        command = raw.decode("utf-8", "replace").rstrip("\0 ").split("\0")
        what = role(command)
        if what is None:
            if command[0].endswith("docker-proxy"):
                given = option(command, "-host-port") or ""
                if given.isdecimal():
                    self._proxies[pid] = int(given)
            return None
        state, parent, started = self._stat(pid)
        if state == "Z":
            return None
        contained, ports = self._sockets(pid, started) if what == "api" else (False, ())
        return VllmProcess(
            pid=int(pid),
            role=what,
            command=masked(command),
            port=port_of(command) if what == "api" else None,
            host=option(command, "--host") if what == "api" else None,
            started_at=started,
            parent=parent,
            ports=ports,
            contained=contained,
        )

    def _bytes(self, pid: str, name: str, limit: int) -> bytes:
        # Gone, or another user's: both are 'not known'.
        try:
            with (self._proc / pid / name).open("rb") as file:
                return file.read(limit)
        except OSError:
            return b""

    def _stat(self, pid: str) -> tuple[str, int | None, float | None]:
        """State letter, parent and start (Unix time)."""
        fields = self._bytes(pid, "stat", 4096).rpartition(b")")[2].split()
        if len(fields) < 20:
            return "?", None, None
        if self._boot is None:
            try:
                text = (self._proc / "stat").read_text(encoding="ascii", errors="replace")
            except OSError:
                text = ""
            match = re.search(r"^btime (\d+)", text, re.MULTILINE)
            self._boot = float(match[1]) if match else None
        started = None if self._boot is None else self._boot + int(fields[19]) / self._ticks
        return fields[0].decode(), int(fields[1]), started

    def _contained(self, pid: str) -> bool:
        """In another network namespace: its ports are not those of this machine."""
        theirs, ours = _link(f"{self._proc}/{pid}/ns/net"), _link(f"{self._proc}/self/ns/net")
        return bool(theirs and ours) and theirs != ours

    def _sockets(self, pid: str, started: float | None) -> tuple[bool, tuple[int, ...]]:
        """Whether it is contained, and its listening ports; remembered for RESCAN_READS once it listens."""
        known = self._listens.get((pid, started))
        if known is not None and known[0] > self._reads:
            return known[1], known[2]
        contained = self._contained(pid)
        ports = () if contained else self._ports(pid)
        if ports or contained:
            self._listens[(pid, started)] = (self._reads + RESCAN_READS, contained, ports)
        return contained, ports

    def _ports(self, pid: str) -> tuple[int, ...]:
        try:
            with os.scandir(self._proc / pid / "fd") as entries:
                links = [_link(entry.path) for entry in entries]
        except OSError:
            return ()
        own = {int(link[8:-1]) for link in links if link.startswith("socket:[")}
        ports: set[int] = set()
        for name in ("net/tcp", "net/tcp6"):
            rows = listening(self._bytes(pid, name, 4_000_000).decode("ascii", "replace"))
            ports.update(port for inode, port in rows.items() if inode in own)
        return tuple(sorted(ports))


def _link(path: str) -> str:
    """Where a link leads; empty when it is gone or not ours to read."""
    try:
        return os.readlink(path)  # noqa: PTH115  a Path for each of a server's sockets costs more than the call
    except OSError:
        return ""
