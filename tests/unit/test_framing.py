"""Framing of one direction: the same messages however the bytes are cut, and nothing else than Broken for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.recorder import framing
from kvtop.capture.recorder.framing import Broken, Direction, Framing, answer_head, request_head


class Notes:
    """A sink that notes the messages. `answers`: heads are answers, `head_only` has no body whatever it says."""

    def __init__(self, *, answers: bool = False, head_only: bool = False) -> None:
        self.messages: list[tuple[object, bytes]] = []
        self.ended = 0
        self.times: list[int] = []
        """When each byte of a body came."""
        self._answers = answers
        self._head_only = head_only

    def begins(self, at_ns: int) -> None:
        return

    def unread(self, data: bytes) -> None:
        pass

    def head(self, data: bytes, at_ns: int) -> tuple[Framing, int]:
        head = answer_head(data) if self._answers else request_head(data)
        self.messages.append((head, b""))
        return (Framing.NONE, 0) if self._head_only else (head.framing, head.length)

    def body(self, data: bytes, at_ns: int) -> None:
        head, body = self.messages[-1]
        self.messages[-1] = (head, body + data)
        self.times += [at_ns] * len(data)

    def bodies(self, data: bytes, ends: Sequence[int], times: Sequence[int]) -> None:
        for start, end, at_ns in zip([0, *ends], ends, times, strict=False):
            self.body(data[start:end], at_ns)

    def ends(self, at_ns: int) -> None:
        self.ended += 1


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


def fed(data: bytes, cuts: list[int], **kind: bool) -> Notes:
    notes = Notes(**kind)
    direction = Direction(notes)
    for piece in pieces(data, cuts):
        direction.feed(piece, 1)
    return notes


def chunked(body: bytes, sizes: list[int], extension: bytes, trailer: bytes) -> bytes:
    out, at = b"", 0
    for size in [*sizes, len(body)]:
        part = body[at : at + size]
        if part:
            out += b"%x%s\r\n%s\r\n" % (len(part), extension, part)
            at += size
    return out + b"0\r\n" + trailer + b"\r\n"


tokens = st.text("abz09-", min_size=1, max_size=8)
values = st.text("abc:;=,\"'{}()", min_size=1, max_size=12)


@st.composite
def message(draw: st.DrawFn, first: str) -> bytes:
    body = draw(st.binary(max_size=60))
    lines = [first] + [f"x-{draw(tokens)}: {draw(values)}" for _ in range(draw(st.integers(0, 3)))]
    if draw(st.booleans()):
        lines.append("Transfer-Encoding: chunked")
        extension = draw(st.sampled_from([b"", b";a=b", b';q="x"']))
        trailer = draw(st.sampled_from([b"", b"x-sum: 1\r\n"]))
        rest = chunked(body, draw(st.lists(st.integers(1, 9), max_size=5)), extension, trailer)
    else:
        lines.append(f"Content-Length: {len(body)}")
        rest = body
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + rest


requests = st.lists(message("POST /v1/chat/completions HTTP/1.1"), min_size=1, max_size=4)
answers = st.lists(message("HTTP/1.1 200 OK"), min_size=1, max_size=4)
cuts = st.lists(st.integers(0, 5_000), max_size=30)


class _Oracle:
    """What httptools makes of the same bytes."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def on_message_begin(self) -> None:
        self.bodies.append(b"")

    def on_body(self, data: bytes) -> None:
        self.bodies[-1] += data


@given(requests, cuts)
def test_requests_are_the_same_however_they_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    notes = fed(data, cuts)
    assert notes.messages == fed(data, []).messages
    assert notes.ended == len(parts)
    oracle = _Oracle()
    httptools.HttpRequestParser(oracle).feed_data(data)
    assert [body for _, body in notes.messages] == oracle.bodies


@given(answers, cuts)
def test_answers_are_the_same_however_they_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    notes = fed(data, cuts, answers=True)
    assert notes.messages == fed(data, [], answers=True).messages
    assert notes.ended == len(parts)


LATE_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
texts = st.sampled_from([b"data: {}\n\n", b"data: 1\r\n\r\n", b"4\r\n", b"x" * 5000, b"\n"])


@given(st.lists(texts, min_size=1, max_size=12), cuts, st.booleans(), st.sampled_from([b"", b"0\r\n\r\n"]))
def test_late_is_the_same_as_one_by_one(chunks: list[bytes], cuts: list[int], even: bool, end: bytes) -> None:
    """The bytes, and of each byte the time."""
    wire = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    parts = [part for part in (*wire, end) if part] if even else pieces(b"".join(wire) + end, cuts)
    times = list(range(10, 10 + len(parts)))
    late, want = Notes(answers=True), Notes(answers=True)
    for notes, direction in ((late, Direction(late)), (want, Direction(want))):
        direction.feed(LATE_HEAD, 1)
        if notes is late:
            direction.feed_late(parts, times)
        else:
            for part, at_ns in zip(parts, times, strict=True):
                direction.feed(part, at_ns)
    assert (late.messages, late.ended) == (want.messages, want.ended)
    assert late.messages[0][1] == b"".join(chunks)
    if even:
        assert late.times == want.times


@given(st.binary(max_size=300), cuts, st.booleans())
@pytest.mark.fuzz
def test_arbitrary_bytes_raise_nothing_but_broken(data: bytes, cuts: list[int], answers: bool) -> None:
    try:
        fed(data, cuts, answers=answers)
    except Broken:
        return


@given(st.sampled_from([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]), st.binary(max_size=200), cuts)
@pytest.mark.fuzz
def test_arbitrary_bytes_after_a_head_raise_nothing_but_broken(head: bytes, data: bytes, cuts: list[int]) -> None:
    try:
        fed(head + data, cuts, answers=True)
    except Broken:
        return


def test_a_head_without_an_end_is_given_up() -> None:
    direction = Direction(Notes())
    direction.feed(b"POST / HTTP/1.1\r\n", 1)
    with pytest.raises(Broken):
        for _ in range(framing.MAX_HEAD_BYTES // 1000 + 2):
            direction.feed(b"x-a: " + b"a" * 993 + b"\r\n", 1)


def test_a_chunk_line_without_an_end_is_given_up() -> None:
    direction = Direction(Notes(answers=True))
    direction.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 1)
    with pytest.raises(Broken):
        for _ in range(framing.MAX_LINE_BYTES // 1000 + 2):
            direction.feed(b"1;" + b"a" * 998, 1)


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -3\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
    ],
)
def test_what_has_no_certain_end_is_broken(head: bytes) -> None:
    with pytest.raises(Broken):
        fed(head, [])


def test_a_request_for_an_upgrade_keeps_its_body() -> None:
    """Java's client asks for h2c on its first POST; servers answer it in HTTP/1.1."""
    head = b"POST /v1/messages HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 4\r\n\r\n"
    (message,) = fed(head + b"{}  ", []).messages
    assert message[1] == b"{}  "


def test_an_empty_line_before_a_request_is_skipped() -> None:
    assert len(fed(b"\r\nGET / HTTP/1.1\r\n\r\n\r\nGET /b HTTP/1.1\r\n\r\n", [1, 2, 20]).messages) == 2


def test_a_body_until_close_has_no_end_before_it() -> None:
    notes = Notes(answers=True)
    direction = Direction(notes)
    direction.feed(b"HTTP/1.0 200 OK\r\n\r\nabc", 1)
    direction.feed(b"HTTP/1.1 200 OK\r\n\r\n", 2)
    assert notes.ended == 0
    direction.closed(3)
    assert (notes.ended, notes.messages[0][1]) == (1, b"abcHTTP/1.1 200 OK\r\n\r\n")
