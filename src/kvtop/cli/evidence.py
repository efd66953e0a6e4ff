"""What `kvtop doctor` gathers: one scrape, the server's facts, a few free GETs, this machine and this terminal."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvtop.capture import running
from kvtop.capture.running import Running
from kvtop.cli.dashboard import named as named_files
from kvtop.cli.once import read_gpu, read_host, source
from kvtop.cli.target import Target, discovered, named
from kvtop.config import Loaded, load
from kvtop.errors import Problem
from kvtop.model.states import explain
from kvtop.readings import Discovery, GpuReading, HostReading, Scrape, ServerFacts, SourceDown
from kvtop.sources.discovery import DiscoverySource
from kvtop.sources.http import HttpFailure

PROBES = ("/tokenize", "/v1/chat/completions/render", "/kv_event_sources", "/is_sleeping")
"""Asked with GET. The first two take POST only, so 405 says that the route is there, and nothing is computed."""


@dataclass(frozen=True)
class Terminal:
    """Where output goes."""

    is_tty: bool
    columns: int
    rows: int
    env: Mapping[str, str]


@dataclass(frozen=True)
class Evidence:
    """Everything that the checks judge."""

    terminal: Terminal
    config: Loaded
    themes: int
    """Usable ones."""
    problems: tuple[Problem, ...]
    """What kvtop goes on without: of config.toml, what it names, its keys, and theme files."""
    host: HostReading
    gpu: GpuReading
    discovery: Discovery
    taps: tuple[Running, ...] = ()
    """Of this user."""
    target: Target | None = None
    scrape: Scrape | SourceDown | None = None
    facts: ServerFacts | SourceDown | None = None
    probes: Mapping[str, tuple[int, bytes]] = field(default_factory=dict)
    """Path -> status and body; a path that could not be asked is missing."""


async def gather(url: str | None) -> Evidence:
    """Look at everything once. Raises UsageError for a bad URL."""
    config = load()
    target = named(url, config.settings)
    host, gpu = await asyncio.gather(asyncio.to_thread(read_host), asyncio.to_thread(read_gpu))
    discovery = await DiscoverySource(configured=len(config.settings.server)).read(host)
    target = target or discovered(discovery, config.settings)
    size = shutil.get_terminal_size()
    terminal = Terminal(sys.stdout.isatty(), size.columns, size.lines, dict(os.environ))
    count, wrong = problems(config)
    seen = Evidence(terminal, config, count, wrong, host, gpu, discovery, tuple(running.alive()))
    if target is None:
        return seen
    server = source(target, config.settings)
    probes: dict[str, tuple[int, bytes]] = {}
    try:
        scrape = await server.scrape()
        facts = await server.facts()
        if not isinstance(facts, SourceDown):
            for path in PROBES:
                try:
                    probes[path] = await server.probe(path)
                except HttpFailure:
                    continue
    finally:
        await server.aclose()
    if isinstance(scrape, SourceDown):
        scrape = explain(scrape, target.shown, host)
    return replace(seen, target=target, scrape=scrape, facts=facts, probes=probes)


def problems(config: Loaded) -> tuple[int, tuple[Problem, ...]]:
    """The number of usable themes, and everything that the dashboard would say at its start."""
    from kvtop.ui import keys, themes  # what judges keys and colours is Textual's, and takes its time

    _, refused = keys.resolve(config.settings.keys)
    found = themes.load()
    return len(found.themes), (
        *config.problems,
        *keys.problems(refused, config.path),
        *named_files(config),
        *themes.problems(found, config.settings.theme),
    )
