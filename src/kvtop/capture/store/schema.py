"""The file turns.db: its tables, their versions, and how it is opened. SQLite in WAL mode."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from kvtop.capture.store.header import (
    APPLICATION_ID,
    Header,
    NoStore,
    StoreError,
    foreign,
    may_move,
    newer,
    no_store,
    read,
)
from kvtop.errors import UsageError, printable
from kvtop.paths import data_dir, make_private

__all__ = ["APPLICATION_ID", "NoStore", "StoreError"]

PATIENCE_S = 5.0
"""How long another writer may hold the file."""

_V1 = """
create table turn(
  id integer primary key autoincrement,
  added_at real not null,
  tap text not null,
  source text not null,
  state text,
  record text not null,
  started_at real not null,
  conversation text not null,
  agent text not null,
  route text not null,
  model text,
  brief blob not null,
  detail blob not null
);
create index turn_added on turn(added_at);
create index turn_conversation on turn(conversation);
create index turn_in_flight on turn(tap) where state = 'in_flight';
create table part(id integer primary key, hash blob not null unique, data blob not null);
create table shared(part integer primary key, extra integer not null);
create table body(
  id integer primary key,
  turn integer not null references turn(id),
  role integer not null,
  size integer not null,
  digest blob not null,
  skeleton integer,
  runs blob,
  parent integer references body(id),
  head integer,
  tail integer,
  refs blob,
  depth integer not null default 0,
  whole blob,
  unique(turn, role)
);
create index body_parent on body(parent) where parent is not null;
create table meta(key text primary key, value integer not null) without rowid;
insert into meta values('generation', 0);
"""


def _v1(db: sqlite3.Connection) -> None:
    for statement in _V1.split(";"):
        db.execute(statement)


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_v1,)
"""The nth makes version n (from 1) of the version before. Each runs inside a transaction; none is ever changed."""


class Damaged(Exception):
    """What is on disk is not what was written."""


def wrong_types(db: sqlite3.Connection) -> list[str]:
    """Columns that hold a value of another type than they were made for, a line each: SQLite itself keeps any."""
    found: list[str] = []
    for (table,) in db.execute("select name from sqlite_schema where type = 'table' and name not like 'sqlite_%'"):
        for _, column, declared, *_ in db.execute(f"pragma table_info({table})").fetchall():
            query = f"select count(*) from {table} where {column} is not null and typeof({column}) <> ?"
            (wrong,) = db.execute(query, (declared.lower(),)).fetchone()
            if wrong:
                values = "1 value" if wrong == 1 else f"{wrong} values"
                found.append(f"{table}.{column}: {values} of another type than {declared.lower()}")
    return found


@contextmanager
def as_damage() -> Iterator[None]:
    """Values of another type than were written, met while they are read, are damage like any other."""
    try:
        yield
    except (TypeError, AttributeError, OverflowError, IndexError, ValueError) as error:
        raise Damaged("a value stands in it that was never written") from error


def primary(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; 0 for an error that is Python's own."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def is_damage(error: BaseException) -> bool:
    """The file itself is broken, or is no database."""
    if isinstance(error, sqlite3.Error):
        return primary(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return isinstance(error, Damaged)


def told(path: Path, error: Exception) -> StoreError:
    """An error of SQLite or of the system as one that a user can act on."""
    name = printable(str(path), 300)
    if is_damage(error):
        return StoreError(
            f"{name} is damaged: {printable(str(error))}",
            "kvtop turns --check tells how much; the tap moves it aside, and begins a new one, when it meets the fault",
        )
    if isinstance(error, sqlite3.Error):
        code = primary(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreError(f"{name} is held by another program", "try again when it is done: fuser -v shows which")
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            return StoreError(f"{name} cannot be written or read: {printable(str(error))}", "is its disk full? df -h")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return StoreError(f"{name}: {printable(reason)}", "make it a file, in a folder, that you may read and write")


def open_writer(path: Path, patience_s: float = PATIENCE_S) -> tuple[sqlite3.Connection, list[str]]:
    """A connection that may write, to a file of this version, and notes for the user, one line each.

    Makes the file (0600) and its folder (0700) where there are none, and brings an older file to this version. One of
    kvtop's own that is damaged is moved aside; any other is left as it is. Raises StoreError.
    """
    notes: list[str] = []
    try:
        for _ in range(3):
            make_private(path.parent)
            _keep_folder_private(path.parent)
            found = _make_file(path)
            db = _connect(path, "mode=rw", patience_s)
            try:
                _prepare(db, path, patience_s)
                _keep_private(path)
                return db, notes
            except Exception as error:
                db.close()
                if not is_damage(error):
                    raise
                if not may_move(path, found):
                    raise no_store(path) from error
                notes.append(move_aside(path))
    except (sqlite3.Error, OSError) as error:
        raise told(path, error) from error
    raise StoreError(f"{printable(str(path), 300)} is damaged each time it is made anew", "is its disk broken?")


def open_reader(path: Path, patience_s: float = PATIENCE_S) -> sqlite3.Connection:
    """A connection that cannot write. Makes and changes nothing. Raises NoStore where there is no file, StoreError."""
    try:
        if not path.exists():
            what = f"no turns were captured yet: there is no {printable(str(path), 300)}"
            raise NoStore(what, "kvtop tap captures them")
        _check_kind(path.stat().st_mode)  # of another kind SQLite would say that its disk is at fault
        try:
            return _read_only(path, "mode=ro", patience_s)
        except sqlite3.OperationalError as error:
            # WAL needs its -shm file, which cannot be made here: without a -wal file the database is whole as it is
            if primary(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or not os.access(path, os.R_OK):
                raise
            if _size(_beside(path, "-wal")):
                raise StoreError(
                    f"{printable(str(path), 300)} was left by a writer that ended suddenly, and its folder cannot be "
                    "written to",
                    "copy it, with its -wal file, to a folder of your own (KVTOP_HOME), or start the tap",
                ) from error
            return _read_only(path, "mode=ro&immutable=1", patience_s)
    except (sqlite3.Error, OSError) as error:
        raise told(path, error) from error


def move_aside(path: Path) -> str:
    """Renames the file, and what SQLite keeps beside it; the note that tells of it. Deletes nothing."""
    stem = time.strftime(f"{path.name}.broken-%Y%m%dT%H%M%SZ", time.gmtime())
    target, n = path.with_name(stem), 1
    while target.exists():
        n += 1
        target = path.with_name(f"{stem}-{n}")
    for end in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            moved = _beside(path, end).rename(_beside(target, end))
            if not moved.is_symlink() and moved.stat().st_mode & 0o077:
                moved.chmod(0o600)  # it was not opened far enough to be made private
    return f"{printable(str(path), 300)} was damaged: it is now {target.name}, and a new one was begun"


def moved_aside(path: Path) -> list[Path]:
    """The damaged files that were moved away from there; not what SQLite keeps beside them."""
    name = re.compile(re.escape(path.name) + r"\.broken-\d{8}T\d{6}Z(-\d+)?")
    try:
        return sorted(file for file in path.parent.iterdir() if name.fullmatch(file.name))
    except OSError:
        return []


def drop_aside(path: Path, before: float | None = None) -> int:
    """Delete the files that were moved away from there; how many. `before`: only those that were last written before
    that Unix time. Raises OSError."""
    gone = 0
    for file in moved_aside(path):
        with contextlib.suppress(FileNotFoundError):  # two that do it at a time
            if before is None or file.lstat().st_mtime < before:
                for end in ("-wal", "-shm"):
                    _beside(file, end).unlink(missing_ok=True)
                file.unlink()
                gone += 1
    return gone


def _beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _check_kind(mode: int) -> None:
    """Raises OSError for what is no regular file."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")


def _make_file(path: Path) -> Header:
    """What stands in it. SQLite gives -wal and -shm the mode of the file itself: it is set before they are made, and
    never of a file that may be somebody else's. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        _check_kind(path.stat().st_mode)  # to open a device can already do something
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    handle = os.open(path, flags, 0o600)
    try:
        state = os.fstat(handle)
        _check_kind(state.st_mode)
        found = read(handle)
        if state.st_mode & 0o077 and (found.ours or not state.st_size):
            os.fchmod(handle, 0o600)
    finally:
        os.close(handle)
    return found


def _keep_private(path: Path) -> None:
    """Of a store: that it is one may have stood in its -wal file alone."""
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            file = _beside(path, end)
            if file.stat().st_mode & 0o077:
                file.chmod(0o600)  # not by a handle: to close it would take SQLite's locks


def _keep_folder_private(folder: Path) -> None:
    """The data folder is kvtop's own, however it was made; any other that holds a store may be anybody's."""
    with contextlib.suppress(UsageError):
        if folder == data_dir() and not folder.is_symlink():
            state = folder.stat()
            if state.st_mode & 0o077 and state.st_uid == os.geteuid():
                folder.chmod(0o700)


def _connect(path: Path, how: str, patience_s: float) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?{how}"
    return sqlite3.connect(uri, uri=True, timeout=patience_s, isolation_level=None, check_same_thread=False)


def number(db: sqlite3.Connection, pragma: str) -> int:
    """What a pragma says."""
    return int(db.execute(f"pragma {pragma}").fetchone()[0])


def _version(db: sqlite3.Connection, path: Path) -> int:
    """0: nothing in it yet. Raises StoreError for a file of a newer kvtop, or of another program."""
    db.execute("begin")  # of one moment: another process may be making the file just now
    try:
        application, version = number(db, "application_id"), number(db, "user_version")
        tables = db.execute("select 1 from sqlite_master").fetchone() if application != APPLICATION_ID else None
    finally:
        with contextlib.suppress(sqlite3.Error):
            db.execute("rollback")
    if application != APPLICATION_ID:
        if application or version or tables:
            raise foreign(path)
        return 0
    if version > len(MIGRATIONS):
        raise newer(path, version, len(MIGRATIONS))
    return version


def _prepare(db: sqlite3.Connection, path: Path, patience_s: float) -> None:
    if _version(db, path) == 0:
        db.execute("pragma auto_vacuum = incremental")  # only before the first table
    _patiently(lambda: db.execute("pragma journal_mode = wal").fetchone(), patience_s)
    for setting in ("synchronous = normal", "foreign_keys = on", "journal_size_limit = 8388608", "temp_store = memory"):
        db.execute(f"pragma {setting}").fetchone()
    whole = number(db, "page_count") * number(db, "page_size")
    if not _size(_beside(path, "-wal")) and _size(path) < whole:
        raise Damaged(f"{whole - _size(path)} bytes are missing at its end")
    migrate(db, path)
    db.execute("select max(id) from turn").fetchone()


def migrate(
    db: sqlite3.Connection, path: Path, to: Sequence[Callable[[sqlite3.Connection], None]] = MIGRATIONS
) -> None:
    """Bring the file to the newest version, in one transaction: a process that ends midway changes nothing."""
    if number(db, "user_version") == len(to):
        return
    db.execute("begin immediate")
    try:
        for version in range(number(db, "user_version"), len(to)):  # another process may have been faster
            to[version](db)
        db.execute(f"pragma application_id = {APPLICATION_ID}")
        db.execute(f"pragma user_version = {len(to)}")
        db.execute("commit")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("rollback")
        raise


def _read_only(path: Path, how: str, patience_s: float) -> sqlite3.Connection:
    db = _connect(path, how, patience_s)
    try:
        db.execute("pragma query_only = on")
        version = _version(db, path)
        if version == 0:
            raise NoStore(
                f"no turns were captured yet: {printable(str(path), 300)} is empty", "kvtop tap captures them"
            )
        if version < len(MIGRATIONS):
            raise StoreError(
                f"{printable(str(path), 300)} was written by an older kvtop (version {version} of the file)",
                "start kvtop tap once: it brings the file up to date",
            )
    except BaseException:
        db.close()
        raise
    return db


def _patiently(work: Callable[[], object], patience_s: float) -> None:
    """SQLite does not wait for others when it changes the journal mode."""
    until = time.monotonic() + patience_s
    while True:
        try:
            work()
            return
        except sqlite3.OperationalError as error:
            if primary(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or time.monotonic() > until:
                raise
            time.sleep(0.02)
