"""kvtop profile logs, of servers that kvtop did not start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtop.cli.main import main
from kvtop.cli.profile import logs
from kvtop.profiles.running import record, tools
from kvtop.profiles.running.adopt import Foreign
from kvtop.profiles.running.record import Who
from kvtop.readings import VllmProcess


@pytest.fixture
def folder(own_home: Path) -> Path:
    where = own_home / "config" / "profiles"
    where.mkdir(parents=True)
    (where / "mine.toml").write_text("[serve]\nmodel = 'm'\n")
    (where / "unit.toml").write_text("runner = 'systemd'\n[systemd]\nunit = 'vllm.service'\nuser = true\n")
    return where


@pytest.fixture
def server(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server of the profile mine that somebody else started; its log."""
    file = tmp_path / "serve.log"
    file.write_text("one\ntwo\n")
    with file.open("a") as out:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=out)
    who = Who.of(child.pid)
    assert who is not None and child.stdin is not None
    process = VllmProcess(child.pid, "api", port=8000)
    monkeypatch.setattr(logs, "foreign", lambda: [Foreign(process, who, ("other", "mine"))])
    yield file
    child.stdin.close()
    child.wait()


def test_the_file_that_its_output_goes_to(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "logs", "mine", "-n", "1"]) == 0
    assert capsys.readouterr() == ("two\n", "")


def test_an_output_that_is_no_file(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.unlink()
    assert main(["profile", "logs", "mine"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("kvtop: kvtop did not start mine (process ")
    assert " on port 8000): its output goes to no file that you may read\n" in said
    assert "profile start" not in said


def test_a_unit_that_kvtop_did_not_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def log(words: list[str], limit: int = 0) -> bytes:
        asked.append(words)
        return b"INFO ready\n" if len(asked) == 1 else b""

    monkeypatch.setattr(logs, "foreign", list)
    monkeypatch.setattr(tools, "log", log)
    assert main(["profile", "logs", "unit"]) == 0
    assert capsys.readouterr() == ("INFO ready\n", "")
    assert asked[0][:4] == ["journalctl", "--user", "-u", "vllm.service"]
    assert main(["profile", "logs", "unit"]) == 0
    assert capsys.readouterr() == ("", "kvtop: journalctl --user has nothing of unit\n")


@pytest.mark.parametrize("was_started_by_kvtop", [True, False])
def test_a_unit_that_kvtop_did_not_start_and_that_runs(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    was_started_by_kvtop: bool,
) -> None:
    asked: list[list[str]] = []

    def log(words: list[str], limit: int = 0) -> bytes:
        asked.append(words)
        return b"INFO ready\n"

    if was_started_by_kvtop:
        record.write(record.Record(name="unit", runner="systemd", state="stopped", unit="old.service"))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    who = Who.of(child.pid)
    assert who is not None
    monkeypatch.setattr(logs, "foreign", lambda: [Foreign(VllmProcess(child.pid, "api", port=8000), who, ("unit",))])
    monkeypatch.setattr(tools, "log", log)
    groups = folder / "proc" / str(child.pid) / "cgroup"
    groups.parent.mkdir(parents=True)
    groups.write_text("0::/user.slice/user-0.slice/user@0.service/app.slice/vllm.service\n")
    try:
        with monkeypatch.context() as patched:
            patched.setattr("psutil.PROCFS_PATH", str(folder / "proc"))
            assert main(["profile", "logs", "unit"]) == 0
            assert capsys.readouterr() == ("INFO ready\n", "")
            assert asked[0][:4] == ["journalctl", "--user", "-u", "vllm.service"]
            groups.write_text("0::/user.slice/user-0.slice/session-1.scope\n")
            assert main(["profile", "logs", "unit"]) == 1, "one that was started by hand: the journal is not its log"
            assert "its output goes to no file that you may read" in capsys.readouterr().err
            assert len(asked) == 1
    finally:
        child.communicate()


def test_one_that_was_never_started(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "logs", "mine"]) == 1
    assert "mine was never started by kvtop" in capsys.readouterr().err


def test_a_start_without_a_container_names_its_profile_as_it_can_be_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "foreign", list)
    record.write(record.Record(name="a\x1b[31mb", runner="docker", state="failed", why="no image"))
    assert main(["profile", "logs", "a\x1b[31mb"]) == 1
    said = capsys.readouterr().err
    assert "has no log: no image" in said and "kvtop profile check a" in said and "\x1b" not in said


def test_whose_log_it_is_where_none_was_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = folder / "x.log"
    log.write_text("line\n")
    record.write(record.Record(name="mine", state="stopped", log=str(log)))
    assert main(["profile", "logs"]) == 0
    assert capsys.readouterr() == ("line\n", "kvtop: the log of mine\n")
