"""A real server's KV events, followed as kvtop does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable

import httpx
from vllm_agent import Agent, Message, Server

from kvtop.live.kv_events import KvEvents, places
from kvtop.sources.kv_events import KvEventSource
from kvtop.triage.residency import Prefix, Residency


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def events_flag(*, replay: bool = True) -> tuple[str, str]:
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{free_port()}", "topic": "kv"}
    if replay:
        config["replay_endpoint"] = f"tcp://*:{free_port()}"
    return "--kv-events-config", json.dumps(config)


class Followed:
    """The index of rank 0."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._moved = asyncio.Event()
        self.events = KvEvents(lambda: places(agent.source.probe), KvEventSource, asyncio.sleep)

    @property
    def index(self) -> Residency:
        return self.events.engines[0].index

    def moved(self) -> None:
        self._moved.set()

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not true():
                await self._moved.wait()
                self._moved.clear()

    async def connected(self) -> None:
        def listens() -> bool:
            engine = self.events.engines.get(0)
            return engine is not None and engine.source is not None and engine.source.connected

        async with asyncio.timeout(30):
            while not listens():  # noqa: ASYNC110  ZMQ tells it to its own monitor alone
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def followed(agent: Agent) -> AsyncIterator[Followed]:
    one = Followed(agent)
    task = asyncio.create_task(one.events.run(one.moved))
    try:
        await one.connected()
        yield one
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def token_ids(server: Server, messages: list[Message], tools: list[dict[str, object]] | None) -> list[int]:
    """What the server makes of a prompt."""
    body = {"model": "tiny", "messages": messages, "add_generation_prompt": True} | ({"tools": tools} if tools else {})
    async with httpx.AsyncClient(base_url=server.url, timeout=60.0) as http:
        answer = await http.post("/tokenize", json=body)
        ids: list[int] = answer.raise_for_status().json()["tokens"]
        return ids


def usable(index: Residency, prefix: Prefix, block: int, *tiers: str) -> int:
    """What a request with this prompt could take from those tiers."""
    return min(index.leading(prefix, tiers).tokens, (prefix.tokens - 1) // block * block)
