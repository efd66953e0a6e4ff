"""Bodies in the store: pieces kept once, and of each body only how it differs from one of the last bodies.

A body is a list of references to pieces, written as what it adds to its parent's list. Every body is read back from the
database and compared before it is committed; one that does not come back the same is kept whole. A piece knows how many
bodies name it in their own list, so that it goes with the last of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import blake2b
from json import dumps
from typing import NamedTuple

from kvtop.capture.store.packing import Packer
from kvtop.capture.store.parts import (
    REF_BYTES,
    Cut,
    Layout,
    Piece,
    cut,
    join,
    pack_gaps,
    pack_refs,
    shared_head,
    shared_tail,
    unpack_refs,
)
from kvtop.capture.store.schema import Damaged, as_damage

MAX_DEPTH = 64
"""Bodies to read for one. The next one of such a chain is written out in full."""
RECENT = 32
"""Bodies that a new one is compared with: some for each of a few agents that take turns."""
MAX_KNOWN = 16_384
"""Pieces whose ids are kept in memory."""
DIGEST_BYTES = 8
"""Of a whole body: tells damage, proves nothing against an adversary."""

_CHAIN = """
with recursive chain(id, parent, head, tail, refs, n) as (
  select id, parent, head, tail, refs, 0 from body where id = ?
  union all
  select b.id, b.parent, b.head, b.tail, b.refs, n + 1 from body b join chain on b.id = chain.parent where n < ?
)
select head, tail, refs, parent from chain order by n desc
"""


class Role(IntEnum):
    """Which body of a turn."""

    REQUEST = 0
    RESPONSE = 1
    OUTLINE = 2


class _Chain(NamedTuple):
    """A body's references, and how many bodies were read for them."""

    id: int
    refs: bytes
    depth: int


class Bodies:
    """Over an open connection. Whoever calls a method that changes something holds a transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._packer = Packer()
        self._known: dict[bytes, int] = {}
        """Digest of a piece -> its id."""
        self._recent: dict[Role, list[_Chain]] = {}
        self._generation = -1

    def reset(self) -> None:
        """Forget what was read: after a rollback it may not be so."""
        self._known.clear()
        self._recent.clear()
        self._generation = -1

    def put(self, turn: int, role: Role, body: bytes) -> None:
        """Write a body of a turn, in place of the one it has."""
        self.remove(turn, role)
        self._look_for_deletions()
        pieces = cut(body) if role is not Role.RESPONSE else None
        if pieces is not None:
            self._db.execute("savepoint cut")
            chain = self._put_cut(turn, role, body, pieces)
            if self._comes_back(chain.id, body):
                self._db.execute("release cut")
                recent = self._chains(role)
                recent.insert(0, chain)
                del recent[RECENT:]
                return
            self._db.execute("rollback to cut")
            self._db.execute("release cut")
            self.reset()
        row = self._db.execute(
            "insert into body(turn, role, size, digest, whole) values(?, ?, ?, ?, ?)",
            (turn, role, len(body), _digest(body, DIGEST_BYTES), self._packer.pack(body)),
        )
        if not self._comes_back(row.lastrowid or 0, body):
            raise Damaged("a body was not read back as it was written")

    def get(self, turn: int, role: Role) -> bytes | None:
        """The body; None where there is none. Raises Damaged."""
        row = self._db.execute("select id, size, digest from body where turn = ? and role = ?", (turn, role)).fetchone()
        if row is None:
            return None
        data = self._restore(row[0])
        if len(data) != row[1] or _digest(data, DIGEST_BYTES) != row[2]:
            raise Damaged("a body is not as it was written")
        return data

    def remove(self, turn: int, role: Role) -> None:
        """Delete one body of a turn, if it has it."""
        self._delete(self._db.execute("select id from body where turn = ? and role = ?", (turn, role)).fetchall())

    def drop(self, turns: Sequence[int]) -> None:
        """Delete all bodies of these turns, and the pieces that no other body holds."""
        listed = ",".join(str(int(turn)) for turn in turns)
        self._delete(self._db.execute(f"select id from body where turn in ({listed}) order by id desc").fetchall())

    def check(self) -> list[str]:
        """What is wrong with the pieces' counts, one line each."""
        named: dict[int, int] = {}
        for (body,) in self._db.execute("select id from body").fetchall():
            for part in self._own(body):
                named[part] = named.get(part, 0) + 1
        stored = {part: 1 for (part,) in self._db.execute("select id from part")}
        for part, extra in self._db.execute("select part, extra from shared"):
            stored[part] = stored.get(part, 0) + extra
        wrong = sum(stored.get(part) != n for part, n in named.items())
        unused = len(stored.keys() - named.keys())
        told = [f"{wrong} pieces are missing or counted wrongly"] if wrong else []
        return [*told, f"{unused} pieces belong to no body"] if unused else told

    def _look_for_deletions(self) -> None:
        """Ids that were read are good for as long as nobody deletes."""
        (now,) = self._db.execute("select value from meta where key = 'generation'").fetchone()
        if now != self._generation:
            self.reset()
            self._generation = now

    def _comes_back(self, body: int, data: bytes) -> bool:
        try:
            return self._restore(body) == data
        except (Damaged, ValueError):
            return False

    # writing

    def _delete(self, rows: Sequence[tuple[int]]) -> None:
        """Bodies, newest first."""
        for (body,) in rows:  # a child has a greater id than its parent: those that still are, stay
            for (child,) in self._db.execute("select id from body where parent = ?", (body,)).fetchall():
                self._write_out(child)
            self._release(self._own(body))
            self._db.execute("delete from body where id = ?", (body,))
        if rows:
            self._db.execute("update meta set value = value + 1 where key = 'generation'")

    def _put_cut(self, turn: int, role: Role, body: bytes, made: Cut) -> _Chain:
        layout = pack_gaps(made.gaps)
        new: set[int] = set()
        skeleton = self._part(layout.texts, new)
        refs = pack_refs([self._part(piece.data, new) << 1 | piece.follows for piece in made.pieces])
        parent, head, tail = None, 0, 0
        for chain in self._chains(role):
            begin = shared_head(chain.refs, refs)
            end = shared_tail(chain.refs, refs, begin)
            if begin + end > head + tail:
                parent, head, tail = chain, begin, end
        if parent is not None and parent.depth >= MAX_DEPTH:
            parent, head, tail = None, 0, 0
        own = refs[head * REF_BYTES : len(refs) - tail * REF_BYTES]
        depth = parent.depth + 1 if parent else 0
        row = self._db.execute(
            "insert into body(turn, role, size, digest, skeleton, runs, parent, head, tail, refs, depth) "
            "values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                turn,
                role,
                len(body),
                _digest(body, DIGEST_BYTES),
                skeleton,
                layout.runs,
                parent.id if parent else None,
                head,
                tail,
                own,
                depth,
            ),
        )
        self._retain((_parts(own) | {skeleton}) - new)
        return _Chain(row.lastrowid or 0, refs, depth)

    def _part(self, data: bytes, new: set[int]) -> int:
        key = _digest(data, 16)
        if (known := self._known.get(key)) is not None:
            return known
        row = self._db.execute("select id from part where hash = ?", (key,)).fetchone()
        if row is None:
            packed = self._packer.pack(data)
            part = self._db.execute("insert into part(hash, data) values(?, ?)", (key, packed)).lastrowid or 0
            new.add(part)
        else:
            part = int(row[0])
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[key] = part
        return part

    def _retain(self, parts: Iterable[int]) -> None:
        self._db.executemany(
            "insert into shared values(?, 1) on conflict(part) do update set extra = extra + 1",
            [(part,) for part in parts],
        )

    def _release(self, parts: Iterable[int]) -> None:
        for part in parts:
            if self._db.execute("update shared set extra = extra - 1 where part = ?", (part,)).rowcount:
                self._db.execute("delete from shared where part = ? and extra = 0", (part,))
            else:
                self._db.execute("delete from part where id = ?", (part,))

    def _write_out(self, body: int) -> None:
        """Write a body's references in full: its parent goes."""
        before = self._own(body)
        try:
            refs = self._refs(body)
            added = _parts(refs) - before
        except (Damaged, ValueError):  # it cannot be restored any more, and is no reason to keep the other
            refs, added = b"", set()
        self._retain(added)
        self._db.execute(
            "update body set parent = null, head = 0, tail = 0, depth = 0, refs = ? where id = ?", (refs, body)
        )
        self._release(before - self._own(body))

    # reading

    def _restore(self, body: int) -> bytes:
        """Raises Damaged."""
        with as_damage():
            return self._joined(body)

    def _joined(self, body: int) -> bytes:
        size, skeleton, runs, whole = self._db.execute(
            "select size, skeleton, runs, whole from body where id = ?", (body,)
        ).fetchone()
        if whole is not None:
            return self._packer.unpack(whole, size)
        refs = unpack_refs(self._refs(body))
        stored = self._stored({ref >> 1 for ref in refs} | {skeleton}, size)
        try:
            pieces = [Piece(stored[ref >> 1], bool(ref & 1)) for ref in refs]
            return join(pieces, Layout(stored[skeleton], runs))
        except (KeyError, ValueError) as error:
            raise Damaged("pieces of a body are missing") from error

    def _stored(self, parts: set[int], size: int) -> dict[int, bytes]:
        rows = self._db.execute(
            "select id, data from part where id in (select value from json_each(?))", (dumps(sorted(parts)),)
        )
        # the gaps' own packing adds some bytes to a body that is nearly all gaps
        return {part: self._packer.unpack(data, 2 * size + 1024) for part, data in rows}

    def _refs(self, body: int) -> bytes:
        """All references of a body, from the first of its chain on."""
        with as_damage():
            return self._followed(body)

    def _followed(self, body: int) -> bytes:
        rows = self._db.execute(_CHAIN, (body, 2 * MAX_DEPTH)).fetchall()
        if rows and rows[0][3] is not None:
            raise Damaged("a body's parent is missing")
        refs = b""
        for head, tail, own, _ in rows:
            if own is None or (head + tail) * REF_BYTES > len(refs):
                raise Damaged("a body does not fit its parent")
            refs = refs[: head * REF_BYTES] + own + refs[len(refs) - tail * REF_BYTES :]
        return refs

    def _own(self, body: int) -> set[int]:
        """The pieces that a body names itself."""
        skeleton, refs = self._db.execute("select skeleton, refs from body where id = ?", (body,)).fetchone()
        try:
            return set() if skeleton is None else _parts(refs) | {skeleton}
        except (TypeError, ValueError):
            return {skeleton}

    def _chains(self, role: Role) -> list[_Chain]:
        """The last bodies, newest first; read once."""
        recent = self._recent.get(role)
        if recent is None:
            rows = self._db.execute(
                "select id, depth from body where role = ? and skeleton is not null order by id desc limit ?",
                (role, RECENT),
            ).fetchall()
            recent = self._recent[role] = []
            for body, depth in rows:
                try:
                    recent.append(_Chain(body, self._refs(body), int(depth)))
                except (Damaged, ValueError):
                    continue
        return recent


def _digest(data: bytes, size: int) -> bytes:
    return blake2b(data, digest_size=size).digest()


def _parts(refs: bytes) -> set[int]:
    return {ref >> 1 for ref in unpack_refs(refs)}
