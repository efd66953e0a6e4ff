"""`kvtop diff`, `kvtop why` and `kvtop replay` without a server: texts, errors, and what reaches a terminal."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from captured_turns import FULL
from msgspec.structs import replace

from kvtop import paths
from kvtop.capture.api.routes import read_request
from kvtop.capture.store import given
from kvtop.capture.store.store import Store
from kvtop.capture.turn import Record, Source, TurnState
from kvtop.cli import triaging
from kvtop.cli.main import main

HOSTILE = "\x1b[31mred\x1b[0m \x9b31m \u202egnirts\u202c [bold]markup[/bold] \x07 \u200b" + "x" * 1_000_000
SYSTEM = "You help with code. The time is 2026-11-30 10:01:02.\n"


def chat(*said: str, system: str = SYSTEM, **more: Any) -> bytes:
    messages = [{"role": "system", "content": system * 3}]
    messages += [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(said)]
    return json.dumps({"model": "qwen3", "messages": messages, **more}).encode()


@pytest.fixture
def keep(own_home: Path) -> Callable[..., list[int]]:
    """Puts turns of one conversation into the store, each with its body; their upstream is told by nobody."""

    def put(*bodies: bytes, **known: Any) -> list[int]:
        ids = []
        with Store.open(paths.turns_file(), write=True) as store:
            for n, body in enumerate(bodies):
                outline = read_request("POST", "/v1/chat/completions", [], body).outline
                turn = replace(
                    FULL, source=Source.TAP, state=TurnState.DONE, record=Record.COMPLETE, upstream="", error=None,
                    started_at=FULL.started_at + 60 * n, sent_at=FULL.started_at + 60 * n,
                    first_token_at=FULL.started_at + 60 * n + 1, ended_at=FULL.started_at + 60 * n + 5,
                    outline=outline, parent=ids[-1] if ids else None, relation="next" if ids else "first",
                    conversation="c1", samples=[], prompt_unproven="",
                )  # fmt: skip
                ids.append(store.begin(replace(turn, **known), body))
        return ids

    return put


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(argv)
    except SystemExit as stop:
        code = int(str(stop.code))
    out = capsys.readouterr()
    assert not set("\x1b\x9b\x07\u202e\u200b") & set(out.out + out.err)
    assert "Traceback" not in out.err
    return code, out.out, out.err


def test_two_files_are_compared_as_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_bytes(chat("hello"))
    new.write_bytes(chat("hello", "hi", "go on", system=SYSTEM.replace("10:01:02", "10:02:09")))
    code, out, _ = run(capsys, "diff", str(old), str(new), "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["old"], found["new"], found["method"], found["exact"]) == (str(old), str(new), "text", False)
    assert set(found["tokens"].values()) == {None} and found["append_only"] is False
    assert found["first_difference"]["pointer"] == "/messages/0/content"
    assert (found["first_difference"]["token"], found["first_difference"]["byte"]) == (None, None)
    assert "10:01:02" in found["first_difference"]["old"] and "10:02:09" in found["first_difference"]["new"]
    (cause,) = found["causes"]
    assert (cause["kind"], cause["values"], cause["who"]) == ("volatile_text", ["date_time"], "client")
    assert (cause["lost_tokens"], cause["lost_s"]) == (None, None)
    code, out, _ = run(capsys, "diff", str(old), str(new))
    assert code == 0 and "volatile_text  messages[0].content, client" in out and "compared as text" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[1, 2]", "not an object"),
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (None, "No such file"),
    ],
)
def test_a_file_that_holds_no_request(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: bytes | None, said: str
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(chat("hello"))
    if text is not None:
        bad.write_bytes(text)
    code, out, err = run(capsys, "diff", str(good), str(bad))
    assert code == 2 and not out and said in err and "bad.json" in err and len(err.splitlines()) <= 2


def test_hostile_text_reaches_no_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, keep: Callable[..., list[int]]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_bytes(chat(HOSTILE + "a", "ok", "go"))
    new.write_bytes(chat(HOSTILE + "b", "ok", "go", "yes", HOSTILE))
    for argv in (("diff", str(old), str(new)), ("diff", str(old), str(new), "--json")):
        code, out, _ = run(capsys, *argv)
        assert code == 0 and out
    first, second = keep(old.read_bytes(), new.read_bytes(), agent="\x1b[31mevil", model="\u202em")
    for argv in (("why", str(second)), ("why", str(second), "--json"), ("diff", str(first), str(second))):
        code, out, _ = run(capsys, *argv)
        assert (code == 0 and "[bold]" in out) or argv[0] == "why"


def test_the_last_turn_is_compared_with_the_one_that_it_continues(
    capsys: pytest.CaptureFixture[str], keep: Callable[..., list[int]]
) -> None:
    first, second, third = keep(
        chat("hello"), chat("hello", "hi", "go on"), chat("hello", "hi", "go on", "yes", "more", cache_salt="s")
    )
    code, out, _ = run(capsys, "diff", "--json")
    found = json.loads(out)
    assert code == 0 and (found["old"], found["new"]) == (str(second), str(third))
    assert [cause["kind"] for cause in found["causes"]] == ["cache_salt_changed"]
    first_difference = found["first_difference"]
    assert first_difference["pointer"] == "/cache_salt"
    assert first_difference["old"] == "none" and first_difference["new"] == "(salt e64984c3aacf6ede)"
    code, out, _ = run(capsys, "diff", str(first), str(second), "--json")
    assert code == 0 and json.loads(out)["append_only"] is True and json.loads(out)["causes"] == []


def test_why_says_what_it_cannot_tell(capsys: pytest.CaptureFixture[str], keep: Callable[..., list[int]]) -> None:
    _, second = keep(chat("hello"), chat("hello", "hi", "go on"), cached_tokens=None, cached_source=None)
    code, out, _ = run(capsys, "why", str(second), "--json")
    found = json.loads(out)
    assert code == 0 and found["turn"] == str(second)
    assert (found["cached_tokens"], found["expected_cached_tokens"]) == (None, None)
    assert found["verdict"] != "engine_lost_cache" and found["diff"]["method"] == "text"
    assert found.keys() >= {
        "verdict",
        "reason",
        "candidates",
        "sentence",
        "evidence",
        "phases",
        "fix",
        "expected_because",
    }


def test_the_latest_slow_turn_is_meant_where_none_is_named(
    capsys: pytest.CaptureFixture[str], keep: Callable[..., list[int]]
) -> None:
    keep(chat("hello"), cached_tokens=11_900)
    code, _, err = run(capsys, "why")
    assert code == 1 and "no turn that is kept was slow, failed, or read again" in err
    _, again = keep(chat("one"), chat("one", "yes", "two"), prompt_tokens=12_000, cached_tokens=600)
    code, out, err = run(capsys, "why", "--json")
    assert code == 0 and json.loads(out)["turn"] == str(again)
    assert f"no turn that is kept was slow; turn {again} is the latest that read again" in err
    (failed,) = keep(chat("bad"), state=TurnState.FAILED, status=400, first_token_at=None)
    code, out, err = run(capsys, "why", "--json")
    assert json.loads(out)["turn"] == str(failed) and "is the latest that failed" in err
    (slow,) = keep(chat("again"), first_token_at=FULL.started_at + 99, ended_at=FULL.started_at + 120)
    code, out, _ = run(capsys, "why", "--json")
    assert code == 0 and json.loads(out)["turn"] == str(slow)


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("why", "12"), 1, "no turns"),
        (("why", "x"), 2, "is no id of a turn"),
        (("why", "m6"), 2, "only the counters tell of"),
        (("why", "mx"), 2, "is no id of a turn"),
        (("diff",), 1, "no turns"),
        (("diff", "1", "2", "3"), 2, "compares two"),
        (("diff", "nofile"), 2, "is no id of a turn"),
        (("replay", "1", "2", "3"), 2, "sends two"),
        (("replay", "--fix", "nonsense"), 2, "no kind of cause"),
        (("replay", "--wait", "x"), 2, "--wait"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], code: int, said: str
) -> None:
    got, out, err = run(capsys, *argv)
    assert (got, out) == (code, "") and said in err and len(err.strip().splitlines()) <= 2


def test_a_turn_that_is_not_there(capsys: pytest.CaptureFixture[str], keep: Callable[..., list[int]]) -> None:
    keep(chat("hello"))
    for argv in (("why", "99"), ("diff", "99"), ("diff", "1", "99")):
        code, out, err = run(capsys, *argv)
        assert code == 1 and not out and "there is no turn 99" in err
    code, _, err = run(capsys, "diff", "1")
    assert code == 1 and "begins a conversation" in err


def test_a_replay_goes_nowhere_unasked(
    capsys: pytest.CaptureFixture[str], keep: Callable[..., list[int]], tmp_path: Path
) -> None:
    keep(chat("hello"), chat("hello", "hi", "go on"))
    code, _, err = run(capsys, "replay", "--yes")
    assert code == 2 and "which server" in err and "--url" in err
    code, _, err = run(capsys, "replay", "1", "2", "--url", "http://gpubox.example:8000", "--yes")
    assert code == 2 and "is not this machine" in err and "--allow-remote" in err
    code, _, err = run(capsys, "replay", "1", "2", "--url", "http://127.0.0.1:9", "--yes")
    assert code == 1 and "127.0.0.1:9" in err


def test_captured_turns_of_a_dead_server_are_compared_as_text(
    capsys: pytest.CaptureFixture[str], keep: Callable[..., list[int]]
) -> None:
    keep(chat("hello"), chat("hello", "hi", "go on"), upstream="http://127.0.0.1:9")
    code, out, err = run(capsys, "diff", "--json")
    assert code == 0 and json.loads(out)["method"] == "text" and "texts are compared" in err
    code, _, err = run(capsys, "diff", "--url", "http://127.0.0.1:9")
    assert code == 1 and "127.0.0.1:9" in err


def test_a_server_that_is_busy_is_waited_for_and_then_done_without(
    capsys: pytest.CaptureFixture[str], keep: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert triaging.PATIENCE_S == 15.0
    monkeypatch.setattr(triaging, "PATIENCE_S", 2.25)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        keep(chat("hello"), chat("hello", "hi", "go on"), upstream=url)
        code, out, err = run(capsys, "why", "2", "--json")
    assert code == 0 and json.loads(out)["diff"]["method"] == "text"
    said = [line for line in err.splitlines() if "no answer within 2.25 s" in line]
    assert len(said) == 1 and said[0].startswith(f"kvtop: {url} does not answer"), "more patient than config.toml"
    assert said[0].endswith("texts are compared, and no tokens are counted")


def test_the_record_of_a_turn_may_lack_its_body(capsys: pytest.CaptureFixture[str], own_home: Path) -> None:
    with Store.open(paths.turns_file(), write=True) as store:
        id = store.begin(replace(FULL, upstream=""), b"no json at all")
    for argv in (("why", str(id)), ("diff", str(id))):
        code, _, err = run(capsys, *argv)
        assert code in (0, 1) and len(err.splitlines()) <= 2


def test_a_verdict_that_was_given_stands_in_the_list_until_its_turn_is_forgotten(
    keep: Callable[..., list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = keep(chat("Hello"), chat("Hello", "Hi", "More"))

    def listed() -> dict[int, str | None]:
        return {row["id"]: row["verdict"] for row in json.loads(run(capsys, "turns", "--json")[1])}

    assert listed() == {first: None, second: None}
    told = json.loads(run(capsys, "why", str(second), "--json")[1])["verdict"]
    assert listed() == {first: None, second: told}
    run(capsys, "why", str(first))
    run(capsys, "turns", "--forget", str(second))
    assert list(given.read(paths.turns_file())) == [given.key(first, FULL.started_at)]
    run(capsys, "turns", "--forget", "all", "--yes")
    assert not given.file_of(paths.turns_file()).exists()
