"""The recorder gets what passed, in order; and whatever becomes of it, the traffic does not notice."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rawtalk import Talk, connect, echo, file_recorder, play, tapped, upstream
from recorded import Story, lives

from kvtop.capture.tap.process import Tap
from kvtop.capture.tap.wire import Kind, Lost

GET = b"GET / HTTP/1.1\r\n\r\n"


def ask(talk: Talk) -> None:
    talk.send(GET)
    talk.rest()


def wait_for(true: Callable[[], object], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)


def the_pid() -> int:
    """Of the recorder that runs."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    for line in children:
        for pid in line.read_text().split():
            if b"tap_recorder" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    raise AssertionError("no recorder runs")


def running() -> bool:
    try:
        return bool(the_pid())
    except AssertionError:
        return False


def written(path: Path, life: int = 0) -> bytes | None:
    """What that recorder wrote so far; None until it is there."""
    file = path.with_name(f"{path.name}.{life}")
    return file.read_bytes() if file.exists() else None


def test_what_passed_is_handed_over_in_order(tmp_path: Path) -> None:
    def server(talk: Talk) -> None:
        talk.until(GET)
        talk.send(b"HTTP/1.1 200 OK\r\n\r\n")
        talk.send(b"x" * 700_000)

    with upstream(server) as box, tapped(box.port, command=file_recorder(tmp_path / "frames")) as tap:
        began = time.monotonic_ns()
        heard = play(tap.addresses[0][1], ask)
        box.wait()
    (life,) = lives(tmp_path / "frames")
    (story,) = life.values()
    assert story.kinds[:3] == [Kind.OPEN, Kind.CLIENT, Kind.SERVER]
    assert story.kinds[3:] in (
        [Kind.SERVER_END, Kind.CLIENT_END, Kind.CLOSE],
        [Kind.SERVER_END, Kind.CLIENT_RESET, Kind.CLOSE],
    )
    assert (story.client, story.server) == (GET, heard.data)
    assert story.lost == Lost()
    assert story.opened is not None
    assert story.opened.upstream == f"http://127.0.0.1:{box.port}"
    assert story.opened.listen == f"127.0.0.1:{tap.addresses[0][1]}"
    assert not story.opened.resumed
    assert story.times == sorted(story.times)
    assert began < story.times[0] < time.monotonic_ns()


def test_a_refused_client_is_told(tmp_path: Path) -> None:
    with upstream(ask) as box:
        port = box.port
    with tapped(port, command=file_recorder(tmp_path / "frames")) as tap, pytest.raises(ConnectionError):
        talk = connect(tap.addresses[0][1])
        with talk:
            raise ConnectionResetError if not talk.read() else AssertionError
    (life,) = lives(tmp_path / "frames")
    (story,) = life.values()
    assert story.kinds == [Kind.REFUSED]
    assert story.opened is not None
    assert story.opened.why == "Connection refused"


def test_a_killed_recorder_is_followed_by_another(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    with upstream(echo) as box, tapped(box.port, command=file_recorder(path)) as tap:
        port = tap.addresses[0][1]
        with connect(port) as old:
            old.send(b"before")
            old.count(6)
            wait_for(lambda: (written(path) or b"").count(b"before") == 2)
            for death in range(2):
                os.kill(the_pid(), signal.SIGKILL)
                wait_for(lambda: not running())
                old.send(b"while")
                old.count(11 + 5 * death)
                with connect(port) as new:
                    new.send(b"new")
                    new.count(3)
                wait_for(lambda: written(path, death + 1) is not None)  # noqa: B023
            old.send(b"after")
            old.count(21)
            old.fin()
            old.rest()
            assert old.heard.data == b"beforewhilewhileafter"
        box.wait()
    first, second, third = lives(path)
    assert first[1].client == b"before"
    for life in (second, third):
        story = life[1]
        assert story.kinds[:2] == [Kind.OPEN, Kind.GAP]
        assert story.opened is not None
        assert story.opened.resumed
    assert second[1].client == b"while"
    assert third[1].client == b"whileafter"
    assert third[1].kinds[-1] == Kind.CLOSE
    whole = [story for life in (second, third) for conn, story in life.items() if conn != 1]
    assert len(whole) == 2
    for story in whole:
        assert (story.client, story.server) == (b"new", b"new")
        assert (story.kinds[0], story.kinds[-1]) == (Kind.OPEN, Kind.CLOSE)
        assert story.opened is not None
        assert not story.opened.resumed


@pytest.mark.parametrize("command", [["/does/not/exist"], [sys.executable, "-c", "raise SystemExit(3)"]])
def test_without_a_recorder_traffic_passes(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtop.capture.tap.process.FLUSH_S", 0.3)
    cap = 100_000
    with upstream(echo) as box, tapped(box.port, command=lambda *_: command, cap_bytes=cap) as tap:
        assert tap.spool is not None
        for _ in range(20):
            with connect(tap.addresses[0][1]) as talk:
                talk.send(b"z" * 50_000)
                talk.count(50_000)
                assert talk.data == b"z" * 50_000
        assert tap.spool.held <= cap


def whole(story: Story) -> tuple[int, int]:
    return len(story.client) + story.lost.client_bytes, len(story.server) + story.lost.server_bytes


def test_a_stopped_recorder_leaves_a_gap_that_tells_how_much(tmp_path: Path) -> None:
    cap, size = 300_000, 3_000_000
    path = tmp_path / "frames"
    with upstream(echo) as box, tapped(box.port, command=file_recorder(path), cap_bytes=cap, drain_s=5) as tap:
        assert tap.spool is not None
        port = tap.addresses[0][1]
        wait_for(lambda: written(path) is not None)
        with connect(port) as talk:
            talk.send(b"first")
            talk.count(5)
            wait_for(lambda: (written(path) or b"").count(b"first") == 2)
            pid = the_pid()
            os.kill(pid, signal.SIGSTOP)
            sending = threading.Thread(target=talk.send, args=(b"x" * size,))
            sending.start()
            talk.count(size + 5)
            sending.join()
            assert bytes(talk.data) == b"first" + b"x" * size
            assert tap.spool.held <= cap
            with connect(port) as other:  # begins and ends while there is no room
                other.send(b"unseen")
                other.count(6)
            os.kill(pid, signal.SIGCONT)
            wait_for(lambda: not tap.spool.held)
            talk.send(b"last")
            talk.count(size + 9)
            talk.fin()
            talk.rest()
        box.wait()
    (life,) = lives(path)
    assert whole(life[1]) == (size + 9, size + 9)
    assert life[1].lost.client_bytes > size / 2
    assert life[1].client.startswith(b"firstx")
    assert life[1].client.endswith(b"xlast") or life[1].client.endswith(b"last")
    assert life[1].kinds[-1] == Kind.CLOSE
    assert whole(life[2]) == (6, 6)
    assert (life[2].kinds[0], life[2].kinds[-1]) == (Kind.OPEN, Kind.CLOSE)


def test_streams_do_not_notice_that_the_recorder_stands_still(tmp_path: Path) -> None:
    """64 streams of 50 chunks a second for 5 s, the recorder stopped for 2 of them (`benchmarks/run --tap --stopped`
    takes a minute and ten seconds)."""
    chunk = b"data: " + b"t" * 500 + b"\n\n"
    path = tmp_path / "frames"
    cap = 500_000

    def stream(talk: Talk) -> None:
        talk.until(GET)
        due = time.monotonic()
        for _ in range(250):
            talk.send(chunk)
            due += 0.02
            time.sleep(max(0.0, due - time.monotonic()))

    got: list[bytes] = []
    with upstream(stream) as box, tapped(box.port, command=file_recorder(path), cap_bytes=cap, drain_s=5) as tap:
        assert tap.spool is not None
        most = 0
        wait_for(lambda: written(path) is not None)
        clients = [threading.Thread(target=lambda: got.append(play(tap.addresses[0][1], ask).data)) for _ in range(64)]
        for client in clients:
            client.start()
        time.sleep(1)
        pid = the_pid()
        os.kill(pid, signal.SIGSTOP)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            most = max(most, tap.spool.held)
            time.sleep(0.01)
        os.kill(pid, signal.SIGCONT)
        for client in clients:
            client.join()
        box.wait()
    assert got == [chunk * 250] * 64
    assert cap // 2 < most <= cap
    (life,) = lives(path)
    assert [whole(story) for story in life.values()] == [(len(GET), len(chunk) * 250)] * 64
    assert sum(story.lost.server_bytes for story in life.values()) > 100_000


def test_of_the_recorders_words_only_its_own_are_passed_on() -> None:
    code = (
        "import sys; sys.stderr.write('kvtop recorder: one\\nTraceback: a secret\\nkvtop recorder: two\\nkvtop rec'); "
    )
    notes: list[str] = []
    tap = Tap(
        [],
        command=lambda fd, _: [sys.executable, "-c", f"{code}import socket; socket.socket(fileno={fd}).recv(1)"],
        note=notes.append,
    )
    runs = threading.Thread(target=tap.run)
    runs.start()
    wait_for(lambda: len(notes) == 2)
    tap.stop()
    runs.join(15)
    assert notes == ["recorder: one", "recorder: two"]


def test_the_recorder_is_nice_and_in_a_group_of_its_own(tmp_path: Path) -> None:
    with upstream(echo) as box, tapped(box.port, command=file_recorder(tmp_path / "frames")):
        wait_for(lambda: written(tmp_path / "frames") is not None)
        pid = the_pid()
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
        assert os.getpgid(pid) == pid


def test_at_the_end_a_recorder_that_stands_still_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtop.capture.tap.process.FLUSH_S", 0.3)
    monkeypatch.setattr("kvtop.capture.tap.process.RECORDER_S", 0.3)
    with upstream(echo) as box, tapped(box.port, command=file_recorder(tmp_path / "frames")) as tap:
        wait_for(running)
        pid = the_pid()
        os.kill(pid, signal.SIGSTOP)
        with connect(tap.addresses[0][1]) as talk:
            talk.send(b"hello")
            talk.count(5)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not Path(f"/proc/{pid}").exists()
