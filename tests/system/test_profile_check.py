"""`kvtop profile check` beside a server that runs: who has the port, whose it is, and what a switch makes of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kvtop.profiles import folder
from kvtop.profiles.check import Report, report
from kvtop.profiles.check.facts import gather

SERVER = """
import http.server, json, sys

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": "Coder\\x1b[31m", "owned_by": "vllm"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass

server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answer)
print("listens", flush=True)
server.serve_forever()
"""


@pytest.fixture
def port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path, own_home: Path, port: int) -> Iterator[int]:
    """The pid of a process that is `vllm serve` by its command line, started from the profile coder."""
    profiles = own_home / "config" / "profiles"
    profiles.mkdir(parents=True)
    for name, model in (("coder", "Coder"), ("mine", "Mine")):
        (profiles / f"{name}.toml").write_text(
            '[venv]\ncommand = ["/nowhere/vllm", "serve"]\n'
            f'[serve]\nmodel = "{model}"\nport = {port}\nhost = "127.0.0.1"\n'
        )
    script = tmp_path / "vllm"
    script.write_text(SERVER)
    command = [sys.executable, str(script), "serve", "Coder", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "listens\n"
        yield running.pid
        running.kill()


def said(told: Report, rule: str) -> list[tuple[str, str]]:
    return [(one.level, one.says) for one in told.findings if one.rule == rule]


def test_who_is_in_the_way(server: int, port: int) -> None:
    told = report(folder.find("mine"))
    name = psutil.Process(server).name()
    taken = f"port {port}: coder (process {server} ({name})) listens there"
    answers = f"http://127.0.0.1:{port}/health answers already, serving Coder\\x1b[31m"
    assert said(told, "port_taken") == [("error", taken)]
    assert said(told, "health_answered_by_other") == [("warning", answers)]
    assert [one.rule for one in told.refuses(force=True)] == ["port_taken"]
    switched = report(folder.find("mine"), replacing={server})
    assert said(switched, "port_taken") == [("note", taken)]
    assert said(switched, "health_answered_by_other") == [("note", answers)]
    assert [one.rule for one in switched.refuses()] == ["program_missing"]


def test_the_servers_of_this_machine(server: int, port: int) -> None:
    found = gather(folder.find("mine")).servers
    assert found is not None
    (one,) = (one for one in found if one.pid == server)
    assert (one.profile, one.port, one.pids) == ("coder", port, frozenset({server}))


def test_a_proxy_that_answers_at_the_health_url_has_not_the_port(server: int, port: int, own_home: Path) -> None:
    """That server stands for the proxy."""
    url = f"http://127.0.0.1:{port}/health"
    (own_home / "config" / "profiles" / "behind.toml").write_text(
        f'[serve]\nmodel = "m"\nport = 1\nhost = "127.0.0.1"\n[start]\nhealth_url = "{url}"\n'
    )
    told = report(folder.find("behind"), ask_vllm=False)
    assert said(told, "port_taken") == []
    answers = f"{url} answers already, serving Coder\\x1b[31m"
    assert said(told, "health_answered_by_other") == [("warning", answers)]
    assert said(report(folder.find("behind"), replacing={server}, ask_vllm=False), "health_answered_by_other") == [
        ("note", answers)
    ]
