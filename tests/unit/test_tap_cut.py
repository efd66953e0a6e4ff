"""Which streams a tap cut, in words, with what the store knows of them."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from kvtop.capture.store.store import Store
from kvtop.capture.tap.ended import Cut, Ended
from kvtop.capture.turn import Captured, Route, TurnState
from kvtop.cli.tap_cut import lines

BOX, OTHER = "http://127.0.0.1:8000", "http://127.0.0.1:9000"


def cut(n: int, began_at: float = 100.0, upstream: str = BOX) -> Cut:
    return Cut(peer=f"127.0.0.1:{n}", upstream=upstream, began_at=began_at, ran_s=12.34)


def test_without_a_store_it_says_what_the_tap_knows(tmp_path: Path) -> None:
    want = ["  cut: 127.0.0.1:1 -> http://127.0.0.1:8000, 12.3 s after it asked"]
    ended = Ended(cut=1, served=3, cuts=[cut(1)])
    assert lines(ended, None) == lines(ended, str(tmp_path / "none.db")) == want
    assert lines(Ended(cut=0, served=3), None) == []


def test_what_is_not_listed_is_counted() -> None:
    told = lines(Ended(cut=5, served=9, cuts=[cut(1), cut(2)]), None)
    assert (len(told), told[-1]) == (3, "  and 3 more")


def test_turns_that_could_not_be_written_are_counted() -> None:
    told = lines(Ended(cut=0, served=40, lost_turns=39), "/x/turns.db")
    assert told == ["  39 turns are not recorded whole: /x/turns.db could not be written"]


def test_a_connection_whose_turn_was_forgotten_names_no_turn(tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    with Store.open(path, write=True) as store:
        for at, state in ((100.0, TurnState.CUT), (100.02, TurnState.CUT), (100.03, TurnState.DONE)):
            turn = Captured(upstream=BOX, started_at=at, route=Route.CHAT, agent="pi", state=state)
            store.finish(replace(turn, id=store.begin(turn, b"{}")), b"")
        store.forget([2])
    told = lines(Ended(cut=2, served=3, cuts=[cut(2, 100.021), cut(1, 100.001)]), str(path))
    assert [line.partition("; ")[2] for line in told] == ["", "turn 1, chat by pi"]


def test_a_turn_is_known_by_its_server_and_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    with Store.open(path, write=True) as store:
        for upstream, at, agent in ((OTHER, 100.0, "pi"), (BOX, 100.04, "aider"), (BOX, 100.01, "claude")):
            store.begin(Captured(upstream=upstream, started_at=at, route=Route.CHAT, agent=agent), b"{}")
    told = lines(Ended(cut=2, served=2, cuts=[cut(1), cut(2, 100.25)]), str(path))
    assert told == [
        "  cut: 127.0.0.1:1 -> http://127.0.0.1:8000, 12.3 s after it asked; turn 3, chat by claude",
        "  cut: 127.0.0.1:2 -> http://127.0.0.1:8000, 12.3 s after it asked",
    ]
