"""HTTP/1 framing of one direction of a connection: where each message begins and ends.

httptools reads the heads. The bodies are counted here, because only so it is known where a message ends: an answer to
HEAD has a length and no body, and a request that asks for an upgrade (h2c) still has one, and httptools can be told
neither.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from itertools import accumulate
from typing import NamedTuple, Protocol

import httptools

MAX_HEAD_BYTES = 256 * 1024
"""Of a message's first line and headers."""
MAX_LINE_BYTES = 16 * 1024
"""Of a chunk's size and extensions."""
MAX_TRAILER_BYTES = 64 * 1024

_LENGTH = re.compile(rb"[0-9]{1,15}")
_UPGRADED = re.compile(rb"HTTP/1\.[01] 101[ \r]")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,12}")


class Broken(Exception):
    """These bytes are not HTTP/1, or more than is ever read of a head."""


class Framing(Enum):
    """How the end of a body is told."""

    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    CLOSE = auto()
    """The body ends with the connection."""
    OPAQUE = auto()
    """What follows is no HTTP: the connection was upgraded."""


class RequestHead(NamedTuple):
    """First line and headers, as sent."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    framing: Framing
    length: int
    odd: bool = False
    """Not as HTTP says: something of it is missing here."""


class AnswerHead(NamedTuple):
    """Status and headers, as sent. `framing` is what the headers say, whatever was asked."""

    status: int
    headers: list[tuple[str, str]]
    framing: Framing
    length: int

    @property
    def interim(self) -> bool:
        """One that comes before the answer: 100, 102, 103."""
        return 100 <= self.status < 200 and self.status != 101


class Sink(Protocol):
    """What a direction is told of its messages, in order. Times are those of the read that brought the bytes."""

    def begins(self, at_ns: int) -> None:
        """The first byte of a message."""

    def head(self, data: bytes, at_ns: int) -> tuple[Framing, int]:
        """A whole head. Returns what follows it, and the length where that is LENGTH. Raises Broken."""
        ...

    def unread(self, data: bytes) -> None:
        """What there is of a head that will not be whole. Nothing follows."""

    def body(self, data: bytes, at_ns: int) -> None: ...

    def bodies(self, data: bytes, ends: Sequence[int], times: Sequence[int]) -> None:
        """Several pieces of the body at once: where each ends in these bytes, and when it came."""

    def ends(self, at_ns: int) -> None:
        """The last byte of a message."""


class _State(Enum):
    START = auto()
    HEAD = auto()
    LENGTH = auto()
    SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    CLOSE = auto()
    OPAQUE = auto()


class Direction:
    """Takes the bytes of one direction in pieces of any size and tells its sink of the messages in them."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._state = _State.START
        self._rest = bytearray()
        """The beginning of a head, a chunk's line or a trailer."""
        self._left = 0
        """Bytes until the end of the body or the chunk."""
        self._trailers = 0

    def feed(self, data: bytes, at_ns: int) -> None:
        """The next bytes. Raises Broken; then nothing more may be fed."""
        at, end = 0, len(data)
        while at < end:
            state = self._state
            if state is _State.CHUNK or state is _State.LENGTH:
                stop = min(end, at + self._left)
                self._left -= stop - at
                self._sink.body(data[at:stop], at_ns)
                at = stop
                if not self._left:
                    if state is _State.CHUNK:
                        self._state = _State.CHUNK_END
                    else:
                        self._over(at_ns)
            elif state is _State.SIZE:
                at = self._size(data, at, at_ns)
            elif state is _State.CHUNK_END:
                at = self._chunk_end(data, at)
            elif state is _State.START:
                at = self._start(data, at, at_ns)
            elif state is _State.HEAD:
                at = self._head(data, at, at_ns)
            elif state is _State.TRAILERS:
                at = self._trailer(data, at, at_ns)
            else:
                if state is _State.CLOSE:
                    self._sink.body(data[at:] if at else data, at_ns)
                return

    @property
    def between_chunks(self) -> bool:
        """In a chunked body, at the beginning of a chunk."""
        return self._state is _State.SIZE and not self._rest

    def feed_late(self, pieces: Sequence[bytes], times: Sequence[int]) -> None:
        """The same as feeding the pieces, with their times, one by one, at a fraction of the cost: chunks that stand
        whole in them are told to `Sink.bodies` together."""
        if not self.between_chunks:
            for data, at_ns in zip(pieces, times, strict=True):
                self.feed(data, at_ns)
        elif not self._even(pieces, times):
            self._uneven(pieces, times)

    def _even(self, pieces: Sequence[bytes], times: Sequence[int]) -> bool:
        """The usual stream: each piece is one chunk, and no chunk holds the end of a line. Not a loop of its own for
        each of them. False, and nothing was done, where it is otherwise."""
        lines = b"".join(pieces).split(b"\r\n")
        sizes, chunks = lines[:-1:2], lines[1::2]
        lengths = list(map(len, chunks))
        if lines[-1] or lengths != list(map(_sizes.get, sizes)):
            return False
        wire = [len(digits) + length + 4 for digits, length in zip(sizes, lengths, strict=True)]
        if wire != list(map(len, pieces)):
            return False
        self._sink.bodies(b"".join(chunks), list(accumulate(lengths)), times)
        return True

    def _uneven(self, pieces: Sequence[bytes], when: Sequence[int]) -> None:
        data = b"".join(pieces)
        stops = list(accumulate(map(len, pieces)))
        parts: list[bytes] = []
        ends: list[int] = []
        times: list[int] = []
        at = length = nth = 0
        find, sizes = data.find, _sizes
        while (stop := find(b"\r\n", at)) > 0:
            size = sizes.get(data[at:stop])
            if size is None:
                break
            begin = stop + 2
            stop = begin + size
            if data[stop : stop + 2] != b"\r\n":
                break
            at = stop + 2
            while stops[nth] < at:
                nth += 1
            parts.append(data[begin:stop])
            length += size
            ends.append(length)
            times.append(when[nth])
        if parts:
            self._sink.bodies(b"".join(parts), ends, times)
        for piece, at_ns, stop in zip(pieces, when, stops, strict=True):
            if stop > at:
                self.feed(piece[max(0, at - stop + len(piece)) :], at_ns)

    def closed(self, at_ns: int) -> None:
        """No more bytes will come: a body that ends with the connection is whole."""
        if self._state is _State.CLOSE:
            self._over(at_ns)

    def cut(self) -> bool:
        """Nothing more is fed: a head that has begun stays as it is. Whether one had."""
        if self._state is not _State.HEAD:
            return False
        self._sink.unread(bytes(self._rest))
        return True

    def _over(self, at_ns: int) -> None:
        self._state = _State.START
        self._sink.ends(at_ns)

    def _start(self, data: bytes, at: int, at_ns: int) -> int:
        while at < len(data) and data[at] in b"\r\n":  # allowed before a request
            at += 1
        if at < len(data):
            self._state = _State.HEAD
            self._rest.clear()
            self._sink.begins(at_ns)
        return at

    def _head(self, data: bytes, at: int, at_ns: int) -> int:
        before = len(self._rest)
        self._rest += data[at : at + MAX_HEAD_BYTES] if at else data[:MAX_HEAD_BYTES]
        stop = self._rest.find(b"\r\n\r\n", max(0, before - 3))
        if stop < 0:
            if len(self._rest) >= MAX_HEAD_BYTES:
                self._sink.unread(bytes(self._rest))
                raise Broken("a head without an end")
            return len(data)
        head = bytes(self._rest[: stop + 4])
        self._rest.clear()
        framing, length = self._sink.head(head, at_ns)
        if framing is Framing.LENGTH and length:
            self._state, self._left = _State.LENGTH, length
        elif framing is Framing.CHUNKED:
            self._state = _State.SIZE
        elif framing is Framing.CLOSE:
            self._state = _State.CLOSE
        elif framing is Framing.OPAQUE:
            self._state = _State.OPAQUE
        else:
            self._over(at_ns)
        return at + stop + 4 - before

    def _line(self, data: bytes, at: int, most: int) -> tuple[bytes | None, int]:
        """The line that ends in these bytes, without its end; None while it has none."""
        stop = data.find(b"\n", at)
        if stop < 0:
            self._rest += data[at:]
            if len(self._rest) > most:
                raise Broken("a line without an end")
            return None, len(data)
        line = data[at:stop]
        if self._rest:
            line = bytes(self._rest) + line
            self._rest.clear()
        if len(line) > most or not line.endswith(b"\r"):
            raise Broken("a line that ends wrongly")
        return line[:-1], stop + 1

    def _size(self, data: bytes, at: int, at_ns: int) -> int:
        line, at = self._line(data, at, MAX_LINE_BYTES)
        if line is not None:
            size = line.partition(b";")[0].rstrip(b" \t")
            if not _SIZE.fullmatch(size):
                raise Broken("no size of a chunk")
            self._left = int(size, 16)
            self._state = _State.CHUNK if self._left else _State.TRAILERS
            self._trailers = 0
        return at

    def _chunk_end(self, data: bytes, at: int) -> int:
        line, at = self._line(data, at, 2)
        if line is not None:
            if line:
                raise Broken("a chunk longer than it says")
            self._state = _State.SIZE
        return at

    def _trailer(self, data: bytes, at: int, at_ns: int) -> int:
        line, at = self._line(data, at, MAX_LINE_BYTES)
        if line is not None:
            self._trailers += len(line)
            if self._trailers > MAX_TRAILER_BYTES:
                raise Broken("trailers without an end")
            if not line:
                self._over(at_ns)
        return at


_sizes = {b"%x" % size: size for size in range(1, 4096)}
"""Of most chunks of a stream."""


class _Fields:
    """Collects what httptools tells of a head."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name or b"", value or b""))


def request_head(data: bytes) -> RequestHead:
    """Reads a request's head, its empty line included. Raises Broken."""
    fields = _Fields()
    parser = httptools.HttpRequestParser(fields)
    _parse(parser, data)
    framing, length = _framing(fields.headers, Framing.NONE)
    method = parser.get_method().decode("latin-1")
    return RequestHead(method, fields.target.decode("latin-1"), _texts(fields.headers), framing, length)


def answer_head(data: bytes) -> AnswerHead:
    """Reads an answer's head, its empty line included. Raises Broken."""
    if _UPGRADED.match(data):  # httptools refuses one without a Connection header
        return AnswerHead(101, [], Framing.OPAQUE, 0)
    fields = _Fields()
    parser = httptools.HttpResponseParser(fields)
    _parse(parser, data)
    framing, length = _framing(fields.headers, Framing.CLOSE)
    return AnswerHead(parser.get_status_code(), _texts(fields.headers), framing, length)


def _parse(parser: httptools.HttpRequestParser | httptools.HttpResponseParser, data: bytes) -> None:
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise Broken(type(error).__name__) from None
    if not parser.get_http_version().startswith("1."):
        raise Broken("another version of HTTP")


def _texts(headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def _framing(headers: list[tuple[bytes, bytes]], without: Framing) -> tuple[Framing, int]:
    """What the headers say of the body; `without` where they say nothing."""
    codings: list[bytes] = []
    lengths: set[bytes] = set()
    for name, value in headers:
        lower = name.lower()
        if lower == b"transfer-encoding":
            codings += [coding.strip().lower() for coding in value.split(b",")]
        elif lower == b"content-length":
            lengths |= {length.strip() for length in value.split(b",")}
    if codings:
        if codings[-1] == b"chunked":
            return Framing.CHUNKED, 0
        if without is Framing.NONE:
            raise Broken("a request's body without an end")
        return Framing.CLOSE, 0
    if lengths:
        length = lengths.pop()
        if lengths or not _LENGTH.fullmatch(length):
            raise Broken("lengths that contradict each other")
        return Framing.LENGTH, int(length)
    return without, 0
