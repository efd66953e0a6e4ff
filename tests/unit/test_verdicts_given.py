"""The verdicts that were given, kept beside the store: found by turn and begin, bounded, gone with their turns."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from kvtop import files
from kvtop.capture.store import given

T = 1_796_070_000.123456


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "turns.db"


def test_the_last_one_on_a_turn_counts_and_another_store_has_others(store: Path) -> None:
    given.add(store, 7, T, "unknown")
    given.add(store, 7, T, "engine_lost_cache")
    given.add(store, 7, T + 1, "no_fault")
    found = given.read(store)
    assert found[given.key(7, T)] == "engine_lost_cache"
    assert found[given.key(7, T + 1)] == "no_fault"
    assert len(found) == 2
    assert stat.S_IMODE(given.file_of(store).stat().st_mode) == 0o600


def test_what_is_forgotten_is_gone(store: Path) -> None:
    for id in (1, 2, 3):
        given.add(store, id, T, "queued")
    given.forget(store, [1, 3])
    assert list(given.read(store)) == [given.key(2, T)]
    given.forget(store, None)
    assert not given.file_of(store).exists()
    given.forget(store, None)
    given.forget(store, [1])
    assert given.read(store) == {}


def test_only_the_newest_are_kept(store: Path) -> None:
    file = given.file_of(store)
    file.write_text("".join(f"{n} {T + n:.6f} prompt_diverged\n" for n in range(6_000)))
    given.add(store, 6_000, T + 6_000, "no_fault")
    found = given.read(store)
    assert len(found) == given.KEPT
    assert min(found)[0] == 6_001 - given.KEPT
    assert found[given.key(6_000, T + 6_000)] == "no_fault"


def test_two_that_write_at_once_lose_nothing(store: Path) -> None:
    def write(first: int) -> None:
        for n in range(100):
            given.add(store, first + n, T, "aborted")

    threads = [threading.Thread(target=write, args=(1_000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given.read(store)) == 400


@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "nowhere"])
def test_what_is_no_file_of_its_own_is_left_alone(store: Path, kind: str) -> None:
    file, other = given.file_of(store), store.with_name("other")
    if kind == "folder":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "link":
        other.write_text("mine")
        file.symlink_to(other)
    else:
        store = store.with_name("nowhere") / "turns.db"
    with pytest.raises(OSError):
        given.add(store, 1, T, "queued")
    assert given.read(store) == {}
    assert kind != "link" or other.read_text() == "mine"


@drawn(st.binary(max_size=400))
def test_whatever_the_file_holds(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    store = tmp_path_factory.mktemp("any") / "turns.db"
    given.file_of(store).write_bytes(data)
    before = given.read(store)
    given.add(store, 1, T, "queued")
    assert given.read(store) == before | {given.key(1, T): "queued"}


def test_a_lock_that_another_program_keeps_is_given_up(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given.add(store, 1, T, "queued")
    monkeypatch.setattr(files, "PATIENCE_S", 0.0)
    other = os.open(given.file_of(store), os.O_RDWR)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another program keeps it locked"):
            given.add(store, 2, T, "queued")
        assert given.read(store) == {}
    finally:
        os.close(other)
    assert given.read(store) == {given.key(1, T): "queued"}
