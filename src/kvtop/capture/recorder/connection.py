"""One connection: which answer belongs to which request, and what is still certain when frames are missing.

Where bytes are missing or are not HTTP, nothing is guessed: the exchanges that are open are told so, and reading goes
on with the next message that begins where a message can begin.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from kvtop.capture.recorder import oddheads
from kvtop.capture.recorder.framing import Broken, Direction, Framing, RequestHead, answer_head, request_head
from kvtop.capture.recorder.told import End, Exchange
from kvtop.capture.tap.wire import Frame, Kind, Lost

MAX_PIPELINED = 1_000
"""Requests without an answer on one connection; with more of them it is not followed any further."""

MAX_LATE = 64
"""Reads of a stream that are looked at together."""

MAX_LATE_BYTES = 4096
"""Of one such read: a larger one is looked at at once, so that little is held here."""

QUIET_NS = 1_000_000_000
"""A client that was silent for so long is not in the middle of a request."""

_SERVER = Kind.SERVER  # looked up once, not for each frame

_REQUEST = re.compile(rb"[A-Z][A-Z-]{1,20} [^\x00-\x20]+ HTTP/1\.[01]\r?\n")
_ANSWER = re.compile(rb"HTTP/1\.[01] [1-5][0-9][0-9][ \r]")


def lost_of(payload: bytes) -> Lost:
    """What a GAP says; of one that cannot be read both directions are lost."""
    try:
        return msgspec.json.decode(payload, type=Lost)
    except (msgspec.MsgspecError, ValueError):
        return Lost(client_bytes=1, server_bytes=1)


class Connection:
    """Feed it the frames of one connection, in order. `begin` makes an exchange at the first byte of a request.

    `resumed`: bytes went before that nobody told. No bytes that come raise; of them at most a head, and the middle of a
    stream that is read late, are kept here.
    """

    def __init__(self, begin: Callable[[int], Exchange], *, resumed: bool = False) -> None:
        self._begin = begin
        self._open: deque[Exchange] = deque()
        """Without a whole answer, oldest first."""
        self._adrift: list[Exchange] = []
        """Those whose answers are lost: only their end can still be told."""
        self._sending: Exchange | None = None
        """Whose request is being sent."""
        self.answering: Exchange | None = None
        """Whose answer is coming."""
        self._requests: Direction | None = None if resumed else Direction(_Requests(self))
        """None: the place in this direction is lost."""
        self._answers: Direction | None = None if resumed else Direction(_Answers(self))
        self._client_ended_ns: int | None = None
        self._opaque = False
        self._last: tuple[Kind, int] | None = None
        self._patient = False
        """The upstream is in the middle of a stream that may be read late."""
        self._late: list[bytes] = []
        self._late_ns: list[int] = []
        """What was put off, and when it came."""

    def put_off(self, data: bytes, at_ns: int) -> bool:
        """Take the next bytes of the upstream if they are the middle of a stream, which is read later: not its end, nor
        the last that are held. This is most of what a tap sees."""
        # a chunk of a stream ends otherwise than the last one, or its trailers, do
        if (
            not self._patient
            or data[-4:] == b"\r\n\r\n"
            or not 8 <= len(data) <= MAX_LATE_BYTES
            or len(self._late) >= MAX_LATE
        ):
            return False
        self._late.append(data)
        self._late_ns.append(at_ns)
        return True

    def feed(self, frame: Frame) -> None:
        kind = frame.kind
        if self._patient:
            if kind is _SERVER:
                if not self.put_off(frame.data, frame.at_ns):
                    self._late.append(frame.data)
                    self._late_ns.append(frame.at_ns)
                    self.catch_up()
                return
            self.catch_up()
            self._patient = False
        if kind is Kind.SERVER:
            if not self._opaque:
                self._server(frame)
            self._last = kind, frame.at_ns
        elif kind is Kind.CLIENT:
            if not self._opaque:
                self._client(frame)
            self._last = kind, frame.at_ns
        elif kind is Kind.GAP:
            self._gap(frame.data)
        elif kind is Kind.CLIENT_END:
            self._client_ends(frame.at_ns)
        elif kind is Kind.CLIENT_RESET:
            self._close(End.CLIENT, frame.at_ns)
        elif kind is Kind.SERVER_END:
            if self._answers is not None:
                self._answers.closed(frame.at_ns)
            self._server_gone(frame.at_ns)
        elif kind is Kind.SERVER_RESET:
            self._server_gone(frame.at_ns)
        elif kind is Kind.CLOSE:
            self._server_gone(frame.at_ns, End.TAP)

    @property
    def idle(self) -> bool:
        """Nothing that was asked is still to be answered."""
        return not self._open and not self._adrift

    @property
    def late_since_ns(self) -> int | None:
        """Since when something is put off."""
        return self._late_ns[0] if self._late_ns else None

    def catch_up(self) -> None:
        """Read what was put off."""
        late, times = self._late, self._late_ns
        if late:
            self._late, self._late_ns = [], []
            self._last = Kind.SERVER, times[-1]
            self._read(late, times)

    def abandon(self, at_ns: int) -> None:
        """No further frame will come: the recorder ends, because its tap did. What came after the last is lost."""
        try:
            self.catch_up()
        finally:
            for exchange in self._open:
                exchange.truncated()
            self._close(End.UNKNOWN, at_ns)

    def _server(self, frame: Frame) -> None:
        if self._answers is None:
            if not self._open or not _ANSWER.match(frame.data):
                return
            self._answers = Direction(_Answers(self))
        self._read([frame.data], [frame.at_ns])

    def _read(self, pieces: Sequence[bytes], times: Sequence[int]) -> None:
        """Of the upstream, in one of its answers or between two."""
        if self._answers is None:
            return
        try:
            self._answers.feed_late(pieces, times)
        except Broken:
            self._lose_answers()
        awaited = self.awaited
        self._patient = (
            awaited is not None and self._answers is not None and awaited.patient and self._answers.between_chunks
        )

    def _client(self, frame: Frame) -> None:
        if self._requests is None:
            if not self._may_begin(frame.at_ns) or not _REQUEST.match(frame.data):
                return
            self._requests = Direction(_Requests(self, certain=False))
        try:
            self._requests.feed(frame.data, frame.at_ns)
        except Broken:
            self._lose_requests()

    def _may_begin(self, at_ns: int) -> bool:
        if self._last is None:
            return True
        kind, last_ns = self._last
        return kind is Kind.SERVER or at_ns - last_ns >= QUIET_NS

    def _gap(self, payload: bytes) -> None:
        lost = lost_of(payload)
        if lost.client_bytes:
            self._lose_requests()
        if lost.server_bytes:
            self._lose_answers()

    def _lose_requests(self) -> None:
        """Which requests there are is not known any more, so neither whose answer comes next."""
        self._requests = None
        self._sending = None
        self._lose_answers()

    def _lose_answers(self) -> None:
        self._answers = self.answering = None
        for exchange in self._open:
            exchange.truncated()
        self._adrift += self._open
        self._open.clear()

    def _client_ends(self, at_ns: int) -> None:
        if self._client_ended_ns is None:
            self._client_ended_ns = at_ns
        # A client may send no more and still read; but a request that is not whole will never be, and an answer to it
        # comes only if it has begun.
        self.cut_head()
        exchange, self._sending = self._sending, None
        if exchange is not None and exchange is not self.answering:
            if exchange in self._open:
                self._open.remove(exchange)
            else:
                self._adrift.remove(exchange)
            exchange.ends(End.CLIENT, at_ns)

    def _server_gone(self, at_ns: int, how: End = End.SERVER) -> None:
        if self._client_ended_ns is not None:
            self._close(End.CLIENT, self._client_ended_ns)
        else:
            self._close(how, at_ns)

    def _close(self, how: End, at_ns: int) -> None:
        self._end_all(how, at_ns)
        self._requests = self._answers = None
        self._opaque = True

    def cut_head(self) -> None:
        """Whatever was sent of a head is all that will ever be looked at."""
        if self._sending is not None and self._requests is not None and self._requests.cut():
            self._requests = None

    def _end_all(self, how: End, at_ns: int) -> None:
        self.cut_head()
        self._sending = None
        self._end_adrift(at_ns)
        while self._open:
            self._open.popleft().ends(how, at_ns)

    def _end_adrift(self, at_ns: int) -> None:
        for exchange in self._adrift:
            exchange.ends(End.UNKNOWN, at_ns)
        self._adrift.clear()

    def request_begins(self, at_ns: int) -> Exchange:
        """A request's first byte. Raises Broken for one that is not followed."""
        if len(self._open) >= MAX_PIPELINED:
            raise Broken("requests without answers")
        self._end_adrift(at_ns)  # the client asks anew, so it has had what it waited for
        exchange = self._begin(at_ns)
        self._open.append(exchange)
        self._sending = exchange
        return exchange

    @property
    def sending(self) -> Exchange | None:
        """Whose request is being sent, as long as its answer is not whole."""
        return self._sending

    def request_ended(self) -> None:
        self._sending = None

    @property
    def awaited(self) -> Exchange | None:
        """Whose answer comes next."""
        return self._open[0] if self._open else None

    def answer_ended(self, exchange: Exchange, at_ns: int) -> None:
        if exchange is self._sending:
            self._sending = None  # what it still sends is of no use to anybody
        self._open.popleft()
        exchange.ends(End.WHOLE, at_ns)

    def upgraded(self, at_ns: int) -> None:
        """From here on it is no HTTP."""
        self._opaque = True
        self._end_all(End.UNKNOWN, at_ns)


class _Requests:
    """The client's direction."""

    def __init__(self, connection: Connection, *, certain: bool = True) -> None:
        """`certain`: what comes is the beginning of a request, and does not only look like it."""
        self._connection = connection
        self._exchange: Exchange | None = None
        self._certain = certain

    def begins(self, at_ns: int) -> None:
        self._exchange = self._connection.request_begins(at_ns)

    def head(self, data: bytes, at_ns: int) -> tuple[Framing, int]:
        try:
            head = oddheads.read(data) if self._certain else request_head(data)
        except Broken:
            self.unread(data)
            raise
        self._certain = True
        self._asked(head)
        return head.framing, head.length

    def unread(self, data: bytes) -> None:
        if self._certain and (head := oddheads.first_line(data)) is not None:
            self._asked(head)

    def _asked(self, head: RequestHead) -> None:
        if self._exchange is not None and self._exchange is self._connection.sending:
            self._exchange.asked(head)

    def body(self, data: bytes, at_ns: int) -> None:
        if self._exchange is not None and self._exchange is self._connection.sending:
            self._exchange.request_body(data, at_ns)

    def bodies(self, data: bytes, ends: Sequence[int], times: Sequence[int]) -> None:
        self.body(data, times[-1])

    def ends(self, at_ns: int) -> None:
        if self._exchange is not None and self._exchange is self._connection.sending:
            self._exchange.request_ends(at_ns)
            self._connection.request_ended()


class _Answers:
    """The upstream's direction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._exchange: Exchange | None = None
        """None: an answer that nobody asked for."""
        self._interim = False

    def begins(self, at_ns: int) -> None:
        self._exchange = self._connection.answering = self._connection.awaited
        if self._exchange is not None:
            self._exchange.answer_begins(at_ns)

    def head(self, data: bytes, at_ns: int) -> tuple[Framing, int]:
        head = answer_head(data)
        self._interim = head.interim
        exchange = self._exchange
        if head.interim:
            return Framing.NONE, 0
        if exchange is not None and exchange is self._connection.sending:
            self._connection.cut_head()
        method = exchange.method if exchange is not None else ""
        if exchange is not None:
            exchange.answered(head)
        if head.status == 101 or (method == "CONNECT" and 200 <= head.status < 300):
            self._connection.upgraded(at_ns)
            return Framing.OPAQUE, 0
        if method == "HEAD" or head.status in (204, 304):
            return Framing.NONE, 0
        return head.framing, head.length

    def unread(self, data: bytes) -> None:
        """Of an answer nothing is lost that is not told."""

    def body(self, data: bytes, at_ns: int) -> None:
        if self._exchange is not None:
            self._exchange.answer_body(data, at_ns)

    def bodies(self, data: bytes, ends: Sequence[int], times: Sequence[int]) -> None:
        if self._exchange is not None:
            self._exchange.answer_bodies(data, ends, times)

    def ends(self, at_ns: int) -> None:
        self._connection.answering = None
        if self._exchange is not None and not self._interim:
            self._connection.answer_ended(self._exchange, at_ns)
