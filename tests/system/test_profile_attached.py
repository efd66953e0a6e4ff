"""Profiles of servers that somebody else starts: `kvtop profile list` asks them, all at once."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from kvtop.cli import profile
from kvtop.profiles.profile import Attach, Profile, Start
from kvtop.profiles.running import asking, attached


class _Health(http.server.BaseHTTPRequestHandler):
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        self.send_response(200 if self.path in ("/health", "/gate/health") else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answers() -> Iterator[int]:
    """The port of a server whose /health answers."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Health)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of one that takes connections and says nothing."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(16)
        yield int(one.getsockname()[1])


@pytest.fixture
def nobody() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def ports(answers: int, silent: int, nobody: int) -> tuple[int, int, int]:
    return answers, silent, nobody


def test_all_are_asked_at_once(
    own_home: Path, ports: tuple[int, int, int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, silent, nobody = ports
    monkeypatch.setattr(attached.ask_all, "__defaults__", (0.5,))
    where = own_home / "config" / "profiles"
    where.mkdir(parents=True)
    urls = {
        "up": f"http://127.0.0.1:{answers}",
        "gate": f"http://127.0.0.1:{answers}/gate",
        "asleep": f"http://127.0.0.1:{answers}/other",
        "gone": f"http://127.0.0.1:{nobody}",
        **{f"silent{number}": f"http://127.0.0.1:{silent}" for number in range(6)},
    }
    for name, url in urls.items():
        (where / f"{name}.toml").write_text(f'runner = "attach"\n[attach]\nurl = "{url}"\n')
    (where / "own.toml").write_text(
        f'runner = "attach"\n[attach]\nurl = "{urls["asleep"]}"\n[start]\nhealth_url = "{urls["up"]}/health"\n'
    )
    began = time.monotonic()
    assert profile.main(["list", "--json"]) == 0
    took = time.monotonic() - began
    rows = {row["name"]: (row["state"], row["error"]) for row in json.loads(capsys.readouterr().out)}
    assert rows == {
        "up": ("running", None),
        "gate": ("running", None),
        "own": ("running", None),
        "asleep": ("stopped", f"no answer: 127.0.0.1:{answers} answers 503"),
        "gone": ("stopped", f"no answer: 127.0.0.1:{nobody} refuses"),
        **{f"silent{number}": ("stopped", f"no answer: 127.0.0.1:{silent} timed out") for number in range(6)},
    }
    assert took < 6 * 0.5  # what they would take one after the other

    monkeypatch.setenv("COLUMNS", "200")
    assert profile.main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert " runs " in f"{lines['up']} "
    assert f"no answer  127.0.0.1:{silent} timed out 0 s ago" in lines["silent0"] or (
        f"no answer  127.0.0.1:{silent} timed out 1 s ago" in lines["silent0"]
    )


def test_a_health_url_is_asked_as_it_is_written(answers: int) -> None:
    _Health.asked.clear()
    assert asking.get(f"http://127.0.0.1:{answers}/health")[0] == 200
    assert asking.get(f"http://me:a%20b@127.0.0.1:{answers}/health?deep=1")[0] == 503
    assert _Health.asked == [("/health", None), ("/health?deep=1", "Basic bWU6YSBi")]


async def test_a_server_that_is_only_watched_is_asked_so_too(answers: int) -> None:
    _Health.asked.clear()
    url = f"http://127.0.0.1:{answers}"
    start = Start(health_url=f"{url}/health?deep=1")
    said = await attached.ask(Profile(runner="attach", attach=Attach(url=url), start=start))
    assert said.why == f"127.0.0.1:{answers} answers 503"
    assert _Health.asked == [("/health?deep=1", None)]
