"""Stand-ins for tests of the recorder: a wire that is written by hand, and a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import msgspec

from kvtop.capture.recorder.exchange import Budget, Desk, TurnExchange
from kvtop.capture.recorder.framing import AnswerHead, RequestHead
from kvtop.capture.recorder.process import Recorder
from kvtop.capture.recorder.told import End
from kvtop.capture.tap.wire import HEADER, Kind, Lost, Opened
from kvtop.capture.turn import Captured

ANSWERS = Path(__file__).parents[1] / "fixtures" / "answers"
UPSTREAM = "http://127.0.0.1:8000"
SECOND = 1_000_000_000


def recorded(name: str) -> bytes:
    """An answer of a real vLLM, head and all."""
    return (ANSWERS / f"{name}.http").read_bytes()


def body_of(answer: bytes) -> bytes:
    """The body of a recorded answer, taken out of its chunks."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"chunked" not in head:
        return rest
    out = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        out += rest[:n]
        rest = rest[n + 2 :]
    return out


def post(path: str, body: object, *headers: str) -> bytes:
    """A POST as clients send it."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1:8001", "Content-Type: application/json", *headers]
    return ("\r\n".join([*lines, f"Content-Length: {len(data)}"]) + "\r\n\r\n").encode() + data


def answer(body: bytes, *headers: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", *headers, f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def stream_head(*headers: str) -> bytes:
    lines = [
        "HTTP/1.1 200 OK",
        "content-type: text/event-stream; charset=utf-8",
        *headers,
        "transfer-encoding: chunked",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(document: object, name: str = "") -> bytes:
    data = document if isinstance(document, bytes) else msgspec.json.encode(document)
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + data + b"\n\n"


@dataclass
class Seen:
    """A `told.Exchange` that notes what it is told."""

    began_ns: int
    method: str = ""
    head: RequestHead | None = None
    body: bytes = b""
    sent_ns: int | None = None
    first_ns: int | None = None
    answer: AnswerHead | None = None
    answer_bytes: bytes = b""
    lost: bool = False
    end: End | None = None
    end_ns: int | None = None
    late: bool = False
    """Once there is some of its answer, the rest may come late."""

    def asked(self, head: RequestHead) -> None:
        self.head, self.method = head, head.method

    def request_body(self, data: bytes, at_ns: int) -> None:
        assert self.end is None
        self.body += data

    def request_ends(self, at_ns: int) -> None:
        assert self.end is None
        self.sent_ns = at_ns

    def answer_begins(self, at_ns: int) -> None:
        self.first_ns = at_ns

    def answered(self, head: AnswerHead) -> None:
        self.answer = head

    def answer_body(self, data: bytes, at_ns: int) -> None:
        assert self.end is None
        self.answer_bytes += data

    def answer_bodies(self, data: bytes, ends: Sequence[int], times: Sequence[int]) -> None:
        assert ends[-1] == len(data)
        assert len(ends) == len(times)
        self.answer_body(data, times[-1])

    @property
    def patient(self) -> bool:
        return self.late and bool(self.answer_bytes)

    def truncated(self) -> None:
        self.lost = True

    def ends(self, how: End, at_ns: int) -> None:
        assert self.end is None, "ended twice"
        self.end, self.end_ns = how, at_ns


@dataclass
class FakeStore:
    """What `capture.store.Store` promises, in memory; `fails` is raised by every write while it is set."""

    rows: dict[int, Captured] = field(default_factory=dict)
    requests: dict[int, bytes] = field(default_factory=dict)
    responses: dict[int, bytes] = field(default_factory=dict)
    history: list[Captured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fails: Exception | None = None
    swept: list[tuple[float, float, int]] = field(default_factory=list)
    adopted: str = ""
    closed: bool = False

    def begin(self, turn: Captured, request_body: bytes) -> int:
        self._check()
        number = len(self.rows) + 1
        self._put(msgspec.structs.replace(turn, id=number))
        self.requests[number] = request_body
        return number

    def update(self, turn: Captured) -> None:
        self._check()
        assert turn.id in self.rows
        self._put(turn)

    def finish(self, turn: Captured, response_body: bytes) -> None:
        self._check()
        assert turn.id in self.rows
        self._put(turn)
        self.responses[turn.id] = response_body

    def adopt(self, tap: str) -> int:
        self._check()
        self.adopted = tap
        return 0

    def recent(self, limit: int) -> list[Captured]:
        return list(self.rows.values())[-limit:]

    def sweep(self, now: float, keep_s: float, max_bytes: int) -> int:
        self._check()
        self.swept.append((now, keep_s, max_bytes))
        return 0

    def close(self) -> None:
        self.closed = True

    @property
    def turns(self) -> list[Captured]:
        return list(self.rows.values())

    def _put(self, turn: Captured) -> None:
        self.rows[turn.id] = turn
        self.history.append(turn)

    def _check(self) -> None:
        if self.fails is not None:
            raise self.fails


class FakeLinker:
    """Every turn is a conversation of its own."""

    def __init__(self, recent: Sequence[Captured] = ()) -> None:
        self.added = list(recent)
        self.updated: list[Captured] = []

    def place(self, turn: Captured) -> SimpleNamespace:
        return SimpleNamespace(conversation=None, parent=None, relation="first")

    def add(self, turn: Captured) -> None:
        self.added.append(turn)

    def update(self, turn: Captured) -> None:
        self.updated.append(turn)


class NoWatch:
    """No counters."""

    def ended(self, turn: Captured, learnt: Callable[[Captured], None]) -> None:
        return


def name_of(headers: Sequence[tuple[str, str]], hints: Mapping[str, str], program: str) -> tuple[str, str | None]:
    given = dict((name.lower(), value) for name, value in headers).get("user-agent", "")
    name, _, version = given.partition("/")
    return (name, version or None) if name else (program or "unknown", None)


@dataclass
class DirectKeep:
    """An `exchange.Kept` that writes to a FakeStore at once."""

    store: FakeStore
    id: int

    def update(self, turn: Captured) -> None:
        self.store.update(msgspec.structs.replace(turn, id=self.id))

    def finish(self, turn: Captured, response_body: bytes) -> None:
        self.store.finish(msgspec.structs.replace(turn, id=self.id), response_body)


def desk(store: FakeStore, budget: Budget | None = None) -> Desk:
    """Times of the turns are the ns of the frames as seconds."""
    return Desk(
        lambda turn, body: DirectKeep(store, store.begin(turn, body)),
        lambda upstream: NoWatch(),
        name_of,
        lambda at_ns: at_ns / SECOND,
        budget,
    )


class Wire:
    """Frames of one tap, each a hundredth of a second after the one before, into a recorder over a FakeStore."""

    def __init__(self, store: FakeStore | None = None, budget: Budget | None = None) -> None:
        self.store = store or FakeStore()
        self.recorder = Recorder(desk(self.store, budget))
        self.now_ns = 100 * SECOND
        self.only_streams = False
        """What the recorder said of the last frame."""

    def frame(self, kind: Kind, data: bytes = b"", conn: int = 1, after_s: float = 0.01) -> None:
        self.now_ns += round(after_s * SECOND)
        self.only_streams = self.recorder.read(HEADER.pack(conn, kind, self.now_ns, len(data)) + data)

    def open(self, conn: int = 1, *, resumed: bool = False) -> None:
        opened = Opened(upstream=UPSTREAM, listen="127.0.0.1:8001", peer="127.0.0.1:50000", resumed=resumed)
        self.frame(Kind.OPEN, msgspec.json.encode(opened), conn)

    def client(self, data: bytes, conn: int = 1, after_s: float = 0.01) -> None:
        self.frame(Kind.CLIENT, data, conn, after_s)

    def server(self, data: bytes, conn: int = 1, after_s: float = 0.01) -> None:
        self.frame(Kind.SERVER, data, conn, after_s)

    def gap(self, client: int = 0, server: int = 0, conn: int = 1) -> None:
        self.frame(Kind.GAP, msgspec.json.encode(Lost(client_bytes=client, server_bytes=server)), conn)

    def turn(self) -> Captured:
        """The only turn there is."""
        (turn,) = self.store.turns
        return turn


def exchange(store: FakeStore, began_ns: int = 0) -> TurnExchange:
    return TurnExchange(desk(store), Opened(upstream=UPSTREAM, listen="", peer=""), began_ns)
