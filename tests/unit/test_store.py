"""What is written to the store is what is read from it."""

from __future__ import annotations

import json
import sqlite3
import stat
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random, randbytes

import pytest
from captured_turns import FULL, body
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from test_capture_parts import envelopes

from kvtop import paths
from kvtop.capture.store import bodies
from kvtop.capture.store.bodies import Role
from kvtop.capture.store.store import NoStore, Store, StoreError
from kvtop.capture.turn import Captured, Part, Record, TurnState


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "turns.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path, write=True) as opened:
        yield opened
        assert opened.check() == []
        assert opened.notes == []


def finish(store: Store, request: bytes = b"", response: bytes = b"", **known: object) -> int:
    turn = replace(Captured(state=TurnState.DONE), **known)
    id = store.begin(turn, request)
    store.finish(replace(turn, id=id), response)
    return id


def stored_parts(store: Store) -> int:
    return int(store.db.execute("select count(*) from part").fetchone()[0])


def test_everything_that_is_known_of_a_turn_comes_back(store: Store) -> None:
    id = store.begin(FULL, b"request")
    assert store.turn(id) == replace(FULL, id=id)
    assert list(store.recent(5)) == [replace(FULL, id=id)]
    assert store.turns() == [replace(FULL, id=id, outline=[], request_headers=[], response_headers=[], samples=[])]
    assert (store.request_body(id), store.response_body(id)) == (b"request", None)
    assert (store.turn(id + 1), store.request_body(id + 1)) == (None, None)


def test_a_turn_from_its_first_byte_to_its_end(store: Store) -> None:
    id = store.begin(Captured(started_at=5.0), b"{}")
    begun = store.turn(id)
    assert begun is not None and (begun.state, begun.conversation) == (TurnState.IN_FLIGHT, f"c{id}")
    known = replace(begun, first_token_at=6.0, outline=[Part("message", 1, "0" * 16)])
    store.update(known)
    assert store.turn(id) == known
    done = replace(known, state=TurnState.DONE, ended_at=7.0, completion_tokens=3)
    store.finish(done, b"data: x\n\n")
    assert store.turn(id) == done
    assert store.response_body(id) == b"data: x\n\n"
    store.finish(done, b"again")
    assert store.response_body(id) == b"again"


def test_lists_are_newest_first_and_filtered(store: Store) -> None:
    ids = [finish(store, conversation="a" if i % 2 else "b") for i in range(6)]
    assert [turn.id for turn in store.turns()] == ids[::-1]
    assert [turn.id for turn in store.turns(last=2)] == [6, 5]
    assert [turn.id for turn in store.turns(conversation="a")] == [6, 4, 2]
    assert [turn.id for turn in store.turns(since_id=4)] == [6, 5]
    assert [turn.id for turn in store.turns(before_id=3)] == [2, 1]
    assert [turn.id for turn in store.recent(2)] == [5, 6]
    assert store.turns(last=0) == [] and store.count() == 6


def test_the_recent_turns_are_read_one_by_one(store: Store) -> None:
    """Together long ones would take more memory than all that the linker keeps of them."""
    parts = [Part("message", 900, f"{n:016x}", role="user") for n in range(1000)]
    for _ in range(20):
        finish(store, outline=parts)
    tracemalloc.start()
    recent = store.recent(20)
    assert next(recent).id == 1
    store.forget([3])
    assert [turn.id for turn in recent] == [2, *range(4, 21)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4_000_000


def test_a_growing_conversation_is_kept_once(store: Store) -> None:
    grown = [body(n) for n in range(1, 151)]
    for text in grown:
        finish(store, text)
    assert [store.request_body(i + 1) for i in range(150)] == grown
    own, deepest, whole = store.db.execute(
        "select sum(length(refs)), max(depth), sum(whole is not null) from body where role = 0"
    ).fetchone()
    assert whole == 0 and deepest <= bodies.MAX_DEPTH
    assert stored_parts(store) <= 155
    assert own <= 4 * (150 + 3 * 150)  # a reference a turn, and the three that are written out in full


def test_branches_and_interleaved_conversations_find_their_own_parent(store: Store) -> None:
    for n in range(1, 40):
        for agent in range(4):
            finish(store, body(n, system=f"You are agent {agent}. "))
    finish(store, body(20, system="You are agent 2. ", temperature=0.5))
    longest = store.db.execute("select max(length(refs)) from body where role = 0 and parent is not null").fetchone()[0]
    assert longest <= 4 * 2


def test_a_body_that_would_not_come_back_is_kept_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_digest", lambda data, size: b"collision"[:size])
    first, second = body(3), body(4)
    ids = [store.begin(Captured(), text) for text in (first, second)]
    assert [store.request_body(id) for id in ids] == [first, second]
    assert store.db.execute("select count(*) from body where role = 0 and whole is not null").fetchone()[0] == 2


def test_text_from_outside_can_be_anything(store: Store) -> None:
    odd = "\ud800 \x00 \x1b[2J \U0001f600"
    id = finish(
        store,
        model=odd,
        agent=odd,
        path=odd,
        hints={odd: odd},
        usage={"n": 10**40, "f": float("nan")},
        conversation="c1",
    )
    kept = store.turn(id)
    assert kept is not None
    assert kept.model == kept.agent == kept.path == "\\ud800 \x00 \x1b[2J \U0001f600"
    assert kept.usage == {"n": None, "f": None}


def test_a_turn_that_was_forgotten_stays_so(store: Store) -> None:
    id = store.begin(Captured(), body(3))
    assert store.forget([id, id, 99]) == 1
    store.update(Captured(id=id))
    store.finish(Captured(id=id), b"answer")
    assert (store.count(), store.turn(id), stored_parts(store)) == (0, None, 0)
    assert store.begin(Captured(), b"") == id + 1


@pytest.mark.parametrize("gone", [[1], [5], [10], [1, 2, 3], [2, 4, 6, 8], [1, 10]])
def test_forgetting_some_costs_the_others_nothing(store: Store, gone: list[int]) -> None:
    texts = {finish(store, body(n)): body(n) for n in range(1, 11)}
    assert store.forget(gone) == len(gone)
    assert store.check() == []
    assert {id: store.request_body(id) for id in texts} == {**texts, **dict.fromkeys(gone)}


def test_forgetting_all_leaves_nothing_to_find(path: Path) -> None:
    secret = b"x-marks-the-spot-" + bytes(range(97, 123))
    with Store.open(path, write=True) as store:
        finish(store, secret, secret)
        finish(store, body(50), agent="a-name-to-find")
        assert store.forget(None) == 2
        beside = [file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")]
        assert not any(secret in text or b"a-name-to-find" in text for text in beside)
        assert (store.count(), stored_parts(store)) == (0, 0)
        assert store.begin(Captured(), b"") == 3


def test_adopt_tells_what_a_dead_recorder_left(path: Path) -> None:
    with Store.open(path, write=True) as store:
        assert store.adopt("8001") == 0
        flying, done = store.begin(Captured(), b"a"), finish(store, b"b")
    with Store.open(path, write=True) as other:
        assert other.adopt("9001") == 0
        others = other.begin(Captured(), b"c")
    with Store.open(path, write=True) as again:
        assert again.adopt("8001") == 1
        kept = {turn.id: (turn.state, turn.record) for turn in again.turns()}
    assert kept == {
        flying: (None, Record.TRUNCATED),
        done: (TurnState.DONE, Record.COMPLETE),
        others: (TurnState.IN_FLIGHT, Record.COMPLETE),
    }


def test_files_are_private(store: Store, path: Path) -> None:
    store.begin(Captured(), b"a")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {
        "turns.db": 0o600,
        "turns.db-wal": 0o600,
        "turns.db-shm": 0o600,
    }


def test_an_open_file_becomes_private(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch(0o644)
    path.chmod(0o644)
    with Store.open(path, write=True):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_is_in_the_data_folder(own_home: Path) -> None:
    assert paths.turns_file() == own_home / "data" / "turns.db"


def test_readers_look_on_while_one_writes(store: Store, path: Path) -> None:
    with Store.open(path) as one, Store.open(path) as two:
        for reader in (one, two):
            assert (reader.count(), reader.turns()) == (0, [])
        id = store.begin(FULL, body(5))
        for reader in (one, two):
            assert reader.turn(id) == replace(FULL, id=id)
            assert reader.request_body(id) == body(5)
        with pytest.raises(StoreError, match="readonly"):
            one.begin(Captured(), b"")
        assert one.check() == []


def test_every_commit_of_anybody_is_another_revision(store: Store, path: Path) -> None:
    with Store.open(path) as reader, Store.open(path, write=True) as other:
        seen = [[at.revision()] for at in (reader, store, other)]
        turn = replace(Captured(), id=store.begin(Captured(), b"a"))
        changes = [
            lambda: store.update(turn),
            lambda: other.begin(Captured(), b"b"),
            lambda: store.finish(turn, b"c"),
            lambda: other.forget([1]),
            lambda: store.forget(None),
        ]
        for change in changes:
            change()
            for revisions, at in zip(seen, (reader, store, other), strict=True):
                revisions.append(at.revision())
                assert at.revision() == revisions[-1]
        assert all(len(set(revisions)) == len(changes) + 1 for revisions in seen)


def test_a_revision_costs_next_to_nothing(store: Store, path: Path) -> None:
    with Store.open(path) as reader:
        took = []
        for _ in range(50):
            start = time.perf_counter()
            reader.revision()
            took.append(time.perf_counter() - start)
    assert min(took) < 0.0002


def test_two_writers_take_turns(store: Store, path: Path) -> None:
    with Store.open(path, write=True) as other:
        texts = {}
        for n in range(1, 60):
            writer = (store, other)[n % 2]
            texts[finish(writer, body(n))] = body(n)
            if n % 7 == 0:
                writer.forget([n - 3])
                texts[n - 3] = None
        assert sorted(texts) == list(range(1, 60))
        assert {id: store.request_body(id) for id in texts} == texts
        assert other.check() == []


@pytest.mark.parametrize("keep_s", [50.0, 1e9])
def test_age_and_size_take_the_oldest(path: Path, keep_s: float) -> None:
    now = [0.0]
    with Store.open(path, write=True, wall=lambda: now[0]) as store:
        flying = store.begin(Captured(), body(3))
        for n in range(1, 100):
            now[0] = float(n)
            finish(
                store, body(n), randbytes(5000), started_at=1e6 - n
            )  # when it was recorded counts: an import is young
        big = store.size_bytes()
        at_most = 10**9 if keep_s < 1e9 else big // 2
        gone = 0
        while step := store.sweep(100.0, keep_s, at_most, budget_s=10):
            gone += step
        left = [turn.id for turn in store.turns(last=1000)]
        assert left[-1] == flying and left[:-1] == list(range(100, 100 - len(left) + 1, -1))
        if keep_s < 1e9:
            assert gone == 49
        else:
            assert 0 < gone < 99 and at_most * 0.7 < store.size_bytes() <= at_most
            assert path.stat().st_size <= big
        assert all(store.request_body(id) == body(id - 1) for id in left[:-1])
        assert store.check() == []


def test_a_sweep_that_finds_nothing_reads_no_turn(store: Store) -> None:
    store.begin(FULL, body(1))
    columns = ", ".join(row[1] for row in store.db.execute("pragma table_info(turn)") if row[1] != "id")
    numbers = "with recursive n(i) as (select 2 union all select i + 1 from n where i < 3000)"
    store.db.execute(f"{numbers} insert into turn(id, {columns}) select i, {columns} from n, turn where turn.id = 1")
    hundreds: list[None] = []
    store.db.set_progress_handler(lambda: hundreds.append(None), 100)
    assert store.sweep(time.time(), 86_400.0, 1 << 40) == 0
    store.db.set_progress_handler(None, 0)
    assert store.count() == 3000 and len(hundreds) < 30, "steps of SQLite's machine, in hundreds"


def test_a_sweep_stops_when_its_time_is_up(store: Store) -> None:
    for n in range(1, 60):
        finish(store, body(n))
    first = store.sweep(time.time() + 10, 0.0, 0, budget_s=1e-9)
    assert first in (0, 16)
    while store.sweep(time.time() + 10, 0.0, 0):
        pass
    assert store.count() == 0


def test_nobody_is_in_flight_for_ever(path: Path) -> None:
    with Store.open(path, write=True, wall=lambda: 0.0) as store:
        store.begin(Captured(), b"a")
        assert store.sweep(86_000.0, 1.0, 0) == 0
        assert store.sweep(90_000.0, 1.0, 0) == 1


def test_no_store_yet(path: Path) -> None:
    with pytest.raises(NoStore, match="no turns were captured yet"):
        Store.open(path)
    assert not path.parent.exists()
    path.parent.mkdir()
    path.touch()
    with pytest.raises(NoStore, match="is empty"):
        Store.open(path)
    assert path.stat().st_size == 0


def test_what_is_damaged_is_told_and_the_rest_is_read(path: Path) -> None:
    with Store.open(path, write=True) as store:
        ids = [finish(store, body(n), b"answer" * 50) for n in (3, 4, 5)]
        store.db.execute("update body set whole = x'28b52ffd00ff' where turn = 2 and role = 1")
        store.db.execute("update turn set brief = x'00' where id = 3")
        store.db.execute("update part set data = data || x'00' where id = (select max(part) from shared)")
        found = store.check()
        assert any(line.startswith("response of turn 2") for line in found)
        assert any(line.startswith("request of turn 1") for line in found)
        with pytest.raises(StoreError, match="damaged"):
            store.response_body(2)
        assert store.response_body(1) == b"answer" * 50
        assert [turn.id for turn in store.turns()] == ids[::-1]
        assert (store.turns()[0].record, store.turns()[0].error) == (Record.TRUNCATED, "its record on disk is damaged")
        assert store.forget(None) == 3


def generated(random: Random) -> bytes:
    """Something like a request body, or nothing like one."""

    def text(most: int) -> str:
        return "".join(random.choices('ab"\\\n\u00e9\U0001f600 {}[],:', k=random.randint(0, most)))

    def value(depth: int) -> object:
        kind = random.randrange(8 if depth else 5)
        if kind < 3:
            return (
                text(90),
                random.choice((0, -1.5e300, 10**30, True, None)),
                "the same words in many places, long" * 3,
            )[kind]
        if kind < 6:
            return {
                text(4) or random.choice(KEYS): value(depth - 1) if depth else 1 for _ in range(random.randrange(4))
            }
        return [value(depth - 1) for _ in range(random.randrange(5))]

    made = {key: value(3) for key in random.sample(KEYS, random.randint(1, 4))}
    if random.random() < 0.7:
        made["messages"] = json.loads(body(random.randrange(12)))["messages"][: random.randint(1, 12)]
    written = json.dumps(made, indent=random.choice((None, None, 1)), ensure_ascii=random.random() < 0.5).encode()
    at = random.randrange(len(written))
    return random.choice(
        (
            written,
            written,
            written[:at],
            written[:at] + random.randbytes(random.randrange(9)) + written[at:],
            written[:-1] + b"," + written[1:],  # every key twice
            random.randbytes(random.randrange(400)),
            b"[" * random.randrange(3000) + written,
            b'{"a":' * random.randrange(900) + b"1" * at,
            b" " + written + b"\n",
            b"",
        )
    )


KEYS = ("messages", "tools", "input", "system", "prompt", "model", "metadata")


@pytest.mark.parametrize("block", range(10))
def test_ten_thousand_bodies_come_back(path: Path, block: int) -> None:
    random = Random(block)
    with Store.open(path, write=True) as store:
        store.db.execute("pragma synchronous = off")
        kept: dict[int, bytes | None] = {}
        for _ in range(1000):
            text = generated(random)
            kept[store.begin(Captured(), text)] = text
            if random.random() < 0.006:
                gone = random.sample(sorted(kept), random.randint(1, min(40, len(kept))))
                store.forget(gone)
                kept |= dict.fromkeys(gone)
        assert len(kept) == 1000
        assert all(store.request_body(id) == text for id, text in kept.items())
        assert store.check() == []


any_body = st.one_of(
    st.integers(0, 12).map(body), st.binary(max_size=300), envelopes.map(lambda e: json.dumps(e).encode())
)


@pytest.mark.fuzz
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(any_body, min_size=1, max_size=12), st.lists(st.integers(1, 12), max_size=6), st.integers(0, 3))
def test_any_bodies_come_back(tmp_path: Path, texts: list[bytes], gone: list[int], deepest: int) -> None:
    for name in tmp_path.glob("any.db*"):
        name.unlink()
    with pytest.MonkeyPatch.context() as patch, Store.open(tmp_path / "any.db", write=True) as store:
        patch.setattr(bodies, "MAX_DEPTH", deepest)
        kept: dict[int, bytes | None] = {store.begin(Captured(), text): text for text in texts}
        store.forget(gone)
        kept |= {id: None for id in gone if id in kept}
        kept[store.begin(Captured(), texts[0])] = texts[0]
        assert {id: store.request_body(id) for id in kept} == kept
        assert store.check() == []


def test_a_connection_is_left_without_a_transaction(store: Store) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        store.db.execute("insert into body(turn, role, size, digest) values(99, 0, 0, x'')")
    assert not store.db.in_transaction
    with pytest.raises(TypeError):
        store.begin(Captured(), None)  # type: ignore[arg-type]
    assert not store.db.in_transaction
    assert store.begin(Captured(), b"") == 1
    assert store.db.execute("select role from body").fetchall() == [(Role.REQUEST,)]
