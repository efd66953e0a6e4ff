"""`kvtop turns` of captured turns."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from captured_turns import FULL, body
from msgspec.structs import replace
from test_document import TURN

from kvtop import paths
from kvtop.capture import document
from kvtop.capture.store import schema
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Captured, Record, Source, TurnState
from kvtop.cli import captured
from kvtop.cli.main import main

Fill = Callable[..., list[int]]


@pytest.fixture
def fill(own_home: Path) -> Fill:
    """Puts turns into the store and gives their ids."""

    def put(*turns: Captured) -> list[int]:
        with Store.open(paths.turns_file(), write=True) as store:
            return [store.begin(turn, body(3)) for turn in turns]

    return put


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(["turns", *argv])
    except SystemExit as stop:
        code = int(str(stop.code))
    out = capsys.readouterr()
    assert "\x1b" not in out.out + out.err and "Traceback" not in out.err
    return code, out.out, out.err


def test_the_document_has_every_key_of_the_contract() -> None:
    made = document.turn(replace(FULL, id=7), True)
    assert made.keys() >= TURN
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert (made["id"], made["source"], made["record"], made["state"]) == (7, "import", "truncated", "cut")
    assert (made["started_at"], made["ended_at"]) == ("2026-11-30T00:53:20Z", "2026-11-30T00:53:32Z")
    assert (made["new_tokens"], made["cached_share"], made["cached_source"]) == (1000, 11 / 12, "usage")
    assert (made["ttft_s"], made["duration_s"], made["decode_s"]) == (2.0, 12.25, 10.0)
    assert (made["slow"], made["verdict"], made["route"], made["agent"]) == (True, None, "chat", "opencode")
    assert (made["parent"], made["relation"], made["hints"]) == (3, "next", {"user": "u1"})


def test_unknown_is_null() -> None:
    made = document.turn(Captured(id=1, started_at=5.0, usage={"x": float("nan")}), None)
    nulls = {key for key, value in made.items() if value is None}
    assert nulls >= {
        "ended_at", "model", "status", "finish_reason", "prompt_tokens", "cached_tokens", "cached_share", "new_tokens",
        "completion_tokens", "queue_s", "ttft_s", "duration_s", "inter_token_p50_s", "verdict", "cached_source", "slow",
        "request_bytes", "response_bytes",
    }  # fmt: skip
    assert (made["state"], made["agent"], made["usage"]) == ("in_flight", "unknown", {"x": None})
    assert document.turn(Captured(id=1, state=None), None)["state"] is None


def test_a_turn_that_found_its_cache_lost_is_slow(fill: Fill, capsys: pytest.CaptureFixture[str]) -> None:
    """At 2,000 tokens a second it read anew the 11,000 that the turn before it had left."""
    at = FULL.started_at
    base = replace(FULL, sent_at=at, parent=None, relation="first", first_token_at=at + 5.5, prefill_s=5.5)
    base = replace(base, prompt_tokens=11_000, cached_tokens=0)
    later = replace(base, prompt_tokens=11_500, first_token_at=at + 6, prefill_s=5.75, parent=1, relation="next")
    assert fill(base, later, replace(later, relation="side")) == [1, 2, 3]
    rows = json.loads(run(capsys, "--json")[1])
    assert [(row["id"], row["slow"]) for row in rows] == [(3, False), (2, True), (1, False)]
    assert [row["id"] for row in json.loads(run(capsys, "--json", "--slow")[1])] == [2]


def test_a_past_turn_stays_as_slow_as_it_was(fill: Fill, capsys: pytest.CaptureFixture[str]) -> None:
    """It was read at a tenth of the usual rate; those that come after it are no better, and change nothing of it."""
    at = FULL.started_at

    def one(i: int, prefill_s: float) -> Captured:
        ends = at + 100 * i + prefill_s
        times = {"started_at": at + 100 * i, "sent_at": at + 100 * i, "first_token_at": ends, "ended_at": ends}
        return replace(FULL, **times, prefill_s=prefill_s, queue_s=0.0, prompt_tokens=1_600, cached_tokens=0)

    fill(*(one(i, 0.8) for i in range(3)), one(3, 8.0))
    assert [row["slow"] for row in json.loads(run(capsys, "--json")[1])] == [True, False, False, False]
    fill(*(one(i, 8.0) for i in range(4, 120)))
    rows = {row["id"]: row["slow"] for row in json.loads(run(capsys, "--json")[1])}
    assert [rows[id] for id in (1, 2, 3, 4)] == [False, False, False, True]


def test_what_was_asked_for_is_all_that_is_read(
    fill: Fill, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = replace(FULL, first_token_at=FULL.started_at + 20)
    fill(*[FULL] * 6, slow, slow)
    read: list[int] = []
    turns = Store.turns

    def noted(store: Store, **what: int) -> list[Captured]:
        found = turns(store, **what)
        read.extend(row.id for row in found if what.get("last") == 2)
        return found

    monkeypatch.setattr(captured, "PAGE", 2)
    monkeypatch.setattr(Store, "turns", noted)
    for form in ((), ("--json",)):
        read.clear()
        run(capsys, "--slow", "--last", "2", *form)
        assert set(read) == {7, 8}, "no page more to look for a third one"


def test_json_is_newest_first_and_filtered(fill: Fill, capsys: pytest.CaptureFixture[str]) -> None:
    slow = replace(FULL, first_token_at=FULL.started_at + 20, conversation="c2")
    fill(*[replace(FULL, conversation=f"c{1 + i % 2}") for i in range(40)], slow, replace(slow, prompt_tokens=None))
    code, out, err = run(capsys, "--json")
    assert (code, err) == (0, "") and [row["id"] for row in json.loads(out)] == list(range(42, 0, -1))
    assert [row["id"] for row in json.loads(run(capsys, "--json", "--last", "2")[1])] == [42, 41]
    assert [row["id"] for row in json.loads(run(capsys, "--json", "--conversation", "c1")[1])] == list(range(39, 0, -2))
    assert [row["id"] for row in json.loads(run(capsys, "--json", "--slow")[1])] == [42, 41]
    assert [row["id"] for row in json.loads(run(capsys, "--json", "--slow", "--last", "1")[1])] == [42]
    assert run(capsys, "--json", "--conversation", "1") == run(capsys, "--json", "--conversation", "c1")
    assert run(capsys, "--json", "--conversation", "nobody") == (0, "[]\n", "")


def test_more_turns_than_a_page(
    fill: Fill, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured, "PAGE", 3)
    fill(*[FULL] * 8)
    assert [row["id"] for row in json.loads(run(capsys, "--json")[1])] == list(range(8, 0, -1))


def test_the_table(fill: Fill, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    now = time.time()
    flying = Captured(started_at=now - 7200, agent="evil\x1b[2J", conversation="c\x1b]0;x", model="m")
    fill(
        replace(
            FULL,
            state=TurnState.DONE,
            cached_source="metrics",
            started_at=1e9,
            sent_at=1e9,
            first_token_at=1e9 + 2,
            ended_at=1e9 + 12,
        ),
        replace(FULL, state=TurnState.FAILED, status=400, error="max_tokens\x1b[31m"),
        replace(FULL, state=None),
        flying,
    )
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.split() == list(captured.COLUMNS)
    assert [row.split()[0] for row in rows] == ["4", "3", "2", "1"]
    assert rows[0].split()[-15:] == [*"––––––", "2", "h", "00", "m", "–", "c\\x1b]0;x", "evil\\x1b[2J", "in", "flight"]
    assert rows[1].endswith("end not seen, record cut, import") and rows[2].endswith(
        "failed 400 max_tokens\\x1b[31m, record cut, import"
    )
    assert "2001-09-09" in rows[3] and "~92 %" in rows[3] and " 10.0 " in rows[3] and "1,000" in rows[3]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ((TurnState.DONE, "stop", None), "done"),
        ((TurnState.DONE, "abort", None), "aborted by the server"),
        ((TurnState.DONE, "error", None), "failed: the engine gave up"),
        ((TurnState.ABORTED, None, None), "aborted by its client"),
        ((TurnState.CUT, None, None), "cut"),
        ((TurnState.CUT, None, "cut when the tap stopped"), "cut when the tap stopped"),
    ],
)
def test_the_table_says_who_ended_a_turn(
    fill: Fill, capsys: pytest.CaptureFixture[str], how: tuple[TurnState, str | None, str | None], words: str
) -> None:
    state, finish, error = how
    fill(
        replace(
            FULL, state=state, finish_reason=finish, error=error, record=Record.COMPLETE, agent="pi", source=Source.TAP
        )
    )
    assert run(capsys)[1].splitlines()[1].endswith(f" pi     {words}")


def test_the_time_is_that_of_the_end_and_so_is_the_order(fill: Fill, capsys: pytest.CaptureFixture[str]) -> None:
    at = time.time() - 600
    base = replace(FULL, state=TurnState.DONE, started_at=at)
    fill(
        replace(base, ended_at=at + 90),
        replace(base, ended_at=at + 30),
        Captured(started_at=at + 40, state=TurnState.IN_FLIGHT),
    )
    rows = [" ".join(row.split()) for row in run(capsys)[1].splitlines()[1:]]
    for row, (id, moment) in zip(rows, ((3, at + 40), (1, at + 90), (2, at + 30)), strict=True):
        assert row.startswith(f"{id} {captured._when(moment, time.time())} ")


def test_twenty_rows_where_there_is_no_terminal(fill: Fill, capsys: pytest.CaptureFixture[str]) -> None:
    fill(*[FULL] * 25)
    _, out, err = run(capsys)
    assert (len(out.splitlines()), err) == (21, "kvtop: 20 of 25 turns, the newest; --last N lists more\n")
    _, out, err = run(capsys, "--last", "23")
    assert (len(out.splitlines()), err) == (24, "")
    assert run(capsys, "--conversation", "c1")[2] == "kvtop: 20 shown, the newest; --last N lists more\n"
    run(capsys, "--forget", *map(str, range(1, 6)))
    assert run(capsys)[2] == "", "these are all"


def test_nothing_captured_yet(capsys: pytest.CaptureFixture[str], own_home: Path) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "") and out.startswith("no turns were captured yet") and "kvtop tap" in out
    code, out, err = run(capsys, "--json")
    assert (code, out) == (0, "[]\n") and "kvtop tap" in err and len(err.splitlines()) == 1
    for argv in (["--forget", "1"], ["--check"]):
        code, out, err = run(capsys, *argv)
        assert (code, out) == (1, "") and err.startswith("kvtop: no turns were captured yet")
    assert not own_home.exists()


def test_forget(fill: Fill, capsys: pytest.CaptureFixture[str]) -> None:
    fill(*[FULL] * 5)
    assert run(capsys, "--forget", "2", "4") == (0, "forgot 2 turns\n", "")
    assert run(capsys, "--forget", "4", "5") == (1, "forgot 1 turn\n", "kvtop: there is no turn 4\n")
    code, out, _ = run(capsys, "--forget", "5", "--json")
    assert (code, json.loads(out)) == (
        1,
        {"forgotten": 0, "not_found": [5], "damaged_deleted": 0, "left_in": []},
    )
    code, out, err = run(capsys, "--forget", "all")
    assert (code, out) == (2, "") and "--yes" in err
    assert run(capsys, "--forget", "all", "--yes") == (0, "forgot 2 turns\n", "")
    for form in ((), ("--slow",), ("--conversation", "c1")):
        assert run(capsys, *form) == (0, "no turns are kept here; kvtop tap captures them\n", "")
    assert run(capsys, "--forget", "999") == (1, "", "kvtop: there is no turn 999\n")


SAID = b"the password of the moon"


def spoilt(what: str = "body_parent") -> Path:
    """A store whose table or index of that name is damaged; what was said is to be found in its file. Without that
    index it can be read, and not be deleted from."""
    path = paths.turns_file()
    with Store.open(path, write=True) as store:
        for n in range(3):
            store.begin(FULL, SAID + bytes([n]))
        store.db.execute("update body set whole = ?", (SAID,))  # as it is, not packed
        page = store.db.execute("select rootpage from sqlite_master where name = ?", (what,)).fetchone()[0]
    with path.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xa5" * 4096)
    return path


def holding(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if SAID in file.read_bytes()]


def test_what_cannot_be_forgotten_is_told_with_the_file_that_holds_it(
    capsys: pytest.CaptureFixture[str], own_home: Path
) -> None:
    path = spoilt()
    code, out, err = run(capsys, "--forget", "3")
    (name,) = holding(path.parent)
    assert (code, out) == (1, "") and name.startswith("turns.db.broken-")
    assert f"what was said is still in {path.parent / name}; kvtop turns --forget all deletes it" in err
    path.with_name("turns.db.broken-by-hand").write_text("not kvtop's")
    assert run(capsys, "--forget", "all", "--yes") == (
        0,
        "forgot 0 turns\ndeleted 1 damaged file beside the store\n",
        "",
    )
    assert holding(path.parent) == []
    assert path.with_name("turns.db.broken-by-hand").exists()


@pytest.mark.parametrize("what", ["turn", "body_parent", "turn_added", "shared", "sqlite_sequence", "meta"])
def test_forgetting_all_leaves_nothing_whatever_is_damaged(
    capsys: pytest.CaptureFixture[str], own_home: Path, what: str
) -> None:
    path = spoilt(what)
    assert run(capsys, "--forget", "all", "--yes")[0] == 0
    assert holding(path.parent) == []


@pytest.mark.parametrize("left", ["in the store", "beside none"])
def test_forgetting_all_deletes_what_is_damaged(capsys: pytest.CaptureFixture[str], own_home: Path, left: str) -> None:
    path = spoilt()
    if left == "beside none":
        schema.move_aside(path)
    code, out, _ = run(capsys, "--forget", "all", "--yes", "--json")
    assert (code, json.loads(out)) == (0, {"forgotten": 0, "not_found": [], "damaged_deleted": 1, "left_in": []})
    assert holding(path.parent) == []


def test_damaged_files_are_kept_no_longer_than_turns(own_home: Path) -> None:
    path = spoilt()
    schema.move_aside(path)
    (file,) = schema.moved_aside(path)
    os.utime(file, (1000.0, 1000.0))
    with Store.open(path, write=True) as store:
        store.sweep(1100.0, 100.0, 1 << 30)
        assert holding(path.parent) == [file.name]
        assert store.sweep(1101.0, 100.0, 1 << 30) == 0
        assert holding(path.parent) == []


def test_nothing_of_what_was_asked_for(fill: Fill, capsys: pytest.CaptureFixture[str]) -> None:
    fill(FULL)
    assert run(capsys, "--slow") == (0, "no slow turns\n", "")
    assert run(capsys, "--conversation", "c9\x1b[2J") == (0, "no turns in conversation 'c9\\x1b[2J'\n", "")
    assert run(capsys, "--conversation", "c9", "--slow") == (0, "no slow turns in conversation 'c9'\n", "")


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("YES\n", 0), ("n\n", 2), ("\n", 2), ("", 2)])
def test_forgetting_all_is_asked_for(
    fill: Fill, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    fill(FULL, FULL)
    typed = io.StringIO(answer)
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", typed)
    code, _, err = run(capsys, "--forget", "all")
    assert "delete all 2 turns in " in err and code == (1 if left else 0)
    with Store.open(paths.turns_file()) as store:
        assert store.count() == left


@pytest.mark.parametrize(
    "argv",
    [
        ["--forget"],
        ["--forget", "twelve\x1b[2J"],
        ["--forget", "all", "3"],
        ["--forget", "-1"],
        ["--forget", "9" * 30],
        ["--last", "0"],
        ["--last", "many"],
        ["--last", "-3"],
        ["--yes"],
        ["--check", "--slow"],
        ["--check", "--forget", "1"],
        ["--from-metrics", "x", "--last", "3"],
        ["--from-metrics", "x", "--check"],
        ["3"],
    ],
)
def test_wrong_use(fill: Fill, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    fill(FULL)
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "") and len(err.splitlines()) in (1, 2) and err.startswith("kvtop: ")
    with Store.open(paths.turns_file()) as store:
        assert store.count() == 1


def test_check(fill: Fill, capsys: pytest.CaptureFixture[str]) -> None:
    fill(FULL, FULL)
    code, out, err = run(capsys, "--check")
    assert (code, err) == (0, "") and "2 turns" in out and out.endswith("every body came back as it was sent\n")
    run(capsys, "--forget", "1")
    assert ": 1 turn, " in run(capsys, "--check")[1]
    fill(FULL)
    with Store.open(paths.turns_file(), write=True) as store:
        store.db.execute("update body set digest = x'00' where turn = 2 and role = 0")
    code, out, _ = run(capsys, "--check")
    assert code == 1 and "request of turn 2: a body is not as it was written" in out and "1 fault" in out
    code, out, _ = run(capsys, "--check", "--json")
    made = json.loads(out)
    assert (code, made["ok"], made["turns"], len(made["problems"])) == (1, False, 2, 1)


def test_a_broken_store_is_told_in_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    paths.turns_file().parent.mkdir(parents=True)
    paths.turns_file().write_text("no database\n" * 100)
    for argv in ([], ["--json"], ["--check"], ["--forget", "1"]):
        code, out, err = run(capsys, *argv)
        assert (code, out) == (1, "") and "damaged" in err and len(err.splitlines()) == 2
        assert ("turns --check" in err) == (argv != ["--check"]), "it does not send whoever did it to do it again"


def test_an_answer_that_came_at_once_has_no_speed() -> None:
    turn = Captured(started_at=1.0, first_token_at=2.0, ended_at=2.001, completion_tokens=21)
    assert document.tokens_per_s(turn) is None
    assert document.tokens_per_s(replace(turn, ended_at=4.0)) == 10.0
    assert document.tokens_per_s(replace(turn, ended_at=None)) is None


def test_no_line_is_longer_than_the_terminal_is_wide(
    fill: Fill, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(replace(FULL, state=TurnState.FAILED, status=400, error="x" * 60), replace(FULL, state=None))
    for columns in ("80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        code, out, _ = run(capsys)
        rows = out.splitlines()
        assert code == 0 and max(map(len, rows)) <= int(columns)
        assert {"turn", "prompt", "cached", "TTFT", "agent", "state"} <= set(rows[0].split())


def test_the_table_dates_whatever_is_not_of_today() -> None:
    def at(text: str) -> float:
        return datetime.strptime(text, "%Y-%m-%d %H:%M:%S").timestamp()

    now = at("2026-11-30 10:14:00")
    assert captured._when(at("2026-11-30 00:00:01"), now) == "00:00:01"
    assert captured._when(at("2026-11-29 12:00:00"), now) == "2026-11-29 12:00"
    assert captured._when(at("2026-11-29 23:59:59"), now) == "2026-11-29 23:59"
    assert captured._when(1e30, now) == "–"
