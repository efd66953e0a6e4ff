"""Which URLs are of this machine, and which of its processes serves one. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from kvtop.model.box import Window
from kvtop.readings import HostReading, VllmProcess

_NAMES = ("localhost", "localhost.")


def host_of(url: str) -> str:
    """The host's name or address, without brackets, in small letters; '' where none can be read."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def port_of(url: str) -> int | None:
    """The TCP port; that of the scheme where none is named, None where it cannot be read."""
    try:
        parts = urlsplit(url)
        return parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None


def is_local(url: str, names: Collection[str] = ()) -> bool:
    """The URL names this machine: its loopback, 'every address', or one of `names`, other names that it has."""
    name = host_of(url)
    if name in _NAMES or (name and name in names):
        return True
    try:
        address = ip_address(name)
    except ValueError:  # a name
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or address.is_unspecified or (mapped is not None and mapped.is_loopback)


def same_port_here(url: str) -> str:
    """The URL, or where it is of this machine's usual loopback addresses one way to write them all: to compare by."""
    name = host_of(url)
    if name not in (*_NAMES, "127.0.0.1", "::1"):
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://localhost:{port_of(url)}{parts.path.rstrip('/')}"


def is_here(url: str, host: HostReading | None, names: Collection[str] = ()) -> bool:
    """As `is_local`, or it names an address that a server of this machine was told to bind."""
    bound = {p.host for p in host.processes if p.host and not p.contained} if host is not None else set()
    return is_local(url, {*names, *bound})


def sized(window: Window, url: str | None, host: HostReading | None) -> Window:
    """The window with the CPU tier's size from the server's command line, where the server does not tell it."""
    process = server_of(url, host) if url is not None else None
    if process is None or process.tier_bytes is None or window.all.config.cpu_tier_bytes is not None:
        return window
    config = replace(window.all.config, cpu_tier_bytes=process.tier_bytes)
    return replace(window, all=replace(window.all, config=config))


def tier_files(pid: int, host: HostReading | None) -> frozenset[str]:
    """Paths of the tier's files that this process, or one that it started, maps."""
    if host is None:
        return frozenset()
    family = {pid}
    for _ in host.processes:  # a worker's parent is an engine, whose parent is the API process
        family |= {one.pid for one in host.processes if one.parent in family}
    return frozenset(file.path for file in host.offload_files if family.intersection(file.mapped_by))


def server_of(url: str, host: HostReading | None, names: Collection[str] = ()) -> VllmProcess | None:
    """The API process of this machine that serves the URL, or will; None for a URL of another machine.

    One that listens on the port comes before one that was told to and listens nowhere yet. A process in a container
    has ports of its own, which are not this machine's. The URL of a tap stands for the server behind it.
    """
    if host is None or not is_here(url, host, names):
        return None
    port = port_of(url)
    behind = next((upstream for tap, upstream in host.taps if tap == port), None)
    if behind is not None:
        port = port_of(behind) if is_here(behind, host, names) else None
    if port is None:
        return None
    servers = [p for p in host.processes if p.role == "api" and not p.contained]
    listening = (p for p in servers if port in p.ports)
    starting = (p for p in servers if p.port == port and not p.ports)
    return next(listening, None) or next(starting, None)
