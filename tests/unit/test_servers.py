"""What is wrong with configured servers is said, and never with a key in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvtop.config import Server
from kvtop.servers import problems

SECRET = "sk-geheim-123"
FILE = Path("/c.toml")


def said(server: Server) -> list[tuple[str, str]]:
    return [(problem.what, problem.fix) for problem in problems([server], FILE)]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def test_well(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOX_KEY", SECRET)
    servers = [Server("h:1"), Server("h:2", api_key_file=str(key_file)), Server("h:3", api_key_env="BOX_KEY")]
    assert problems(servers, FILE) == ()
    assert servers[1].api_key() == servers[2].api_key() == SECRET


def test_a_variable_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOX_KEY", raising=False)
    assert said(Server("h:1", name="box", api_key_env="BOX_KEY")) == [
        ("[[server]] box: api_key_env names BOX_KEY, which is not set", "export BOX_KEY=..., or remove api_key_env")
    ]
    monkeypatch.setenv("BOX_KEY", "")
    assert len(said(Server("h:1", api_key_env="BOX_KEY"))) == 1


def test_a_key_in_the_place_of_a_name_is_not_shown() -> None:
    (row,) = said(Server("h:1", api_key_env=SECRET))
    assert SECRET not in "".join(row)
    assert row[0] == "[[server]] http://h:1: api_key_env names no variable that is set"


def test_a_pipe_or_a_device_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in (str(tmp_path / "fifo"), "/dev/zero"):
        ((what, _),) = said(Server("h:1", api_key_file=name))
        assert what == f"[[server]] http://h:1: api_key_file {name} cannot be read: not a regular file"


def test_what_is_judged_is_what_is_used(tmp_path: Path) -> None:
    late = tmp_path / "late"
    late.write_text(f"\n {SECRET} \nmore\n")
    late.chmod(0o600)
    server = Server("h:1", api_key_file=str(late))
    assert server.api_key() == SECRET and said(server) == []


def test_files(key_file: Path, tmp_path: Path) -> None:
    key_file.chmod(0o640)
    assert said(Server("h:1", api_key_file=str(key_file))) == [
        (f"[[server]] http://h:1: api_key_file {key_file} may be read by others", f"chmod 600 {key_file}")
    ]
    (tmp_path / "empty").touch(0o600)
    (tmp_path / "latin").write_bytes(b"\xff")
    for name, why in (
        ("nowhere", "cannot be read: No such file or directory"),
        ("", "cannot be read: Is a directory"),
        ("latin", "cannot be read: not a readable text"),
        ("empty", "is empty"),
        ("a\0b", "cannot be read: not a readable text"),
    ):
        server = Server("h:1", api_key_file=f"{tmp_path}/{name}")
        assert why in said(server)[0][0]
        assert server.api_key() is None
    assert Server("h:1", api_key_file="~nobody-of-that-name/x").api_key() is None


def test_a_name_does_not_hide_a_url_that_is_none() -> None:
    (row,) = said(Server("htp:/x", name="bad"))
    assert row[0].startswith("[[server]] bad url: not a server's URL: 'htp:/x'")


def test_no_url() -> None:
    (row,) = said(Server(f"ftp://me:{SECRET}@x"))
    assert row[0].startswith("[[server]] url: not a server's URL: 'ftp://***@x': ftp is not http or https")


def test_a_key_in_the_place_of_the_url_is_told_and_not_shown() -> None:
    (row,) = said(Server(SECRET, name="box"))
    assert row[0].startswith("[[server]] box url: what looks like an API key stands where a server's URL is meant")
    assert "geheim" not in "".join(row)
