"""--json of a profile command that is refused: one document with the reason. And servers with the same flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from kvtop.cli import main as cli
from kvtop.profiles import folder, match
from kvtop.profiles.running import record
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


def test_a_stop_of_what_is_no_server(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (profiles / "far.toml").write_text("runner = 'attach'\n[attach]\nurl = 'http://127.0.0.1:8123'\n")
    assert answered(capsys, "stop", "1")[1]["error"] == "no vLLM server is process 1"
    assert answered(capsys, "stop", "far")[1]["error"] == "far is only watched: kvtop does not stop it"


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


def test_a_number_in_quotes(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (profiles / "q.toml").write_text('[serve]\nport = "19204"\nmodel = 5\n')
    _, document, _ = answered(capsys, "show", "q")
    assert "a port from 1 to 65535, without quotes" in str(document["error"])
    (profiles / "q.toml").write_text('[serve]\nport = "a lot"\n')
    _, document, _ = answered(capsys, "show", "q")
    assert "without quotes" not in str(document["error"])


def test_the_log_of_a_server_that_is_watched_alone(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (profiles / "w.toml").write_text('runner = "attach"\n[attach]\nurl = "http://127.0.0.1:8000"\n')
    assert cli.main(["profile", "logs", "w"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("kvtop: w is only watched: its log is where it was started\n") and "start w" not in told


def test_the_log_of_a_start_that_wrote_nothing(
    profiles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text("of an earlier start\n")
    size = (tmp_path / "log").stat().st_size
    record.write(record.Record(name="a", state="failed", log=str(tmp_path / "log"), log_offset=size, why="no program"))
    assert cli.main(["profile", "logs", "a"]) == 0
    told = capsys.readouterr()
    assert told.out == "of an earlier start\n"
    assert told.err == "kvtop: the last start of a failed, and wrote nothing: no program\n"


def test_the_log_of_a_container_that_was_never_made(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record.write(record.Record(name="a", runner="docker", state="failed", why="docker did not start it: no daemon"))
    assert cli.main(["profile", "logs", "a"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("kvtop: the last start of a has no log: docker did not start it: no daemon\n")
    assert "kvtop profile check a" in told


@pytest.mark.parametrize(("now", "word"), [("running", "runs"), ("starting", "starts")])
def test_a_check_of_what_runs_says_so(
    profiles: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    now: Literal["running", "starting"],
    word: str,
) -> None:
    from check_box import facts, listener, server

    from kvtop.cli.profile import check as module
    from kvtop.profiles.check.report import report
    from kvtop.profiles.running.look import Seen
    from kvtop.profiles.running.record import Who

    who = Who(500, "b")
    state = record.Record(name="a", state=now, server=who, family=[who], port=8000)
    monkeypatch.setattr(module.look, "look", lambda name: Seen(name, now, state))
    box = facts("m --host 127.0.0.1", listeners={8000: listener()}, servers=(server(profile="a"),))
    monkeypatch.setattr(module, "report", lambda entry, **more: report(entry, facts=box, replacing=more["replacing"]))
    assert cli.main(["profile", "check", "a"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"check qwen27: 4 notes, it {word} (process 500, port 8000)\n") and "port_taken" not in told


def test_a_row_of_an_unreadable_profile_fits(
    profiles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (profiles / "q.toml").write_text("[serve]\nmodell = 5\n")
    assert cli.main(["profile", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 80 and any(line.startswith("q: q.toml, line 2: serve.modell") for line in lines)


def test_a_lock_that_cannot_be_had_is_answered_too(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record.folder().mkdir(parents=True)
    (record.folder() / "lock").mkdir()
    code, document, told = answered(capsys, "start", "a", "--force")
    assert code == 1 and document["profile"] == "a"
    assert document["error"] == f"{record.folder() / 'lock'}: Is a directory"
    assert told == f"kvtop: {record.folder() / 'lock'}: Is a directory\n"


@pytest.mark.parametrize(("job", "code", "says"), [("show", 2, "there is no"), ("import", 2, "No such file")])
def test_the_home_of_a_user_that_there_is_not(
    capsys: pytest.CaptureFixture[str], job: str, code: int, says: str
) -> None:
    assert cli.main(["profile", job, "~no-such-user/x.toml"]) == code
    assert says in capsys.readouterr().err
