"""Servers found by process and by listening socket."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from loopback import Exchange, Handler, routes, serving, vllm

from fixed_clock import FixedClock
from kvtop.readings import HostReading, VllmProcess
from kvtop.sources import listeners
from kvtop.sources.discovery import ASK_AGAIN_S, DiscoverySource


def server(**fields: object) -> VllmProcess:
    values: dict[str, object] = {"pid": 41233, "role": "api", "command": ("vllm", "serve"), "port": 8000}
    return VllmProcess(**(values | fields))  # type: ignore[arg-type]


async def urls(*processes: VllmProcess) -> list[str]:
    reading = HostReading(processes=processes, processes_seen=400)
    return [found.url for found in (await DiscoverySource(ports=()).read(reading)).found]


@pytest.mark.parametrize(
    ("process", "found"),
    [
        (server(ports=(8000,)), ["http://127.0.0.1:8000"]),
        (server(), ["http://127.0.0.1:8000"]),
        (server(ports=(5555, 8000)), ["http://127.0.0.1:8000"]),
        (server(port=None, ports=(9000,)), ["http://127.0.0.1:9000"]),
        (server(port=None), []),
        (server(host="0.0.0.0"), ["http://127.0.0.1:8000"]),
        (server(host="10.0.0.5"), ["http://10.0.0.5:8000"]),
        (server(host="fe80::1"), ["http://[fe80::1]:8000"]),
        (server(host="no host"), []),
        (server(host="10.0.0.5?"), []),
        (server(contained=True), []),
        (server(role="engine"), []),
    ],
)
async def test_by_process(process: VllmProcess, found: list[str]) -> None:
    assert await urls(process) == found


async def test_several_processes_of_one_server_are_one() -> None:
    assert await urls(server(ports=(8000,)), server(pid=7, port=None, ports=(8000,))) == ["http://127.0.0.1:8000"]


async def test_a_server_that_does_not_listen_yet_is_found_and_says_so() -> None:
    discovery = await DiscoverySource(ports=()).read(HostReading(processes=(server(),)))
    assert discovery.found[0].why == "process 41233, not listening yet"
    assert discovery.found[0].pid == 41233


async def test_processes_that_cannot_be_listed_are_not_said_to_be_none() -> None:
    looked = dict((await DiscoverySource(ports=()).read(HostReading())).looked)
    assert looked["processes"] == "cannot be listed"
    looked = dict((await DiscoverySource(ports=()).read(HostReading(processes_seen=0))).looked)
    assert looked["processes"] == "0 seen, 0 are vLLM"


async def silent(exchange: Exchange) -> None:
    await exchange.forever()


@pytest.mark.parametrize(
    ("handler", "verdict"),
    [
        (vllm, "vLLM"),
        (lambda: vllm(v1_models=401), "vLLM"),
        (lambda: routes({"/v1/models": b'{"data":[{"owned_by":"llamacpp"}]}'}), "answers, not vLLM"),
        (lambda: routes({"/v1/models": b"<html>"}), "answers, not vLLM"),
        (lambda: routes({}), "answers, not vLLM"),
        (lambda: silent, "listens, no answer"),
    ],
)
async def test_by_listening_socket(handler: Callable[[], Handler], verdict: str) -> None:
    async with serving(handler()) as box:
        discovery = await DiscoverySource(ports=(box.port,)).read(None)
        assert dict(discovery.looked)[f"port {box.port}"] == verdict
        assert [f.url for f in discovery.found] == ([box.url] if verdict == "vLLM" else [])


async def test_a_port_is_not_asked_with_every_look() -> None:
    clock = FixedClock()
    async with serving(routes({})) as box:
        source = DiscoverySource(ports=(box.port,), clock=clock)
        for _ in range(4):
            await source.read(None)
        assert len(box.requests) == 1
        clock.tick(ASK_AGAIN_S)
        await source.read(None)
        assert len(box.requests) == 2


async def test_a_published_port() -> None:
    async with serving(vllm()) as box:
        reading = HostReading(processes_seen=412, published_ports=(box.port,))
        discovery = await DiscoverySource(ports=()).read(reading)
        assert discovery.found[0].why == "container port, by its listening socket"
        assert dict(discovery.looked)["container ports"] == "1 published, 1 is vLLM"


async def test_what_is_said_where_nothing_is() -> None:
    async with serving(routes({})) as box:
        free = box.port
    discovery = await DiscoverySource(ports=(free,)).read(HostReading(processes_seen=412))
    assert discovery.found == ()
    assert discovery.looked == (
        ("processes", "412 seen, 0 are vLLM"),
        (f"port {free}", "refused"),
        ("container ports", "none published"),
        ("config.toml", "no server named"),
    )


async def test_a_unix_socket_is_said() -> None:
    process = server(port=None, command=("vllm", "serve", "--uds", "/run/vllm.sock"))
    discovery = await DiscoverySource(ports=(), configured=2).read(HostReading(processes=(process,)))
    assert "/run/vllm.sock" in dict(discovery.looked)["process 41233"]
    assert dict(discovery.looked)["config.toml"] == "2 servers named"


async def test_a_tap_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would record the question."""
    monkeypatch.setattr(listeners, "_command", lambda pid: ["kvtop", "tap", "--upstream", "http://127.0.0.1:8000"])
    async with serving(vllm()) as box:
        discovery = await DiscoverySource(ports=(box.port,)).read(None)
        assert discovery.found == ()
        assert dict(discovery.looked)[f"port {box.port}"] == "a kvtop tap"
        assert box.requests == []


@pytest.mark.parametrize("own", [True, False])
async def test_another_users_tap_is_told_by_its_command_line(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(vllm()) as box:
        port = box.port if own else box.port + 1
        monkeypatch.setattr("kvtop.sources.discovery.listening", lambda: {box.port: None})
        monkeypatch.setattr(listeners, "_command", lambda pid: ["kvtop", "tap", "--map", f"{port}=127.0.0.1:8000"])
        discovery = await DiscoverySource(ports=(box.port,)).read(None)
        assert [found.url for found in discovery.found] == ([] if own else [box.url])
