"""How connections end through the tap: early refusals, resets, aborts, half closes, readers that do not read."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import cast

import pytest
from rawtalk import GET, POST, Talk, answers, asks, both_ways, connect, head, play, tapped, upstream

from kvtop.capture.tap.reactor import IN, Reactor
from kvtop.capture.tap.splice import Link, prepare
from kvtop.capture.tap.track import Track


@pytest.mark.parametrize("status", ["413 Content Too Large", "401 Unauthorized"])
@pytest.mark.parametrize("how", ["closes", "resets", "reads on", "ends and reads nothing"])
def test_an_early_refusal_of_a_large_upload_is_delivered(status: str, how: str) -> None:
    """Whatever happens to the writes to the upstream, what it said reaches the client."""
    said = head(status, "content-length: 4", "connection: close") + b"full"
    body = b"x" * 20_000_000
    heard_all = threading.Event()

    def client(talk: Talk) -> None:
        talk.send(b"POST / HTTP/1.1\r\nContent-Length: 20000000\r\n\r\n")
        uploading = threading.Thread(target=talk.send, args=(body,))
        uploading.start()
        talk.rest()
        heard_all.set()
        uploading.join()

    def server(talk: Talk) -> None:
        talk.until(b"\r\n\r\n")
        talk.send(said)
        if how == "resets":
            talk.delivered()
            talk.reset()
        elif how == "reads on":
            talk.fin()
            talk.count(20_000_000)
        elif how == "ends and reads nothing":
            talk.fin()
            assert heard_all.wait(20)

    with upstream(server) as box, tapped(box.port) as tap:
        for port in (box.port, tap.addresses[0][1]):
            heard_all.clear()
            heard = play(port, client)
            assert heard.data == said, "direct" if port == box.port else "through the tap"


@pytest.mark.parametrize("framing", [b"content-length: 100", b"transfer-encoding: chunked", b"connection: close"])
def test_a_reset_by_the_upstream_is_a_reset_for_the_client(framing: bytes) -> None:
    said = b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n5\r\nhello"
    heard, _ = both_ways(asks(GET), answers(said, end="reset"))
    assert heard[0].end == "reset"
    assert heard[1] == heard[0]
    assert heard[0].data == said


def test_a_slow_client_gets_all_that_was_said_before_the_reset() -> None:
    """The answer has left the upstream and waits in the tap for a client that does not read yet."""
    said = b"x" * 1_500_000
    gone = threading.Event()

    def server(talk: Talk) -> None:
        talk.until(GET)
        talk.send(said)
        talk.delivered()
        talk.reset()
        gone.set()

    with upstream(server) as box, tapped(box.port) as tap, Talk(socket.socket()) as talk:
        talk.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        talk.sock.connect(("127.0.0.1", tap.addresses[0][1]))
        talk.send(GET)
        assert gone.wait(10)
        time.sleep(0.1)
        talk.rest()
        assert talk.end == "reset"
        assert bytes(talk.data) == said


def test_a_half_closed_client_gets_its_answer() -> None:
    """FIN after the request: the upstream is told, and its answer still passes."""
    said = head("200 OK") + b"late answer"

    def client(talk: Talk) -> None:
        talk.send(GET)
        talk.fin()
        talk.rest()

    def server(talk: Talk) -> None:
        talk.rest()
        time.sleep(0.05)
        talk.send(said)

    heard, got = both_ways(client, server)
    assert heard[1] == heard[0]
    assert heard[0].data == said
    assert got[1] == got[0]
    assert got[0].end == "fin"


def test_a_half_closed_upstream_hears_the_rest() -> None:
    def client(talk: Talk) -> None:
        talk.send(GET)
        talk.rest()
        talk.send(b"and one thing more")

    def server(talk: Talk) -> None:
        talk.until(GET)
        talk.send(b"bye")
        talk.fin()
        talk.rest()

    heard, got = both_ways(client, server)
    assert heard[1] == heard[0]
    assert got[1] == got[0]
    assert got[0].data.endswith(b"one thing more")


def leaves(how: str) -> Callable[[Talk], None]:
    return {"closes": lambda talk: talk.sock.close(), "resets": Talk.reset, "half closes": Talk.fin}[how]


@pytest.mark.parametrize("how", ["closes", "resets", "half closes"])
def test_a_client_that_leaves_in_the_prefill_is_noticed_at_once(how: str) -> None:
    """Nothing was said by the upstream yet. Within 5 ms, as a best of some: the machine may be busy."""
    left_at: list[float] = []
    took: list[float] = []
    ends: list[str] = []
    asked = threading.Event()

    def server(talk: Talk) -> None:
        talk.until(POST)
        asked.set()
        talk.rest()
        took.append(time.monotonic() - left_at[-1])
        ends.append(talk.end)

    with upstream(server) as box, tapped(box.port) as tap:
        for _ in range(7):
            asked.clear()
            talk = connect(tap.addresses[0][1])
            talk.send(POST)
            assert asked.wait(10)
            left_at.append(time.monotonic())
            leaves(how)(talk)
            box.wait()
            talk.sock.close()
    assert set(ends) == {"reset" if how == "resets" else "fin"}
    assert min(took) < 0.005


@pytest.mark.parametrize("how", ["closes", "resets"])
def test_a_client_that_leaves_in_mid_stream_stops_the_upstream(how: str) -> None:
    def server(talk: Talk) -> None:
        talk.until(POST)
        while talk.send(b"data: more\n\n"):
            time.sleep(0.001)

    with upstream(server) as box, tapped(box.port) as tap, connect(tap.addresses[0][1]) as talk:
        talk.send(POST)
        talk.until(b"\n\n", 5)
        leaves(how)(talk)
        box.wait()
        assert box.talks[0].end == "reset"


def test_a_client_that_resets_an_upload_that_nobody_reads_is_noticed() -> None:
    """The tap reads nothing of it while the upstream takes nothing, and sees the reset all the same."""
    go = threading.Event()

    def server(talk: Talk) -> None:
        talk.until(b"\r\n\r\n")
        assert go.wait(10)
        time.sleep(0.2)
        talk.sock.settimeout(5)
        talk.rest()

    with upstream(server) as box, tapped(box.port) as tap, connect(tap.addresses[0][1]) as talk:
        talk.send(b"POST / HTTP/1.1\r\n\r\n")
        talk.sock.setblocking(False)
        full_at = time.monotonic() + 0.3
        while time.monotonic() < full_at:
            try:
                talk.sock.send(b"x" * 65536)
            except BlockingIOError:
                time.sleep(0.01)
        talk.reset()
        go.set()
        box.wait()
        assert box.talks[0].end == "reset"


def test_a_refusing_upstream_is_a_reset_at_once() -> None:
    with upstream(answers(b"")) as box:
        port = box.port
    with tapped(port) as tap, Talk(socket.socket()) as talk:
        began = time.monotonic()
        try:
            talk.sock.connect(("127.0.0.1", tap.addresses[0][1]))
            talk.send(GET)
            talk.rest()
        except ConnectionError:
            talk.end = "reset"
        assert (bytes(talk.data), talk.end) == (b"", "reset")
        assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("slow", ["client", "upstream"])
def test_a_slow_reader_holds_the_other_side_up(slow: str) -> None:
    """100 MB to one who does not read: the sender is stopped, and gets through when reading begins."""
    size, piece = 100_000_000, b"y" * 100_000
    sent = [0]
    stuck = threading.Event()

    def pour(talk: Talk) -> None:
        talk.send(b"go")
        while sent[0] < size and talk.send(piece):
            sent[0] += len(piece)
        talk.fin()

    def sip(talk: Talk) -> int:
        talk.read(2)
        before = -1
        while sent[0] != before:
            before = sent[0]
            time.sleep(0.3)
        stuck.set()
        assert before < 40_000_000, f"{before} bytes on their way to one who reads nothing"
        got = len(talk.data)
        while data := talk.sock.recv(1 << 20):
            got += len(data)
        return got

    got: list[int] = []

    def server(talk: Talk) -> None:
        if slow == "client":
            talk.read(5)
            pour(talk)
            talk.rest()
        else:
            got.append(sip(talk))

    with upstream(server) as box, tapped(box.port) as tap, connect(tap.addresses[0][1]) as talk:
        if slow == "client":
            talk.send(b"hello")
            got.append(sip(talk))
        else:
            pour(talk)
            talk.rest()
        talk.sock.close()
        box.wait()
    assert stuck.is_set()
    assert got == [size + 2]


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    prepare(here)
    return here, there


def test_an_event_that_was_fetched_before_the_upstream_reset_stops_nothing() -> None:
    """epoll tells of both sides at once: the upstream's reset is handled first, the client's bytes come after it, and
    what waits for the client must still get out."""
    reactor, over = Reactor(), []
    here, client = pair()
    there, server = pair()
    link = Link(reactor, here, there, over.append)
    link.start()
    link.client.pending = memoryview(b"the end of the answer")
    link.client.watch()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()
    link.upstream.gone()
    link.client.ready(IN)
    reactor.call_later(0.1, reactor.stop)
    reactor.run()
    assert over == [link]
    assert client.recv(100) == b"the end of the answer"
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    client.close()
    reactor.close()


class Preempted:
    """A socket whose sender gets the processor back only after the other end has acted on what was sent."""

    def __init__(self, sock: socket.socket, acted_ns: list[int]) -> None:
        self._sock, self._acted_ns = sock, acted_ns

    def send(self, data: memoryview) -> int:
        sent = self._sock.send(data)
        self._acted_ns.append(time.monotonic_ns())
        return sent

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


class Noted:
    """A track that keeps the kinds and times of what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, bytes]] = []

    def data(self, kind: int, at_ns: int, data: memoryview) -> None:
        self.told.append((kind, at_ns, bytes(data)))

    def mark(self, kind: int) -> None:
        """Ends are not looked at here."""

    def close(self) -> None:
        """As above."""


def test_bytes_have_the_time_of_their_coming_and_not_that_of_their_passing_on() -> None:
    """Else the time to a first token is short by as long as the tap waited for the processor after it sent."""
    reactor, track = Reactor(), Noted()
    here, client = pair()
    there, server = pair()
    link = Link(reactor, here, there, lambda _: None, cast("Track", track))
    link.start()
    acted_ns: list[int] = []
    link.upstream.sock = cast("socket.socket", Preempted(there, acted_ns))
    link.client.sock = cast("socket.socket", Preempted(here, acted_ns))
    client.sendall(GET)
    assert select.select([here], [], [], 10)[0]
    link.client.ready(IN)
    server.sendall(b"answer")
    assert select.select([there], [], [], 10)[0]
    link.upstream.ready(IN)
    (_, asked_ns, question), (_, answered_ns, answer) = track.told
    assert (question, answer) == (GET, b"answer")
    assert asked_ns < acted_ns[0] < answered_ns < acted_ns[1]
    assert (link.asked_ns, link.at_ns) == (asked_ns, answered_ns)
    link.abort()
    client.close()
    server.close()
    reactor.close()
