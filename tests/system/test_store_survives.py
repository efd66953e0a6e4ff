"""turns.db after kill -9 at any moment, and on a disk that is full."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kvtop.capture.store.store import Store
from kvtop.capture.turn import Record, TurnState

COMMON = """
import hashlib, json, sys
from pathlib import Path
from msgspec.structs import replace
from kvtop.capture.store.store import Store, StoreError
from kvtop.capture.turn import Captured, Part, TurnState

def body(n):
    words = [hashlib.sha256(b"%d" % i).hexdigest() * 3 for i in range(n % 40)]
    said = [{"role": "user", "content": word} for word in words]
    return json.dumps({"model": "m", "n": n // 40, "messages": said}).encode()

def answer(n):
    return hashlib.sha256(b"answer %d" % n).digest() * 40

def turn(n):
    return Captured(outline=[Part("message", i, f"{i:016x}", role="user") for i in range(n % 40)])
"""

WRITER = (
    COMMON
    + """
store, start = Store.open(Path(sys.argv[1]), write=True), int(sys.argv[2])
store.db.execute("pragma wal_autocheckpoint = 25")
print("adopted", store.adopt("tap"), 0, flush=True)
for n in range(start, start + 10000):
    id = store.begin(turn(n), body(n))
    print("begun", id, n, flush=True)
    if n % 3:
        store.update(replace(turn(n), id=id, first_token_at=1.0))
        store.finish(replace(turn(n), id=id, state=TurnState.DONE), answer(n))
        print("done", id, n, flush=True)
    if n % 11 == 10:
        print("forgets", id - 4, n, flush=True)
        store.forget([id - 4])
"""
)

functions: dict[str, object] = {}
exec(COMMON, functions)
body, answer = functions["body"], functions["answer"]


def test_what_was_committed_is_there_after_any_kill(tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    begun: dict[int, int] = {}
    done: dict[int, int] = {}
    forgotten: set[int] = set()
    pick = random.Random(11)
    for round_ in range(30):
        command = [sys.executable, "-c", WRITER, str(path), str(round_ * 1000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            said = [writer.stdout.readline() for _ in range(pick.randint(1, 60))]
            writer.kill()
            said += [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        for line in said:
            word, id, n = line.split()
            if word == "adopted":
                # One write may have been committed and not told: a begin, an end or a deletion.
                assert abs(int(id) - unfinished(begun, done, forgotten)) <= 1
                begun.clear()
                done_before = set(done)
            elif word == "forgets":
                forgotten.add(int(id))
            else:
                {"begun": begun, "done": done}[word][int(id)] = int(n)
        with Store.open(path) as store:  # a reader is the first to come
            assert store.check() == []
            kept = {turn.id: turn for turn in store.turns(last=100_000)}
            for id, n in done.items():
                if id in kept or id not in forgotten:
                    assert kept[id].state is TurnState.DONE and kept[id].record is Record.COMPLETE
                    if id not in done_before or round_ == 29:
                        assert store.request_body(id) == body(n)
                        assert store.response_body(id) == answer(n)
            for id, n in begun.items():
                if id in kept or id not in forgotten:
                    assert store.request_body(id) == body(n)
    assert len(done) > 150
    assert not list(tmp_path.glob("*.broken*"))


def unfinished(begun: dict[int, int], done: dict[int, int], forgotten: set[int]) -> int:
    return len(begun.keys() - done.keys() - forgotten)


FULL = (
    COMMON
    + """
import os, resource
path = Path(sys.argv[1])
store = Store.open(path, write=True)
store.db.execute(f"pragma wal_autocheckpoint = {sys.argv[2]}")
kept, told = {}, []

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def write(tries, first):
    for n in range(first, first + tries):
        text = os.urandom(3000) if n % 2 else body(n)
        try:
            id = store.begin(turn(n), text)
            kept[id] = (text, None)
            store.finish(replace(turn(n), id=id, state=TurnState.DONE), answer(n))
            kept[id] = (text, answer(n))
        except StoreError as error:
            told.append(str(error))

write(20, 0)
limit(int(sys.argv[3]))
write(400, 20)
refused = len(told)
limit(resource.RLIM_INFINITY)
write(50, 420)
for id, (text, response) in kept.items():
    assert store.request_body(id) == text, id
    assert response is None or store.response_body(id) == response, id
print(json.dumps({"refused": refused, "after": len(told) - refused, "told": sorted(set(told)), "kept": len(kept),
                  "check": store.check(), "notes": store.notes}))
"""
)


@pytest.mark.parametrize(("checkpoint_pages", "largest_file"), [(1000, 2_000_000), (10, 600_000)])
def test_a_full_disk_is_told_and_costs_only_what_did_not_fit(
    tmp_path: Path, checkpoint_pages: int, largest_file: int
) -> None:
    path = tmp_path / "turns.db"
    command = [sys.executable, "-c", FULL, str(path), str(checkpoint_pages), str(largest_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["refused"] > 50 and said["after"] == 0 and said["kept"] > 70
    assert (said["check"], said["notes"]) == ([], [])
    for line in said["told"]:
        assert "cannot be written or read" in line and "df -h" in line and len(line.splitlines()) == 2
    with Store.open(path) as store:
        assert store.check() == [] and store.count() == said["kept"]
