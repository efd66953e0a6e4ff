"""What one look at a server tells of it: how its cache matches, and which version it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from kvtop.errors import KvtopError
from kvtop.model import metrics as m
from kvtop.model.growth import Growth
from kvtop.model.samples import samples
from kvtop.model.window import between
from kvtop.readings import Scrape, ServerFacts, SourceDown, VllmProcess
from kvtop.triage import seen
from kvtop.triage.casebook import Known
from kvtop.triage.engine import engine_of

LASTING = frozenset({"fs", "obj", "p2p", "kvcr"})
"""Kinds of second tiers (0.22 to 0.33) whose content outlives the server's process."""


class Looked(Protocol):
    """A server (`kvtop.sources.vllm.VllmSource`)."""

    @property
    def url(self) -> str: ...

    async def scrape(self) -> Scrape | SourceDown: ...

    async def facts(self) -> ServerFacts | SourceDown: ...


async def look(server: Looked, rate: float | None) -> Known:
    """`rate`: prompt tokens a second, where turns tell it. Raises KvtopError where the server does not answer."""
    scrape = await server.scrape()
    if isinstance(scrape, SourceDown):
        raise KvtopError(f"{server.url} does not answer: {scrape.cause}", "without a server only texts are compared")
    facts = await server.facts()
    return known(scrape, None if isinstance(facts, SourceDown) else facts, rate)


def known(scrape: Scrape, facts: ServerFacts | None, rate: float | None) -> Known:
    """The same from what was read."""
    version = None if facts is None else facts.version
    window = between(scrape, scrape, None)
    box = window.all
    tier = _tier(scrape, box.offload.supported) if window.state.good else None
    engine = engine_of(box.config, version=version, connector=tier)
    return Known(
        engine=engine,
        rate=rate,
        server=seen.Server(
            unit=engine.unit or engine.block,
            pool_tokens=box.config.kv_cache_tokens,
            version=version,
            engines=len(window.engines) or (1 if window.state.good else None),
            layers=engine.layers,
            offload=tier,
            tier_bytes=box.config.cpu_tier_bytes,
            lasting_tier=any(tier.tier.partition(":")[2] in LASTING for tier in box.offload.tiers) or None,
            hash_algorithm=box.config.hash_algorithm,
        ),
    )


def sized(found: Known, process: VllmProcess) -> Known:
    """The same with the size of the tier from the command line of the server's process, where metrics do not tell."""
    if not found.server.offload or found.server.tier_bytes is not None or process.tier_bytes is None:
        return found
    return replace(found, server=replace(found.server, tier_bytes=process.tier_bytes))


def _tier(scrape: Scrape, told: bool | None) -> bool | None:
    """Whether a tier behind the device is configured. A connector without series of its own shows in what is asked of
    it alone."""
    asked = Growth(None, samples(scrape), None, zero=True).now(m.EXTERNAL_QUERIES)
    return told or (True if asked else told)
