"""Which server a one-shot command asks, and with which API key."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtop.config import Server, Settings, load
from kvtop.errors import KvtopError, UsageError, printable
from kvtop.readings import Discovery, HostReading
from kvtop.servers import problems
from kvtop.sources.url import normalise, same_place


@dataclass(frozen=True)
class Target:
    """A server to ask."""

    url: str
    """As given: it may hold user and password. For `VllmSource` alone."""
    shown: str
    key: Callable[[], str | None]
    why: str
    """Where the URL came from."""


def settings() -> Settings:
    """config.toml; what is wrong with it goes to stderr."""
    loaded = load()
    for problem in (*loaded.problems, *problems(loaded.settings.server, loaded.path)):
        print(f"kvtop: {printable(str(problem), 400)}", file=sys.stderr)
    return loaded.settings


def key_for(url: str, servers: list[Server]) -> Callable[[], str | None]:
    """The API key of the configured server of this URL; of no other."""
    shown = normalise(url)
    for server in servers:
        try:
            same = normalise(server.url) == shown
        except UsageError:
            continue
        if same:
            return server.api_key
    return lambda: None


def named(url: str | None, have: Settings) -> Target | None:
    """The server on the command line, else the first of config.toml whose URL is one, else None.

    Raises UsageError for a bad URL on the command line.
    """
    return next(iter(all_named([url] if url is not None else [], have)), None)


def all_named(urls: Sequence[str], have: Settings) -> list[Target]:
    """The servers on the command line, else all of config.toml whose URL is one; each once.

    Raises UsageError for a bad URL on the command line.
    """
    out = [Target(url, normalise(url), key_for(url, have.server), "command line") for url in urls]
    for server in have.server if not urls else ():
        with contextlib.suppress(UsageError):
            out.append(Target(server.url, normalise(server.url), server.api_key, "config.toml"))
    first: dict[str, Target] = {}
    for target in out:
        first.setdefault(same_place(target.shown), target)
    return list(first.values())


def discovered(found: Discovery, have: Settings) -> list[Target]:
    """The servers found, those that listen before those that start."""
    rows = sorted(found.found, key=lambda row: "not listening" in row.why)
    return [Target(row.url, normalise(row.url), key_for(row.url, have.server), row.why) for row in rows]


async def find(have: Settings, host: HostReading | None) -> Target:
    """A server of this machine. Raises KvtopError where there is none; says on stderr which one of several it took."""
    from kvtop.sources.discovery import DiscoverySource

    discovery = await DiscoverySource(configured=len(have.server)).read(host)
    targets = discovered(discovery, have)
    if not targets:
        looked = "; ".join(f"{place}: {what}" for place, what in discovery.looked)
        from kvtop.cli import profile_checks

        names = [entry.name for entry in profile_checks.look().entries if entry.problem is None]
        start = f"; {profile_checks.startable(names)}" if names else ""
        fix = f"give its URL, for instance http://host:8000{start}"
        raise KvtopError(f"no vLLM server found on this box ({looked})", fix)
    if others := ", ".join(other.shown for other in targets[1:]):
        print(f"kvtop: took {targets[0].shown}; also here: {others}", file=sys.stderr)
    return targets[0]
