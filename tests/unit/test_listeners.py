"""Which command lines are kvtop's own taps, and on which ports they listen."""

from __future__ import annotations

import os
import shlex
import socket

import pytest

from kvtop.sources.listeners import at_address, tap_ports
from kvtop.sources.taps import tap_ways


@pytest.mark.parametrize(
    ("line", "ports"),
    [
        ("kvtop tap", (8001,)),
        ("/home/a/.local/bin/kvtop tap --upstream 8000", (8001,)),
        ("/opt/v/bin/python3.12 /opt/v/bin/kvtop tap --listen 127.0.0.1:9001 --upstream 8000", (9001,)),
        ("python -P -m kvtop tap --name x --map [::1]:1=http://a:8000 --map=2=http://b:8000", (1, 2)),
        ("python -m kvtop tap --listen=localhost:7", (7,)),
        ("kvtop tap --map nonsense", ()),
        ("kvtop tap --listen", ()),
        ("kvtop tap --status", ()),
        ("kvtop tap --stop 8001", ()),
        ("kvtop tap --how pi --listen 9001", ()),
        ("kvtop tap --upstream 8000 --detach", ()),
        ("kvtop 8001", ()),
        ("kvtop turns tap", ()),
        ("python -m kvtop.capture.recorder.process --fd 3 --tap 127.0.0.1:8001", ()),
        ("vim kvtop tap", ()),
        ("bash -c 'kvtop tap'", ()),
        ("python -c kvtop tap", ()),
        ("vllm serve kvtop tap", ()),
        ("''", ()),
        ("", ()),
    ],
)
def test_tap_ports(line: str, ports: tuple[int, ...]) -> None:
    assert tap_ports(shlex.split(line)) == ports


def test_the_upstreams_of_a_tap() -> None:
    command = shlex.split("tap --map 1=8000 --map 2=http://[::1]:9/v1 --map 3=ftp://x --upstream 7")
    assert tap_ways("kvtop", command) == ((1, "http://127.0.0.1:8000"), (2, "http://[::1]:9"), (3, None))
    assert tap_ways("kvtop", ["tap", "--upstream", "localhost:8000"]) == ((8001, "http://localhost:8000"),)
    assert tap_ways("kvtop", ["tap"]) == ((8001, None),)


@pytest.mark.parametrize(
    ("bound", "host", "told"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("0.0.0.0", "127.0.0.2", True),
        ("0.0.0.0", "192.0.2.1", False),  # another machine
        ("127.0.0.1", "no such host", False),
        ("127.0.0.1", "", False),
    ],
)
def test_who_listens_at_an_address(bound: str, host: str, told: bool) -> None:
    with socket.create_server((bound, 0)) as one:
        assert at_address(host, one.getsockname()[1]) == ([os.getpid()] if told else [])


def test_of_several_at_one_port_the_one_at_the_address_is_told() -> None:
    with socket.socket() as wide, socket.socket() as narrow:
        for one, host in ((wide, "0.0.0.0"), (narrow, "127.0.0.1")):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind((host, wide.getsockname()[1]))
            one.listen()
        port = wide.getsockname()[1]
        assert at_address("127.0.0.1", port) == at_address("127.0.0.3", port) == [os.getpid()]
