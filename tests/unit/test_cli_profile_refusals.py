"""--json of a profile command that is refused: one document with the reason. And servers with the same flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtop.cli import main as cli
from kvtop.profiles import folder, match
from kvtop.readings import VllmProcess

PROFILE = '[venv]\ncommand = ["/nowhere/vllm", "serve"]\n[serve]\nmodel = "org/m"\nhost = "127.0.0.1"\nport = 8123\n'


@pytest.fixture
def profiles() -> Path:
    where = folder.folder()
    where.mkdir(parents=True, exist_ok=True)
    for name in ("a", "b"):
        (where / f"{name}.toml").write_text(PROFILE)
    return where


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object], str]:
    code = cli.main(["profile", *words, "--json"])
    told = capsys.readouterr()
    return code, json.loads(told.out), told.err


@pytest.mark.parametrize("job", ["start", "switch"])
def test_a_refused_start(profiles: Path, capsys: pytest.CaptureFixture[str], job: str) -> None:
    code, document, told = answered(capsys, job, "a")
    assert code == 1
    assert (document["profile"], document["ok"]) == ("a", False)
    assert str(document["error"]).startswith("a would not work: program_missing")
    assert [one["rule"] for one in document["findings"] if one["level"] == "error"] == ["program_missing"]  # type: ignore[attr-defined]
    assert "kvtop: a would not work: program_missing" in told


@pytest.mark.parametrize("job", ["check", "start", "switch", "show", "command"])
def test_no_such_profile(profiles: Path, capsys: pytest.CaptureFixture[str], job: str) -> None:
    code, document, told = answered(capsys, job, "none")
    assert (code, document["profile"]) == (2, "none")
    assert str(document["error"]) in told and document["error"]


def test_a_stop_of_nothing(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, _ = answered(capsys, "stop", "a")
    assert (code, document["profile"], document["error"]) == (1, "a", "a does not run")


def test_a_check_with_an_error_has_its_document_alone(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, _ = answered(capsys, "check", "a")
    assert (code, document["ok"]) == (1, False) and "error" not in document


def test_a_server_has_the_names_of_all_profiles_with_its_flags(profiles: Path) -> None:
    words = ("/v/bin/vllm", "serve", "org/m", "--host", "127.0.0.1", "--port", "8123")
    runs = match.launches(folder.read_all())
    main = ("python3", "-m", "vllm.entrypoints.cli.main", *words[1:])
    for command in (words, main):
        process = VllmProcess(pid=5, command=command, role="api")
        assert [(one.pid, names) for one, names in match.servers([process], runs)] == [(5, ("a", "b"))]
