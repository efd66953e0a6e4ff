"""Real servers for the tests marked `vllm`: one at a time, started by scripts/real-vllm."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from vllm_agent import Agent, Server
from vllm_servers import manage, status


@pytest.fixture(scope="session")
def installed() -> None:
    """vLLM is there; where it is not, tests are skipped, but never in CI."""
    found = status()
    if found["installed"]:
        return
    why = f"no vLLM in {found['venv']}: run scripts/real-vllm install"
    if os.environ.get("CI") == "true" or os.environ.get("KVTOP_REQUIRE_VLLM") == "1":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def serving(installed: None) -> Callable[..., object]:
    """`with serving("plain") as server`: a server that answers, stopped afterwards; `ready=False` does not wait."""

    @contextmanager
    def serve(name: str, *arguments: str, ready: bool = True, **environment: str) -> Iterator[Server]:
        manage("stop", name, check=False)
        manage("start", name, *arguments, **environment)
        try:
            if ready:
                manage("wait", name)
            (row,) = (row for row in status()["servers"] if row["name"] == name)
            yield Server(row["url"], row["pid"])
        finally:
            manage("stop", name)

    return serve


@pytest.fixture(scope="session")
def plain(serving: Callable[..., AbstractContextManager[Server]]) -> Iterator[Server]:
    """A plain server that several modules share. Long prompts are prefilled in small steps: vLLM looks at aborts
    between two of them."""
    with serving("plain", "--max-num-batched-tokens", "256") as running:
        yield running


@pytest.fixture(scope="session")
def _offload(installed: None) -> Iterator[list[Server]]:
    """The one that `offload` started last; stopped at the end."""
    yield (started := [])
    if started:
        manage("stop", "offload", check=False)


@pytest.fixture(scope="module")
def offload(_offload: list[Server]) -> Server:
    """One with a tier in host memory, which several modules share. A module between them that starts one of that name
    with other flags has stopped it."""
    if not any(row["pid"] == one.pid for row in status()["servers"] for one in _offload):
        manage("stop", "offload", check=False)
        manage("start", "offload")
        manage("wait", "offload")
        (row,) = (row for row in status()["servers"] if row["name"] == "offload")
        _offload[:] = [Server(row["url"], row["pid"])]
    return _offload[0]


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, serving: Callable[..., AbstractContextManager[Server]]) -> Iterator[Server]:
    """The server that the module names as SERVER."""
    with serving(request.module.SERVER) as running:
        yield running


@pytest.fixture
async def agent(server: Server) -> AsyncIterator[Agent]:
    async with Agent(server) as one:
        yield one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs all of these: the servers would starve each other on a small machine."""
    for item in items:
        if item.get_closest_marker("vllm"):
            item.add_marker(pytest.mark.xdist_group("vllm"))
