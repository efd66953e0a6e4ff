"""Requests and their answers on one connection, and what is certain when frames are missing."""

from __future__ import annotations

import msgspec
import pytest
from capture_fakes import Seen, answer, chunk, post, stream_head
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.recorder.connection import Connection
from kvtop.capture.recorder.framing import Framing
from kvtop.capture.recorder.told import End
from kvtop.capture.tap.wire import Frame, Kind, Lost

ASK = post("/v1/chat/completions", {"model": "m"})
OK = answer(b'{"a":1}')


class Line:
    def __init__(self, *, resumed: bool = False, late: bool = False) -> None:
        self.seen: list[Seen] = []
        self._late = late
        self.connection = Connection(self._begin, resumed=resumed)
        self.at = 0

    def _begin(self, at_ns: int) -> Seen:
        self.seen.append(Seen(at_ns, late=self._late))
        return self.seen[-1]

    def feed(self, kind: Kind, data: bytes = b"", after: int = 1) -> Line:
        self.at += after
        self.connection.feed(Frame(1, kind, self.at, data))
        return self

    def client(self, data: bytes, after: int = 1) -> Line:
        return self.feed(Kind.CLIENT, data, after)

    def server(self, data: bytes) -> Line:
        return self.feed(Kind.SERVER, data)

    def gap(self, client: int = 0, server: int = 0) -> Line:
        return self.feed(Kind.GAP, msgspec.json.encode(Lost(client_bytes=client, server_bytes=server)))

    @property
    def ends(self) -> list[End | None]:
        return [one.end for one in self.seen]


def test_keep_alive() -> None:
    line = Line().client(ASK).server(OK).client(ASK).server(OK)
    assert line.ends == [End.WHOLE, End.WHOLE]
    assert [(one.began_ns, one.sent_ns, one.first_ns, one.end_ns) for one in line.seen] == [(1, 1, 2, 2), (3, 3, 4, 4)]


def test_pipelined_requests_get_their_answers_in_order() -> None:
    line = Line().client(ASK + post("/b", b"second") + ASK).server(OK + answer(b"two") + answer(b"three"))
    assert [one.answer_bytes for one in line.seen] == [b'{"a":1}', b"two", b"three"]
    assert line.seen[1].body == b"second"


def test_interim_answers_are_not_the_answer() -> None:
    line = Line().client(ASK).server(b"HTTP/1.1 100 Continue\r\n\r\n")
    line.server(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK)
    (one,) = line.seen
    assert one.answer is not None
    assert (one.answer.status, one.first_ns, one.end) == (200, 3, End.WHOLE)


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_answers_without_a_body(status: str) -> None:
    line = Line().client(ASK + ASK).server(f"HTTP/1.1 {status}\r\nContent-Length: 10\r\n\r\n".encode() + OK)
    assert [one.answer_bytes for one in line.seen] == [b"", b'{"a":1}']


def test_an_answer_to_head_has_a_length_and_no_body() -> None:
    line = Line().client(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" + ASK)
    line.server(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + OK)
    assert [(one.method, one.end) for one in line.seen] == [("HEAD", End.WHOLE), ("POST", End.WHOLE)]


def test_after_an_upgrade_nothing_is_read() -> None:
    line = Line().client(b"GET /ws HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    line.server(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x05hello")
    line.client(ASK).server(OK).feed(Kind.CLOSE)
    assert line.ends == [End.UNKNOWN]


def test_an_early_answer_ends_it_while_the_upload_goes_on() -> None:
    upload = post("/v1/messages", b"x" * 1000)
    line = Line().client(upload[:500]).server(answer(b"too large", status="413 Content Too Large"))
    assert line.ends == [End.WHOLE]
    line.client(upload[500:] + ASK).server(OK)
    assert line.ends == [End.WHOLE, End.WHOLE]
    assert line.seen[0].sent_ns is None


def test_a_body_until_close_is_whole_at_the_upstreams_end() -> None:
    line = Line().client(ASK).server(b"HTTP/1.0 200 OK\r\n\r\nabc").feed(Kind.SERVER_END)
    assert (line.ends, line.seen[0].answer_bytes) == ([End.WHOLE], b"abc")


def test_a_body_until_close_is_cut_by_a_reset() -> None:
    line = Line().client(ASK).server(b"HTTP/1.0 200 OK\r\n\r\nabc").feed(Kind.SERVER_RESET)
    assert line.ends == [End.SERVER]


def test_an_answer_that_breaks_off_is_cut() -> None:
    for last in (Kind.SERVER_END, Kind.SERVER_RESET):
        line = Line().client(ASK).server(stream_head() + chunk(b"data: 1\n\n")).feed(last).feed(Kind.CLIENT_END)
        line.feed(Kind.CLOSE)
        assert (line.ends, line.seen[0].end_ns) == ([End.SERVER], 3)


def test_the_client_may_close_its_half_and_read_on() -> None:
    line = Line().client(ASK).feed(Kind.CLIENT_END).server(OK)
    assert line.ends == [End.WHOLE]


def test_a_client_that_leaves_ends_it_when_it_left() -> None:
    """Its FIN is passed on, and the upstream gives up."""
    line = Line().client(ASK).server(stream_head()).feed(Kind.CLIENT_END).feed(Kind.SERVER_END).feed(Kind.CLOSE)
    assert (line.ends, line.seen[0].end_ns) == ([End.CLIENT], 3)


def test_a_reset_by_the_client_ends_it() -> None:
    assert Line().client(ASK).feed(Kind.CLIENT_RESET).feed(Kind.CLOSE).ends == [End.CLIENT]


def test_a_request_that_breaks_off_ends_with_the_client() -> None:
    assert Line().client(ASK[:60]).feed(Kind.CLIENT_END).feed(Kind.CLOSE).ends == [End.CLIENT]


@pytest.mark.parametrize("seen", [20, len(OK) - 2])
def test_an_early_answer_that_has_begun_comes_to_its_end_though_the_client_gives_up_its_upload(seen: int) -> None:
    line = Line().client(ASK[:60]).server(OK[:seen]).feed(Kind.CLIENT_END).server(OK[seen:]).feed(Kind.CLOSE)
    assert (line.ends, line.seen[0].answer_bytes) == ([End.WHOLE], b'{"a":1}')
    line = Line().client(ASK[:60]).server(OK[:seen]).feed(Kind.CLIENT_END).feed(Kind.SERVER_END).feed(Kind.CLOSE)
    assert (line.ends, line.seen[0].end_ns) == ([End.CLIENT], 3)


def test_a_connection_that_the_tap_ends() -> None:
    assert Line().client(ASK).feed(Kind.CLOSE).ends == [End.TAP]


def test_the_recorder_ends() -> None:
    line = Line().client(ASK)
    line.connection.abandon(9)
    assert (line.ends, line.seen[0].lost) == ([End.UNKNOWN], True)
    line = Line().client(ASK).server(OK)
    line.connection.abandon(9)
    assert (line.ends, line.seen[0].lost) == ([End.WHOLE], False)


def test_a_gap_in_the_answer_is_told_and_the_next_request_is_read() -> None:
    line = Line().client(ASK).server(stream_head() + chunk(b"abc")).gap(server=500)
    line.server(b"garbage in the middle\r\n0\r\n\r\n")
    assert (line.seen[0].lost, line.ends) == (True, [None])
    line.client(ASK).server(b"rest of the first\r\n").server(OK)
    assert line.ends == [End.UNKNOWN, End.WHOLE]
    assert (line.seen[1].lost, line.seen[1].answer_bytes) == (False, b'{"a":1}')


def test_after_a_gap_in_the_request_reading_goes_on_where_a_request_can_begin() -> None:
    line = Line().client(ASK[:40]).gap(client=100)
    line.client(b"POST /in/the/middle HTTP/1.1\r\n of a body", after=2_000_000_000)  # silence: may be one
    line.client(ASK)  # no silence before it
    line.server(OK).client(ASK).server(OK)
    heads = [one.head.target for one in line.seen if one.head is not None]
    assert heads == ["/v1/chat/completions"]
    assert line.ends[-1] is End.WHOLE


def test_a_gap_in_the_middle_of_an_upload_does_not_take_its_text_for_a_request() -> None:
    line = Line().client(ASK[:40]).gap(client=100).client(b"rest of it").client(b"POST /fake HTTP/1.1\r\n\r\n")
    assert len(line.seen) == 1


def test_a_resumed_connection_is_read_from_its_next_request_on() -> None:
    line = Line(resumed=True).server(b"end of an answer\r\n0\r\n\r\n").client(ASK).server(OK)
    assert line.ends == [End.WHOLE]


def test_an_answer_that_is_not_http_is_told() -> None:
    line = Line().client(ASK).server(b"SSH-2.0-OpenSSH_9.6\r\n\r\n").feed(Kind.SERVER_END)
    assert (line.seen[0].lost, line.ends) == (True, [End.UNKNOWN])


def test_an_answer_that_nobody_asked_for_is_nobodys() -> None:
    line = Line().server(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 2\r\n\r\nno").client(ASK).server(OK)
    assert [(one.end, one.answer_bytes) for one in line.seen] == [(End.WHOLE, b'{"a":1}')]


def test_connect_is_opaque_once_it_is_taken() -> None:
    line = Line().client(b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n").server(b"HTTP/1.1 200 OK\r\n\r\n")
    line.client(ASK).server(b"\x00\x01")
    assert line.ends == [End.UNKNOWN]


kinds = st.sampled_from([kind for kind in Kind if kind not in (Kind.OPEN, Kind.REFUSED)])
payloads = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            ASK,
            OK,
            ASK[:50],
            OK[:30],
            OK[30:],
            stream_head(),
            chunk(b"data: 1\n\n"),
            b"0\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 101 X\r\n\r\n",
            b"HEAD / HTTP/1.1\r\n\r\n",
            b'{"client_bytes": 3}',
            b'{"server_bytes": 3}',
        ]
    ),
)


@given(
    st.lists(st.tuples(kinds, payloads, st.sampled_from([1, 2_000_000_000])), max_size=40), st.booleans(), st.booleans()
)
@pytest.mark.fuzz
def test_whatever_comes_nothing_raises_and_each_exchange_ends_once(
    frames: list[tuple[Kind, bytes, int]], resumed: bool, late: bool
) -> None:
    line = Line(resumed=resumed, late=late)
    for kind, data, after in frames:
        line.feed(kind, data, after)
    line.connection.abandon(line.at)
    assert all(one.end is not None for one in line.seen)


sorts = st.sampled_from(["keep", "head", "stream", "long", "interim"])
steps = st.sampled_from([1, 2, 7, 40, 64, 10_000])


@given(st.lists(st.tuples(sorts, steps), min_size=1, max_size=6), st.booleans())
def test_valid_traffic_is_the_same_however_it_is_cut(traffic: list[tuple[str, int]], late: bool) -> None:
    both = {
        "keep": (ASK, OK),
        "head": (b"HEAD / HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"),
        "stream": (ASK, stream_head() + chunk(b"data: 1\n\n") + chunk(b"data: 2\n\n") + b"0\r\nx-t: 1\r\n\r\n"),
        "long": (ASK, stream_head() + b"".join(chunk(b"data: %d\n\n" % n) for n in range(40)) + b"0\r\n\r\n"),
        "interim": (ASK, b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK),
    }
    line, want = Line(late=late), Line()
    for sort, step in traffic:
        ask, told = both[sort]
        want.client(ask).server(told)
        for whole, feed in ((ask, line.client), (told, line.server)):
            for at in range(0, len(whole), step):
                feed(whole[at : at + step])

    def told_of(one: Seen) -> tuple[object, ...]:
        return one.head, one.body, one.answer, one.answer_bytes, one.end

    assert [told_of(one) for one in line.seen] == [told_of(one) for one in want.seen]
    assert line.ends == [End.WHOLE] * len(traffic)
    assert all(one.answer is not None and one.answer.framing is not Framing.CLOSE for one in line.seen)
