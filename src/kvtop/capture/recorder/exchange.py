"""One exchange on the wire as a turn: what is known of it while it happens, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from kvtop.capture.api import redact
from kvtop.capture.api.answers import Answered, is_stream, read_answer
from kvtop.capture.api.codings import MAX_BYTES, Unpacker
from kvtop.capture.api.routes import Asked, may_be_turn, read_request, route_of
from kvtop.capture.api.sse import EventTimes
from kvtop.capture.conversations.agents import UNKNOWN
from kvtop.capture.recorder.framing import AnswerHead, RequestHead
from kvtop.capture.recorder.told import End
from kvtop.capture.tap.wire import Opened
from kvtop.capture.turn import Captured, Record, Route, TurnState, prompt_bytes
from kvtop.errors import printable

MAX_OPEN_BYTES = 256 * 1024 * 1024
"""Bodies of all exchanges that are open together. What goes beyond is not kept."""


UNREAD = "the request's body could not be read"
"""What is unproven of a prompt that the recorder failed at."""

CUT_BY_TAP = "cut when the tap stopped"
"""The error of a turn that was cut by neither side."""

_GRANT_BYTES = 64 * 1024
"""Are taken from the budget at a time."""


class Kept(Protocol):
    """A turn that was handed over to be kept."""

    def update(self, turn: Captured) -> None:
        """It goes on; or something was learnt of it after its end."""

    def finish(self, turn: Captured, response_body: bytes) -> None: ...


class Watched(Protocol):
    """The upstream's counters during one turn."""

    def ended(self, turn: Captured, learnt: Callable[[Captured], None]) -> None:
        """It ended so; `learnt` is called once, soon, with what the counters add."""


class Budget:
    """Bytes that may be held at a time."""

    def __init__(self, limit: int = MAX_OPEN_BYTES) -> None:
        self.left = limit

    def take(self, n: int) -> bool:
        if n > self.left:
            return False
        self.left -= n
        return True

    def give(self, n: int) -> None:
        self.left += n


class Desk:
    """What every exchange needs of the recorder around it."""

    def __init__(
        self,
        keep: Callable[[Captured, bytes], Kept],
        watch: Callable[[str], Watched],
        name_of: Callable[[Sequence[tuple[str, str]], Mapping[str, str], str], tuple[str, str | None]],
        wall: Callable[[int], float],
        budget: Budget | None = None,
        *,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`keep` begins a turn with its request's body; `watch` is given the upstream; `wall` makes Unix time of ns of
        CLOCK_MONOTONIC; `say` is told of bodies that could not be read, without what stands in them."""
        self.keep = keep
        self.watch = watch
        self.name_of = name_of
        self.wall = wall
        self.budget = budget or Budget()
        self.say = say


class _Body:
    """A body as it comes: its size on the wire, and what it says, up to the caps."""

    def __init__(self, headers: Sequence[tuple[str, str]], budget: Budget) -> None:
        self.size = 0
        self.data = bytearray()
        self.unpacker = Unpacker(headers)
        self.truncated = False
        self._plain = not self.unpacker.packed or not self.unpacker.known
        self._budget = budget
        self._held = 0
        """Bytes taken from the budget."""
        self._room = 0
        """Of these, still free."""

    def add(self, data: bytes) -> bool:
        """Whether `data` grew."""
        n = len(data)
        self.size += n
        if self._plain:
            if self.truncated or (n > self._room and not self._more(n)):
                return False
            self._room -= n
            self.data += data
            return True
        out = b"" if self.truncated else self.unpacker.feed(data)
        self.truncated = self.truncated or self.unpacker.over
        if not out or (len(out) > self._room and not self._more(len(out))):
            return False
        self._room -= len(out)
        self.data += out
        return True

    @property
    def readable(self) -> bool:
        """It says what it says: unpacked, and all of it."""
        return self.unpacker.known and not self.unpacker.broken and not self.truncated

    def release(self) -> bytes:
        """The body, and its bytes are not held here any more."""
        data = bytes(self.data)
        self.data = bytearray()
        self._budget.give(self._held)
        self._held = self._room = 0
        return data

    def _more(self, n: int) -> bool:
        """Whether there is room for n bytes; once there is not, nothing more is kept."""
        wanted = n - self._room
        wanted = max(wanted, min(_GRANT_BYTES, self._budget.left))
        if self.truncated or len(self.data) + n > MAX_BYTES or not self._budget.take(wanted):
            self.truncated = True
            return False
        self._held += wanted
        self._room += wanted
        return True


class TurnExchange:
    """A `told.Exchange` that becomes a turn if it is one."""

    def __init__(self, desk: Desk, opened: Opened, began_ns: int) -> None:
        self.method = ""
        self._desk = desk
        self._upstream = opened.upstream
        self._turn: Captured | None = None
        """None before the request's head, and of what is no turn."""
        self._began_ns = began_ns
        self._ended = False
        self._request: _Body | None = None
        self._kept: Kept | None = None
        self._watched: Watched | None = None
        self._answer: _Body | None = None
        self._answer_stream = self._answer_packed = False
        self._times: EventTimes | None = None
        self._first_byte_ns: int | None = None

    def asked(self, head: RequestHead) -> None:
        self.method = head.method
        path = redact.target(head.target)
        if not may_be_turn(head.method, path):
            return
        headers = redact.headers(head.headers)
        route = route_of(path)
        self._turn = Captured(
            upstream=self._upstream,
            method=head.method,
            path=printable(path, redact.MAX_VALUE),
            route=route,
            started_at=self._desk.wall(self._began_ns),
            request_headers=headers,
            record=Record.TRUNCATED if head.odd else Record.COMPLETE,
        )
        self._request = _Body(head.headers, self._desk.budget)
        if route is not Route.OTHER:
            self._watched = self._desk.watch(self._upstream)

    def request_body(self, data: bytes, at_ns: int) -> None:
        if self._request is not None:
            self._request.add(data)

    def request_ends(self, at_ns: int) -> None:
        if self._turn is not None:
            self._turn = msgspec.structs.replace(self._turn, sent_at=self._desk.wall(at_ns))
            self._begin()

    def answer_begins(self, at_ns: int) -> None:
        self._first_byte_ns = at_ns  # an interim answer's is replaced by that of the answer

    def answered(self, head: AnswerHead) -> None:
        if self._turn is None:
            return
        self._answer = _Body(head.headers, self._desk.budget)
        self._answer_stream = is_stream(head.headers)
        self._answer_packed = self._answer.unpacker.packed
        if self._answer_stream and self._answer.unpacker.known:
            self._times = EventTimes(self._turn.route)
        self._turn = msgspec.structs.replace(
            self._turn,
            status=head.status,
            response_headers=redact.headers(head.headers),
            first_byte_at=self._desk.wall(self._first_byte_ns or self._began_ns),
        )

    def answer_body(self, data: bytes, at_ns: int) -> None:
        if self._answer is None or self._turn is None:
            return
        if self._answer.add(data) and self._times is not None and self._times.read(self._answer.data, at_ns):
            self._turn = msgspec.structs.replace(self._turn, first_token_at=self._desk.wall(at_ns))
            if self._kept is not None:
                self._kept.update(self._turn)

    def answer_bodies(self, data: bytes, ends: Sequence[int], times: Sequence[int]) -> None:
        if self._answer is None or self._turn is None:
            return
        if self._times is None or not self.patient:
            for start, end, at_ns in zip([0, *ends], ends, times, strict=False):
                self.answer_body(data[start:end], at_ns)
        elif self._answer.add(data):
            self._times.later(ends, times)

    @property
    def patient(self) -> bool:
        """Once its first token is there, of a stream only the times count until it ends."""
        return self._times is not None and self._times.first_ns is not None and not self._answer_packed

    def truncated(self) -> None:
        if self._turn is not None:
            self._turn = msgspec.structs.replace(self._turn, record=Record.TRUNCATED)
            if self._kept is not None:
                self._kept.update(self._turn)

    def ends(self, how: End, at_ns: int) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            self._end(how, at_ns)
        finally:  # whatever went wrong: else the upstream's counters are read for it for ever
            if self._watched is not None and self._turn is not None:
                self._watched.ended(self._turn, self._learnt)

    def _end(self, how: End, at_ns: int) -> None:
        whole = self._answer.release() if self._answer is not None else b""
        if self._turn is not None and self._kept is None:
            self._begin()  # it broke off, or was answered, before the request was whole
        turn, kept = self._turn, self._kept
        if turn is None or kept is None:
            return
        self._turn = msgspec.structs.replace(turn, state=None, record=Record.TRUNCATED)  # should it not be readable
        try:
            self._turn = self._last(turn, how, at_ns, whole)
        except Exception as error:  # noqa: BLE001  one answer's fault must not end the recording of its connection
            self._desk.say(f"an answer could not be read: {type(error).__name__}")
        finally:
            kept.finish(self._turn, whole)

    def _learnt(self, turn: Captured) -> None:
        if self._kept is not None:
            self._kept.update(turn)

    def _begin(self) -> None:
        """Hand the turn over, with all that the request tells; or find that it is none."""
        turn, request = self._turn, self._request
        assert turn is not None and request is not None
        self._request = None
        unpacked, truncated, known = request.readable, request.truncated, request.unpacker.known
        body = request.release()
        headers = turn.request_headers
        try:
            asked = read_request(turn.method, turn.path, headers, body if known else b"")
            agent, version = self._desk.name_of(headers, asked.hints, asked.program)
            unproven = asked.unread
        except Exception as error:  # noqa: BLE001  what was asked is lost, and not who was asked, when, and the answer
            self._desk.say(f"a request's body could not be read: {type(error).__name__}")
            asked = Asked(route=turn.route, is_json=body.lstrip()[:1] == b"{")
            agent, version, unproven = UNKNOWN, None, UNREAD
        if turn.route is Route.OTHER and not (asked.is_json and unpacked):
            self._turn = None
            return
        if self._watched is None:
            self._watched = self._desk.watch(self._upstream)
        turn = msgspec.structs.replace(turn, prompt_unproven=unproven)
        self._turn = turn = _with_asked(
            turn, asked, agent=agent, version=version, size=request.size, truncated=truncated
        )
        self._kept = self._desk.keep(turn, body)

    def _last(self, turn: Captured, how: End, at_ns: int, whole: bytes) -> Captured:
        """The turn as it ended."""
        answer = self._answer
        readable = answer is not None and answer.unpacker.known
        told = (
            read_answer(turn.route, turn.status, turn.response_headers, whole, bool(turn.stream))
            if readable
            else Answered()
        )
        lost = turn.record is Record.TRUNCATED or (answer is not None and answer.truncated)
        complete = answer is not None and answer.readable and not lost
        state = _state(how, turn, told, stream=self._answer_stream, complete=complete)
        gaps, coalesced = self._times.gaps(whole) if self._times is not None else ([], False)
        gaps.sort()
        error = told.error if told.error or how is not End.TAP else CUT_BY_TAP
        return msgspec.structs.replace(
            turn,
            state=state,
            record=Record.TRUNCATED if lost else turn.record,
            ended_at=None if how is End.UNKNOWN else self._desk.wall(at_ns),
            finish_reason=told.finish_reason,
            error=error,
            response_id=told.response_id,
            prompt_tokens=told.prompt_tokens,
            cached_tokens=told.cached_tokens,
            cached_source=None if told.cached_tokens is None else "usage",
            completion_tokens=told.completion_tokens,
            reasoning_tokens=told.reasoning_tokens,
            usage=told.usage,
            queue_s=told.queue_s,
            prefill_s=told.prefill_s,
            inter_token_p50_s=_quantile(gaps, 0.5),
            inter_token_p95_s=_quantile(gaps, 0.95),
            inter_token_n=len(gaps),
            coalesced=coalesced,
            response_bytes=answer.size if answer is not None else 0,
        )


def refused(desk: Desk, opened: Opened, at_ns: int) -> None:
    """A connection that the upstream did not take: a turn that failed, of which nothing else is known."""
    at = desk.wall(at_ns)
    turn = Captured(
        state=TurnState.FAILED,
        upstream=opened.upstream,
        started_at=at,
        ended_at=at,
        error=printable(f"the upstream took no connection: {opened.why}".rstrip(": "), 300),
    )
    desk.keep(turn, b"").finish(turn, b"")


def _with_asked(
    turn: Captured, asked: Asked, *, agent: str, version: str | None, size: int, truncated: bool
) -> Captured:
    return msgspec.structs.replace(
        turn,
        model=asked.model,
        stream=asked.stream,
        usage_asked=asked.usage_asked,
        outline=asked.outline,
        hints=asked.hints,
        agent=agent,
        agent_version=version,
        request_bytes=size,
        prompt_bytes=prompt_bytes(asked.outline),
        record=Record.TRUNCATED if truncated else turn.record,
    )


def _state(how: End, turn: Captured, told: Answered, *, stream: bool, complete: bool) -> TurnState | None:
    """How it ended. `complete`: the answer's body is here as far as it came, and can be read."""
    failed = (turn.status is not None and turn.status >= 400) or told.error is not None
    if how is End.UNKNOWN:
        return None
    if how is End.CLIENT:
        # Many clients hang up at a stream's last event, before the end of the last chunk.
        whole = stream and complete and told.whole
        return (TurnState.FAILED if failed else TurnState.DONE) if whole else TurnState.ABORTED
    if failed:
        return TurnState.FAILED
    if how is not End.WHOLE or (stream and complete and turn.route is not Route.OTHER and not told.whole):
        return TurnState.CUT
    return TurnState.DONE


def _quantile(values: Sequence[float], q: float) -> float | None:
    """Of sorted values, the one at that rank."""
    return values[min(len(values) - 1, int(q * len(values)))] if values else None
