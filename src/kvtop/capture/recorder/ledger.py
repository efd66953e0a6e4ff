"""Turns on their way into the store. A store that cannot be written holds nothing up: turns wait for it, within
bounds, and are counted where they are lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from kvtop.capture.turn import Captured
from kvtop.errors import KvtopError

MAX_WAITING_BYTES = 64 * 1024 * 1024
MAX_WAITING = 1_000
"""Turns, and their bodies together, that wait for the store. Beyond that the oldest are lost."""

RETRY_S = 1.0
MAX_RETRY_S = 30.0

REMEMBERED = 512
"""Turns of the store that the linking of new ones looks at: as many as it keeps. Each costs about 2 ms at the start."""


def lost_line(turns: int) -> str:
    """The last word of a recorder that could not write them all: `capture.tap.child` reads it."""
    return f"{turns} turn{'' if turns == 1 else 's'} lost: the store could not be written"


class StoreLike(Protocol):
    """What is used of `capture.store.Store`."""

    notes: list[str]

    def begin(self, turn: Captured, request_body: bytes) -> int: ...

    def update(self, turn: Captured) -> None: ...

    def finish(self, turn: Captured, response_body: bytes) -> None: ...

    def adopt(self, tap: str) -> int: ...

    def recent(self, limit: int) -> Iterable[Captured]: ...

    def sweep(self, now: float, keep_s: float, max_bytes: int) -> int: ...

    def close(self) -> None: ...


class PlaceLike(Protocol):
    @property
    def conversation(self) -> str | None: ...

    @property
    def parent(self) -> int | None: ...

    @property
    def relation(self) -> str: ...

    @property
    def changed(self) -> tuple[str, ...]: ...


class LinkerLike(Protocol):
    """What is used of `capture.conversations.Linker`."""

    def place(self, turn: Captured) -> PlaceLike: ...

    def add(self, turn: Captured) -> None: ...

    def update(self, turn: Captured) -> None: ...


class Entry:
    """One turn on its way: an `exchange.Kept`."""

    def __init__(self, ledger: Ledger, turn: Captured, request: bytes) -> None:
        self._ledger = ledger
        self.turn = turn
        self.request = request
        self.response: bytes | None = None
        """Of one that ended and is not written yet."""
        self.id = 0
        self.place: PlaceLike | None = None
        self.dirty = True
        self.lost = False

    def update(self, turn: Captured) -> None:
        self.turn = turn
        self.dirty = True
        self._ledger.write(self)

    def finish(self, turn: Captured, response_body: bytes) -> None:
        self.turn = turn
        self.response = response_body
        self.dirty = True
        self._ledger.write(self)

    @property
    def bytes(self) -> int:
        return len(self.request) + len(self.response or b"")


class Ledger:
    """Writes turns. Nothing raises because of the store.

    `open_store` and `link` are called at the first write, and again after a failure to open. `say` is given lines for
    the log: counts and kinds, never a request's content. `mono` is a clock in seconds.
    """

    def __init__(
        self,
        open_store: Callable[[], StoreLike],
        link: Callable[[Iterable[Captured]], LinkerLike],
        *,
        tap: str,
        say: Callable[[str], None],
        mono: Callable[[], float],
    ) -> None:
        self._open = open_store
        self._link = link
        self._tap = tap
        self._say = say
        self._mono = mono
        self._store: StoreLike | None = None
        self._linker: LinkerLike | None = None
        self._waiting: dict[Entry, int] = {}
        """Oldest first, and their bytes."""
        self._waiting_bytes = 0
        self._retry_at = 0.0
        self._pause_s = RETRY_S
        self._unwell = False
        """It was said that the store cannot be written, and not yet that it can again."""
        self.lost = 0
        """Turns that never reached the store, or of which the end did not."""

    def keep(self, turn: Captured, request_body: bytes) -> Entry:
        """A new turn."""
        entry = Entry(self, turn, request_body)
        self.write(entry)
        return entry

    def write(self, entry: Entry) -> None:
        """Write what is new of an entry, behind those that wait."""
        if entry.lost:
            return
        if self._waiting:
            self._wait(entry)
            self.retry()
        elif self._try(entry):
            self._well()
        else:
            self._wait(entry)

    def retry(self, *, now: bool = False) -> None:
        """Write what waits, if it is time to; `now`: in any case."""
        if not self._waiting or (self._mono() < self._retry_at and not now):
            return
        n = len(self._waiting)
        for entry in list(self._waiting):
            if not self._try(entry):
                return
            self._forget(entry)
        self._well(f": {n} turn{'' if n == 1 else 's'} had waited")

    def sweep(self, now: float, keep_s: float, max_bytes: int) -> int:
        """Drop what is too old or too much; how many turns. Where that is not 0 there may be more."""
        try:
            return self._opened().sweep(now, keep_s, max_bytes)
        except Exception as error:  # noqa: BLE001  whatever it is, turns go on being written
            self._say(f"the store was not swept: {type(error).__name__}")
            return 0

    def open(self) -> None:
        """Open the store now, so that what a dead recorder left in flight is seen to."""
        try:
            self._opened()
        except (KvtopError, sqlite3.Error, OSError) as error:
            self._failed(error)

    def close(self) -> None:
        self.retry(now=True)
        if self._waiting:
            self.lost += len(self._waiting)
            self._waiting.clear()
        if self.lost:
            self._say(lost_line(self.lost))
        if self._store is not None:
            try:
                self._store.close()
            except (KvtopError, sqlite3.Error, OSError) as error:
                self._say(f"the store was not closed well: {type(error).__name__}")

    def _opened(self) -> StoreLike:
        if self._store is None:
            store = self._open()
            try:
                if adopted := store.adopt(self._tap):
                    self._say(f"{adopted} turn{'' if adopted == 1 else 's'} in flight when the recorder before ended")
                self._linker = self._link(store.recent(REMEMBERED))
            except BaseException:
                store.close()
                raise
            self._store = store
        for note in self._store.notes:
            self._say(note)
        self._store.notes.clear()
        return self._store

    def _try(self, entry: Entry) -> bool:
        """Whether the entry is done with: written, or given up."""
        try:
            self._write(entry, self._opened())
        except (KvtopError, sqlite3.Error, OSError) as error:
            self._failed(error)
            return False
        except Exception as error:  # noqa: BLE001  one turn that cannot be written must not stop those after it
            self._lose(entry, f"a turn lost: {type(error).__name__}")
            return True
        self._pause_s = RETRY_S
        return True

    def _write(self, entry: Entry, store: StoreLike) -> None:
        linker = self._linker
        assert linker is not None
        if not entry.id:
            entry.place = linker.place(entry.turn)
            entry.id = store.begin(self._placed(entry), entry.request)
            entry.request = b""
            linker.add(self._placed(entry))
            entry.dirty = False
        if entry.response is not None:
            turn = self._placed(entry)
            store.finish(turn, entry.response)
            entry.response = None
            entry.dirty = False
            linker.update(turn)
        elif entry.dirty:
            store.update(self._placed(entry))
            entry.dirty = False

    @staticmethod
    def _placed(entry: Entry) -> Captured:
        place = entry.place
        assert place is not None
        conversation = place.conversation or (f"c{entry.id}" if entry.id else None)
        return msgspec.structs.replace(
            entry.turn,
            id=entry.id,
            conversation=conversation,
            parent=place.parent,
            relation=place.relation,
            changed=list(place.changed),
        )

    def _wait(self, entry: Entry) -> None:
        self._waiting_bytes += entry.bytes - self._waiting.get(entry, 0)
        self._waiting[entry] = entry.bytes
        while len(self._waiting) > MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
            self._lose(next(iter(self._waiting)), "")
            if self.lost % 100 == 1:
                self._say(f"{self.lost} turn{'' if self.lost == 1 else 's'} lost: too much waits for the store")

    def _forget(self, entry: Entry) -> None:
        self._waiting_bytes -= self._waiting.pop(entry, 0)

    def _lose(self, entry: Entry, why: str) -> None:
        self._forget(entry)
        entry.lost = True
        entry.request, entry.response = b"", None
        self.lost += 1
        if why:
            self._say(why)

    def _well(self, waited: str = "") -> None:
        """Nothing waits: `capture.tap.child` reads what is said here and below."""
        if self._unwell:
            self._unwell = False
            self._say(f"the store is written again{waited}")

    def _failed(self, error: Exception) -> None:
        if self._pause_s == RETRY_S:
            self._unwell = True
            why = error.what if isinstance(error, KvtopError) else type(error).__name__
            self._say(f"the store cannot be written: {why}; turns wait for it")
        self._retry_at = self._mono() + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_RETRY_S)
