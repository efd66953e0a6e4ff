"""One look at one server: two scrapes, with NVML and the machine read while waiting for the second."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from kvtop.cli.target import Target
from kvtop.config import Settings
from kvtop.model import metrics
from kvtop.model.box import Window
from kvtop.model.states import explain
from kvtop.model.window import between
from kvtop.readings import GpuReading, HostReading, Scrape, ServerFacts, SourceDown, State
from kvtop.sources.vllm import VllmSource
from kvtop.worker import Worker

PATIENCE_S = 15.0
"""A server that is busy may need so long for one answer: what is asked once, for one turn, waits for it."""
READ_S = 15.0
"""NVML may take seconds to start where nothing else holds the driver."""


@dataclass(frozen=True)
class Look:
    """What was seen."""

    window: Window
    facts: ServerFacts | None = None
    gpu: GpuReading | None = None
    host: HostReading | None = None
    age_s: float | None = None


def source(target: Target, have: Settings, patience_s: float = 0.0) -> VllmSource:
    """`patience_s`: each answer may take so long, where that is more than config.toml allows."""
    return VllmSource(
        target.url,
        key=target.key,
        timeout_s=max(have.poll.metrics_timeout_s, patience_s),
        max_bytes=have.poll.metrics_max_bytes,
        wanted=metrics.wanted,
    )


async def gpu_now() -> GpuReading:
    """The cards, or that the driver does not answer. A read that hangs is left behind."""
    try:
        return await Worker("gpu").call(_read_gpu, READ_S)
    except TimeoutError:
        return GpuReading(error=f"the NVIDIA driver has not answered for {READ_S:g} s")


async def host_now() -> HostReading:
    """This machine; nothing of it is known where /proc does not answer."""
    try:
        return await Worker("host").call(_read_host, READ_S)
    except TimeoutError:
        return HostReading(error=f"/proc has not answered for {READ_S:g} s")


def _read_gpu() -> GpuReading:
    from kvtop.sources.nvml import NvmlSource

    nvml = NvmlSource()
    try:
        return nvml.read()
    finally:
        nvml.close()


def _read_host() -> HostReading:
    from kvtop.sources.host import HostSource

    return HostSource().read()


async def look(target: Target, have: Settings, seconds: float, *, machine: bool = True) -> Look:
    """Two scrapes `seconds` apart. Without `machine` NVML is left out, and the host too unless the server is silent."""
    server = source(target, have)
    try:
        gpu_task = asyncio.create_task(gpu_now()) if machine else None
        host_task = asyncio.create_task(host_now()) if machine else None
        first, facts = await _first(server)
        second = first
        if isinstance(first, Scrape):
            began = first.at or 0.0
            await asyncio.sleep(seconds)
            second = await server.scrape()
        gpu = await gpu_task if gpu_task else None
        host = await host_task if host_task else None
        if isinstance(second, SourceDown):
            host = host or await host_now()
            return Look(_silent(explain(second, target.shown, host)), facts, gpu, host if machine else None)
        assert isinstance(first, Scrape)
        span = round((second.at or began) - began, 3)
        window = between(first, second, span if span > 0 else seconds)
        if window.state is State.UP and facts is not None and facts.sleeping:
            window = replace(window, state=State.SLEEPING)
        return Look(window, facts, gpu, host, age_s=0.0)
    finally:
        await server.aclose()


async def _first(server: VllmSource) -> tuple[Scrape | SourceDown, ServerFacts | None]:
    scrape = await server.scrape()
    if isinstance(scrape, SourceDown) and scrape.state in (State.REFUSED, State.TIMEOUT, State.DNS_ERROR):
        return scrape, None
    facts = await server.facts()
    if isinstance(facts, SourceDown):
        # A dead engine is worse news than numbers that stand still; any other failure leaves the facts unknown.
        return (facts if facts.state is State.DEAD_ENGINE else scrape), None
    return scrape, facts


def _silent(down: SourceDown) -> Window:
    return Window(down.state, down.cause, at=down.at)
