"""How long turns are kept: deletion by age, by size and by name, in steps that hold nobody up."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvtop.capture.store import schema

if TYPE_CHECKING:
    from kvtop.capture.store.store import Store

BATCH = 16
"""Turns of one transaction."""
VACUUM_PAGES = 256
"""Pages given back to the file system in one."""
DEAD_S = 86_400.0
"""A turn in flight for longer than this, and than turns are kept, belongs to a tap that never came back."""


def used_bytes(db: sqlite3.Connection) -> int:
    """Pages that hold something."""
    pages, free, size = (schema.number(db, name) for name in ("page_count", "freelist_count", "page_size"))
    return (pages - free) * size


def sweep(store: Store, now: float, keep_s: float, max_bytes: int, budget_s: float) -> int:
    """`Store.sweep`."""
    until = time.monotonic() + budget_s
    schema.drop_aside(store.path, now - keep_s)
    gone, dead = 0, now - max(keep_s, DEAD_S)
    if store.db.execute("select 1 from turn where state = 'in_flight' and added_at < ?", (dead,)).fetchone():
        store.abandon(dead)
    while time.monotonic() < until:
        ids = _oldest(store.db, "and added_at < ?", now - keep_s)
        if not ids and used_bytes(store.db) > max_bytes:
            ids = _oldest(store.db, "")
        if not ids:
            break
        gone += store.delete(ids)
    while schema.number(store.db, "freelist_count") and time.monotonic() < until:
        _vacuum(store.db, VACUUM_PAGES)
    return gone


def forget(store: Store, ids: Sequence[int] | None) -> int:
    """`Store.forget`. Newest first: then no body has to be written out for a child that goes next."""
    gone = 0
    if ids is None:
        ids = [id for (id,) in store.db.execute("select id from turn")]
    rest = sorted(set(ids), reverse=True)
    store.db.execute("pragma secure_delete = on").fetchone()
    try:
        for at in range(0, len(rest), BATCH):
            gone += store.delete(rest[at : at + BATCH])
        _vacuum(store.db, 0)
        store.db.execute("pragma wal_checkpoint(truncate)").fetchone()
    finally:
        with contextlib.suppress(sqlite3.Error):
            store.db.execute("pragma secure_delete = off").fetchone()
    return gone


def _oldest(db: sqlite3.Connection, condition: str, *values: float) -> list[int]:
    # by added_at, which has an index: ordered by id, a look that finds none would read every turn of the store
    query = f"select id from turn where state is not 'in_flight' {condition} order by added_at, id limit {BATCH}"
    return [id for (id,) in db.execute(query, values)]


def _vacuum(db: sqlite3.Connection, pages: int) -> None:
    """Give free pages back, 0: all. SQLite gives back one for each row that is read."""
    db.execute(f"pragma incremental_vacuum({pages})").fetchall()
