"""Which events of a stream bring content, and when."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

import pytest
from capture_fakes import body_of, event, recorded
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.api.sse import EventTimes
from kvtop.capture.turn import Route

MS = 1_000_000


def chat(**delta: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


class Stream:
    """A stream and its times."""

    def __init__(self, route: Route) -> None:
        self.times = EventTimes(route)
        self.body = bytearray()

    def feed(self, data: bytes, at_ns: int) -> None:
        self.body += data
        if self.times.first_ns is None:
            self.times.read(self.body, at_ns)
        else:
            self.times.later([len(data)], [at_ns])

    @property
    def first_ns(self) -> int | None:
        return self.times.first_ns

    def gaps(self) -> list[float]:
        return self.times.gaps(bytes(self.body))[0]

    @property
    def coalesced(self) -> bool:
        return self.times.gaps(bytes(self.body))[1]


def times(route: Route, *reads: bytes) -> Stream:
    """Reads 10 ms apart, from 10 ms on."""
    found = Stream(route)
    for n, data in enumerate(reads, 1):
        found.feed(data, n * 10 * MS)
    return found


@pytest.mark.parametrize(
    "route, data",
    [
        (Route.CHAT, chat(content="Hi")),
        (Route.CHAT, chat(role="assistant", content="Hi")),
        (Route.CHAT, chat(reasoning="Hm")),
        (Route.CHAT, chat(reasoning_content="Hm", content=None)),
        (Route.CHAT, chat(tool_calls=[{"index": 0, "id": "c", "function": {"name": "read"}}])),
        (Route.CHAT, b'data: {"choices": [{"delta": {"content": "spaced"}}]}\n\n'),
        (Route.CHAT, b'data: {"choices":[{"delta":{"content":"crlf"}}]}\r\n\r\n'),
        (Route.COMPLETIONS, event({"choices": [{"text": "x"}]})),
        (Route.MESSAGES, event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}})),
        (Route.MESSAGES, event({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "x"}})),
        (Route.MESSAGES, event({"type": "content_block_delta", "delta": {"partial_json": "{"}})),
        (Route.MESSAGES, event({"type": "content_block_start", "content_block": {"type": "tool_use", "name": "read"}})),
        (Route.RESPONSES, event({"type": "response.output_text.delta", "delta": "x"})),
        (Route.RESPONSES, event({"delta": "x", "type": "response.reasoning_text.delta"})),
        (Route.RESPONSES, event({"type": "response.output_item.added", "item": {"type": "function_call"}})),
        (Route.OTHER, chat(content="Hi")),
    ],
)
def test_content(route: Route, data: bytes) -> None:
    assert times(route, data).first_ns == 10 * MS


@pytest.mark.parametrize(
    "route, data",
    [
        (Route.CHAT, chat(role="assistant", content="")),
        (Route.CHAT, chat()),
        (Route.CHAT, chat(tool_calls=[])),
        (Route.CHAT, event({"choices": [], "usage": {"prompt_tokens": 3}})),
        (Route.CHAT, b"data: [DONE]\n\n"),
        (Route.CHAT, b": ping\n\n"),
        (Route.COMPLETIONS, event({"choices": [{"text": "", "finish_reason": "stop"}]})),
        (Route.MESSAGES, event({"type": "message_start", "message": {"content": [], "role": "assistant"}})),
        (Route.MESSAGES, event({"type": "ping"}, "ping")),
        (Route.MESSAGES, event({"type": "content_block_start", "content_block": {"type": "text", "text": ""}})),
        (Route.MESSAGES, event({"type": "message_delta", "delta": {"stop_reason": "tool_use"}})),
        (Route.MESSAGES, event({"type": "message_delta", "text_of_another": 1})),
        (Route.RESPONSES, event({"type": "response.created", "response": {"instructions": 'say "delta":"x"'}})),
        (Route.RESPONSES, event({"type": "response.output_item.added", "item": {"type": "message"}})),
        (Route.RESPONSES, event({"type": "response.completed", "response": {"output": [{"type": "function_call"}]}})),
    ],
)
def test_no_content(route: Route, data: bytes) -> None:
    assert times(route, data).first_ns is None


def spread(data: bytes) -> bytes:
    """Each event's JSON broken over data lines, as one that is written for people."""
    return data.replace(b":{", b":\ndata: {").replace(b",", b",\ndata: ")


@pytest.mark.parametrize("lines", [bytes, spread], ids=["one line", "several lines"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize(
    ("name", "route"),
    [("chat-stream", Route.CHAT), ("messages-stream", Route.MESSAGES), ("responses-stream", Route.RESPONSES)],
)
def test_each_way_to_write_a_stream_has_the_same_times(
    name: str, route: Route, end: bytes, lines: Callable[[bytes], bytes]
) -> None:
    events = [one + b"\n\n" for one in body_of(recorded(name)).split(b"\n\n") if one]
    usual = times(route, *events)
    found = times(route, *(lines(one).replace(b"\n", end) for one in events))
    assert usual.first_ns is not None
    assert (found.first_ns, found.gaps()) == (usual.first_ns, usual.gaps())


def test_bytes_inside_a_text_are_no_content() -> None:
    text = chat(role="assistant", content="", note='{"content":"x","tool_calls":[{')
    assert times(Route.CHAT, text).first_ns is None


def test_gaps_lie_between_events() -> None:
    found = times(
        Route.CHAT, chat(role="assistant"), chat(content="a"), chat(content="b"), b": ping\n\n", chat(content="c")
    )
    assert (found.first_ns, found.gaps(), found.coalesced) == (20 * MS, [0.01, 0.02], False)


def test_an_event_counts_when_it_is_complete() -> None:
    data = chat(content="abc")
    found = times(Route.CHAT, data[:30], data[30:-1], data[-1:], chat(content="d"))
    assert (found.first_ns, found.gaps()) == (30 * MS, [0.01])


def test_events_of_one_read_share_the_time_before_it() -> None:
    found = times(Route.CHAT, chat(content="a"), chat(content="b") + chat(content="c"), chat(content="d"))
    assert (found.gaps(), found.coalesced) == ([0.005, 0.005, 0.01], True)


def test_chunks_of_one_read_count_as_one_read() -> None:
    found = Stream(Route.CHAT)
    for data, at in ((chat(content="a"), 10), (chat(content="b"), 20), (chat(content="c"), 20)):
        found.feed(data, at * MS)
    assert (found.gaps(), found.coalesced) == ([0.005, 0.005], True)


@pytest.mark.parametrize(
    "name, route, n",
    [
        ("chat-stream", Route.CHAT, 6),
        ("chat-tool-stream", Route.CHAT, 1),
        ("completions-stream", Route.COMPLETIONS, 5),
        ("messages-stream", Route.MESSAGES, 6),
        ("responses-stream", Route.RESPONSES, 2),
    ],
)
def test_real_streams(name: str, route: Route, n: int) -> None:
    events = [one + b"\n\n" for one in body_of(recorded(name)).split(b"\n\n") if one]
    found = times(route, *events)
    assert len(found.gaps()) == n - 1


@given(
    st.lists(st.sampled_from([chat(content="a"), chat(), b": ping\n\n", b"data: [DONE]\n\n"]), max_size=12), st.data()
)
def test_the_number_of_events_does_not_depend_on_the_reads(events: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(events).replace(b"\n", data.draw(st.sampled_from([b"\n", b"\r", b"\r\n"])))
    found, at, now = Stream(Route.CHAT), 0, 0
    while at < len(whole):
        size = data.draw(st.integers(1, 80))
        now += 1
        found.feed(whole[at : at + size], now * MS)
        at += size
    n = sum(b"content" in one for one in events)
    assert (found.first_ns is not None) == (n > 0)
    if not found.coalesced:
        assert len(found.gaps()) == max(0, n - 1)


@contextlib.contextmanager
def cpu_seconds(limit: float) -> Iterator[None]:
    """Fails what takes more, of this process's own time."""

    def over(*_: object) -> None:
        raise AssertionError(f"more than {limit:g} s of CPU")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


SOME = {
    Route.CHAT: chat(content="a"),
    Route.COMPLETIONS: event({"choices": [{"text": "x"}]}),
    Route.MESSAGES: event({"delta": {"text": "a"}}),
    Route.RESPONSES: event({"delta": "a"}),
}


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b""])
@pytest.mark.parametrize(
    "route, again",
    [
        (Route.CHAT, b'"delta": {'),
        (Route.CHAT, b'"delta":' + b" " * 200),
        (Route.CHAT, b'"delta": {"content":' + b" " * 200),
        (Route.COMPLETIONS, b'"text":'),
        (Route.COMPLETIONS, b'"text":' + b" " * 200),
        (Route.MESSAGES, b'"delta": {'),
        (Route.MESSAGES, b'"content_block": {'),
        (Route.MESSAGES, b'"content_block": {"type": "'),
        (Route.RESPONSES, b'"delta": '),
        (Route.RESPONSES, b'output_item.added"'),
        (Route.RESPONSES, b"output_item.added\ndata:"),
        (Route.RESPONSES, b'output_item.added"type":"call_call_'),
        (Route.CHAT, b"data:\n"),
        (Route.CHAT, b"data:\r"),
        (Route.CHAT, b"data: {\rdata:\n"),
    ],
)
def test_a_line_that_repeats_itself_costs_its_length(route: Route, again: bytes, end: bytes) -> None:
    data = again * (1_000_000 // len(again)) + end
    found = Stream(route)
    with cpu_seconds(20):  # the square of 1 MB would be minutes to hours
        for at in range(0, len(data), 16_384):
            found.feed(data[at : at + 16_384], at + 1)
        assert found.gaps() == []  # one event at most
        late = times(route, SOME[route], data)
        assert (late.first_ns, len(late.gaps()) <= 1) == (10 * MS, True)


@pytest.mark.parametrize(
    "route, head, content",
    [
        (Route.CHAT, b'"delta": {', chat(content="a")),
        (Route.MESSAGES, b'"content_block": {', event({"delta": {"text": "a"}})),
        (Route.RESPONSES, b'output_item.added"', event({"delta": "a"})),
    ],
)
def test_content_after_a_line_that_has_none_is_found(route: Route, head: bytes, content: bytes) -> None:
    found = times(route, head * 3 + b"\n" + head + b"\n\n" + content, head + b"\n\n", content)
    assert (found.first_ns, found.gaps()) == (10 * MS, [0.02])


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_arbitrary_bytes(reads: list[bytes]) -> None:
    times(Route.MESSAGES, *reads).gaps()
