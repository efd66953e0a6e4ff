"""The notes that replays leave, and who reads them."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop import files, paths
from kvtop.live.factories import real
from kvtop.model.own import OwnRequest, of_server
from kvtop.triage import replay_notes
from kvtop.triage.replay_notes import MAX_BYTES, Notes, read, write


def note(n: int, **more: object) -> OwnRequest:
    made: dict[str, object] = {"id": f"r{n}", "server": "http://127.0.0.1:8000", "began_at": 100.0 + n} | more
    return OwnRequest(**made)  # type: ignore[arg-type]


def test_the_last_note_of_a_request_counts_and_the_file_is_private(own_home: Path) -> None:
    assert read() == ()
    write(note(1))
    write(note(0))
    write(note(1, ended_at=103.5, prompt_tokens=900, cached_tokens=512))
    assert read() == (note(0), note(1, ended_at=103.5, prompt_tokens=900, cached_tokens=512))
    assert paths.replays_file().stat().st_mode & 0o777 == 0o600
    assert read()[1].new_tokens == 388 and read()[0].new_tokens is None


def test_the_dashboard_reads_what_another_process_noted(own_home: Path) -> None:
    from kvtop.clock import SystemClock
    from kvtop.config import Settings

    look = real(Settings(), SystemClock()).replays
    assert look() == ()
    write(note(1))
    assert look() == (note(1),)


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_what_is_no_note_is_passed_over(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("notes") / "replays.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    write(note(3), path)
    assert note(3) in read(path)


@pytest.mark.parametrize(
    "wrong", [{"began_at": 1e307}, {"began_at": -1.0}, {"ended_at": 1e18}, {"prompt_tokens": -1}, {"cached_tokens": -1}]
)
def test_a_note_with_numbers_that_cannot_be_is_passed_over(tmp_path: Path, wrong: dict[str, float]) -> None:
    path = tmp_path / "replays.jsonl"
    write(note(1, **wrong), path)
    write(note(2), path)
    assert read(path) == (note(2),)


def test_a_line_in_which_its_writer_was_killed_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "replays.jsonl"
    write(note(1), path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-9])
    write(note(2), path)
    assert read(path) == (note(1), note(2))


def test_the_older_half_of_a_long_file_goes(tmp_path: Path) -> None:
    path = tmp_path / "replays.jsonl"
    n = MAX_BYTES // 100
    for i in range(n):
        write(note(i), path)
    assert path.stat().st_size <= MAX_BYTES + 200
    kept = read(path)
    assert kept[-1] == note(n - 1)
    assert [one.id for one in kept] == [f"r{i}" for i in range(n - len(kept), n)]


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "replays.jsonl"
    threads = [threading.Thread(target=lambda k=k: [write(note(k + i), path) for i in range(50)]) for k in (0, 1000)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(read(path)) == 100


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "replays.jsonl", tmp_path / "other"
    other.write_bytes(b"")
    path.symlink_to(other)
    with pytest.raises(OSError):
        write(note(1), path)
    assert other.read_bytes() == b""


def test_each_server_has_its_own() -> None:
    here, there = note(1, server="http://localhost:8000"), note(2, server="http://127.0.0.1:8001")
    assert of_server([here, there], "http://127.0.0.1:8000") == (here,)


def test_nothing_of_a_prompt_can_be_noted() -> None:
    assert set(OwnRequest.__dataclass_fields__) == {
        "id", "server", "began_at", "ended_at", "prompt_tokens", "cached_tokens",
    }  # fmt: skip
    assert replay_notes.MAX_BYTES


def test_a_lock_that_another_program_keeps_is_told_once_and_not_waited_for_again(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(note(0))
    slept: list[float] = []
    monkeypatch.setattr(files.time, "sleep", slept.append)
    monkeypatch.setattr(files.time, "monotonic", lambda: sum(slept))
    told: list[str] = []
    notes = Notes(told.append)
    other = os.open(paths.replays_file(), os.O_RDWR)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        notes.write(note(1))
        assert sum(slept) == pytest.approx(files.PATIENCE_S, abs=0.03) and files.PATIENCE_S == 0.5
        waited = len(slept)
        notes.write(note(2))
        assert len(slept) == waited
        assert told == [
            f"{paths.replays_file()}: another program keeps it locked: "
            "the dashboard cannot tell this replay from others' requests"
        ]
    finally:
        os.close(other)
    notes.write(note(3))
    assert read() == (note(0), note(3)) and len(told) == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_told_and_never_waited_for(own_home: Path, make: Callable[[Path], None]) -> None:
    paths.replays_file().parent.mkdir(parents=True)
    make(paths.replays_file())
    told: list[str] = []
    notes = Notes(told.append)
    notes.write(note(1))
    notes.write(note(1))
    assert len(told) == 1 and told[0].startswith(str(paths.replays_file()))
    assert "egular file" in told[0] or "directory" in told[0]
