"""The vLLM processes of this machine, by psutil: their role, command line, age, and the ports they listen on.

Command lines leave this module with their secrets masked. A process may vanish, or be another user's, between any two
questions: then it is left out, or what may not be asked is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from kvtop.errors import printable
from kvtop.readings import VllmProcess
from kvtop.sources.masking import masked
from kvtop.sources.taps import tap_ways
from kvtop.sources.tier_size import tier_bytes
from kvtop.sources.url import VLLM_PORT

RESCAN_READS = 10
"""So many reads after the first look a process is looked at anew: it may have become another program, or taken a new
title."""
RESCAN_OLD_READS = 30
"""The same for one that was not vLLM at the second look either."""
UNTOLD = (psutil.Error, OSError, ValueError, LookupError, RuntimeError)
"""What psutil raises: its own errors, a file that is not there, and a text of the kernel that is not as it expects."""

_MAX_WORDS = 2000
_PYTHON = re.compile(r"^(python|pypy)[\d.]*$")
_MODULE = re.compile(r"^vllm\.entrypoints\.(openai\.api_server|api_server|grpc_server)$")
ENTRIES = ("vllm", "vllm.entrypoints.cli", "vllm.entrypoints.cli.main")
"""vLLM's own command: a server where `serve` stands behind it."""
_TITLES = (("VLLM::EngineCore", "engine"), ("VLLM::APIServer", "api"), ("VLLM::", "worker"))


@dataclass(frozen=True, slots=True)
class Processes:
    """What a look at all processes found."""

    vllm: tuple[VllmProcess, ...]
    seen: int | None
    """Processes looked at, of all kinds; None where this machine does not list them."""
    published: tuple[int, ...]
    """Host ports that container proxies hold."""
    taps: tuple[tuple[int, str | None], ...] = ()
    """See `taps.tap_ways`."""


ASKS = ("--help", "-h", "--version", "-v")
"""With one of these a server says something and ends, as where `check` asks it for its flags."""


def role(command: Sequence[str]) -> str | None:
    """`api`, `engine` or `worker`; None for what is not vLLM. A wrapper (a shell, uv, docker) is not: its child is."""
    if not command:
        return None
    for title, name in _TITLES:
        if command[0].startswith(title):
            return name
    program, rest = program_of(command)
    if any(word.partition("=")[0] in ASKS for word in rest):
        return None
    if program in ENTRIES:
        return "api" if rest[:1] == ["serve"] else None
    return "api" if _MODULE.match(program) or program == "vllm-rs" else None


def program_of(command: Sequence[str]) -> tuple[str, list[str]]:
    """The program's name, or that of the script or module that a Python runs, and its arguments; '' for none."""
    if not command:
        return "", []
    program = Path(command[0]).name
    rest = list(command[1:])
    if not _PYTHON.match(program):
        return program, rest
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        # -W and -X take a value.
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    if rest[:1] == ["-c"]:
        return "", []
    if rest[:1] == ["-m"]:
        return (rest[1], rest[2:]) if len(rest) > 1 else ("", [])
    return (Path(rest[0]).name, rest[1:]) if rest else ("", [])


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


def _host(command: Sequence[str]) -> str | None:
    given = option(command, "--host")
    return None if given is None else printable(given)


def _tier_bytes(command: Sequence[str]) -> int | None:
    return tier_bytes(option(command, "--kv-offloading-size"), option(command, "--kv-transfer-config"))


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
    return int(given) if given.isdecimal() and len(given) < 6 and 0 < int(given) < 65536 else None


@dataclass(slots=True)
class _Known:
    """A vLLM process, and what is remembered of it between reads."""

    process: psutil.Process
    ports_until: int = 0
    """Number of the read that looks at its ports again."""
    contained: bool = False
    ports: tuple[int, ...] = ()


class ProcessTable:
    """Looks at all processes cheaply: what was not vLLM at the last look is skipped for a while."""

    def __init__(self) -> None:
        self._reads = 0
        self._others: dict[int, int] = {}
        """Pid -> number of the read that looks at it again."""
        self._proxies: dict[int, int] = {}
        self._taps: dict[int, tuple[tuple[int, str | None], ...]] = {}
        self._known: dict[int, _Known] = {}

    def read(self) -> Processes:
        self._reads += 1
        try:
            pids = psutil.pids()
        except UNTOLD:
            return Processes((), None, ())
        here = set(pids)
        self._others = {pid: due for pid, due in self._others.items() if pid in here}
        self._proxies = {pid: port for pid, port in self._proxies.items() if pid in here}
        self._taps = {pid: ways for pid, ways in self._taps.items() if pid in here}
        self._known = {pid: known for pid, known in self._known.items() if pid in here}
        found: list[VllmProcess] = []
        for pid in pids:
            due = self._others.get(pid)
            if due is not None and due > self._reads:
                continue
            self._proxies.pop(pid, None)
            self._taps.pop(pid, None)
            process = self._look(pid)
            if process is None:
                self._known.pop(pid, None)
                wait = RESCAN_READS if due is None else RESCAN_OLD_READS
                # By its number, so that the looks anew are spread over the reads.
                self._others[pid] = self._reads + 1 + (pid - self._reads - 1) % wait
            else:
                self._others.pop(pid, None)
                found.append(process)
        return Processes(
            vllm=tuple(found),
            seen=len(pids),
            published=tuple(sorted(set(self._proxies.values()))),
            taps=tuple(way for ways in self._taps.values() for way in ways),
        )

    def _look(self, pid: int) -> VllmProcess | None:
        try:
            process = psutil.Process(pid)
            command = process.cmdline()[:_MAX_WORDS]
            # A title that is shorter than the command line was leaves empty words behind it.
            while command and not command[-1]:
                command.pop()
            what = role(command)
            if what is None:
                if command and command[0].endswith("docker-proxy"):
                    given = option(command, "-host-port") or ""
                    if given.isdecimal() and len(given) < 6:
                        self._proxies[pid] = int(given)
                elif ways := tap_ways(*program_of(command)):
                    self._taps[pid] = ways
                return None
            known = self._known.get(pid)
            if known is None or known.process != process:
                known = self._known[pid] = _Known(process)
            # The kept one is asked: the start that it once told does not wander with the clock.
            with known.process.oneshot():
                if known.process.status() == psutil.STATUS_ZOMBIE:
                    return None
                started, parent = known.process.create_time(), known.process.ppid()
        except UNTOLD:
            return None
        if what == "api":
            self._sockets(known)
        return VllmProcess(
            pid=pid,
            role=what,
            command=masked(command),
            port=port_of(command) if what == "api" else None,
            host=_host(command) if what == "api" else None,
            started_at=started,
            parent=parent,
            ports=known.ports,
            tier_bytes=_tier_bytes(command) if what == "api" else None,
            contained=known.contained,
        )

    def _sockets(self, known: _Known) -> None:
        """Whether it is contained, and its listening ports; remembered for a while once it listens."""
        if known.ports_until > self._reads:
            return
        known.contained, known.ports = in_container(known.process.pid), ()
        if not known.contained:
            try:
                rows = known.process.net_connections(kind="tcp")
            except UNTOLD:
                rows = []
            known.ports = tuple(sorted({row.laddr.port for row in rows if row.status == psutil.CONN_LISTEN}))
        if known.ports or known.contained:
            known.ports_until = self._reads + RESCAN_READS


def in_container(pid: int) -> bool:
    """In another network namespace: its ports are not those of this machine."""
    theirs, ours = (_link(f"{psutil.PROCFS_PATH}/{who}/ns/net") for who in (pid, "self"))
    return bool(theirs and ours) and theirs != ours


def _link(path: str) -> str:
    """Where a link leads; empty when it is gone or not ours to read."""
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
