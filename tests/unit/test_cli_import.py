"""`kvtop import`: what is kept, what is told, and that nothing comes twice."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from kvtop import paths
from kvtop.capture.importers import jsonl
from kvtop.capture.importers.read import FORMATS
from kvtop.capture.turn import TurnState
from kvtop.cli import importing
from kvtop.cli.main import main


def body(*words: str) -> dict[str, Any]:
    roles = ("user", "assistant", "tool")
    return {"model": "m", "messages": [{"role": roles[at % 3], "content": word} for at, word in enumerate(words)]}


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path / "home"))
    path = tmp_path / "talk.jsonl"
    rows = [body("look"), body("look", "call", "out"), body("other"), body("other")]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\nnonsense\n")
    return path


def stored() -> list[Any]:
    from kvtop.capture.store import store

    with store.Store.open(paths.turns_file()) as kept:
        return [kept.turn(turn.id) for turn in reversed(kept.turns(last=100))]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["import", *argv])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_turns_are_kept_linked_and_not_taken_twice(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, str(lines))
    seen = "kvtop turns lists them, marked import; no dashboard does: the records name no server\n"
    assert (code, out) == (0, f"{lines} (jsonl, guessed): 4 turns kept, 1 bad\n{seen}")
    assert err == "  line 5: no JSON: Expecting value: line 1 column 1 (char 0)\n"
    turns = stored()
    assert [(turn.conversation, turn.relation) for turn in turns] == [
        ("c1", "first"),
        ("c1", "next"),
        ("c3", "first"),
        ("c3", "retry"),
    ]
    assert {turn.prompt_unproven for turn in turns} == {"no tools, no system prompt"}
    assert {str(turn.source) for turn in turns} == {"import"}
    code, out, _ = run(capsys, str(lines), "--json")
    found = json.loads(out)
    assert (code, found["kept"], found["already"], found["bad"]) == (0, 0, 4, 1)
    assert found["files"][0]["bad_records"][0]["where"] == "line 5"
    assert len(stored()) == 4


def test_answers_that_no_index_names_are_counted_as_what_they_are(
    lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = lines.parent / "bodies"
    folder.mkdir()
    (folder / "a.request.json").write_text(json.dumps(body("look")))
    (folder / "r1.response.json").write_text("{}")
    told = run(capsys, str(folder))[1]
    assert "1 turn kept, 1 answer without an index.jsonl that names its request\n" in told
    for n in (2, 3):
        (folder / f"r{n}.response.json").write_text("{}")
    told = run(capsys, str(folder))[1]
    assert told.endswith("1 were there already, 3 answers without an index.jsonl that names their request\n")
    found = json.loads(run(capsys, str(folder), "--json")[1])
    assert (found["left_out"], found["answers_left_out"]) == (3, 3)


def test_it_says_where_what_was_kept_is_to_be_seen(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def entry(url: str, word: str) -> dict[str, Any]:
        asked = {"method": "POST", "url": url, "headers": [], "postData": {"text": json.dumps(body(word))}}
        return {"startedDateTime": "2026-11-29T12:00:00Z", "time": 1, "request": asked, "response": {"status": 200}}

    url = "http://127.0.0.1:8000/v1/chat/completions"
    file = lines.parent / "a.har"
    file.write_text(json.dumps({"log": {"entries": [entry(url, "one")]}}))
    shown = "kvtop turns lists them, marked import, and so does the dashboard of the server that they name"
    assert run(capsys, str(file))[1].endswith(f"\n{shown}\n")
    file.write_text(json.dumps({"log": {"entries": [entry(url, "two")]}}))
    assert run(capsys, str(file), str(lines))[1].endswith(f"\n{shown}; 4 name none\n")
    assert stored()[0].upstream == "http://127.0.0.1:8000"
    assert main(["turns"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == 6 and all(row.endswith(", import") for row in rows)


def test_bodies_are_kept_byte_for_byte(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kvtop.capture.store import store

    raw = b'{"model":"m",  "messages":[{"content":"\xc3\xa9","role":"user"}]}'
    lines.write_bytes(raw)
    assert run(capsys, str(lines))[0] == 0
    with store.Store.open(paths.turns_file()) as kept:
        assert kept.request_body(1) == raw and kept.response_body(1) in (None, b"")


def test_nothing_kept_is_one_and_unreadable_is_two(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines.write_text("nonsense\n{}\n")
    code, out, err = run(capsys, str(lines), "--format", "jsonl")
    assert code == 1 and "0 turns kept, 2 bad" in out and "line 2: no messages" in err
    code, _, err = run(capsys, str(lines.parent / "none"))
    assert code == 2 and "No such file" in err and "Traceback" not in err
    code, _, err = run(capsys, str(lines), "--format", "nothing")
    assert code == 2


def test_many_turns_are_held_in_parts_and_each_is_kept(
    lines: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "MOST_HELD", 3)
    assert run(capsys, str(lines))[1].startswith(f"{lines} (jsonl, guessed): 4 turns kept, 1 bad\n")
    assert [turn.relation for turn in stored()] == ["first", "next", "first", "retry"]


def test_what_holds_no_record_says_so(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines.write_text('{"log": {"entries": []}}')
    assert run(capsys, str(lines)) == (1, f"{lines} (har, guessed): 0 turns kept\n", "  it holds no record\n")
    lines.write_text("")
    assert run(capsys, str(lines)) == (2, "", f"kvtop: '{lines}' is empty\n")


def test_bad_records_are_counted_and_not_collected(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines.write_bytes(gzip.compress(b'{"a":1}\n' * 200_000))
    tracemalloc.start()
    try:
        code, out, _ = run(capsys, str(lines), "--format", "jsonl")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (code, out) == (1, f"{lines} (jsonl): 0 turns kept, 200000 bad\n")
    assert peak < 24 << 20, "a million bytes of short lines and no more"


def test_a_pipe_without_a_writer_is_waited_for_with_a_word(lines: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pipe = lines.parent / "pipe"
    os.mkfifo(pipe)
    said = []

    def write() -> None:
        while not (told := capfd.readouterr().err):
            time.sleep(0.01)
        said.append(told)
        pipe.write_bytes(lines.read_bytes())

    writer = threading.Thread(target=write)
    writer.start()
    code = main(["import", str(pipe)])
    writer.join()
    assert said == [f"kvtop: waits for a writer of the pipe '{pipe}'; ctrl-c ends it\n"]
    assert code == 0 and capfd.readouterr().out.startswith(f"{pipe} (jsonl, guessed): 4 turns kept, 1 bad\n")


def test_ctrl_c_is_one_line(lines: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importing, "_keep", interrupted)
    code, out, err = run(capsys, str(lines))
    assert (code, out, err.count("\n")) == (130, "", 1)
    assert err.startswith("kvtop: import was ended")


def test_a_store_that_was_moved_aside_is_told(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = paths.turns_file()
    file.parent.mkdir(parents=True)
    file.write_text("no database\n" * 100)
    code, out, err = run(capsys, str(lines))
    assert code == 0 and "4 turns kept" in out
    assert err.startswith(f"kvtop: {file} was damaged: it is now turns.db.broken-")
    assert "was damaged" not in run(capsys, str(lines))[2], "once"


def test_many_bad_records_are_counted(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines.write_text(json.dumps(body("x")) + "\n" + "\x1b[31mbad\n" * 9)
    code, out, err = run(capsys, str(lines))
    assert code == 0 and "1 turn kept, 9 bad" in out
    assert err.endswith("and 4 more\n") and "\x1b" not in out + err


def test_the_formats_are_documented_and_the_examples_are_lines_that_import(
    lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "import.md").read_text()
    assert [name for name in FORMATS if f"\n| `{name}` |" not in text] == []
    assert [name for name in jsonl.TIMES if f"`{name}`" not in text] == []
    lines.write_text(text.partition("```json\n")[2].partition("```")[0])
    assert main(["import", str(lines), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["kept"], made["bad"], made["files"][0]["format"]) == (3, 0, "jsonl")
    assert {(turn.path, turn.state) for turn in stored()} == {
        ("/v1/chat/completions", None),
        ("/v1/chat/completions", TurnState.DONE),
    }
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    assert "docs/import.md" in capsys.readouterr().out
