"""What a server is while it starts, dies, is gone and comes back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from vllm_agent import Agent, Book, Server, opening
from vllm_servers import manage

from kvtop.model.window import between
from kvtop.readings import State

pytestmark = [pytest.mark.vllm, pytest.mark.long]

Serving = Callable[..., AbstractContextManager[Server]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def snapshot(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of `kvtop snapshot --json`."""
    command = [sys.executable, "-m", "kvtop", "snapshot", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def engine_core(api: int) -> int:
    """The engine process of an API process: it has its own title and the same process group."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        name, _, fields = stat.read_text().partition("(")[2].rpartition(")")
        if name.startswith("VLLM::Eng") and int(fields.split()[2]) == api:
            return int(stat.parent.name)
    raise AssertionError("no engine process")


async def test_a_life(serving: Serving) -> None:
    """loading, up, refused after the stop, reset after the restart on the same port, dead engine."""
    port = str(free_port())
    with serving("small", "--port", port, "--wait", ready=False) as server:
        async with Agent(server) as agent:
            await agent.chat(Book(), opening())
            await agent.chat(Book(), opening())
            before = await agent.settled()
            assert snapshot(server.url, "--seconds", "0.5")[1]["state"] == "up"
    async with Agent(server) as agent:
        down = await agent.down()
        assert (down.state, down.http_status) == (State.REFUSED, None)
    code, document = snapshot(server.url, "--seconds", "0.5")
    assert (code, document["state"], document["cached"]["share"]) == (1, "refused", None)

    with serving("small", "--port", port, ready=False, VLLM_KEEP_ALIVE_ON_ENGINE_DEATH="1") as server:
        code, document = snapshot(server.url, "--seconds", "0.5")
        assert (code, document["state"]) == (1, "loading")
        assert str(server.pid) in document["detail"]
        await asyncio.to_thread(manage, "wait", "small")
        async with Agent(server) as agent:
            book = Book()
            await agent.chat(book, opening("Somebody new. "))
            after = await agent.settled()
            window = between(before, after, 60.0)
            assert window.state is State.RESET
            assert "restart" in window.detail
            assert (window.all.cached.prompt_tokens, window.all.cached.cached_tokens) == (book.prompt, 0)
            assert window.all.latency.ttft.n == 1

            os.kill(engine_core(server.pid), signal.SIGKILL)
            while not isinstance(facts := await agent.source.facts(), type(down)):
                pass
            assert (facts.state, facts.http_status) == (State.DEAD_ENGINE, 503)
            assert (await agent.down()).state is State.DEAD_ENGINE
        code, document = snapshot(server.url, "--seconds", "0.5")
        assert (code, document["state"]) == (1, "dead_engine")
