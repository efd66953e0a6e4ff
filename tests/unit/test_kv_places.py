"""Where a server publishes its KV events, and what of it is followed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.readings import KvPublisher
from kvtop.sources.kv_places import KvPlaces, asked, named, told


def config(endpoint: str = "tcp://*:5613", **more: Any) -> dict[str, Any]:
    return {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint, "hwm": 100000} | more


def test_the_server_tells_each_rank() -> None:
    rows = {"0": config(topic="kv"), "1": config("tcp://*:5614", replay_endpoint="tcp://*:6614")}
    assert told(json.dumps(rows).encode()) == KvPlaces(
        (
            KvPublisher(0, "tcp://127.0.0.1:5613", None, "kv"),
            KvPublisher(1, "tcp://127.0.0.1:5614", "tcp://127.0.0.1:6614"),
        )
    )
    assert told(b"{}") == KvPlaces()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"detail":"Not Found"}', b'{"0": 5}', b"\xff"])
def test_what_is_no_answer_is_none(body: bytes) -> None:
    assert told(body) is None


def test_one_that_publishes_nothing_is_not_followed() -> None:
    off = {"0": config(enable_kv_cache_events=False), "1": config(publisher="null")}
    assert told(json.dumps(off).encode()) == KvPlaces()


@pytest.mark.parametrize(
    ("endpoint", "there"),
    [
        ("tcp://*:1", "tcp://127.0.0.1:1"),
        ("tcp://0.0.0.0:2", None),
        ("tcp://[::]:3", "tcp://127.0.0.1:3"),
        ("tcp://localhost:4", None),
        ("tcp://127.0.0.9:5", None),
        ("tcp://[::1]:6", "tcp://[::1]:6"),
        ("ipc:///run/kv.sock", "ipc:///run/kv.sock"),
        ("tcp://10.0.0.4:7", None),
        ("tcp://example.org:8", None),
        ("tcp://*:0", None),
        ("tcp://*:99999", None),
        ("inproc://cache", None),
        ("tcp://127.0.0.1:5557 ; rm", None),
        ("", None),
    ],
)
def test_only_this_machines_loopback_is_followed(endpoint: str, there: str | None) -> None:
    places = told(json.dumps({"0": config(endpoint)}).encode())
    assert places is not None
    assert [one.endpoint for one in places.publishers] == ([] if there is None else [there])
    assert len(places.problems) == (there is None)


def test_a_server_that_sends_them_out_lets_nobody_listen() -> None:
    """vLLM binds an endpoint with a wildcard, and connects to any other."""
    places = told(json.dumps({"0": config("tcp://127.0.0.1:5557")}).encode())
    says = "the server sends its KV events out to tcp://127.0.0.1:5557; with tcp://*:PORT it lets others listen"
    assert places == KvPlaces(problems=(says,))
    elsewhere = told(json.dumps({"0": config("tcp://10.0.0.4:5557")}).encode())
    assert elsewhere == KvPlaces(problems=(says.replace("127.0.0.1", "10.0.0.4"),)), "to name it would not help"
    assert named("tcp://127.0.0.1:5558", places).publishers == (KvPublisher(0, "tcp://127.0.0.1:5558"),)


def test_a_command_line_asks_for_it() -> None:
    flag = ["vllm", "serve", "m", "--kv-events-config", json.dumps(config("tcp://*:5557"))]
    assert asked(flag) == KvPlaces((KvPublisher(0, "tcp://127.0.0.1:5557"),))
    ranks = asked([*flag, "--data-parallel-size", "3"]).publishers
    assert [(one.rank, one.endpoint) for one in ranks] == [
        (rank, f"tcp://127.0.0.1:{5557 + rank}") for rank in range(3)
    ]
    assert asked(["vllm", "serve", "m"]) == KvPlaces()
    assert asked(["vllm", "serve", "m", "--kv-events-config", "{"]).problems


def test_a_command_line_may_set_each_field() -> None:
    words = ["--kv-events-config.enable_kv_cache_events", "true", "--kv-events-config.endpoint=tcp://*:6000"]
    assert asked(["vllm", "serve", "m", *words]).publishers == (KvPublisher(0, "tcp://127.0.0.1:6000"),)


def test_the_configuration_may_name_any_host() -> None:
    assert named("tcp://10.0.0.4:5557").publishers == (KvPublisher(0, "tcp://10.0.0.4:5557"),)
    known = KvPlaces(
        (
            KvPublisher(0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:6557", "kv"),
            KvPublisher(1, "tcp://127.0.0.1:5558", None, "kv"),
        )
    )
    assert named("tcp://10.0.0.4:7000", known).publishers == (
        KvPublisher(0, "tcp://10.0.0.4:7000", "tcp://10.0.0.4:6557", "kv"),
        KvPublisher(1, "tcp://10.0.0.4:7001", None, "kv"),
    )
    assert named("5557").problems


@pytest.mark.fuzz
@given(st.text(), st.binary())
def test_whatever_is_told(text: str, body: bytes) -> None:
    for places in (named(text), asked(["vllm", "serve", "--kv-events-config", text]), told(body)):
        assert places is None or all(one.endpoint for one in places.publishers)
