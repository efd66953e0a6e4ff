"""What the silence of a server means, given what else is known of this machine."""

from __future__ import annotations

from dataclasses import replace

from kvtop.model.here import is_here, port_of
from kvtop.readings import HostReading, SourceDown, State, VllmProcess


def explain(down: SourceDown, url: str, host: HostReading | None, served: int | None = None) -> SourceDown:
    """A refused port of this machine, seen beside the vLLM processes: loading, ending, elsewhere, or gone.

    `served`: the process that was last seen to serve this URL. One that served and refuses now does not load.

    vLLM binds its port early but listens only when its start-up is complete, so a living server process that wants
    this port and does not listen is loading. Other states, and ports of other machines, are returned as they are.
    """
    if down.state is not State.REFUSED or host is None:
        return down
    if not is_here(url, host):
        return down
    wanted = port_of(url)
    servers = [p for p in host.processes if p.role == "api" and not p.contained]
    mine = [p for p in servers if p.port == wanted]
    # A port that stands in a configuration file is not known before the server listens.
    mine = mine or [p for p in servers if p.port is None and not p.ports and "--config" in " ".join(p.command)]
    for process in mine:
        if process.pid == served:
            return replace(down, cause=f"process {process.pid} served it and takes no more connections: it is ending")
        if wanted in process.ports:
            elsewhere = f"process {process.pid} listens on this port at another address"
            return replace(down, cause=f"{down.cause}, but {elsewhere}")
        if not process.ports:
            return replace(down, state=State.LOADING, cause=_loading(process, host), loader=process)
    for process in mine:
        ports = ", ".join(str(port) for port in process.ports)
        return replace(down, cause=f"{down.cause}: process {process.pid} listens on {ports} instead")
    if any(p.contained for p in host.processes):
        return replace(down, cause=f"{down.cause}; a vLLM in a container runs, perhaps without a published port")
    if servers:
        known = sorted({port for p in servers for port in (p.ports or (p.port,)) if port is not None})
        if known:
            return replace(down, cause=f"{down.cause}; vLLM is on {', '.join(map(str, known))}")
    return replace(down, cause=f"{down.cause}, and no vLLM server process wants this port")


def _loading(process: VllmProcess, host: HostReading) -> str:
    words = f"process {process.pid} is starting and does not listen yet"
    if process.started_at is None or host.at is None:
        return words
    seconds = max(0, round(host.at - process.started_at))
    if seconds < 120:
        return f"{words}, {seconds} s so far"
    return f"{words}, {seconds // 60} m {seconds % 60} s so far"
