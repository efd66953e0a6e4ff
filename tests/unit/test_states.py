"""A refused port, seen beside the processes of the machine."""

from __future__ import annotations

import pytest

from kvtop.model.states import explain
from kvtop.readings import HostReading, SourceDown, State, VllmProcess

URL = "http://127.0.0.1:8000"
REFUSED = SourceDown(State.REFUSED, "nothing listens on 127.0.0.1:8000", 100.0)


def host(*processes: VllmProcess) -> HostReading:
    return HostReading(processes=processes, at=1100.0)


def server(**fields: object) -> VllmProcess:
    values: dict[str, object] = {"pid": 41233, "role": "api", "command": ("vllm", "serve"), "port": 8000}
    return VllmProcess(**(values | fields))  # type: ignore[arg-type]


def test_a_process_that_wants_the_port_and_does_not_listen_is_loading() -> None:
    said = explain(REFUSED, URL, host(server(started_at=1059.0)))
    assert said.state is State.LOADING
    assert said.cause == "process 41233 is starting and does not listen yet, 41 s so far"
    assert said.at == REFUSED.at
    assert said.loader is not None and said.loader.pid == 41233


def test_a_process_that_served_and_refuses_now_is_ending_and_does_not_load() -> None:
    for ports in ((), (8000,)):
        said = explain(REFUSED, URL, host(server(started_at=700.0, ports=ports)), 41233)
        assert said.state is State.REFUSED
        assert said.cause == "process 41233 served it and takes no more connections: it is ending"
    assert explain(REFUSED, URL, host(server(pid=5)), 41233).state is State.LOADING


def test_minutes_are_written_as_minutes() -> None:
    assert explain(REFUSED, URL, host(server(started_at=939.0))).cause.endswith("2 m 41 s so far")


def test_a_port_from_a_configuration_file_is_not_known_while_loading() -> None:
    process = server(port=None, command=("vllm", "serve", "--config", "box.yaml"))
    assert explain(REFUSED, URL, host(process)).state is State.LOADING


@pytest.mark.parametrize(
    ("process", "words"),
    [
        (server(ports=(8001,)), "process 41233 listens on 8001 instead"),
        (server(ports=(8000,), host="10.0.0.5"), "listens on this port at another address"),
        (server(port=8001, ports=(8001,)), "vLLM is on 8001"),
        (server(contained=True), "container"),
    ],
)
def test_still_refused_but_with_a_reason(process: VllmProcess, words: str) -> None:
    said = explain(REFUSED, URL, host(process))
    assert said.state is State.REFUSED
    assert words in said.cause


def test_nobody_there() -> None:
    said = explain(REFUSED, URL, host())
    assert (said.state, said.cause) == (
        State.REFUSED,
        "nothing listens on 127.0.0.1:8000, and no vLLM server process wants this port",
    )


def test_another_machine_is_not_judged_by_the_processes_of_this_one() -> None:
    assert explain(REFUSED, "http://gpubox:8000", host(server())) is REFUSED


def test_an_address_that_a_server_here_binds_is_this_machine() -> None:
    assert explain(REFUSED, "http://10.0.0.5:8000", host(server(host="10.0.0.5"))).state is State.LOADING


@pytest.mark.parametrize("state", [State.TIMEOUT, State.DEAD_ENGINE, State.UNAUTHORIZED, State.NOT_VLLM])
def test_other_states_stay(state: State) -> None:
    down = SourceDown(state, "words", 1.0)
    assert explain(down, URL, host(server())) is down


def test_without_a_host_reading_nothing_is_added() -> None:
    assert explain(REFUSED, URL, None) is REFUSED
