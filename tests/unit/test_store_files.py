"""The file turns.db: its versions, and files that are broken, foreign, locked, gone or in a read-only folder."""

from __future__ import annotations

import lzma
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from captured_turns import FULL, body
from msgspec.structs import replace

from kvtop import paths
from kvtop.capture.store import header, schema
from kvtop.capture.store.store import NoStore, Store, StoreError
from kvtop.capture.turn import Captured, TurnState

V1 = Path(__file__).parents[1] / "fixtures" / "turns-v1.db.xz"
"""Made by `make_v1` with version 1 of the file; never made again."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "turns.db"


def fill(path: Path, turns: int = 30) -> list[bytes]:
    """A closed store of so many turns, and their bodies."""
    texts = [body(n) for n in range(1, turns + 1)]
    with Store.open(path, write=True) as store:
        for text in texts:
            id = store.begin(FULL, text)
            store.finish(replace(FULL, id=id, state=TurnState.DONE), b"data: answer\n\n" * 20)
    return texts


def make_v1(path: Path) -> None:
    with Store.open(path, write=True, wall=lambda: 1_796_000_000.0) as store:
        store.adopt("8001")
        for n in (2, 3, 4):
            id = store.begin(FULL, body(n))
            store.finish(replace(FULL, id=id, state=TurnState.DONE), b"data: answer\n\n" * 20)
        store.begin(Captured(started_at=1_796_000_000.0), b"not json")
        store.forget([2])


def test_a_file_of_version_1_reads_as_it_was_written(path: Path) -> None:
    path.write_bytes(lzma.decompress(V1.read_bytes()))
    with Store.open(path, write=True) as store:
        done = replace(FULL, state=TurnState.DONE)
        assert [store.turn(id) for id in (1, 3)] == [replace(done, id=1), replace(done, id=3)]
        assert [store.request_body(id) for id in (1, 2, 3, 4)] == [body(2), None, body(4), b"not json"]
        assert store.response_body(3) == b"data: answer\n\n" * 20
        assert store.check() == []
        assert store.adopt("8001") == 1
        assert store.begin(Captured(), body(5)) == 5
        assert store.request_body(5) == body(5)


def test_a_migration_keeps_everything_or_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = fill(path, 5)

    def more(db: sqlite3.Connection) -> None:
        db.execute("alter table turn add column note text")

    def fails(db: sqlite3.Connection) -> None:
        db.execute("drop table part")
        raise sqlite3.OperationalError("midway")

    for steps in ((more, fails), (more,)):
        monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS[:1], *steps))
        monkeypatch.setattr(schema.migrate, "__defaults__", (schema.MIGRATIONS,))
        if fails in steps:
            with pytest.raises(StoreError, match="midway"):
                Store.open(path, write=True)
            continue
        with pytest.raises(StoreError, match=r"older kvtop \(version 1 of the file\)\n  start kvtop tap once"):
            Store.open(path)
        with Store.open(path, write=True) as store, Store.open(path) as reader:
            for one in (store, reader):
                assert [one.request_body(id) for id in range(1, 6)] == texts
            assert store.db.execute("select note from turn").fetchone() == (None,)
            assert store.check() == []


@pytest.mark.parametrize("write", [True, False])
def test_a_newer_file_is_left_alone(path: Path, write: bool) -> None:
    fill(path, 2)
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 99")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError) as error:
        Store.open(path, write=write)
    assert "was written by a newer kvtop (version 99 of the file; this kvtop knows up to 1)" in str(error.value)
    assert len(str(error.value).splitlines()) == 2
    assert path.read_bytes() == before and not list(path.parent.glob("*.broken*"))


@pytest.mark.parametrize("write", [True, False])
def test_another_programs_database_is_left_alone(path: Path, write: bool) -> None:
    with sqlite3.connect(path) as db:
        db.execute("create table bookmarks(url text)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store.open(path, write=write)
    assert path.read_bytes() == before


def test_another_programs_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "bookmarks.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("create table bookmarks(url text)")
    db.close()
    path.chmod(0o644)
    with pytest.raises(StoreError, match="another program"):
        Store.open(path, write=True)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_that_was_named_and_is_no_store_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    text_file(path)
    path.chmod(0o644)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"notes\.txt is no store of kvtop's\n  name another file"):
        Store.open(path, write=True)
    assert str(header.problem(path)) == f"{path} is no store of kvtop's\n  name another file"
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (before, 0o644)
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_store_of_any_name_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    truncated(path)
    with Store.open(path, write=True) as store:
        assert len(store.notes) == 1
    assert len(list(tmp_path.glob("mine.db.broken-*"))) == 1


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("write", [True, False])
def test_a_pipe_is_refused_in_its_own_words_and_keeps_its_mode(path: Path, write: bool, link: bool) -> None:
    pipe = path.with_name("pipe") if link else path
    os.mkfifo(pipe)
    pipe.chmod(0o666)
    if link:
        path.symlink_to(pipe)
    with pytest.raises(StoreError, match=r"not a regular file\n  make it a file"):
        Store.open(path, write=write)
    assert pipe.stat().st_mode & 0o777 == 0o666


def test_a_store_is_private_whatever_mode_and_name_it_was_given(tmp_path: Path) -> None:
    target, path = tmp_path / "target.db", tmp_path / "link.db"
    target.touch(0o644)
    path.symlink_to(target)
    for _ in range(2):
        target.chmod(0o644)
        with Store.open(path, write=True) as store:
            store.begin(Captured(), b"a")
            assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_the_beginning_of_a_file_tells_whose_it_is(path: Path) -> None:
    assert len(schema.MIGRATIONS) == header.VERSION
    assert header.problem(path) is None
    with Store.open(path, write=True) as store:
        store.begin(Captured(), b"a")
        assert header.problem(path) is None
    assert header.problem(path) is None
    for pragma in ("user_version = 99", "application_id = 7"):
        with sqlite3.connect(path) as db:
            db.execute(f"pragma {pragma}")
        db.close()
        with pytest.raises(StoreError) as error:
            Store.open(path)
        assert str(header.problem(path)) == str(error.value)


def text_file(path: Path) -> None:
    path.write_text("this is a letter, not a database\n" * 200)


def truncated(path: Path) -> None:
    fill(path, 60)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def cut_inside_the_first_page(path: Path) -> None:
    fill(path, 5)
    with path.open("r+b") as file:
        file.truncate(1000)


def overwritten(path: Path) -> None:
    fill(path, 30)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * 20_000)


@pytest.mark.parametrize("spoil", [text_file, truncated, cut_inside_the_first_page, overwritten])
def test_a_broken_file_is_moved_aside_and_told_once(path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(path)
    broken = path.read_bytes()
    with pytest.raises(StoreError) as error, Store.open(path) as reader:
        reader.turns()
        reader.request_body(1)
    assert "damaged" in str(error.value) and len(str(error.value).splitlines()) == 2
    assert path.read_bytes() == broken
    with Store.open(path, write=True) as store:
        (note,) = store.notes
        assert store.begin(Captured(), body(3)) == 1
        assert store.check() == []
    (aside,) = path.parent.glob("turns.db.broken-*")
    assert aside.name in note and "\n" not in note
    assert {file.stat().st_mode & 0o777 for file in path.parent.glob("turns.db*")} == {0o600}
    assert aside.read_bytes() == broken
    with Store.open(path, write=True) as again:
        assert again.notes == [] and again.request_body(1) == body(3)


def test_the_data_folder_is_made_private_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path / "home"))
    own, elsewhere, linked = paths.data_dir(), tmp_path / "elsewhere", tmp_path / "linked"
    for folder in (own, elsewhere, linked):
        folder.mkdir(parents=True)
    for folder in (own, own.parent, elsewhere, linked):
        folder.chmod(0o755)
    for folder in (own, elsewhere):
        Store.open(folder / "turns.db", write=True).close()
    assert [folder.stat().st_mode & 0o777 for folder in (own, own.parent, elsewhere)] == [0o700, 0o755, 0o755]
    shutil.rmtree(own)
    own.symlink_to(linked)
    Store.open(paths.turns_file(), write=True).close()
    assert linked.stat().st_mode & 0o777 == 0o755


def test_a_second_broken_file_gets_a_name_of_its_own(path: Path) -> None:
    for _ in range(3):
        text_file(path)
        with Store.open(path, write=True) as store:
            assert len(store.notes) == 1
        path.unlink()
    assert len(list(path.parent.glob("turns.db.broken-*"))) == 3


def test_a_file_that_breaks_while_it_is_written_costs_what_it_held_and_no_more(path: Path) -> None:
    with Store.open(path, write=True) as store:
        for n in range(1, 40):
            store.begin(Captured(), body(n))
        flying = store.begin(Captured(), body(3))
        store.db.execute("pragma wal_checkpoint(truncate)").fetchone()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (path.stat().st_size - 4096))
        store.db.execute("pragma cache_size = 0")
        store.db.execute("pragma shrink_memory")
        ids = [store.begin(Captured(), body(n)) for n in (4, 5)]
        assert ids == [flying + 1, flying + 2]
        store.finish(Captured(id=flying, state=TurnState.DONE), b"lost with the file")
        assert [store.request_body(id) for id in ids] == [body(4), body(5)]
        assert (len(store.notes), store.check(), store.count()) == (1, [], 2)
    assert len(list(path.parent.glob("turns.db.broken-*"))) >= 1


@pytest.mark.parametrize("seed", range(25))
def test_flipped_bytes_never_give_a_wrong_body(path: Path, seed: int) -> None:
    texts = fill(path)
    random = Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 5, 200))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)

    def read(store: Store) -> None:
        store.turns(last=1000)
        list(store.recent(5))
        for id in range(1, 31):
            try:
                assert store.request_body(id) in (texts[id - 1], None)
            except StoreError as error:
                assert len(str(error).splitlines()) == 2
        assert isinstance(store.check(), list)

    for write in (False, True):
        try:
            with Store.open(path, write=write) as store:
                read(store)
                if write:
                    new = store.begin(Captured(), body(7))
                    assert store.request_body(new) == body(7)
        except StoreError as error:
            assert len(str(error).splitlines()) == 2


def test_a_file_that_is_locked_is_waited_for_and_then_told(path: Path) -> None:
    fill(path, 2)
    holder = sqlite3.connect(path, isolation_level=None)
    with Store.open(path, write=True, patience_s=0.2) as store:
        holder.execute("begin immediate")
        with pytest.raises(StoreError, match="held by another program"):
            store.begin(Captured(), b"a")
        with Store.open(path) as reader:
            assert reader.count() == 2
        holder.execute("rollback")
        assert store.begin(Captured(), b"a") == 3
    holder.execute("pragma locking_mode = exclusive")
    holder.execute("begin exclusive")
    for write in (True, False):
        with (
            pytest.raises(StoreError, match="held by another program"),
            Store.open(path, write=write, patience_s=0.2) as it,
        ):
            it.count()
    holder.close()


@pytest.mark.parametrize("ends", [("", "-wal", "-shm"), ("",)])
def test_a_file_that_somebody_deletes_is_begun_anew(path: Path, ends: tuple[str, ...]) -> None:
    with Store.open(path, write=True) as store:
        store.begin(Captured(), b"a")
        with Store.open(path) as reader:
            first = reader.revision()
            for end in ends:
                Path(f"{path}{end}").unlink()
            with pytest.raises(NoStore):
                reader.revision()
            store.finish(Captured(id=1, state=TurnState.DONE), b"its request is gone")
            assert store.begin(Captured(), b"b") == 2
            assert reader.revision() > first
            assert [turn.id for turn in reader.turns()] == [2]
            assert store.check() == reader.check() == []
        assert store.notes == []


def test_no_file_can_be_made_here(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for write in (True, False):
        with pytest.raises(StoreError) as error:
            Store.open(tmp_path / "file" / "turns.db", write=write)
        assert len(str(error.value).splitlines()) == 2
    (tmp_path / "turns.db").mkdir()
    for write in (True, False):
        with pytest.raises(StoreError, match=r"Is a directory\n.*make it a file"):
            Store.open(tmp_path / "turns.db", write=write)


READ = """
import os, sys
from pathlib import Path
from kvtop.capture.store.store import Store, StoreError
if os.getuid() == 0:  # root may write everywhere
    os.setgid(65534)
    os.setuid(65534)
try:
    with Store.open(Path(sys.argv[1])) as store:
        print(store.count(), len(store.request_body(store.count())), store.revision() == store.revision())
except StoreError as error:
    print(str(error).replace(chr(10), " "))
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user of the machine may read."""
    with tempfile.TemporaryDirectory() as outer:
        Path(outer).chmod(0o711)
        folder = Path(outer) / "public"
        folder.mkdir()
        yield folder
        folder.chmod(0o755)


@pytest.mark.parametrize("left", ["closed", "killed"])
def test_a_reader_in_a_folder_that_is_read_only(path: Path, public: Path, left: str) -> None:
    fill(path, 3)
    with Store.open(path, write=True) as writer:
        writer.begin(Captured(), body(9))
        if left == "closed":
            writer.close()
        for file in path.parent.glob("turns.db*"):
            if not file.name.endswith("-shm"):
                shutil.copyfile(file, public / file.name)
                (public / file.name).chmod(0o444)
    public.chmod(0o555)
    command = [sys.executable, "-c", READ, str(public / "turns.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if left == "closed":
        assert done.stdout == f"4 {len(body(9))} True\n", done.stderr
    else:
        assert "was left by a writer that ended suddenly" in done.stdout and "KVTOP_HOME" in done.stdout
    assert {file.name for file in public.iterdir()} <= {"turns.db", "turns.db-wal"}


def test_a_store_that_is_being_made_is_not_taken_for_another_programs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader looks at the empty file, then the writer makes the tables, then the reader looks on."""
    with sqlite3.connect(path) as db:
        db.execute("pragma journal_mode = wal")
    db.close()
    number, made = schema.number, []

    def slowly(db: sqlite3.Connection, pragma: str) -> int:
        found = number(db, pragma)
        if not made:
            made.append(True)
            Store.open(path, write=True).close()
        return found

    monkeypatch.setattr(schema, "number", slowly)
    with pytest.raises(schema.NoStore, match="is empty"):
        Store.open(path)
    Store.open(path).close()
