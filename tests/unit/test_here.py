"""Which URLs are of this machine, and which process serves one."""

from __future__ import annotations

import pytest

from kvtop.model.box import Config, EngineWindow, Window
from kvtop.model.here import host_of, is_here, is_local, port_of, server_of, sized
from kvtop.readings import HostReading, State, VllmProcess


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://127.8.9.1:8000", True),
        ("http://localhost:8000", True),
        ("http://LOCALHOST:8000", True),
        ("http://[::1]:8000", True),
        ("http://[::ffff:127.0.0.1]:8000", True),
        ("http://0.0.0.0:8000", True),
        ("http://127.evil.example:8000", False),
        ("http://localhost.evil.example:8000", False),
        ("http://10.0.0.7:8000", False),
        ("http://gpubox:8000", False),
        ("http://[", False),
        ("", False),
    ],
)
def test_is_local(url: str, local: bool) -> None:
    assert is_local(url) is local


def test_other_names_of_this_machine() -> None:
    assert is_local("http://gpubox:8000", ["gpubox"])
    assert not is_local("", [""])
    host = HostReading(processes=(VllmProcess(1, "api", host="10.0.0.7"), VllmProcess(2, "api", host="")))
    assert is_here("http://10.0.0.7:8000", host)
    assert not is_here("http://10.0.0.8:8000", host)
    assert is_here("http://localhost:8000", None) and not is_here("http://10.0.0.7:8000", None)


@pytest.mark.parametrize(
    ("url", "port"),
    [("http://h:8000", 8000), ("http://h", 80), ("https://h", 443), ("h", None), ("http://h:x", None)],
)
def test_port_of(url: str, port: int | None) -> None:
    assert port_of(url) == port


def test_host_of() -> None:
    assert (host_of("http://[::1]:1"), host_of("http://Box:1"), host_of("http://[")) == ("::1", "box", "")


def test_the_server_of_a_url() -> None:
    engine = VllmProcess(1, "engine", port=8000, ports=(8000,))
    contained = VllmProcess(2, "api", port=8000, ports=(8000,), contained=True)
    starting = VllmProcess(3, "api", port=8000)
    moved = VllmProcess(4, "api", port=8000, ports=(8001,))
    serving = VllmProcess(5, "api", ports=(8000,))

    def pid(*processes: VllmProcess, url: str = "http://127.0.0.1:8000") -> int | None:
        found = server_of(url, HostReading(processes=processes))
        return found.pid if found else None

    assert pid(engine, contained, starting, moved, serving) == 5
    assert pid(engine, contained, moved, starting) == 3
    assert pid(engine, contained, moved) is None
    assert pid(serving, url="http://127.evil.example:8000") is None
    assert pid(serving, url="http://localhost") is None
    assert server_of("http://localhost:8000", None) is None


def test_a_tap_stands_for_the_server_behind_it() -> None:
    server = VllmProcess(1, "api", port=8000, ports=(8000,))
    nowhere_yet = VllmProcess(2, "api")
    ways = ((8001, "http://localhost:8000"), (8002, None), (8003, "http://far:8000"), (8004, "http://127.0.0.1:7"))
    host = HostReading(processes=(server, nowhere_yet), taps=ways)
    assert server_of("http://127.0.0.1:8001", host) is server
    for port in (8002, 8003, 8004):
        assert server_of(f"http://127.0.0.1:{port}", host) is None
    assert server_of("http://far:8001", host) is None


def test_the_tier_has_the_size_of_the_command_line_where_the_server_tells_none() -> None:
    host = HostReading(processes=(VllmProcess(1, "api", port=8000, ports=(8000,), tier_bytes=1 << 28),))
    window = Window(State.UP)
    assert sized(window, "http://127.0.0.1:8000", host).all.config.cpu_tier_bytes == 1 << 28
    assert sized(window, "http://10.9.9.9:8000", host) is window
    told = Window(State.UP, all=EngineWindow(config=Config(cpu_tier_bytes=5)))
    assert sized(told, "http://127.0.0.1:8000", host) is told
