"""Through the tap every byte is as it is without it, and so is every end: each behaviour beside a direct connection."""

from __future__ import annotations

import gzip
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rawtalk import GET, Heard, Script, Talk, answers, asks, both_ways, head, play, tapped, upstream

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


pieces = st.lists(st.binary(min_size=1, max_size=3000), max_size=8)


@pytest.mark.fuzz
def test_any_bytes_in_any_pieces_pass_both_ways() -> None:
    with upstream(Talk.rest) as box, tapped(box.port) as tap:

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
