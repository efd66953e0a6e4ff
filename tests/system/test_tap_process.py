"""The tap as a process: how it ends, what it does without descriptors, and what it weighs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rawtalk import Talk, connect, echo, upstream

from kvtop.capture.tap import door
from kvtop.capture.tap.process import Ended, Mapping, Tap
from kvtop.errors import UsageError

MAIN = Path(__file__).with_name("tap_main.py")
GET = b"GET / HTTP/1.1\r\n\r\n"


class Process:
    def __init__(self, port: int, *options: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(MAIN), str(port), *options]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.child.stdout is not None
        self.out = self.child.stdout
        self.port: int = json.loads(self.out.readline())[0][1]

    def signal(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    def ended(self) -> tuple[int, int]:
        """(cut, served)."""
        text, _ = self.child.communicate(timeout=30)
        cut, served = json.loads(text)
        return cut, served

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss(self) -> int:
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@contextmanager
def process(port: int, *options: str) -> Iterator[Process]:
    tap = Process(port, *options)
    try:
        yield tap
    finally:
        tap.child.kill()
        tap.child.wait()
        tap.out.close()


def refuses(port: int) -> bool:
    try:
        connect(port).sock.close()
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_open_stream_is_served_to_its_end(number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("these tests run under nohup: the signal is ignored, by the tap too")
    with upstream(echo) as box, process(box.port, "--drain", "20") as tap, connect(tap.port) as talk:
        talk.send(b"one")
        talk.count(3)
        tap.signal(number)
        while not refuses(tap.port):
            time.sleep(0.01)
        talk.send(b"two")
        talk.count(6)
        talk.fin()
        talk.rest()
        assert talk.heard.data == b"onetwo"
        assert talk.end == "fin"
        cut, _ = tap.ended()
        assert cut == 0


def test_a_stream_that_does_not_end_is_cut_and_counted() -> None:
    """And what is cut does not look complete."""
    with upstream(echo) as box, process(box.port, "--drain", "0.2") as tap, connect(tap.port) as talk:
        talk.send(b"one")
        talk.count(3)
        tap.signal(signal.SIGTERM)
        talk.rest()
        assert talk.end == "reset"
        assert tap.ended() == (1, 1)
        box.wait()
        assert box.talks[0].end == "reset"


def test_a_second_signal_ends_at_once() -> None:
    with upstream(echo) as box, process(box.port, "--drain", "60") as tap, connect(tap.port) as talk:
        talk.send(b"one")
        talk.count(3)
        tap.signal(signal.SIGTERM)
        while not refuses(tap.port):
            time.sleep(0.01)
        tap.signal(signal.SIGINT)
        talk.rest()
        assert talk.end == "reset"
        cut, _ = tap.ended()  # one of the attempts to connect may have been let in and be cut too
        assert cut >= 1


def test_a_kept_alive_connection_is_not_waited_for() -> None:
    with upstream(echo) as box, process(box.port, "--drain", "60") as tap, connect(tap.port) as talk:
        talk.send(b"one")
        talk.count(3)
        began = time.monotonic()
        tap.signal(signal.SIGTERM)
        assert tap.ended() == (0, 1)
        assert time.monotonic() - began < 10


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"9\r\ndata: 1\n\n\r\n"


@pytest.mark.parametrize("before", [b"", STREAM, STREAM + CHUNK], ids=["nothing", "head", "chunk"])
def test_an_answer_that_pauses_is_waited_for(before: bytes) -> None:
    """However long nothing comes. A stream may have its head before its prefill."""
    go = threading.Event()

    def slow(talk: Talk) -> None:
        talk.until(GET)
        talk.send(before)
        assert go.wait(20)
        talk.send(b"0\r\n\r\n")

    with upstream(slow) as box, process(box.port, "--drain", "60") as tap, connect(tap.port) as talk:
        talk.send(GET)
        while not box.talks or box.talks[0].data != GET:
            time.sleep(0.01)
        talk.count(len(before))
        tap.signal(signal.SIGTERM)
        time.sleep(3.5)
        go.set()
        talk.rest()
        assert talk.heard.data == before + b"0\r\n\r\n"
        assert talk.end == "fin"


@pytest.mark.parametrize("end", [CHUNK + b"0\r\n\r\n", b'{"a": 1}'])
def test_a_whole_answer_is_not_waited_for(end: bytes) -> None:
    def server(talk: Talk) -> None:
        talk.until(GET)
        talk.send(STREAM + end)
        talk.rest()

    with upstream(server) as box, process(box.port, "--drain", "60") as tap, connect(tap.port) as talk:
        talk.send(GET)
        talk.count(len(STREAM + end))
        tap.signal(signal.SIGTERM)
        assert tap.ended() == (0, 1)


def test_it_says_which_were_cut() -> None:
    with upstream(echo) as box:
        tap = Tap([Mapping("127.0.0.1", 0, "127.0.0.1", box.port, "http://box:8000")], drain_s=0.0)
        runs = threading.Thread(target=lambda: ends.append(tap.run()))
        ends: list[Ended] = []
        runs.start()
        with connect(tap.addresses[0][1]) as talk:
            for said in (1, 2):  # the second request is the one that is cut
                asked = time.time()
                talk.send(b"x")
                talk.count(said)
            peer = "{}:{}".format(*talk.sock.getsockname())
            tap.stop()
            runs.join(20)
        ((cut,),) = [ended.cuts for ended in ends]
        assert (ends[0].cut, cut.peer, cut.upstream) == (1, peer, "http://box:8000")
        assert asked - 0.05 <= cut.began_at <= time.time()
        assert 0 <= cut.ran_s <= time.time() - asked + 0.05


def test_kill_9_looks_like_a_reset_on_both_sides() -> None:
    with upstream(echo) as box, process(box.port) as tap, connect(tap.port) as talk:
        talk.send(b"HTTP/1.1 200 OK\r\n\r\nhalf of a bo")
        talk.count(20)
        tap.signal(signal.SIGKILL)
        talk.rest()
        assert talk.end == "reset"
        box.wait()
        assert box.talks[0].end == "reset"


def test_without_descriptors_clients_wait_and_the_tap_rests() -> None:
    with upstream(echo) as box, process(box.port, "--files", "40") as tap:
        talks = [connect(tap.port) for _ in range(40)]
        time.sleep(0.5)
        before = tap.cpu_s()
        time.sleep(1)
        assert tap.cpu_s() - before < 0.2
        for talk in talks:
            talk.sock.settimeout(0.05)
        served = 0
        for talk in talks:
            talk.send(b"hello")
            try:
                talk.read()
            except TimeoutError:
                continue
            assert talk.data == b"hello"
            served += 1
        assert 5 < served < 20
        for talk in talks[:served]:
            talk.sock.close()
        last = talks[served]
        last.sock.settimeout(10)
        last.count(5)
        assert last.data == b"hello"
        for talk in talks:
            talk.sock.close()
        assert tap.child.poll() is None


def test_an_idle_connection_weighs_less_than_4_kb(tmp_path: Path) -> None:
    """With a recorder that has to be told of each."""
    count = 1500
    done = threading.Event()

    def quiet(talk: Talk) -> None:
        done.wait(60)

    threading.stack_size(256 * 1024)
    try:
        with upstream(quiet) as box, process(box.port, "--frames", str(tmp_path / "frames")) as tap:
            warm = [connect(tap.port) for _ in range(100)]
            time.sleep(0.5)
            before = tap.rss()
            talks = [connect(tap.port) for _ in range(count)]
            while len(box.talks) < count + 100:
                time.sleep(0.05)
            time.sleep(0.5)
            each = (tap.rss() - before) / count
            for talk in warm + talks:
                talk.sock.close()
            done.set()
            box.wait()
    finally:
        threading.stack_size(0)
    assert each < 4000, each


def test_the_tap_imports_little() -> None:
    code = "import sys, kvtop.capture.tap.process; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = done.stdout.split()
    for heavy in ("asyncio", "ssl", "sqlite3", "textual", "httptools", "zstandard", "logging", "urllib.request", "h11"):
        assert heavy not in names


def mapping(upstream_port: int, *, host: str = "127.0.0.1", listen: int = 0) -> Mapping:
    return Mapping("127.0.0.1", listen, host, upstream_port, f"http://{host}:{upstream_port}")


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} is taken"):
            Tap([mapping(8000, listen=port)])


@pytest.mark.parametrize(
    ("listens", "reaches"), [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "localhost"), ("0.0.0.0", "127.0.0.7")]
)
def test_an_upstream_that_is_the_tap_itself_is_refused(listens: str, reaches: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UsageError, match="is the tap itself"):
        Tap([Mapping(listens, port, reaches, port, f"http://{reaches}:{port}")])


def test_an_upstream_on_another_machine_may_have_the_same_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tap = Tap([Mapping("0.0.0.0", port, "192.0.2.1", port, f"http://192.0.2.1:{port}")], drain_s=0)
    tap.stop()
    assert tap.run().served == 0


def test_several_mappings() -> None:
    with (
        upstream(lambda talk: talk.send(b"one") and None) as one,
        upstream(lambda talk: talk.send(b"two") and None) as two,
    ):
        tap = Tap([mapping(one.port), mapping(two.port)], drain_s=0)
        thread = threading.Thread(target=tap.run)
        thread.start()
        for (_, port), text in zip(tap.addresses, (b"one", b"two"), strict=True):
            with connect(port) as talk:
                talk.rest()
                assert talk.data == text
        tap.stop()
        thread.join()


def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """localhost is often ::1 first, where vLLM does not listen."""
    with upstream(echo) as box:
        there = [(socket.AF_INET6, ("::1", box.port, 0, 0)), (socket.AF_INET, ("127.0.0.1", box.port))]
        resolve = door.resolve
        monkeypatch.setattr(
            "kvtop.capture.tap.process.resolve", lambda host, port: there if host == "box" else resolve(host, port)
        )
        tap = Tap([mapping(box.port, host="box")], drain_s=0)
        thread = threading.Thread(target=tap.run)
        thread.start()
        for _ in range(2):
            with connect(tap.addresses[0][1]) as talk:
                talk.send(b"hello")
                talk.count(5)
                assert talk.data == b"hello"
        tap.stop()
        thread.join()


def test_a_name_that_was_unknown_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known = threading.Event()
    resolve = door.resolve

    def look(host: str, port: int) -> list[door.Address]:
        if host != "box":
            return resolve(host, port)
        if not known.is_set():
            raise OSError("unknown")
        return [(socket.AF_INET, ("127.0.0.1", box.port))]

    monkeypatch.setattr("kvtop.capture.tap.process.resolve", look)
    monkeypatch.setattr("kvtop.capture.tap.door.resolve", look)
    with upstream(echo) as box:
        tap = Tap([mapping(box.port, host="box")], drain_s=0)
        thread = threading.Thread(target=tap.run)
        thread.start()
        answered = []
        for _ in range(50):
            try:
                with connect(tap.addresses[0][1]) as talk:
                    answered.append(talk.send(b"hello") and talk.read())
            except ConnectionResetError:  # the tap was faster than the end of connect()
                answered.append(False)
            known.set()
            if answered[-1]:
                break
            time.sleep(0.05)
        tap.stop()
        thread.join()
    assert not answered[0]
    assert answered[-1]
