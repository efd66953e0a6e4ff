"""Turns on their way into a store that fails."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import msgspec
import pytest
from capture_fakes import FakeLinker, FakeStore

from kvtop.capture.conversations.linker import LIMIT
from kvtop.capture.recorder import ledger as module
from kvtop.capture.recorder.ledger import Ledger
from kvtop.capture.turn import Captured, TurnState
from kvtop.errors import KvtopError

TURN = Captured(model="m")
DONE = msgspec.structs.replace(TURN, state=TurnState.DONE)


class Desk:
    """A ledger over a FakeStore, and a clock moved by hand."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.linker = FakeLinker()
        self.opens: Exception | None = None
        self.said: list[str] = []
        self.now = 0.0
        self.ledger = Ledger(self._open, self._link, tap="tap", say=self.said.append, mono=lambda: self.now)

    def _open(self) -> FakeStore:
        if self.opens is not None:
            raise self.opens
        return self.store

    def _link(self, recent: object) -> FakeLinker:
        return self.linker


def test_a_turn_is_written_as_it_goes() -> None:
    desk = Desk()
    entry = desk.ledger.keep(TURN, b"ask")
    assert (desk.store.requests, desk.store.adopted) == ({1: b"ask"}, "tap")
    entry.update(msgspec.structs.replace(TURN, first_token_at=1.0))
    assert desk.store.turns[0].first_token_at == 1.0
    entry.finish(DONE, b"answer")
    assert (desk.store.turns[0].state, desk.store.responses) == (TurnState.DONE, {1: b"answer"})
    entry.update(msgspec.structs.replace(DONE, alone=True))
    assert desk.store.turns[0].alone is True
    assert (entry.request, entry.response) == (b"", None)


def test_the_place_of_a_turn_stays_with_it() -> None:
    desk = Desk()
    place = SimpleNamespace(conversation="c7", parent=9, relation="next", changed=("tools",))
    desk.linker.place = lambda turn: place  # type: ignore[method-assign]
    desk.ledger.keep(TURN, b"").finish(DONE, b"")
    (turn,) = desk.store.turns
    assert (turn.conversation, turn.parent, turn.relation, turn.changed) == ("c7", 9, "next", ["tools"])
    assert [turn.id for turn in desk.linker.added] == [1]
    assert [turn.state for turn in desk.linker.updated] == [TurnState.DONE]


def test_a_new_conversation_is_named_by_its_first_turn() -> None:
    desk = Desk()
    desk.ledger.keep(TURN, b"").finish(DONE, b"")
    assert (desk.store.turns[0].conversation, desk.linker.added[0].conversation) == ("c1", "c1")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (KvtopError("locked"), "locked"),
        (sqlite3.OperationalError("disk I/O error"), "OperationalError"),
        (OSError(28, "No space left on device"), "OSError"),
    ],
)
def test_turns_wait_for_a_store_that_cannot_be_written(error: Exception, why: str) -> None:
    desk = Desk()
    first = desk.ledger.keep(TURN, b"one")
    desk.store.fails = error
    first.finish(DONE, b"end of one")
    second = desk.ledger.keep(TURN, b"two")
    second.finish(DONE, b"end of two")
    desk.ledger.retry()
    assert list(desk.store.requests.values()) == [b"one"]
    desk.store.fails = None
    desk.ledger.retry()  # not yet time
    assert len(desk.store.rows) == 1
    desk.now += 60
    desk.ledger.retry()
    assert desk.store.requests == {1: b"one", 2: b"two"}
    assert desk.store.responses == {1: b"end of one", 2: b"end of two"}
    assert [turn.state for turn in desk.store.turns] == [TurnState.DONE] * 2
    assert desk.said == [
        f"the store cannot be written: {why}; turns wait for it",
        "the store is written again: 2 turns had waited",
    ]


def test_a_store_that_is_well_again_before_a_turn_waited_for_it_is_told() -> None:
    desk = Desk()
    desk.opens = KvtopError("locked")
    desk.ledger.open()
    desk.opens = None
    desk.ledger.keep(TURN, b"one").finish(DONE, b"")
    assert desk.said == ["the store cannot be written: locked; turns wait for it", "the store is written again"]


def test_a_store_that_cannot_be_opened_is_opened_later() -> None:
    desk = Desk()
    desk.opens = KvtopError("locked")
    desk.ledger.open()
    desk.ledger.keep(TURN, b"one")
    desk.opens = None
    desk.now += 60
    desk.ledger.keep(TURN, b"two")
    assert list(desk.store.requests.values()) == [b"one", b"two"]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 1_000)
    desk = Desk()
    desk.store.fails = OSError(28, "full")
    entries = [desk.ledger.keep(TURN, b"x" * 300) for _ in range(5)]
    entries[4].finish(DONE, b"y" * 100)
    assert (desk.ledger.lost, desk.ledger._waiting_bytes) == (2, 1_000)
    entries[0].finish(DONE, b"late")  # of one that is lost
    desk.store.fails = None
    desk.now += 60
    desk.ledger.retry()
    assert len(desk.store.rows) == 3
    assert desk.ledger._waiting_bytes == 0


def test_a_turn_that_cannot_be_written_does_not_stop_the_others() -> None:
    desk = Desk()
    desk.ledger.open()
    desk.store.fails = ValueError("odd")
    bad = desk.ledger.keep(TURN, b"one")
    desk.store.fails = None
    bad.finish(DONE, b"")
    desk.ledger.keep(TURN, b"two")
    assert (list(desk.store.requests.values()), desk.ledger.lost) == ([b"two"], 1)
    assert desk.said == ["a turn lost: ValueError"]


def test_the_end_writes_what_waits_or_counts_it() -> None:
    desk = Desk()
    desk.store.fails = OSError(28, "full")
    desk.ledger.keep(TURN, b"one")
    desk.store.fails = None
    desk.ledger.close()
    assert (len(desk.store.rows), desk.store.closed) == (1, True)
    desk = Desk()
    desk.store.fails = OSError(28, "full")
    desk.ledger.keep(TURN, b"one")
    desk.ledger.close()
    assert desk.said[-1] == "1 turn lost: the store could not be written"


def test_sweeping() -> None:
    desk = Desk()
    assert desk.ledger.sweep(9.0, 8.0, 7) == 0
    assert desk.store.swept == [(9.0, 8.0, 7)]
    desk.store.fails = KvtopError("locked")
    assert desk.ledger.sweep(9.0, 8.0, 7) == 0


def test_the_log_has_what_the_store_notes() -> None:
    desk = Desk()
    desk.store.notes.append("turns.db was moved aside")
    desk.ledger.open()
    assert (desk.said, desk.store.notes) == (["turns.db was moved aside"], [])


def test_no_turn_is_read_that_the_linker_would_forget_at_once() -> None:
    assert module.REMEMBERED == LIMIT
