"""A log in lines: however it was cut, what is held of a large one, what is found in it, what grows."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.live.logbook import FIRST, LogBook, LogReader
from kvtop.profiles.running import logs, tools
from kvtop.profiles.running.record import Record


def lines(book: LogBook) -> list[str]:
    return [book.line(i) for i in range(len(book))]


def expected(data: bytes) -> list[str]:
    found = re.split(rb"\r\n|[\r\n]", data)
    return [line.decode().rstrip() for line in (found if found[-1] else found[:-1])]


@given(st.lists(st.sampled_from([b"a", b"bc ", b"\n", b"\r", b"\r\n", "é".encode(), b"INFO x"])), st.integers(0, 9))
def test_the_lines_are_the_same_however_the_bytes_came(pieces: list[bytes], cut: int) -> None:
    data = b"".join(pieces)
    book = LogBook()
    for start in range(0, len(data), max(1, cut)):
        book.feed(data[start : start + max(1, cut)])
    assert lines(book) == lines(LogBook(data)) == expected(data)
    assert book.size == len(data)


def test_a_bar_is_a_line_for_each_of_its_states_and_colours_are_taken_out() -> None:
    book = LogBook(b"\x1b[32mINFO\x1b[0m a\nshards: 1/2\rshards: 2/2\r\nlast")
    assert lines(book) == ["INFO a", "shards: 1/2", "shards: 2/2", "last"]


def test_of_a_part_the_first_line_is_left_out() -> None:
    book = LogBook(b"alf a line\nwhole\n", skipped=100)
    assert (lines(book), book.skipped, book.size) == (["whole"], 111, 117)


def test_each_line_is_found_once_whatever_its_case() -> None:
    book = LogBook(b"Route: /a route\nnothing\nROUTE\nrouting (a.b)\n")
    assert list(book.matches("route")) == [0, 2]
    assert list(book.matches("(A.B)")) == [3]
    assert list(book.matches("")) == list(book.matches("nowhere")) == []


PIECES = [
    b"m",
    b"x",
    b"[",
    b"1",
    b"\x1b[1m",
    b"\x1b[31;1m",
    b"\x1b]0;x1\x07",
    b"\x1b",
    b"\x1bM",
    b"\n",
    b"\r",
    b"\r\n",
    b"\x1b]0;",
]


@given(st.lists(st.sampled_from(PIECES)), st.sampled_from(["m", "x1", "1m", "[1", "31", "M"]))
def test_what_is_found_is_what_is_seen(pieces: list[bytes], text: str) -> None:
    book = LogBook(b"".join(pieces))
    assert list(book.matches(text)) == [i for i, line in enumerate(lines(book)) if text.lower() in line.lower()]


def test_what_makes_colours_is_not_found() -> None:
    book = LogBook(b"\x1b[1;36m(APIServer pid=7)\x1b[0;0m INFO a\n\x1b[36m[b\x1b[0m\n[c\n\x1b[1mthe 36m last")
    assert list(book.matches("[")) == [1, 2]
    assert list(book.matches("36m")) == [3]
    assert list(book.matches("PID=7)")) == [0]


def test_a_long_line_is_shown_in_part() -> None:
    assert len(LogBook(b"x" * 50_000 + b"\nnext\n").line(0)) == 4_000


def test_the_end_of_a_large_log_is_read_and_what_comes_follows(tmp_path: Path) -> None:
    file = tmp_path / "big.log"
    with file.open("wb") as out:
        out.truncate(1_000_000_000)  # a hole: nobody could read it whole in this time and memory
        out.seek(0, 2)
        out.write(b"\nthe last line\n")
    reader = LogReader(Record(name="x", log=str(file)))
    book = reader.read(FIRST)
    assert (len(book), book.line(0), book.size) == (1, "the last line", 1_000_000_015)
    with file.open("ab") as out:
        out.write(b"one more\n")
    book.feed(reader.more())
    assert lines(book) == ["the last line", "one more"]
    assert reader.more() == b""
    reader.close()


def test_a_log_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        LogReader(Record(name="x", log=str(tmp_path / "none.log"))).read(FIRST)


def test_letters_beyond_a_to_z_are_found_as_they_are_written() -> None:
    book = LogBook("ÄRGER im Kern\nkein ärger\n".encode())
    assert list(book.matches("Ärger")) == [0]
    assert list(book.matches("KERN")) == [0]


def test_what_is_begun_while_it_is_closed_is_ended_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun: list[logs.CommandTail] = []

    def follow(words: Sequence[str]) -> logs.CommandTail:
        begun.append(CommandTail(words))
        return begun[-1]

    CommandTail = logs.CommandTail
    monkeypatch.setattr(logs, "CommandTail", follow)
    reader = LogReader(Record(name="x", log=str(tmp_path / "none.log")))
    reader._words, reader._follow = ["true"], ["sleep", "600"]

    def run(words: list[str], *, timeout_s: float, output: int) -> tools.Done:
        reader.close()
        return ran(words, timeout_s=timeout_s, output=output)

    ran = tools.run
    monkeypatch.setattr(tools, "run", run)
    reader.read(FIRST)
    assert [tail.child.returncode for tail in begun] == [-signal.SIGKILL]
    assert reader.more() == b""
