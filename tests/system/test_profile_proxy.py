"""A server behind a proxy: its health URL is at another port than its own."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from profilebox import LOGS, PYTHON, Box, box, free_port

from kvtop.profiles.launch import launch
from kvtop.profiles.profile import Profile
from kvtop.profiles.running.client import Chosen


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    with box(tmp_path / "home", monkeypatch.setenv) as made:
        yield made


class _Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/health"
    server.shutdown()
    server.server_close()


def test_a_server_behind_a_proxy_is_ready_at_its_own_port(home: Box, proxy: str) -> None:
    port = free_port()
    made = msgspec.convert(
        {
            "serve": {"model": "/models/tiny", "port": port},
            "venv": {"command": [PYTHON, str(home.program), "serve"]},
            "env": {"set": {"STANDIN_LOG": str(LOGS / "good-0.32.txt")}},
            "start": {"health_url": proxy, "timeout_s": 20},
        },
        Profile,
    )
    seen = home.ready(Chosen("behind", "", made, launch("behind", made), ["tiny"]))
    assert seen.record is not None
    assert (seen.state, seen.record.port, seen.record.why) == ("running", port, "")
