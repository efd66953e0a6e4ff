"""The rows of `kvtop profile list`: what fits a terminal and a pipe, and what is told of a start and of a server that
its keeper left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kvtop.cli.main import main
from kvtop.cli.table import cells
from kvtop.profiles.running import record
from kvtop.profiles.running.record import Record, Stage, State, Who
from kvtop.sources.processes import Processes, ProcessTable

GONE = Who(2**22 + 1, "0")
SINCE = "2026-01-05T10:00:00Z"
AT = 1767607200.0


@pytest.fixture
def folder(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    where = own_home / "config" / "profiles"
    where.mkdir(parents=True)
    monkeypatch.setattr(ProcessTable, "read", lambda _: Processes((), None, ()))  # not those of other tests
    return where


def profile(folder: Path, name: str, model: str = "org/M", about: str = "") -> None:
    (folder / f"{name}.toml").write_text(
        f'about = "{about}"\ngpus = ["0", "1"]\n[serve]\nmodel = "{model}"\nargs = ["--kv-offloading-size", "4"]\n',
        encoding="utf-8",
    )


def failed(name: str, why: str, **more: object) -> None:
    record.write(msgspec.structs.replace(Record(name=name, state="failed", why=why, ended_at=AT), **more))


def listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, w: int | None) -> list[str]:
    if w is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(w))
    assert main(["profile", "list"]) == 0
    return capsys.readouterr().out.splitlines()


def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What stands behind the state of the only row."""
    heads, line = listed(capsys, monkeypatch, None)
    return line[heads.index("since, or") :]


def row(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["profile", "list", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


# ---------------------------------------------------------------- what fits
WIDE = "日本語の長い説明です"
LONG = "long-name-" * 6


@pytest.fixture
def wide(folder: Path) -> Path:
    profile(folder, "coder", "org/大規模言語モデル二十七億", WIDE * 6)
    profile(folder, "日本語")
    profile(folder, LONG)
    failed("coder", f"{WIDE} {WIDE} {WIDE} {WIDE}")
    return folder


@pytest.mark.parametrize("w", [30, 40, 60, 80, 120, 200])
def test_no_line_is_longer_than_the_terminal(
    wide: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, w: int
) -> None:
    lines = listed(capsys, monkeypatch, w)
    assert max(map(cells, lines)) <= w
    state = lines[0].index("state")  # behind names of one cell a character
    for line, word in zip(lines[1:4], ("failed", "stopped", "unreadable"), strict=True):
        assert cells(line.partition(f" {word}")[0]) + 1 == state
    assert f"coder:{WIDE * 4}" in "".join("".join(lines).split()) or w >= 200, "whole under the table"


def test_the_rows_of_narrow_terminals(
    wide: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listed(capsys, monkeypatch, 40) == [
        "name               state       since",
        "coder              failed      see below",
        "long-name-long-n…  stopped",
        "日本語             unreadable  see below",
        "coder: 日本語の長い説明です",
        "  日本語の長い説明です",
        "  日本語の長い説明です",
        "  日本語の長い説明です",
        "日本語: 日本語.toml: '日本語' is no name",
        "  of a profile: expected letters,",
        "  digits, - _ and ., at most 100",
    ]
    assert listed(capsys, monkeypatch, 80)[:5] == [
        "name                  runner  model            port  GPU  state       since",
        "coder                 venv    大規模言語モデ…  8000  0,1  failed      see below",
        "long-name-long-name…  venv    M                8000  0,1  stopped",
        "日本語                –       –                –     –    unreadable  see below",
        "coder: 日本語の長い説明です 日本語の長い説明です 日本語の長い説明です",
    ]


def test_a_name_is_cut_only_where_the_row_would_not_fit(
    wide: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for w, name in ((200, LONG), (129, LONG), (128, f"{LONG[:58]}…")):
        assert listed(capsys, monkeypatch, w)[2].startswith(f"{name}  venv"), w


def test_a_pipe_has_names_whole_and_what_stands_in_the_way_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "日本語-" * 12
    profile(folder, name)
    profile(folder, "noise")
    why = "cannot start: " + "\x00\x7f" * 300
    failed("noise", why)
    monkeypatch.delenv("COLUMNS", raising=False)
    heads, noise, whole = listed(capsys, monkeypatch, None)
    assert whole.startswith(f"{name}  ")
    said = noise[heads.index("since") - (cells(heads) - len(heads)) :]
    assert said.startswith("cannot start: \\x00\\x7f") and said.endswith("…") and cells(said) == 160
    assert main(["profile", "list", "--json"]) == 0
    rows = {one["name"]: one["error"] for one in json.loads(capsys.readouterr().out)}
    assert len(rows["noise"]) == 1000 and rows[name] is not None


def test_what_knows_of_wide_characters_is_not_loaded_where_all_has_room(own_home: Path) -> None:
    where = own_home / "config" / "profiles"
    where.mkdir(parents=True)
    profile(where, "coder")
    code = "import sys; from kvtop.cli.main import main; main(['profile', 'list']); print('rich' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "100"}
    )
    assert done.stdout.splitlines()[1].startswith("coder ") and done.stdout.splitlines()[-1] == "False"


# ---------------------------------------------------------------- what is told
def here() -> Who:
    who = Who.of(os.getpid())
    assert who is not None
    return who


def kept(folder: Path, state: State = "starting", **more: object) -> None:
    """A server, or its start, beside its keeper."""
    profile(folder, "coder", about="all day")
    made = Record(name="coder", state=state, started_at=AT, keeper=here())
    record.write(msgspec.structs.replace(made, **more))


@pytest.mark.parametrize("doing", ["pre-start command 1 of 2", "sidecar lmc"])
def test_a_start_without_a_process_says_what_it_is_at(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    kept(folder, stages=[Stage("before", AT)], doing=doing)
    assert told(capsys, monkeypatch) == f"since {SINCE}: {doing}"


def test_a_start_with_a_process_says_its_stage(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(folder, server=here())
    assert told(capsys, monkeypatch) == f"pid {os.getpid()}, since {SINCE}", "no stage has begun"
    stages = [Stage("process", AT, AT + 9), Stage("weights", AT + 9)]
    kept(folder, server=here(), stages=stages, shards=14, shards_done=9, doing="sidecar lmc")
    assert told(capsys, monkeypatch) == f"pid {os.getpid()}, since {SINCE}: weights, 9 of 14 shards"


def test_what_runs_is_at_no_stage_and_a_container_has_no_number(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(folder, "running", server=here(), ready_at=AT, stages=[Stage("port", AT)])
    assert told(capsys, monkeypatch) == f"pid {os.getpid()}, since {SINCE}"
    kept(folder, "running", runner="docker", container="a" * 12, ready_at=AT)
    assert told(capsys, monkeypatch) == f"since {SINCE}"


def test_a_server_whose_keeper_is_gone_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(folder, "running", server=here(), ready_at=AT)
    assert row(capsys)["keeper_gone"] is False and "keeper" not in told(capsys, monkeypatch)
    kept(folder, "running", server=here(), ready_at=AT, keeper=GONE)
    assert row(capsys)["keeper_gone"] is True
    assert told(capsys, monkeypatch) == f"pid {os.getpid()}, since {SINCE}; its keeper is gone"


@pytest.mark.parametrize(
    ("lives", "said"),
    [
        ("", [""]),
        ("l", [""]),
        ("e", ["", "its sidecar has ended"]),
        ("le", ["", "1 of 2 sidecars has ended"]),
        ("ele", ["", "2 of 3 sidecars have ended"]),
    ],
)
def test_sidecars_that_have_ended_are_counted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lives: str, said: list[str]
) -> None:
    sidecars = [here() if one == "l" else GONE for one in lives]
    kept(folder, "running", server=here(), ready_at=AT, sidecars=sidecars)
    assert row(capsys)["sidecars_ended"] == lives.count("e")
    assert told(capsys, monkeypatch) == f"pid {os.getpid()}, since {SINCE}{'; '.join(said)}"


@pytest.mark.parametrize(
    ("state", "ended"), [("starting", 1), ("running", 1), ("stopping", None), ("stopped", None), ("failed", None)]
)
def test_sidecars_are_counted_while_a_server_runs_or_starts(
    folder: Path, capsys: pytest.CaptureFixture[str], state: State, ended: int | None
) -> None:
    kept(folder, state, server=here(), sidecars=[GONE])
    assert (row(capsys)["state"], row(capsys)["sidecars_ended"]) == (state, ended)


def test_an_after_stop_that_is_owed_is_offered(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile(folder, "coder", about="all day")
    failed("coder", "killed; its keeper was gone", after_owed=True)
    found = row(capsys)
    assert (found["state"], found["keeper_gone"], found["after_stop_owed"]) == ("failed", None, True)
    owed = "after_stop is owed: kvtop profile stop coder offers it"
    assert told(capsys, monkeypatch) == f"killed; its keeper was gone; {owed}"
    failed("coder", "", state="stopped", after_owed=True)
    assert told(capsys, monkeypatch) == owed
    failed("coder", "", state="stopped")
    assert row(capsys)["after_stop_owed"] is False and told(capsys, monkeypatch) == "all day"
