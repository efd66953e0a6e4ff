"""A server's log: its last lines, what is new in it, and rotation behind the back of who writes it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.profiles.running import logs
from kvtop.profiles.running.text import MAX_LINE, Quiet, clean, is_poll, less_polls

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30)


@given(st.lists(LINE, max_size=40), st.booleans(), st.integers(1, 64))
def test_backwards_is_forwards_from_the_end(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ended: bool, block: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "x.log"
    text = "\n".join(lines) + ("\n" if ended else "")
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_BLOCK", block)
        found = [line.decode() for line in logs.backwards(path)]
    expected = text.split("\n")
    if expected[-1] == "":
        expected.pop()  # what ends with an end of line has no line behind it
    assert found[::-1] == expected


ASKED = b'INFO:     127.0.0.1:5 - "GET /metrics HTTP/1.1" 200 OK'
ANSWERED = b'(APIServer pid=7) INFO:     127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
LONG = b"INFO " + b"x" * 900
TOLD = st.sampled_from([ASKED, b"(APIServer pid=7) " + ASKED, ASKED + b" ", ANSWERED, b"", b"IN", b"(", LONG])
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(TOLD, ENDS), max_size=12), TOLD, st.data())
def test_polls_are_left_out_however_a_log_comes(
    lines: list[tuple[bytes, bytes]], last: bytes, data: st.DataObject
) -> None:
    text = b"".join(line + end for line, end in lines) + last
    quiet, come, at = Quiet(), b"", 0
    while at < len(text):
        size = data.draw(st.integers(1, 40))
        come += quiet.feed(text[at : at + size])
        at += size
    whole = [piece for piece in text.splitlines(keepends=True) if piece.endswith((b"\n", b"\r"))]
    kept = b"".join(piece for piece in whole if not is_poll(clean(piece)))
    assert (kept + last).startswith(come) and len(kept + last) - len(come) <= max(len(ASKED) + 20, len(last))
    quiet.feed(b"\n")
    assert quiet.left_out == sum(is_poll(clean(piece)) for piece in [*whole, *([last] if last else [])])


def test_the_end_of_a_log_without_an_end_of_line_is_there() -> None:
    quiet = Quiet()
    assert quiet.feed(b"loading 5%\rKilled") == b"loading 5%\rKilled"
    assert quiet.feed(b" by\n" + ASKED + b"\nINFO: ha") == b" by\n"
    assert quiet.feed(b"lf\n") == b"INFO: half\n" and quiet.left_out == 1
    assert quiet.feed(b"(EngineCore pid=7) Fatal") == b""
    assert quiet.rest() == b"(EngineCore pid=7) Fatal" and quiet.rest() == b""
    assert quiet.feed(b" error\n" + ASKED) == b" error\n"
    assert quiet.rest() == b"" and quiet.left_out == 2


def test_of_a_log_that_is_cut_the_whole_lines_are_told(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"a secret\nthe rest\n")
    assert logs.since(file, 0, 14) == b"the rest\n" and logs.since(file, 0, 4) == b""
    assert logs.since(file, 0, 18) == file.read_bytes() and logs.since(file, 2, 100) == b"secret\nthe rest\n"


def test_each_log_has_a_name_of_its_own(own_home: Path) -> None:
    names = [
        ("a", ""),
        ("a", "b"),
        ("a.b", ""),
        ("a", "b c"),
        ("a", "b_c"),
        ("a", "b/c"),
        ("kvtop", ""),
        ("kvtop", "b"),
    ]
    names += [("a", "x" * 300), ("a", "x" * 301)]
    files = [logs.default(*name) for name in names]
    assert len({*files, files[0].with_name("kvtop.log")}) == len(names) + 1
    assert files[0].name == "a.log" and all(len(file.name) < 250 and file.parent == files[0].parent for file in files)


def test_the_last_lines_with_a_text(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"line {number} {'Odd' if number % 2 else 'even'}\n" for number in range(1000)))
    logs.older(path).write_text("".join(f"old {number} odd\n" for number in range(10)))
    assert logs.last_lines(path, 2) == ["line 998 even", "line 999 Odd"]
    assert logs.last_lines(path, 2, "odd") == ["line 997 Odd", "line 999 Odd"]
    assert logs.last_lines(path, 3, "OLD ") == ["old 7 odd", "old 8 odd", "old 9 odd"]
    assert logs.last_lines(path, 0) == []
    assert len(logs.last_lines(path, 5000)) == 1010
    with pytest.raises(FileNotFoundError):
        logs.last_lines(tmp_path / "none.log", 1)


POLL = '(APIServer pid=7) INFO:     127.0.0.1:46394 - "GET /metrics HTTP/1.1" 200 OK'


@pytest.mark.parametrize(
    ("line", "poll"),
    [
        (POLL, True),
        ('INFO:     10.0.0.1:1 - "GET /v1/models HTTP/1.1" 200 OK', True),
        ('INFO 12-01 00:00:00 [x.py:1] ::1:5 - "GET /version HTTP/1.1" 200', True),
        ('INFO 12-01 00:00:00 [x.py:1] ::1:5 - "GET /version HTTP/1.1" 404 Not Found', True),
        ('INFO:     127.0.0.1:1 - "GET /is_sleeping HTTP/1.1" 404 Not Found', True),
        ('INFO:     127.0.0.1:1 - "GET /kv_event_sources HTTP/1.1" 200 OK', True),
        ('INFO:     127.0.0.1:1 - "GET /kv_event_sources HTTP/1.1" 404 Not Found', True),
        ('INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable', False),
        ('INFO:     127.0.0.1:1 - "GET /metrics HTTP/1.1" 401 Unauthorized', False),
        ('INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK', False),
        ('INFO:     127.0.0.1:1 - "GET /metricsx HTTP/1.1" 200 OK', False),
        ('ERROR the request "GET /metrics HTTP/1.1" 200 OK', False),
        (f"{POLL} and more: 5", False),
    ],
)
def test_a_line_that_only_tells_of_a_poll(line: str, poll: bool) -> None:
    assert is_poll(line) is poll
    assert less_polls([line, "x"]) == ((["x"], 1) if poll else ([line, "x"], 0))


def test_the_last_lines_less_polls(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"line {number}\n{POLL}\n" for number in range(100)))
    logs.older(path).write_text("old\n")
    assert logs.last_told(path, 2) == (["line 98", "line 99"], 2)
    assert logs.last_told(path, 500)[0][:2] == ["old", "line 0"] and logs.last_told(path, 500)[1] == 100
    assert logs.last_told(path, 2, upto=len(f"line 0\n{POLL}\n")) == (["old", "line 0"], 1)
    assert logs.last_told(path, 500, most=10 * (len(POLL) + 9))[1] == 10
    with pytest.raises(FileNotFoundError):
        logs.last_told(tmp_path / "none.log", 1)


def test_a_progress_bar_is_a_line_for_each_of_its_states(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"a\r\n\rshards: 1/2\rshards: 2/2\nb\n")
    assert [line for line in logs.last_lines(path, 9) if line] == ["a", "shards: 1/2", "shards: 2/2", "b"]


def test_a_large_log_is_not_read_whole(tmp_path: Path) -> None:
    """Its holes are a gigabyte, its lines stand at the end."""
    path = tmp_path / "x.log"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.write(b"\n" + b"line\n" * 100)
    read = 0
    lines = logs.backwards(path)
    for _ in range(50):
        read += len(next(lines))
    lines.close()
    assert read == 50 * 4
    before = int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])
    assert logs.last_lines(path, 100) == ["line"] * 100
    assert int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0]) - before < 1_000_000


def test_a_line_without_an_end_comes_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"first\n" + b"x" * (3 * MAX_LINE))
    found = list(logs.backwards(path))
    assert max(map(len, found)) <= MAX_LINE and b"".join(found[:-1]) == b"x" * (3 * MAX_LINE) and found[-1] == b"first"


def test_what_is_new_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    tail = logs.FileTail(path)
    assert tail.read() == b""
    path.write_bytes(b"one")
    assert (tail.read(), tail.read()) == (b"one", b"")
    with path.open("ab") as file:
        file.write(b"two")
    assert tail.read(2) + tail.read() == b"two"
    os.truncate(path, 0)
    with path.open("ab") as file:
        file.write(b"new")
    assert tail.read() == b"new"
    other = tmp_path / "y.log"
    other.write_bytes(b"another")
    other.replace(path)
    assert tail.read() == b"another"


def test_rotation_keeps_the_file_that_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "x.log"
    fd = logs.open_log(path, 100_000)
    try:
        os.write(fd, b"a" * 10)
        assert not logs.rotate(path, fd, 10)
        os.write(fd, b"b")
        assert logs.rotate(path, fd, 10)
        os.write(fd, b"c")  # O_APPEND: at the beginning again, without a hole
        assert (path.read_bytes(), logs.older(path).read_bytes()) == (b"c", b"a" * 10 + b"b")
        assert [file.stat().st_mode & 0o777 for file in path.parent.iterdir()] == [0o600, 0o600]
    finally:
        os.close(fd)


def test_a_rotation_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.log"
    fd = logs.open_log(path, 100_000)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    try:
        os.write(fd, b"a" * 20)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(OSError, match="No space"):
                logs.rotate(path, fd, 10)
        assert path.read_bytes() == b"a" * 20 and list(tmp_path.iterdir()) == [path]
    finally:
        os.close(fd)


def test_a_pipe_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.log")
    with pytest.raises(OSError, match=r"not a regular file|No such device"):
        logs.open_log(tmp_path / "x.log", 100_000)


@pytest.mark.parametrize(
    ("offset", "limit", "text"),
    [(0, 100, b"0123456789"), (4, 100, b"456789"), (0, 3, b""), (99, 100, b"0123456789")],
)
def test_what_stands_since(tmp_path: Path, offset: int, limit: int, text: bytes) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"0123456789")
    assert logs.since(path, offset, limit) == text
    assert logs.since(tmp_path / "none", offset, limit) == b""


def test_colours_and_titles_are_taken_out() -> None:
    assert (
        clean(b"\x1b[31mred\x1b[0m \x1b]0;title\x07x \x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\ \x1b(B") == "red x link"
    )


def test_the_last_lines_up_to_a_place(tmp_path: Path) -> None:
    """What is written while the last lines are shown comes once, from the one that follows it."""
    path = tmp_path / "x.log"
    path.write_bytes(b"one\ntwo\n")
    size = path.stat().st_size
    path.write_bytes(b"one\ntwo\nthree\n")
    assert logs.last_lines(path, 5, upto=size) == ["one", "two"]
    assert logs.last_lines(path, 5, upto=99) == ["one", "two", "three"]
    assert logs.FileTail(path, size).read() == b"three\n"


def test_what_a_command_says_is_waited_for() -> None:
    tail = logs.CommandTail(
        [sys.executable, "-c", "import os; os.write(1, b'a'); os.write(2, b'b'); raise SystemExit(3)"]
    )
    try:
        said = b""
        while data := tail.wait():
            said += data
        assert (said, tail.child.wait()) == (b"ab", 3)
    finally:
        tail.close()
