"""Exports: private, whole or not at all, never over another file, and without secrets."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from kvtop import readings
from kvtop.errors import Problem, printable
from kvtop.model import box, shown_turn
from kvtop.model import view as view_module
from kvtop.model.box import Cached, EngineWindow, Window
from kvtop.model.shown_turn import Turn
from kvtop.model.view import BoxView, Sentence, ServerView
from kvtop.readings import HostReading, State, VllmProcess
from kvtop.ui import export

AT = 1_795_953_600.0
VIEW = BoxView(
    at=AT,
    sentence=Sentence("OK", "ok", "95 % cached"),
    servers=(
        ServerView(
            url="http://me:hunter2@127.0.0.1:8000",
            label="127.0.0.1:8000",
            state=State.UP,
            window=Window(State.UP, all=EngineWindow(cached=Cached(prompt_tokens=10, share=float("nan")))),
            turns=(Turn(id=1, ended_at=AT, ttft_s=float("inf"), cached_tokens=3.0),),
        ),
    ),
    host=HostReading(
        processes=(
            VllmProcess(
                7,
                "api",
                (
                    "vllm",
                    "serve",
                    "m",
                    "--api-key",
                    "k-1",
                    "k-2",
                    "--port",
                    "8000",
                    "--hf-token=t-1",
                    "--max-num-batched-tokens",
                    "8192",
                    "--tokenizer-mode",
                    "auto",
                ),
            ),
        )
    ),
)


def test_the_document_has_the_contracts_keys_and_no_nan() -> None:
    document = json.loads(json.dumps(export.document(VIEW), allow_nan=False))
    server = document["servers"][0]
    assert document["at"] == "2026-11-29T12:00:00Z"
    assert server["state"] == "up"
    assert server["window"]["all"]["cached"] == {
        "prompt_tokens": 10, "cached_tokens": None, "share": None, "lifetime_share": None,
        "by_source": {"device": None, "host": None, "disk": None, "p2p": None, "external": None, "computed": None},
    }  # fmt: skip
    assert server["turns"][0]["ttft_s"] is None
    assert server["turns"][0]["cached_tokens"] == 3.0
    assert server["turns"][0]["ended_at"] == "2026-11-29T12:00:00Z"


def test_every_field_that_is_a_unix_time_is_written_as_one() -> None:
    """By the fields' own descriptions."""
    said = set()
    for module in (readings, box, view_module, shown_turn):
        for kind in (node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ClassDef)):
            for field, doc in itertools.pairwise(kind.body):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(doc, ast.Expr)
                    and "Unix time" in ast.unparse(doc)
                ):
                    said.add(field.target.id)
    assert {"at", "ended_at", "watched_since", "last_busy_at"} <= said <= export.TIMES
    server = replace(VIEW.servers[0], watched_since=AT, last_busy_at=AT)
    made = export.document(replace(VIEW, servers=(server,)))["servers"][0]
    assert made["watched_since"] == made["last_busy_at"] == "2026-11-29T12:00:00Z"


def test_no_secret_leaves() -> None:
    text = json.dumps(export.document(VIEW))
    for secret in ("hunter2", "k-1", "k-2", "t-1"):
        assert secret not in text
    assert export.document(VIEW)["host"]["processes"][0]["command"] == [
        "vllm", "serve", "m", "--api-key", "***", "***", "--port", "8000", "--hf-token=***",
        "--max-num-batched-tokens", "8192", "--tokenizer-mode", "auto",
    ]  # fmt: skip


def test_both_files_are_private_and_new(tmp_path: Path) -> None:
    first = export.write(tmp_path, "<svg/>", VIEW, AT)
    second = export.write(tmp_path, "<svg>2</svg>", VIEW, AT)
    assert [p.suffix for p in first] == [".svg", ".json"]
    assert len({*first, *second}) == 4
    assert {p.stem for p in second} == {f"{first[0].stem}-2"}
    assert first[0].read_text() == "<svg/>"
    for path in (*first, *second):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_name_taken_by_one_of_the_two_is_not_used(tmp_path: Path) -> None:
    (first, other) = export.write(tmp_path, "<svg/>", VIEW, AT)
    first.unlink()
    other.write_text("mine")
    paths = export.write(tmp_path, "<svg/>", VIEW, AT)
    assert other.read_text() == "mine"
    assert not first.exists()
    assert {p.stem for p in paths} == {f"{first.stem}-2"}


def test_names_are_local_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export.time, "localtime", export.time.gmtime)
    assert export.write(tmp_path, "<svg/>", None, AT)[0].name == "kvtop-20261129-120000.svg"


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(export.ExportError) as error:
        export.write(tmp_path / "nowhere", "<svg/>", VIEW, AT)
    assert "\n" not in str(error.value)
    assert "nowhere: No such file or directory; nothing was exported" in str(error.value)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdopen
    opened: list[int] = []

    def fdopen(fd: int, *args: object, **kwargs: object) -> object:
        opened.append(fd)
        if len(opened) == 2:
            os.close(fd)
            raise OSError(28, "No space left on device")
        return real(fd, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(export.os, "fdopen", fdopen)
    with pytest.raises(export.ExportError, match="No space left on device; nothing was exported"):
        export.write(tmp_path, "<svg/>", VIEW, AT)
    assert list(tmp_path.iterdir()) == []


def test_where_exports_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert export.folder_of("") == tmp_path
    monkeypatch.setenv("HOME", "/home/me")
    assert export.folder_of("~/shots") == Path("/home/me/shots")
    there = (Path("/home/me/a.svg"), Path("/home/me/a.json"))
    assert export.said(there) == "saved a.svg and .json\nin ~"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert export.said(there) == "saved a.svg and .json\nin /home/me"
    assert export.said((tmp_path / "a.svg", tmp_path / "a.json")) == "saved a.svg and .json"


def test_a_current_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(export.ExportError, match="the current folder is gone; nothing was exported"):
        export.folder_of("")
    assert export.said((Path("/a/b.svg"),)) == "saved b.svg\nin /a"


def test_a_home_that_nobody_has() -> None:
    with pytest.raises(export.ExportError, match="no home folder for '~nobody-of-that-name/x'; nothing"):
        export.folder_of("~nobody-of-that-name/x")


def test_problems_stand_in_the_document() -> None:
    problem = Problem("config", "windw is no setting", "mend it", Path("/c.toml"), 2)
    assert export.document(VIEW, [problem])["problems"] == [
        {"about": "config", "what": "windw is no setting", "fix": "mend it", "file": "/c.toml", "line": 2}
    ]
    assert export.document(VIEW)["problems"] == []


def test_the_picture_asks_no_one_for_fonts() -> None:
    svg = "<style>@font-face { font-family: 'Fira Code'; src: url('https://example.org/x.woff2'); } .a {}</style>"
    assert "http" not in export.tidy(svg)
    assert ".a {}" in export.tidy(svg)


def test_a_folder_that_nothing_can_be_written_to_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.touch()
    assert export.problems("", file) == export.problems(str(tmp_path), file) == ()
    for folder, why in (
        (tmp_path / "nowhere", "No such file or directory"),
        (file, "Not a directory"),
        ("~nobody-of-that-name/x", "no name of a folder"),
        ("a\0b", "no name of a folder"),
    ):
        (problem,) = export.problems(str(folder), file)
        assert problem.what == f"export_dir {printable(str(folder))}: {why}; nothing can be exported"
        assert (problem.about, problem.file) == ("config", file) and problem.fix
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    (problem,) = export.problems(str(tmp_path), file)
    assert problem.what == f"export_dir {tmp_path}: you may not write to it; nothing can be exported"


def test_a_row_of_the_counters_alone_has_no_number_of_the_stores() -> None:
    turns = (Turn(15, AT, source="tap"), Turn(15, AT, beside=True), Turn(15, AT))
    view = replace(VIEW, servers=(replace(VIEW.servers[0], turns=turns),))
    assert [row["id"] for row in export.document(view)["servers"][0]["turns"]] == [15, "m15", 15]
