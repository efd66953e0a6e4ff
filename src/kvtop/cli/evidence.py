"""What `kvtop doctor` gathers: one scrape, the server's facts, a few free GETs, this machine and this terminal."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvtop import paths
from kvtop.cli.once import read_gpu, read_host, source
from kvtop.cli.target import Target, discovered, named
from kvtop.config import Loaded, load
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
class Themes:
    built_in: int
    own: int
    broken: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Everything that the checks judge."""

    terminal: Terminal
    config: Loaded
    themes: Themes
    host: HostReading
    gpu: GpuReading
    discovery: Discovery
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
    seen = Evidence(terminal, config, themes(), host, gpu, discovery)
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
    return Evidence(terminal, config, seen.themes, host, gpu, discovery, target, scrape, facts, probes)


def themes() -> Themes:
    """Theme files, and those that are not even TOML."""
    built_in = _files(paths.builtin_themes())
    own = _files(paths.config_dir() / "themes")
    broken = []
    for file in (*built_in, *own):
        try:
            tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            broken.append(str(file))
    return Themes(len(built_in), len(own), tuple(broken))


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.toml"))
    except OSError:
        return []
