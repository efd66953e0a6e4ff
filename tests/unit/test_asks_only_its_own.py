"""Which servers `why`, `diff` and `replay` send prompts to: where a turn went to may be the word of a file."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from captured_turns import FULL
from msgspec.structs import replace

from kvtop import paths
from kvtop.capture.api.routes import read_request
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Record, Source, TurnState
from kvtop.cli.main import main

NAME = "elsewhere.test"


@dataclass
class Elsewhere:
    """A server that is reached by a name of no meaning to this machine."""

    url: str = ""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    seen = Elsewhere()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            seen.asked.append(self.path)
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(404)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST = answer

        def log_message(self, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.2", 0), Handler)
    seen.url = f"http://{NAME}:{server.server_port}"
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *args, **more: resolve("127.0.0.2" if host == NAME else host, *args, **more)
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield seen
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def turns(own_home: Path, elsewhere: Elsewhere) -> tuple[str, str]:
    """Two that went there, as a file told."""
    ids: list[int] = []
    with Store.open(paths.turns_file(), write=True) as store:
        for n in range(2):
            said = [{"role": "user", "content": f"{said} {'word ' * 50}"} for said in ("PRIVATE", "more")[: n + 1]]
            body = json.dumps({"model": "m", "messages": said}).encode()
            outline = read_request("POST", "/v1/chat/completions", [], body).outline
            turn = replace(
                FULL, source=Source.IMPORT, state=TurnState.DONE, record=Record.COMPLETE, upstream=elsewhere.url,
                error=None, outline=outline, parent=ids[-1] if ids else None, relation="next" if ids else "first",
                started_at=FULL.started_at + 60 * n, sent_at=None, first_token_at=None, samples=[],
                ended_at=FULL.started_at + 60 * n + 5,
            )  # fmt: skip
            ids.append(store.begin(turn, body))
    return str(ids[0]), str(ids[1])


@pytest.mark.parametrize("command", ["why", "diff"])
def test_a_server_that_nobody_named_gets_no_prompt(
    elsewhere: Elsewhere, turns: tuple[str, str], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, turns[1]]) == 0
    said = capsys.readouterr().err
    assert elsewhere.asked == []
    shown = elsewhere.url.removeprefix("http://")
    line = f"kvtop: {shown} is not this machine and not in config.toml: compared as text; --url asks it\n"
    assert said.count(line) == 1


def test_a_replay_counts_no_prompt_there_either(
    elsewhere: Elsewhere, turns: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *turns, "--yes"]) == 2
    assert elsewhere.asked == []
    assert "is not this machine" in capsys.readouterr().err
    main(["replay", *turns, "--yes", "--allow-remote"])
    assert elsewhere.asked, "it was wanted"


@pytest.mark.parametrize("how", ["--url", "config.toml"])
def test_one_that_is_named_is_asked(elsewhere: Elsewhere, turns: tuple[str, str], how: str) -> None:
    more = []
    if how == "--url":
        more = ["--url", elsewhere.url]
    else:
        paths.config_dir().joinpath("config.toml").parent.mkdir(parents=True, exist_ok=True)
        paths.config_dir().joinpath("config.toml").write_text(f'[[server]]\nurl = "{elsewhere.url}/v1"\n')
    main(["diff", *turns, *more])
    assert elsewhere.asked
