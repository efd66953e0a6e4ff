"""Which vLLM servers are on this machine: by their processes, and by the ports that containers publish.

A process of this machine is told by its command line and its listening sockets. A server in a container shows only a
listening socket without a vLLM process to it: those on usual ports, and those that a container proxy holds, are asked
once who they are, with two GETs, and not again for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from kvtop.clock import Clock, SystemClock
from kvtop.errors import UsageError
from kvtop.readings import Discovery, Found, HostReading, VllmProcess
from kvtop.sources.http import HttpClient, HttpFailure
from kvtop.sources.listeners import is_tap, listening
from kvtop.sources.processes import option
from kvtop.sources.url import normalise, parse

USUAL_PORTS = (8000, 8001, 8080, 30000)
PROBE_TIMEOUT_S = 0.5
ASK_AGAIN_S = 30.0
"""How long a port's answer holds while the same process listens."""

_Socket = tuple[int, int | None]
"""A listening port, and the pid of its process where this user may know it."""

_ANYWHERE = (None, "", "0.0.0.0", "::", "localhost")


class _Row(msgspec.Struct):
    owned_by: str | None = None


class _Models(msgspec.Struct):
    data: list[_Row]


class DiscoverySource:
    """Looks for servers. `configured` is the number of servers that config.toml names, said again in `looked`."""

    def __init__(
        self,
        *,
        configured: int = 0,
        ports: Sequence[int] = USUAL_PORTS,
        clock: Clock | None = None,
    ) -> None:
        self._configured = configured
        self._ports = tuple(ports)
        self._clock = clock or SystemClock()
        self._answers: dict[_Socket, tuple[float, str]] = {}
        """When it was asked, and what it is."""

    async def read(self, host: HostReading | None) -> Discovery:
        """Look once. Without a host reading only the usual ports are looked at."""
        processes = host.processes if host else ()
        found: dict[str, Found] = {}
        for process in processes:
            for url in _urls(process):
                pid = process.pid
                waits = "" if process.ports else ", not listening yet"
                found.setdefault(url, Found(url, f"process {pid}{waits}", pid))
        known = {port for process in processes for port in (*process.ports, process.port) if port is not None}
        published = host.published_ports if host else ()
        sockets = {port: (port, pid) for port, pid in (await asyncio.to_thread(listening)).items()}
        candidates = [port for port in dict.fromkeys((*self._ports, *published)) if port not in known]
        verdicts = dict(zip(candidates, await self._ask(candidates, sockets), strict=True))
        for port, verdict in verdicts.items():
            if verdict == _VLLM:
                how = "container port" if port in published else f"port {port}"
                url = f"http://127.0.0.1:{port}"
                found.setdefault(url, Found(url, f"{how}, by its listening socket"))
        return Discovery(
            found=tuple(found.values()),
            looked=self._looked(host, verdicts, published),
            at=self._clock.wall(),
        )

    async def _ask(self, ports: Sequence[int], sockets: dict[int, _Socket]) -> list[str]:
        now = self._clock.mono()
        asked: list[int] = []
        for port in ports:
            if port in sockets:
                earlier = self._answers.get(sockets[port])
                if earlier is None or now - earlier[0] >= ASK_AGAIN_S:
                    asked.append(port)
        answers = await asyncio.gather(*(_who(*sockets[port]) for port in asked))
        for port, verdict in zip(asked, answers, strict=True):
            self._answers[sockets[port]] = (now, verdict)
        live = set(sockets.values())
        self._answers = {socket: answer for socket, answer in self._answers.items() if socket in live}
        return [self._answers[sockets[port]][1] if port in sockets else _REFUSED for port in ports]

    def _looked(
        self, host: HostReading | None, verdicts: dict[int, str], published: Sequence[int]
    ) -> tuple[tuple[str, str], ...]:
        rows: list[tuple[str, str]] = []
        if host is not None:
            servers = sum(process.role == "api" for process in host.processes)
            seen = f"{host.processes_seen} seen, " if host.processes_seen is not None else ""
            words = f"{seen}{servers} {'is' if servers == 1 else 'are'} vLLM" if seen or servers else "cannot be listed"
            rows.append(("processes", words))
            for process in host.processes:
                socket = option(process.command, "--uds")
                if socket:
                    rows.append((f"process {process.pid}", f"listens on the Unix socket {socket}: needs a TCP port"))
        for verdict in dict.fromkeys(verdicts.values()):
            usual = [str(port) for port, what in verdicts.items() if what == verdict and port not in published]
            if usual:
                rows.append((f"port {', '.join(usual)}", verdict))
        if host is not None:
            ours = sum(verdicts.get(port) == _VLLM for port in published)
            words = (
                f"{len(published)} published, {ours} {'is' if ours == 1 else 'are'} vLLM"
                if published
                else "none published"
            )
            rows.append(("container ports", words))
        named = self._configured
        rows.append(("config.toml", f"{named} server{'s' if named > 1 else ''} named" if named else "no server named"))
        return tuple(rows)


_VLLM = "vLLM"
_TAP = "a kvtop tap"
_OTHER = "answers, not vLLM"
_SILENT = "listens, no answer"
_REFUSED = "refused"


def _urls(process: VllmProcess) -> tuple[str, ...]:
    """Where a server process is, or will be, reached on this machine; nowhere, where its `--host` is no host's name."""
    if process.role != "api" or process.contained:
        return ()
    # Beside its HTTP port a server may listen on internal ones.
    if process.port is not None:
        ports = (process.port,) if not process.ports or process.port in process.ports else process.ports[:1]
    else:
        ports = process.ports[:1]
    address = "127.0.0.1" if process.host in _ANYWHERE else process.host
    host = f"[{address}]" if address and ":" in address else address
    try:
        return tuple(normalise(f"http://{host}:{port}") for port in ports)
    except UsageError:
        return ()


async def _who(port: int, pid: int | None) -> str:
    """What is behind a loopback port. kvtop's own tap answers as the server behind it, and is not asked where its
    process can be seen: it would record the question."""
    if pid is not None and await asyncio.to_thread(is_tap, port, pid):
        return _TAP
    verdict = await _answer(port)
    return _TAP if verdict == _VLLM and pid is None and await asyncio.to_thread(is_tap, port, None) else verdict


async def _answer(port: int) -> str:
    """What answers there."""
    client = HttpClient(parse(f"127.0.0.1:{port}"), timeout_s=PROBE_TIMEOUT_S, max_bytes=1_000_000)
    try:
        models = await client.get("/v1/models")
        if models.status == 200:
            rows = msgspec.json.decode(models.body, type=_Models).data
            return _VLLM if any(row.owned_by == "vllm" for row in rows) else _OTHER
        if models.status in (401, 403):
            # Models hidden behind an API key; vLLM's /metrics stays open.
            metrics = await client.get("/metrics")
            return _VLLM if b"\nvllm:" in metrics.body else _OTHER
        return _OTHER
    except HttpFailure as failure:
        return _SILENT if failure.state.value == "timeout" else _OTHER
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _OTHER
    finally:
        await client.aclose()
