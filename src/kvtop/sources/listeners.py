"""Who listens on a TCP port of this machine, and which of those programs are kvtop's own taps, by psutil."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path

import psutil

from kvtop.errors import printable
from kvtop.sources.processes import UNTOLD, program_of
from kvtop.sources.taps import tap_ways


def listening() -> dict[int, int | None] | None:
    """What listens on this machine: port -> pid, None where this user may not know it. None: that cannot be told."""
    try:
        rows = psutil.net_connections(kind="tcp")
    except UNTOLD:
        return None
    return {row.laddr.port: row.pid for row in rows if row.status == psutil.CONN_LISTEN and row.laddr}


def at_address(host: str, port: int) -> list[int | None]:
    """The processes that listen where a connection to that host and port goes, each None where this user may not know
    it. Empty: nobody does on this machine, or that cannot be told."""
    try:
        rows = psutil.net_connections(kind="tcp")
        asked = [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        own = {address.address.partition("%")[0] for of_one in psutil.net_if_addrs().values() for address in of_one}
    except (*UNTOLD, UnicodeError):
        return []
    heard: dict[str, list[int | None]] = {}
    for row in rows:
        if row.status == psutil.CONN_LISTEN and row.laddr and row.laddr.port == port:
            heard.setdefault(row.laddr.ip, []).append(row.pid)
    ways = (bound for address in asked for bound in _bound(address.partition("%")[0], own))
    return next((heard[bound] for bound in ways if bound in heard), [])


def _bound(address: str, own: set[str]) -> Iterator[str]:
    """What a listener may be bound to that gets the connections to this address, the one that the kernel prefers first.
    `own`: the addresses of this machine."""
    ip = ip_address(address)
    if ip.is_unspecified:
        ip = ip_address("127.0.0.1" if ip.version == 4 else "::1")
    yield str(ip)
    if ip.version == 4:
        yield f"::ffff:{ip}"
    if ip.is_loopback or str(ip) in own:
        yield from ("0.0.0.0", "::") if ip.version == 4 else ("::",)


def tap_ports(command: Sequence[str]) -> tuple[int, ...]:
    """The ports that a command line makes a tap listen on; empty for what is no tap."""
    return tuple(port for port, _ in tap_ways(*program_of(command)))


def is_tap(port: int, pid: int | None) -> bool:
    """Whether the process that listens there is a tap. One that is not told is looked for among all command lines."""
    if pid is not None:
        return bool(tap_ports(_command(pid)))
    try:
        pids = psutil.pids()
    except UNTOLD:
        return False
    return any(port in tap_ports(_command(pid)) for pid in pids)


def holder(port: int) -> str | None:
    """Who listens on a port, in words; None where that cannot be told."""
    pid = (listening() or {}).get(port)
    if pid is None:
        return None
    command = _command(pid)
    if tap_ports(command):
        return f"a kvtop tap (process {pid})"
    try:
        name = psutil.Process(pid).name()
    except UNTOLD:
        name = Path(command[0]).name if command else ""
    return f"process {pid} ({printable(name, 40)})" if name else f"process {pid}"


def open_connections(pid: int, ports: Sequence[int]) -> int | None:
    """How many connections of clients a process holds on those ports; None where that cannot be told."""
    try:
        rows = psutil.Process(pid).net_connections(kind="tcp")
    except UNTOLD:
        return None
    return sum(bool(row.laddr) and row.laddr.port in ports and row.status != psutil.CONN_LISTEN for row in rows)


def _command(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except UNTOLD:
        return []
