"""Through the tap every byte is as it is without it, and so is every end: each behaviour beside a direct connection."""

from __future__ import annotations

import fcntl
import gzip
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rawtalk import Heard, Script, Talk, both_ways, connect, play, tapped, upstream

SIOCOUTQ = 0x5411
GET = b"GET /v1/models HTTP/1.1\r\nHost: box\r\n\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: box\r\nContent-Length: 2\r\n\r\n{}"


def asks(*requests: bytes, answers: bytes = b"") -> Script:
    """Send all at once, read until the upstream ends, or until `answers` was heard and then close."""

    def script(talk: Talk) -> None:
        for request in requests:
            talk.send(request)
        if answers:
            talk.until(answers)
        else:
            talk.rest()

    return script


def answers(data: bytes, after: bytes = b"\r\n\r\n", end: str = "fin") -> Script:
    """Read the request, say this in one go, and end."""

    def script(talk: Talk) -> None:
        talk.until(after)
        talk.send(data)
        if end == "fin":
            talk.fin()
            talk.rest()
        elif end == "reset":
            # What was sent is on its way to the other end before the reset overtakes it.
            time.sleep(0.05)
            talk.reset()

    return script


def head(status: str, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1")


SSE = b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in [b'data: {"n":%d}\n\n' % n for n in range(50)]) + b"0\r\n\r\n"
PACKED = gzip.compress(b'{"object":"list","data":[]}' * 20)

SAID = {
    "server-sent events": head("200 OK", "content-type: text/event-stream", "transfer-encoding: chunked") + SSE,
    "reason phrase": head("200 Alles  in \xd6rdnung!", "content-length: 0"),
    "no reason phrase": b"HTTP/1.1 200 \r\ncontent-length: 0\r\n\r\n",
    "header case, order and duplicates": head(
        "200 OK", "X-b: 1", "x-A: 2", "X-B:3", "Set-Cookie: a=1", "set-cookie: b=2", "CONTENT-length:  0 ", "x-empty:"
    ),
    "folded header": head("200 OK", "x-long: one", "  two", "content-length: 0"),
    "gzip": head("200 OK", "content-encoding: gzip", f"content-length: {len(PACKED)}") + PACKED,
    "103 and other 1xx": head("103 Early Hints", "link: </a>")
    + head("102 Processing")
    + head("200 OK", "content-length: 0"),
    "trailers": head("200 OK", "trailer: x-sum", "transfer-encoding: chunked") + b"3\r\nabc\r\n0\r\nX-Sum: 9\r\n\r\n",
    "chunk extensions": head("200 OK", "transfer-encoding: chunked") + b'3;a=1;b="x\\"y"\r\nabc\r\n00000;last\r\n\r\n',
    "204": head("204 No Content"),
    "304 with a length": head("304 Not Modified", "content-length: 99"),
    "an HTTP/1.0 answer that ends with the connection": b"HTTP/1.0 200 OK\r\n\r\nwhatever comes",
    "bare line feeds": b"HTTP/1.1 200 OK\ncontent-length: 1\n\nx",
    "no HTTP at all": bytes(range(256)) * 4,
    "two lengths": head("200 OK", "content-length: 1", "content-length: 2") + b"xy",
    "nothing": b"",
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID.keys())
def test_an_answer_is_what_the_upstream_said(said: bytes) -> None:
    heard, asked = both_ways(asks(GET), answers(said))
    assert heard[0].data == said
    assert heard[0].end == "fin"
    assert heard[1] == heard[0]
    assert asked[1] == asked[0]
    assert asked[0].data == GET


ASKED = {
    "HEAD": b"HEAD /v1/models HTTP/1.1\r\nHost: box\r\n\r\n",
    "OPTIONS": b"OPTIONS * HTTP/1.1\r\nHost: box\r\nOrigin: http://x\r\n\r\n",
    "HTTP/1.0": b"GET / HTTP/1.0\r\n\r\n",
    "absolute form": b"GET http://box/v1/models HTTP/1.1\r\nHost: box\r\n\r\n",
    "hop-by-hop headers": b"GET / HTTP/1.1\r\nConnection: close, X-a\r\nX-a: 1\r\nTE: trailers\r\n\r\n",
    "a chunked body": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\n{}\r\n0\r\nX-T: 1\r\n\r\n",
    "pipelining": GET * 5,
    "smuggling": b"POST / HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "malformed": b"\x00\xff GET\r\n\r\n",
    "TLS at a plain port": bytes.fromhex("1603010200010001fc0303") + b"\r\n\r\n",
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_a_request_is_what_the_client_said(asked: bytes) -> None:
    said = head("200 OK", "content-length: 0")

    def server(talk: Talk) -> None:
        talk.count(len(asked))
        talk.send(said * asked.count(b"GET "))
        talk.fin()
        talk.rest()

    heard, got = both_ways(asks(asked), server)
    assert got[0].data == asked
    assert got[1] == got[0]
    assert heard[1] == heard[0]


def test_a_connection_is_used_again_and_again() -> None:
    said = head("200 OK", "content-length: 2") + b"ok"

    def client(talk: Talk) -> None:
        for turn in range(1, 6):
            talk.send(GET)
            talk.until(said, turn)
        talk.fin()
        talk.rest()

    def server(talk: Talk) -> None:
        for turn in range(1, 6):
            talk.until(GET, turn)
            talk.send(said)
        talk.rest()

    heard, got = both_ways(client, server)
    assert heard[1] == heard[0]
    assert heard[0].data == said * 5
    assert got[1] == got[0]


def test_each_event_comes_when_it_was_sent() -> None:
    """The next event is sent when the client has the one before: nothing waits to be filled up."""
    got = threading.Semaphore(0)

    def client(talk: Talk) -> None:
        talk.send(GET)
        for turn in range(1, 101):
            talk.until(b"\n\n", turn)
            got.release()

    def server(talk: Talk) -> None:
        talk.until(GET)
        for turn in range(100):
            talk.send(b"data: %d\n\n" % turn)
            assert got.acquire(timeout=10)

    heard, _ = both_ways(client, server)
    assert heard[1] == heard[0]


def test_expect_100_continue_is_answered_by_the_upstream_alone() -> None:
    ask = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    may = threading.Event()

    def client(talk: Talk) -> None:
        talk.send(ask)
        talk.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            talk.read()
        talk.sock.settimeout(10)
        may.set()
        talk.until(b"\r\n\r\n")
        talk.send(b"abc")
        talk.rest()

    def server(talk: Talk) -> None:
        talk.until(b"\r\n\r\n")
        assert may.wait(10)
        may.clear()
        talk.send(head("100 Continue"))
        talk.until(b"abc")
        talk.send(head("200 OK", "content-length: 0"))
        talk.fin()
        talk.rest()

    heard, got = both_ways(client, server)
    assert heard[1] == heard[0]
    assert got[1] == got[0]
    assert got[0].data == ask + b"abc"


@pytest.mark.parametrize("status", ["413 Content Too Large", "401 Unauthorized"])
@pytest.mark.parametrize("how", ["closes", "resets", "reads on", "ends and reads nothing"])
def test_an_early_refusal_of_a_large_upload_is_delivered(status: str, how: str) -> None:
    """Whatever happens to the writes to the upstream, what it said reaches the client."""
    said = head(status, "content-length: 4", "connection: close") + b"full"
    body = b"x" * 20_000_000

    def client(talk: Talk) -> None:
        talk.send(b"POST / HTTP/1.1\r\nContent-Length: 20000000\r\n\r\n")
        uploading = threading.Thread(target=talk.send, args=(body,))
        uploading.start()
        talk.rest()
        uploading.join()

    def server(talk: Talk) -> None:
        talk.until(b"\r\n\r\n")
        talk.send(said)
        if how == "resets":
            time.sleep(0.05)
            talk.reset()
        elif how == "reads on":
            talk.fin()
            talk.count(20_000_000)
        elif how == "ends and reads nothing":
            talk.fin()
            time.sleep(0.3)

    with upstream(server) as box, tapped(box.port) as tap:
        for port in (box.port, tap.addresses[0][1]):
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
        while struct.unpack("i", fcntl.ioctl(talk.sock, SIOCOUTQ, b"\0\0\0\0"))[0]:
            time.sleep(0.01)
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


def test_websocket_upgrade() -> None:
    ask = b"GET /v1/realtime HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    frames = [bytes([0x82, n]) + bytes([255]) * n for n in range(1, 100)]

    def client(talk: Talk) -> None:
        talk.send(ask)
        talk.until(b"\r\n\r\n")
        for frame in frames:
            before = len(talk.data)
            talk.send(frame)
            talk.count(before + len(frame))
        talk.fin()
        talk.rest()

    def server(talk: Talk) -> None:
        talk.until(b"\r\n\r\n")
        at = len(talk.data)
        talk.send(head("101 Switching Protocols", "upgrade: websocket"))
        while talk.read():
            talk.send(bytes(talk.data[at:]))
            at = len(talk.data)

    heard, got = both_ways(client, server)
    assert heard[1] == heard[0]
    assert heard[0].data.endswith(b"".join(frames))
    assert got[1] == got[0]


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6() -> None:
    heard, got = both_ways(asks(GET), answers(head("200 OK")), host="::1")
    assert heard[1] == heard[0]
    assert got[1] == got[0]


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


pieces = st.lists(st.binary(min_size=1, max_size=3000), max_size=8)


def test_any_bytes_in_any_pieces_pass_both_ways() -> None:
    with upstream(Talk.rest) as box, tapped(box.port) as tap:

        @settings(max_examples=150, deadline=None)
        @given(there=pieces, back=pieces)
        def check(there: list[bytes], back: list[bytes]) -> None:
            box.script = says(back)
            for port in (box.port, tap.addresses[0][1]):
                assert play(port, says(there)) == Heard(b"".join(back), "fin")
                box.wait()
                box.threads.clear()
                assert box.talks.pop().heard == Heard(b"".join(there), "fin")

        check()


def says(pieces: list[bytes]) -> Script:
    def script(talk: Talk) -> None:
        for piece in pieces:
            talk.send(piece)
        talk.fin()
        talk.rest()

    return script
