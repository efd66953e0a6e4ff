"""Who answers for a sidecar: an older process at its port would as well, though the sidecar itself cannot have that."""

from __future__ import annotations

from urllib.parse import urlsplit

import psutil

from kvtop.profiles.running.record import Who
from kvtop.sources.listeners import at_address, is_tap
from kvtop.sources.processes import UNTOLD

_FOR_OTHERS = (
    "rootlesskit", "slirp4netns", "pasta", "gvproxy", "docker", "containerd", "podman", "conmon",
    "systemd", "ssh", "nginx", "caddy", "traefik", "haproxy", "envoy",
)  # fmt: skip
"""How the names of programs begin that listen for others: for containers and units, at the end of a tunnel, in front
of servers. Whose answer it is that they hand on, the process table does not tell."""


def stranger(url: str, first: Who) -> int | None:
    """The process that listens at this URL and was there before `first`, the first process of a start: nothing of that
    start can be it. None: it may be, or that cannot be told (another machine, user or namespace).

    What came since is not looked at: a sidecar may have its server run by docker, by systemd-run, or by a process that
    left it.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    pids = at_address(parts.hostname or "127.0.0.1", port)
    older = [pid for pid in pids if pid is not None and _is_older(Who.of(pid), first) and not _for_others(port, pid)]
    return older[0] if older and len(older) == len(pids) else None


def _is_older(one: Who | None, first: Who) -> bool:
    if one is None:
        return False
    (boot, ticks), (boot_of_first, ticks_of_first) = (who.birth.split("/") for who in (one, first))
    return boot == boot_of_first and int(ticks) < int(ticks_of_first)


def _for_others(port: int, pid: int) -> bool:
    try:
        return psutil.Process(pid).name().startswith(_FOR_OTHERS) or is_tap(port, pid)
    except UNTOLD:
        return True
