"""What `kvtop doctor` gathers: one scrape, the server's facts, a few free GETs, this machine and this terminal."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvtop.capture.control import running
from kvtop.capture.control.running import Running
from kvtop.cli import profile_checks
from kvtop.cli.dashboard import named as named_files
from kvtop.cli.once import gpu_now, host_now, source
from kvtop.cli.profile_checks import Profiles
from kvtop.cli.target import Target, all_named, discovered
from kvtop.config import Loaded, Settings, load
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
class Asked:
    """A server, and what it answered."""

    target: Target
    scrape: Scrape | SourceDown
    facts: ServerFacts | SourceDown
    probes: Mapping[str, tuple[int, bytes]] = field(default_factory=dict)
    """Path -> status and body; a path that could not be asked is missing."""


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
    asked: tuple[Asked, ...] = ()
    """Those of the command line, else of config.toml, else those that were found; none where none is known."""
    taps: tuple[Running, ...] = ()
    """Of this user."""
    profiles: Profiles = Profiles("")


async def gather(urls: Sequence[str]) -> Evidence:
    """Look at everything once. Raises UsageError for a bad URL."""
    config = load()
    targets = all_named(urls, config.settings)
    host, gpu = await asyncio.gather(host_now(), gpu_now())
    discovery = await DiscoverySource(configured=len(config.settings.server)).read(host)
    targets = targets or discovered(discovery, config.settings)
    size = shutil.get_terminal_size()
    terminal = Terminal(sys.stdout.isatty(), size.columns, size.lines, dict(os.environ))
    count, wrong = problems(config)
    asked = await asyncio.gather(*(_ask(target, config.settings, host) for target in targets))
    taps, profiles = tuple(running.alive()), await asyncio.to_thread(profile_checks.look)
    return Evidence(terminal, config, count, wrong, host, gpu, discovery, tuple(asked), taps, profiles)


async def _ask(target: Target, have: Settings, host: HostReading) -> Asked:
    server = source(target, have)
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
    return Asked(target, scrape, facts, probes)


def problems(config: Loaded) -> tuple[int, tuple[Problem, ...]]:
    """The number of usable themes, and everything that the dashboard would say at its start."""
    from kvtop.ui import keys, themes  # what judges keys and colours is Textual's, and takes its time

    _, refused = keys.resolve(config.settings.keys)
    found = themes.load()
    return len(found.themes), (
        *config.problems,
        *keys.problems(refused, config.path),
        *named_files(config),
        *themes.problems(found, config.settings.theme, config.path),
    )
