"""What `kvtop tap` was told -> the ways through it, or why not: loopback, plain HTTP, and no way that leads back."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address

from kvtop.capture.control.running import Running
from kvtop.errors import KvtopError, UsageError, printable
from kvtop.sources.url import Endpoint, authority, discreet, listen_address, parse

DEFAULT_LISTEN = "127.0.0.1:8001"
DRAIN_S = 30.0
"""How long a tap that ends waits for open streams, unless it is told otherwise."""
_PORTS = range(8001, 8100)
"""Where a free port is looked for."""
_REMOTE = "kvtop keeps to this machine; --allow-remote lets it, and then whoever reaches the port reaches the server"


@dataclass(frozen=True)
class Leg:
    """One way: where clients connect, and the server that they reach there."""

    listen_host: str
    listen_port: int
    upstream: Endpoint
    connect_host: str = ""
    """The upstream's address, or a name, to connect to; empty until it was looked up."""

    @property
    def listen(self) -> str:
        return authority(self.listen_host, self.listen_port)

    @property
    def as_map(self) -> str:
        """As `--map` takes it."""
        return f"{self.listen}={self.upstream.url}"


def leg(listen: str, upstream: str) -> Leg:
    """Raises UsageError for an address that is none, and for an upstream that bytes cannot be passed to as they are."""
    host, port = listen_address(listen)
    there = parse(upstream)
    shown = printable(there.url, 120)
    if there.userinfo is not None:
        what = "the tap passes bytes on as they are, and adds no user and password"
        raise UsageError(f"upstream {shown}: {what}", "leave them out here and give them to the agent")
    if there.tls:
        what = f"upstream {shown}: the tap speaks plain HTTP to its upstream, not TLS"
        raise UsageError(
            what, "give the server's plain port, or end TLS on this machine (nginx, stunnel) and give that"
        )
    if there.base:
        what = f"upstream {shown}: the tap passes bytes on as they are, and adds no path"
        raise UsageError(what, f"give http://{there.authority} here and the path to the agent")
    return Leg(host, port, there)


def from_map(text: str) -> Leg:
    """`LISTEN=UPSTREAM`. Raises UsageError."""
    listen, equals, upstream = text.partition("=")
    if not equals or not listen.strip() or not upstream.strip():
        what = f"--map '{printable(discreet(text), 120)}' is not LISTEN=UPSTREAM"
        raise UsageError(what, f"for instance --map {DEFAULT_LISTEN}=http://127.0.0.1:8000")
    return leg(listen, upstream)


def servers_here() -> list[str]:
    """The URLs of the vLLM servers that are found on this box."""
    import asyncio

    from kvtop.sources.discovery import DiscoverySource
    from kvtop.sources.host import HostSource

    return [found.url for found in asyncio.run(DiscoverySource().read(HostSource().read())).found]


def checked(legs: Sequence[Leg], running: Iterable[Running], *, allow_remote: bool) -> list[Leg]:
    """The ways with their addresses looked up. Raises UsageError for a name that is unknown or leads off this machine
    without `allow_remote`, for two ways on one port, and for one that leads back to itself, be it by other taps."""
    seen: dict[str, Leg] = {}
    out = []
    for one in legs:
        ready = _located(one, allow_remote)
        if ready.listen in seen:
            raise UsageError(f"two maps listen on {ready.listen}", "give each a port of its own")
        seen[ready.listen] = ready
        out.append(ready)
    _no_way_back(out, running)
    return out


def _located(one: Leg, allow_remote: bool) -> Leg:
    here = _addresses(one.listen_host, one.listen_port)
    there = _addresses(one.upstream.host, one.upstream.port)
    for words, addresses in ((f"listen on {one.listen}", here), (f"upstream {one.upstream.url}", there)):
        if not allow_remote and not all(ip_address(address).is_loopback for address in addresses):
            raise UsageError(f"{words}: not an address of this machine's loopback", _REMOTE)
    if any(_is_local(address) for address in there) and one.upstream.port == one.listen_port:
        what = f"{one.listen} -> {one.upstream.url}: the tap would be its own upstream"
        raise UsageError(what, "give the tap a port of its own: --listen 127.0.0.1:PORT")
    # A name that was loopback at this look is not looked up again: a name service may tell otherwise later.
    by_name = allow_remote or one.upstream.host == "localhost"
    return replace(one, listen_host=here[0], connect_host=one.upstream.host if by_name else there[0])


def _addresses(host: str, port: int) -> list[str]:
    """All addresses of a name, IPv4 first: vLLM listens there. Raises UsageError where there is none."""
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UsageError(f"the host {printable(host, 80)} is not known here", "give a name or an address") from None
    rows.sort(key=lambda row: row[0] != socket.AF_INET)
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


def _is_local(address: str) -> bool:
    """An address of this machine, of whatever interface: a socket can be bound to it."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _no_way_back(legs: Sequence[Leg], running: Iterable[Running]) -> None:
    """Follow each way through all others on this machine. Raises UsageError where one comes back to its own port."""
    steps = [(one.listen_port, one.upstream) for one in legs]
    for record in running:
        steps += [(listen_address(mapped.listen)[1], parse(mapped.upstream)) for mapped in record.mappings]
    onward: dict[int, list[Endpoint]] = {}
    for port, upstream in steps:
        onward.setdefault(port, []).append(upstream)
    for one in legs:
        if (way := _way(one.listen_port, one.upstream, onward)) is not None:
            chain = " -> ".join((one.listen, *(step.url for step in way)))
            what = f"this way leads back to itself through other taps: {chain}"
            raise UsageError(what, "the last upstream has to be a server; kvtop tap --status lists the taps that run")


def _way(back_to: int, first: Endpoint, onward: dict[int, list[Endpoint]]) -> list[Endpoint] | None:
    """The upstreams from `first` on, to one that is the port `back_to` of this machine; None where none is."""
    ways, done = [[first]], set[int]()
    while ways:
        way = ways.pop()
        last = way[-1]
        if last.port in done or not _leads_here(last):
            continue
        if last.port == back_to:
            return way
        done.add(last.port)
        ways += [[*way, step] for step in onward.get(last.port, ())]
    return None


def _leads_here(upstream: Endpoint) -> bool:
    try:
        return any(map(_is_local, _addresses(upstream.host, upstream.port)))
    except UsageError:  # of another tap, and unknown by now
        return False


def check_free(one: Leg) -> None:
    """Raises KvtopError where the port cannot be listened on, and says by whom it is taken where that can be told."""
    family = socket.AF_INET6 if ":" in one.listen_host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((one.listen_host, one.listen_port))
            probe.listen()
        except OSError as error:
            raise _not_free(one, error) from None


def free_leg(upstream: str, running: Sequence[Running]) -> Leg:
    """A way to that server on the first free port. Raises UsageError as `leg` and `checked`, KvtopError where none of
    the ports is free."""
    there = parse(upstream)
    last: KvtopError | None = None
    for port in _PORTS:
        if port == there.port:
            continue
        [one] = checked([leg(f"127.0.0.1:{port}", upstream)], running, allow_remote=False)
        try:
            check_free(one)
        except KvtopError as error:
            last = error
            continue
        return one
    raise last or KvtopError("no port is free")


def _not_free(one: Leg, error: OSError) -> KvtopError:
    if error.errno == errno.EADDRINUSE:
        from kvtop.sources.listeners import holder

        who = holder(one.listen_port)
        what = f"{one.listen} is taken" + (f" by {who}" if who else "")
        return KvtopError(what, "give another port with --listen or --map; kvtop tap --status lists the taps that run")
    if error.errno == errno.EACCES:
        return KvtopError(f"{one.listen}: not allowed to this user", "ports from 1024 on are")
    if error.errno == errno.EADDRNOTAVAIL:
        return KvtopError(f"{one.listen} is no address of this machine", "127.0.0.1 always is")
    return KvtopError(f"cannot listen on {one.listen}: {error.strerror or error}", "give another address with --listen")
