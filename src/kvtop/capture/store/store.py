"""The captured turns on disk: one SQLite file that recorders write, while any number of readers look at it.

A turn is a row: what lists are filtered by stands in columns, the rest is packed JSON in two parts, of which `detail`
(headers, samples) is only read for a single turn. Its bodies and its outline are in `kvtop.capture.store.bodies`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
from msgspec.structs import replace

from kvtop.capture.store import retention, schema
from kvtop.capture.store.bodies import Bodies, Role
from kvtop.capture.store.packing import Packer
from kvtop.capture.store.records import COLUMNS, Records
from kvtop.capture.store.schema import PATIENCE_S, Damaged, NoStore, StoreError
from kvtop.capture.turn import Captured, Part

__all__ = ["NoStore", "Store", "StoreError"]

T = TypeVar("T")

_OUTLINE = msgspec.json.Decoder(list[Part])

_ANOTHER_FILE = 1 << 40
"""What `revision` grows by: more than any file's own count."""
MAX_OUTLINES = 1000
"""Outlines kept in memory, to see whether one changed."""


class Store:
    """An open store. Every method raises StoreError where the file cannot be read or written.

    After an error the store is as before the call, and can be used further. One thread at a time.
    """

    def __init__(self, path: Path, *, write: bool, patience_s: float, wall: Callable[[], float]) -> None:
        """`open` is the way in."""
        self.path = path
        self.notes: list[str] = []
        """What the user should be told once, a line each: a damaged file was moved aside. Take them off."""
        self._writes = write
        self._patience_s = patience_s
        self._wall = wall
        self._records = Records(Packer())
        self._commits = 0
        self._tap = ""
        self._last_id = 0
        if write:
            db, self.notes = schema.open_writer(path, patience_s)
        else:
            db = schema.open_reader(path, patience_s)
        self._take(db)

    @classmethod
    def open(
        cls, path: Path, *, write: bool = False, patience_s: float = PATIENCE_S, wall: Callable[[], float] = time.time
    ) -> Store:
        """Open a store: to write it, and then it is made where there is none; else to read it, changing nothing.

        `patience_s`: how long another program may hold the file. Raises StoreError; NoStore where a reader finds none.
        """
        return cls(path, write=write, patience_s=patience_s, wall=wall)

    def close(self) -> None:
        """A writer that is the last to close leaves one file, without -wal and -shm."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # writing

    def adopt(self, tap: str) -> int:
        """From now on this store writes for the tap of that name. How many turns its last recorder left in flight: they
        become of state None, record truncated."""

        def work() -> int:
            return self._abandon("tap = ?", (tap,))

        self._tap = tap
        return self._write(work)

    def begin(self, turn: Captured, request_body: bytes) -> int:
        """A new turn, whatever its state; its id. A turn of no conversation begins one, 'c' and the id."""

        def work() -> int:
            row = self._db.execute("select seq from sqlite_sequence where name = 'turn'").fetchone()
            made = replace(turn, id=max(row[0] if row else 0, self._last_id) + 1)
            columns = self._records.columns(made)
            names = ", ".join(columns)
            marks = ", ".join("?" * len(columns))
            self._db.execute(
                f"insert into turn(id, added_at, tap, {names}) values(?, ?, ?, {marks})",
                (made.id, self._wall(), self._tap, *columns.values()),
            )
            self._bodies.put(made.id, Role.REQUEST, request_body)
            self._put_outline(made)
            return made.id

        self._last_id = self._write(work)
        return self._last_id

    def update(self, turn: Captured) -> None:
        """What is known now of a turn that was begun, whole. One that was deleted meanwhile stays so."""
        self._write(lambda: self._update(turn))

    def finish(self, turn: Captured, response_body: bytes) -> None:
        """The same, and its answer: the body as it came, decoded."""

        def work() -> None:
            if self._update(turn):
                self._bodies.put(turn.id, Role.RESPONSE, response_body)
            self._outlines.pop(turn.id, None)

        self._write(work)

    def forget(self, ids: Sequence[int] | None) -> int:
        """Delete turns with their bodies, None: all of them, and overwrite what is not shared with others. How many
        there were."""

        def work() -> int:
            try:
                return retention.forget(self, ids)
            except (sqlite3.Error, Damaged) as error:  # met outside a transaction of its own
                if not schema.is_damage(error):
                    raise
                self._begin_anew()
                return 0

        return self._guard(work)

    def sweep(self, now: float, keep_s: float, max_bytes: int, *, budget_s: float = 0.25) -> int:
        """Delete what was captured more than `keep_s` before `now`, and the oldest turns while the store holds more
        than `max_bytes`; never one in flight. How many turns were deleted: when it is not 0 there may be more, since a
        call takes about `budget_s` at most, in transactions of a few turns each. Damaged files that were moved aside
        go by the same age."""
        return self._guard(lambda: retention.sweep(self, now, keep_s, max_bytes, budget_s))

    # reading

    def turns(
        self, *, last: int = 100, conversation: str | None = None, since_id: int = 0, before_id: int | None = None
    ) -> list[Captured]:
        """Newest first, by id. Without outline, headers and samples: `turn` has them."""
        where, values = ["id > ?"], [since_id]
        if before_id is not None:
            where.append("id < ?")
            values.append(before_id)
        given: list[object] = [*values]
        if conversation is not None:
            where.append("conversation = ?")
            given.append(conversation)
        query = f"select {COLUMNS} from turn where {' and '.join(where)} order by id desc limit ?"
        rows = self._read(lambda: self._db.execute(query, (*given, max(0, last))).fetchall())
        return [self._records.brief(row) for row in rows]

    def turn(self, id: int) -> Captured | None:
        """All that is known of one; None where there is none."""

        def work() -> Captured | None:
            row = self._db.execute(f"select {COLUMNS}, detail from turn where id = ?", (id,)).fetchone()
            return None if row is None else self._whole(row)

        return self._read(work)

    def recent(self, limit: int) -> Iterator[Captured]:
        """The last turns with their outlines, in the order of their ids. Each is read when it is asked for: together
        long ones take a hundred megabytes."""
        newest = "select id from turn order by id desc limit ?"
        ids = self._read(lambda: self._db.execute(newest, (max(0, limit),)).fetchall())
        for (id,) in reversed(ids):
            if (turn := self.turn(id)) is not None:
                yield turn

    def request_body(self, id: int) -> bytes | None:
        """As it was sent; None where there is no such turn."""
        return self._read(lambda: self._bodies.get(id, Role.REQUEST))

    def response_body(self, id: int) -> bytes | None:
        """As it was given to `finish`; None before that."""
        return self._read(lambda: self._bodies.get(id, Role.RESPONSE))

    def count(self) -> int:
        """Turns in the store."""
        return int(self._read(lambda: self._db.execute("select count(*) from turn").fetchone()[0]))

    def size_bytes(self) -> int:
        """What the turns take on disk: pages in use."""
        return self._read(lambda: retention.used_bytes(self._db))

    def revision(self) -> int:
        """Another number after every change that anybody committed. Of this opened store alone.

        A reader looks here whether there is another file in place of the one it has open, and goes on with that.
        """
        if _identity(self.path) != self._file and not self._writes:
            db = schema.open_reader(self.path, self._patience_s)
            self._db.close()
            self._take(db)
            self._commits += _ANOTHER_FILE
        return self._guard(lambda: int(self._db.execute("pragma data_version").fetchone()[0])) + self._commits

    def check(self) -> list[str]:
        """What is wrong with the file, a line each: its structure, and every record and body, restored."""
        found: list[str] = []

        def look(what: str, work: Callable[[], Iterable[object]]) -> None:
            try:
                found.extend(f"{what}: {line}" for line in self._view(work))
            except (Damaged, sqlite3.Error) as error:
                found.append(f"{what}: {error}")

        def structure() -> Iterable[object]:
            lines = [line for (line,) in self._db.execute("pragma integrity_check") if line != "ok"]
            lost = self._db.execute("pragma foreign_key_check").fetchone()
            lines += schema.wrong_types(self._db)
            return [*lines, "a body without its turn or its parent"] if lost else lines

        look("structure", structure)
        look("pieces", self._bodies.check)
        for (id,) in self._read(lambda: self._db.execute("select id from turn order by id").fetchall()):
            look(f"record of turn {id}", partial(self._recorded, id))
            for role in Role:
                look(f"{role.name.lower()} of turn {id}", partial(self._restored, id, role))
        return found

    # what its parts share

    @property
    def db(self) -> sqlite3.Connection:
        """For `kvtop.capture.store.retention`."""
        return self._db

    def delete(self, ids: Sequence[int]) -> int:
        """Turns and all that is theirs, in one transaction. How many there were."""

        def work() -> int:
            self._bodies.drop(ids)
            return self._db.execute(f"delete from turn where id in ({','.join(map(str, ids))})").rowcount

        return self._write(work)

    def abandon(self, before: float) -> int:
        """Turns in flight that were captured before that Unix time: nobody can be recording them any more."""
        return self._write(lambda: self._abandon("added_at < ?", (before,)))

    # inside

    def _take(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._bodies = Bodies(db)
        self._file = _identity(self.path)
        self._outlines: dict[int, list[Part]] = {}
        """As they were written, of turns that have not finished."""

    def _restored(self, id: int, role: Role) -> tuple[()]:
        self._bodies.get(id, role)
        return ()

    def _recorded(self, id: int) -> Iterator[str]:
        """What of its record cannot be read."""
        row = self._db.execute(f"select {COLUMNS}, detail from turn where id = ?", (id,)).fetchone()
        return iter(()) if row is None else self._records.wrong(row)

    def _abandon(self, where: str, values: Iterable[object]) -> int:
        return self._db.execute(
            f"update turn set state = null, record = 'truncated' where state = 'in_flight' and {where}", (*values,)
        ).rowcount

    def _update(self, turn: Captured) -> bool:
        """Whether there is such a turn."""
        columns = self._records.columns(turn)
        changes = ", ".join(f"{name} = ?" for name in columns)
        changed = self._db.execute(f"update turn set {changes} where id = ?", (*columns.values(), turn.id)).rowcount
        if changed and self._outlines.get(turn.id) != turn.outline:
            self._put_outline(turn)
        return bool(changed)

    def _put_outline(self, turn: Captured) -> None:
        if turn.outline:
            self._bodies.put(turn.id, Role.OUTLINE, msgspec.json.encode(turn.outline))
        else:
            self._bodies.remove(turn.id, Role.OUTLINE)
        if len(self._outlines) >= MAX_OUTLINES:
            self._outlines.clear()
        self._outlines[turn.id] = turn.outline

    def _whole(self, row: Sequence[Any]) -> Captured:
        made = self._records.detailed(self._records.brief(row), row[-1])
        with contextlib.suppress(Damaged, msgspec.MsgspecError):
            outline = self._bodies.get(made.id, Role.OUTLINE)
            made = replace(made, outline=_OUTLINE.decode(outline) if outline else [])
        return made

    def _read(self, work: Callable[[], T]) -> T:
        return self._guard(lambda: self._view(work))

    def _view(self, work: Callable[[], T]) -> T:
        """With one view of the file, whatever is written meanwhile."""
        self._db.execute("begin")
        try:
            with schema.as_damage():
                return work()
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("rollback")

    def _write(self, work: Callable[[], T]) -> T:
        """In one transaction. A file that turns out to be broken is moved aside, and the work done in a new one."""

        def write() -> T:
            if self._writes and _identity(self.path) != self._file:
                self._begin_anew()  # somebody deleted or renamed the file: what is written to it is lost
            try:
                return self._transaction(work)
            except (sqlite3.Error, Damaged) as error:
                if not schema.is_damage(error):
                    raise
                self._begin_anew()
                return self._transaction(work)

        return self._guard(write)

    def _transaction(self, work: Callable[[], T]) -> T:
        self._db.execute("begin immediate")
        try:
            done = work()
            self._db.execute("commit")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("rollback")
            self._bodies.reset()
            self._outlines.clear()
            raise
        self._commits += 1
        return done

    def _begin_anew(self) -> None:
        """Another program may have moved the file already."""
        self._db.close()
        if self._file is not None and _identity(self.path) == self._file:
            self.notes.append(schema.move_aside(self.path))
        db, notes = schema.open_writer(self.path, self._patience_s)
        self.notes += notes
        self._take(db)

    def _guard(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (sqlite3.Error, OSError, Damaged) as error:
            raise schema.told(self.path, error) from error


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
