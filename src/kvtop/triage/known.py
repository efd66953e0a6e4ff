"""What one look at a server tells of it: how its cache matches, and which version it is."""

from __future__ import annotations

from typing import Protocol

from kvtop.errors import KvtopError
from kvtop.model.window import between
from kvtop.readings import Scrape, ServerFacts, SourceDown
from kvtop.triage import seen
from kvtop.triage.casebook import Known
from kvtop.triage.engine import engine_of


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
    tier = box.offload.supported if window.state.good else None
    engine = engine_of(box.config, version=version, connector=tier)
    return Known(
        engine=engine,
        rate=rate,
        server=seen.Server(
            unit=engine.unit or engine.block,
            pool_tokens=box.config.kv_cache_tokens,
            version=version,
            engines=len(window.engines) or None,
            layers=engine.layers,
            offload=tier,
            tier_bytes=box.config.cpu_tier_bytes,
        ),
    )
