"""Which command lines are kvtop's own taps, and on which ports they listen."""

from __future__ import annotations

import shlex

import pytest

from kvtop.sources.listeners import tap_ports
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
