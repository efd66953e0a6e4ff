"""SQLite keeps a value of any type in any column: one that kvtop never wrote is damage, told as such."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from captured_turns import FULL
from msgspec.structs import replace

from kvtop import paths
from kvtop.capture.store.store import Store, StoreError
from kvtop.cli.main import main

COLUMNS = [
    (table, column)
    for table, columns in {
        "turn": "added_at tap source state record started_at conversation agent route model brief detail",
        "part": "hash data",
        "body": "size digest skeleton runs head tail refs depth whole",
    }.items()
    for column in columns.split()
]
VALUES = [7, 1.5, "words", b"\x00\xff", -(2**62)]


def text(n: int) -> bytes:
    said = [{"role": "user", "content": f"{i} {'word ' * 400}"} for i in range(n)]
    return json.dumps({"model": "m", "messages": said}).encode()


@pytest.fixture
def store(own_home: Path) -> Path:
    with Store.open(paths.turns_file(), write=True) as store:
        for n in (1, 2):
            turn = replace(FULL, upstream="", parent=1 if n == 2 else None, conversation="c", error=None)
            id = store.begin(turn, text(n + 2))
            store.finish(replace(turn, id=id), b"{}")
    return paths.turns_file()


def put(store: Path, table: str, column: str, value: object) -> bool:
    """Whether SQLite keeps it as it is: a number in a text column becomes a text."""
    db = sqlite3.connect(store)
    try:
        db.execute(f"update or ignore {table} set {column} = ?", (value,))
        db.commit()
        declared = {row[1]: row[2].lower() for row in db.execute(f"pragma table_info({table})")}[column]
        query = f"select count(*) from {table} where {column} is not null and typeof({column}) <> ?"
        return bool(db.execute(query, (declared,)).fetchone()[0])
    finally:
        db.close()


@pytest.mark.parametrize(("table", "column"), COLUMNS)
@pytest.mark.parametrize("value", VALUES)
def test_any_value_in_any_column_is_told_and_never_a_traceback(
    store: Path, capsys: pytest.CaptureFixture[str], table: str, column: str, value: object
) -> None:
    wrong = put(store, table, column, value)
    for argv in (["why", "2"], ["diff", "1", "2"], ["replay", "1", "2", "--yes"], ["turns"], ["turns", "--json"]):
        code = main(argv)
        err = capsys.readouterr().err
        assert code in (0, 1, 2) and "Traceback" not in err and len(err) < 1_000, argv
    code, out = main(["turns", "--check"]), capsys.readouterr().out
    assert not wrong or code == 1
    if wrong:
        kept = "integer" if column in ("size", "skeleton", "head", "tail", "depth") else "blob"
        kept = {"added_at": "real", "started_at": "real"}.get(column, kept)
        kept = "text" if table == "turn" and column not in ("added_at", "started_at", "brief", "detail") else kept
        assert f"structure: {table}.{column}: " in out and f"of another type than {kept}" in out
    with Store.open(store, write=True) as opened:  # a recorder goes on
        opened.begin(replace(FULL, upstream=""), text(4))


def test_the_commands_say_damaged(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, "body", "refs", 7)
    put(store, "body", "whole", 7)
    assert main(["why", "2"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"kvtop: {store} is damaged: ") and "kvtop turns --check tells how much" in said
    with Store.open(store) as opened, pytest.raises(StoreError, match="is damaged"):
        opened.request_body(1)


def test_a_whole_store_is_whole(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["turns", "--check"]) == 0
    assert capsys.readouterr().out.strip().endswith("every body came back as it was sent")
