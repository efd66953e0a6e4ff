"""Traffic as the tap hands it over, and the turns that come of it."""

from __future__ import annotations

import gzip
import time
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
from capture_fakes import (
    SECOND,
    UPSTREAM,
    FakeStore,
    Wire,
    answer,
    body_of,
    chunk,
    desk,
    event,
    post,
    recorded,
    stream_head,
)

from kvtop.capture.api.canonical import MAX_VALUES
from kvtop.capture.api.routes import CROWDED
from kvtop.capture.recorder.exchange import CUT_BY_TAP, MAX_OPEN_BYTES, UNREAD, Budget, TurnExchange
from kvtop.capture.recorder.process import Recorder, SteadyClock
from kvtop.capture.recorder.told import End
from kvtop.capture.tap.wire import HEADER, Kind, Opened
from kvtop.capture.turn import Captured, Record, Route, TurnState

CHAT = "/v1/chat/completions"
ASK = post(CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True})


def delta(**members: object) -> bytes:
    return chunk(event({"id": "c1", "choices": [{"index": 0, "delta": members, "finish_reason": None}]}))


OPENED = Opened(upstream=UPSTREAM, listen="127.0.0.1:8001", peer="127.0.0.1:50000")
DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def started(ask: bytes = ASK) -> Wire:
    wire = Wire()
    wire.open()
    wire.client(ask)
    return wire


@pytest.mark.parametrize(
    "name, path, route, tokens",
    [
        ("chat", CHAT, Route.CHAT, (427, 384, 6)),
        ("chat-stream-usage", CHAT, Route.CHAT, (427, 0, 6)),
        ("completions-stream", "/v1/completions", Route.COMPLETIONS, (402, 0, 5)),
        ("responses-stream", "/v1/responses", Route.RESPONSES, (425, 0, 6)),
        ("messages-stream", "/v1/messages?beta=true", Route.MESSAGES, (425, 384, 6)),
        ("messages", "/v1/messages", Route.MESSAGES, (425, 384, 6)),
    ],
)
@pytest.mark.parametrize("step", [7, 100_000])
def test_real_answers(name: str, path: str, route: Route, tokens: tuple[int, ...], step: int) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": "stream" in name}
    wire = started(post(path, body, "User-Agent: agent/1.2"))
    told = recorded(name)
    for at in range(0, len(told), step):
        wire.server(told[at : at + step])
    turn = wire.turn()
    assert (turn.state, turn.record, turn.route, turn.status) == (TurnState.DONE, Record.COMPLETE, route, 200)
    assert (turn.prompt_tokens, turn.cached_tokens, turn.completion_tokens) == tokens
    assert (turn.model, turn.agent, turn.agent_version, turn.upstream) == ("tiny", "agent", "1.2", UPSTREAM)
    assert (turn.first_token_at is not None) == ("stream" in name)
    assert turn.cached_source == "usage"
    assert wire.store.responses[1] == body_of(told)
    assert turn.response_bytes == len(body_of(told))


@pytest.mark.parametrize(
    "line",
    [
        b"Authorization: Bearer\r\n sEcReT-0123456789",
        b"Authorization : sEcReT-0123456789",
        b"X-Api-Key\t: sEcReT-0123456789",
        b"X-Note: a\x00sEcReT-0123456789",
        b"sEcReT-0123456789",
    ],
)
def test_an_odd_header_is_left_out_and_its_request_is_recorded(line: bytes) -> None:
    wire = started(ASK.replace(b"\r\n", b"\r\n" + line + b"\r\n", 1))
    wire.server(recorded("chat-stream-usage"))
    turn = wire.turn()
    assert (turn.state, turn.record, turn.model, turn.status) == (TurnState.DONE, Record.TRUNCATED, "tiny", 200)
    assert wire.store.requests[1] == ASK.partition(b"\r\n\r\n")[2]
    assert b"sEcReT" not in msgspec.json.encode(turn)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length : 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/9.9\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions?a=b HTTP/1.1\nContent-Length: 2\n\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nX: " + b"a" * 300_000,
    ],
)
def test_of_a_request_that_cannot_be_read_that_much_is_recorded(head: bytes) -> None:
    wire = started(head)
    wire.server(answer(b"{}"))
    wire.frame(Kind.CLIENT_END)
    wire.frame(Kind.CLOSE)
    turn = wire.turn()
    assert (turn.method, turn.path.partition("?")[0], turn.route) == ("POST", CHAT, Route.CHAT)
    assert (turn.record, turn.request_headers) == (Record.TRUNCATED, [])
    assert turn.state in (None, TurnState.DONE), "the last but one is answered, and its body is not looked at"


def test_a_turn_is_seen_while_it_is_in_flight() -> None:
    wire = started()
    turn = wire.turn()
    assert (turn.state, turn.started_at, turn.sent_at) == (TurnState.IN_FLIGHT, 100.02, 100.02)
    assert [part.kind for part in turn.outline] == ["message"]
    assert wire.store.requests[1] == ASK.partition(b"\r\n\r\n")[2]
    wire.server(stream_head() + delta(role="assistant", content=""))
    assert wire.turn().first_token_at is None
    wire.server(delta(content="a"))
    assert (wire.turn().first_byte_at, wire.turn().first_token_at) == (100.03, 100.04)
    assert wire.turn().state is TurnState.IN_FLIGHT


def test_times() -> None:
    wire = Wire()
    wire.open()
    wire.client(ASK[:50])
    wire.client(ASK[50:], after_s=0.5)
    wire.server(b"HTTP/1.1 100 Continue\r\n\r\n", after_s=0.5)
    wire.server(stream_head(), after_s=1)
    wire.server(delta(role="assistant", content=""), after_s=1)
    for after_s in (1, 0.1, 0.1, 0.3):
        wire.server(delta(content="a"), after_s=after_s)
    wire.server(DONE, after_s=1)
    turn = wire.turn()
    assert turn.started_at == pytest.approx(100.02)
    assert turn.sent_at == pytest.approx(100.52)
    assert turn.first_byte_at == pytest.approx(102.02)
    assert turn.first_token_at == pytest.approx(104.02)
    assert turn.ended_at == pytest.approx(105.52)
    assert turn.ttft_s == pytest.approx(3.5)
    assert (turn.inter_token_n, turn.coalesced) == (3, False)
    assert (turn.inter_token_p50_s, turn.inter_token_p95_s) == (pytest.approx(0.1), pytest.approx(0.3))


@pytest.mark.parametrize("last", ["whole", "cut", "quiet"])
def test_a_long_stream_is_read_in_batches_and_its_times_stay(last: str) -> None:
    wire = started()
    wire.server(stream_head() + delta(role="assistant", content=""))
    for n in range(700):
        wire.server(delta(content="a"), after_s=0.02 if n % 10 else 0.05)
    if last == "whole":
        wire.server(DONE)
    elif last == "cut":
        wire.frame(Kind.SERVER_END)
    else:
        wire.recorder.catch_up(wire.now_ns + 1)
        wire.recorder.end(wire.now_ns)
    turn = wire.turn()
    want = {"whole": TurnState.DONE, "cut": TurnState.CUT, "quiet": None}
    assert (turn.state, turn.inter_token_n, turn.coalesced) == (want[last], 699, False)
    assert (turn.inter_token_p50_s, turn.inter_token_p95_s) == (pytest.approx(0.02), pytest.approx(0.05))
    assert wire.store.responses[1].count(b'"content":"a"') == 700


def test_what_comes_of_a_stream_after_its_first_token_can_wait() -> None:
    wire = started()
    wire.server(stream_head() + delta(role="assistant", content=""))
    told = []
    for data in (delta(content="a"), delta(content="b"), delta(content="x" * 5000), delta(content="c"), DONE):
        wire.server(data)
        told.append(wire.only_streams)
    assert told == [False, True, False, True, False]  # large reads are not held, and an end is looked at at once
    assert wire.turn().state is TurnState.DONE


def test_frames_are_read_however_they_are_cut() -> None:
    frames = [(Kind.OPEN, msgspec.json.encode(OPENED)), (Kind.CLIENT, ASK), (Kind.SERVER, stream_head())]
    frames += [(Kind.SERVER, delta(content=f"{n}")) for n in range(70)]
    frames += [(Kind.SERVER, DONE), (Kind.CLOSE, b"")]
    heads = (HEADER.pack(1, kind, n * SECOND, len(payload)) for n, (kind, payload) in enumerate(frames))
    data = b"".join(head + payload for head, (_, payload) in zip(heads, frames, strict=True))
    for step in (1, 100, len(data)):
        store = FakeStore()
        recorder = Recorder(desk(store))
        for at in range(0, len(data), step):
            recorder.read(data[at : at + step])
        (turn,) = store.turns
        assert (turn.state, turn.inter_token_n, turn.inter_token_p50_s) == (TurnState.DONE, 69, 1.0)
        assert store.responses[1] == b"".join(body_of(b"chunked\r\n\r\n" + payload) for _, payload in frames[3:-1])


def test_between_turns_the_recorder_is_idle() -> None:
    wire = Wire()
    wire.open()
    assert wire.recorder.idle
    wire.client(ASK)
    assert not wire.recorder.idle
    wire.server(stream_head() + delta(content="a"))
    assert not wire.recorder.idle
    wire.server(DONE)
    assert wire.recorder.idle  # the connection is still there


def test_a_clock_that_was_set_is_followed() -> None:
    unix = [1_000.0]
    clock = SteadyClock(lambda: unix[0] + time.monotonic())
    assert clock.wall() == pytest.approx(1_000.0 + time.monotonic(), abs=0.1)
    unix[0] = 30_000.0  # it slept, or was told by the network
    assert clock.strayed
    assert clock.wall() == pytest.approx(1_000.0 + time.monotonic(), abs=0.1)
    clock.set_right()
    assert not clock.strayed
    assert clock.wall() == pytest.approx(30_000.0 + time.monotonic(), abs=0.1)


def test_a_frame_of_no_kind_is_none() -> None:
    with pytest.raises(ValueError, match="99"):
        Recorder(desk(FakeStore())).read(HEADER.pack(1, 99, 0, 0))


def test_aborted_in_the_middle_of_the_stream() -> None:
    """A client that goes: its FIN is passed on, and the upstream ends too."""
    wire = started()
    wire.server(stream_head() + delta(content="a"))
    wire.frame(Kind.CLIENT_END)
    gone = wire.now_ns / SECOND
    wire.frame(Kind.SERVER_END)
    wire.frame(Kind.CLOSE)
    turn = wire.turn()
    assert (turn.state, turn.ended_at, turn.record) == (TurnState.ABORTED, gone, Record.COMPLETE)
    assert turn.response_id == "c1"


def test_aborted_before_the_first_byte() -> None:
    wire = started()
    wire.frame(Kind.CLIENT_RESET)
    turn = wire.turn()
    assert (turn.state, turn.status, turn.first_byte_at) == (TurnState.ABORTED, None, None)
    assert wire.store.responses[1] == b""


def test_aborted_in_the_middle_of_the_request() -> None:
    wire = Wire()
    wire.open()
    wire.client(ASK[:-5])
    assert wire.store.turns == []
    wire.frame(Kind.CLIENT_RESET)
    turn = wire.turn()
    assert (turn.state, turn.sent_at, turn.route) == (TurnState.ABORTED, None, Route.CHAT)
    assert wire.store.requests[1] == ASK.partition(b"\r\n\r\n")[2][:-5]


def test_a_client_that_hangs_up_at_the_last_event_has_all() -> None:
    wire = started()
    wire.server(stream_head() + delta(content="a") + chunk(b"data: [DONE]\n\n"))
    wire.frame(Kind.CLIENT_END)
    wire.frame(Kind.SERVER_END)
    assert wire.turn().state is TurnState.DONE


def test_a_half_closed_client_gets_its_answer() -> None:
    wire = started()
    wire.frame(Kind.CLIENT_END)
    wire.server(stream_head() + delta(content="a") + DONE)
    assert wire.turn().state is TurnState.DONE


@pytest.mark.parametrize("kind", [Kind.SERVER_END, Kind.SERVER_RESET])
@pytest.mark.parametrize("told", [b"", stream_head(), stream_head() + delta(content="a") + chunk(b"data: [DONE]\n\n")])
def test_cut_by_the_upstream(kind: Kind, told: bytes) -> None:
    wire = started()
    if told:
        wire.server(told)
    wire.frame(kind)
    wire.frame(Kind.CLIENT_END)
    assert wire.turn().state is TurnState.CUT


@pytest.mark.parametrize(
    "path, last",
    [
        (CHAT, {"choices": [{"delta": {"content": "a"}}]}),
        ("/v1/messages", {"type": "content_block_delta", "delta": {"text": "a"}}),
        ("/v1/responses", {"type": "response.output_text.delta", "delta": "a"}),
        ("/v1/completions", {"choices": [{"text": "a"}]}),
    ],
)
def test_a_stream_without_its_last_event_is_cut(path: str, last: object) -> None:
    """The framing ends as it should, and the answer does not."""
    wire = started(post(path, {"stream": True}))
    wire.server(stream_head() + chunk(event(last)) + b"0\r\n\r\n")
    assert wire.turn().state is TurnState.CUT


def test_the_instructions_tell_who_asks_where_no_header_does() -> None:
    said = [{"role": "system", "content": "You are Cline, an AI coding agent."}, {"role": "user", "content": "Hi"}]
    wire = started(post(CHAT, {"model": "tiny", "messages": said}))
    assert (wire.turn().agent, wire.turn().outline[0].name) == ("cline", "cline")
    wire = started(post(CHAT, {"model": "tiny", "messages": said}, "User-Agent: mine/2"))
    assert wire.turn().agent == "mine"


def test_a_length_that_is_not_reached_is_cut() -> None:
    wire = started()
    wire.server(answer(b'{"id":"x"}')[:-3])
    wire.frame(Kind.SERVER_END)
    assert (wire.turn().state, wire.turn().response_bytes) == (TurnState.CUT, 7)


@pytest.mark.parametrize("name", ["error-400", "error-404"])
def test_an_error_status_fails(name: str) -> None:
    wire = started()
    wire.server(recorded(name))
    turn = wire.turn()
    assert (turn.state, turn.status) == (TurnState.FAILED, int(name[-3:]))
    assert turn.error


def test_an_error_in_the_stream_fails() -> None:
    wire = started()
    wire.server(stream_head() + delta(content="a") + chunk(event({"error": {"message": "engine died"}})) + DONE)
    assert (wire.turn().state, wire.turn().status, wire.turn().error) == (TurnState.FAILED, 200, "engine died")


def test_an_early_answer_to_an_upload() -> None:
    wire = Wire()
    wire.open()
    big = post(CHAT, {"messages": [{"role": "user", "content": "x" * 100_000}]})
    wire.client(big[:60_000])
    wire.server(answer(b'{"error":{"message":"too large"}}', status="413 Content Too Large"))
    wire.client(big[60_000:])
    turn = wire.turn()
    assert (turn.state, turn.status, turn.error, turn.sent_at) == (TurnState.FAILED, 413, "too large", None)


def test_a_refused_connection_fails() -> None:
    wire = Wire()
    refusal = b'{"upstream":"http://127.0.0.1:8000","listen":"a","peer":"b","why":"connection refused"}'
    for after_s in (0.01, 0.5, 2.0):
        wire.frame(Kind.REFUSED, refusal, after_s=after_s)
    assert [(turn.state, turn.error) for turn in wire.store.turns] == [
        (TurnState.FAILED, "the upstream took no connection: connection refused")
    ] * 2
    assert {(turn.request_bytes, turn.response_bytes) for turn in wire.store.turns} == {(None, None)}


@pytest.mark.parametrize("coding, pack", [("gzip", gzip.compress), ("zstd", None)])
def test_packed_bodies(coding: str, pack: object) -> None:
    import zstandard

    packer = gzip.compress if pack else zstandard.compress
    plain = ASK.partition(b"\r\n\r\n")[2]
    whole = body_of(recorded("chat"))
    wire = started(post(CHAT, packer(plain), f"Content-Encoding: {coding}"))
    wire.server(answer(packer(whole), f"Content-Encoding: {coding}"))
    turn = wire.turn()
    assert (turn.model, turn.prompt_tokens, turn.state) == ("tiny", 427, TurnState.DONE)
    assert (wire.store.requests[1], wire.store.responses[1]) == (plain, whole)
    assert turn.request_bytes == len(packer(plain))


def test_a_packed_stream() -> None:
    import zlib

    packer = zlib.compressobj(wbits=31)

    def packed(data: bytes, mode: int = zlib.Z_SYNC_FLUSH) -> bytes:
        return chunk(packer.compress(data) + packer.flush(mode))

    wire = started()
    wire.server(stream_head("content-encoding: gzip"))
    wire.server(packed(event({"choices": [{"delta": {"content": "a"}}]})))
    first = wire.now_ns / SECOND
    wire.server(packed(event({"choices": [{"delta": {"content": "b"}}]})))
    wire.server(packed(b"data: [DONE]\n\n", zlib.Z_FINISH) + b"0\r\n\r\n")
    turn = wire.turn()
    assert (turn.state, turn.first_token_at, turn.inter_token_n) == (TurnState.DONE, first, 1)


def test_a_coding_that_cannot_be_read_is_kept_as_it_came() -> None:
    wire = started()
    wire.server(answer(b"\x0b\x01\x80hello\x03", "Content-Encoding: br"))
    turn = wire.turn()
    assert (turn.state, turn.prompt_tokens, turn.record) == (TurnState.DONE, None, Record.COMPLETE)
    assert wire.store.responses[1] == b"\x0b\x01\x80hello\x03"
    assert ("Content-Encoding", "br") in turn.response_headers


def test_pipelined() -> None:
    wire = started(ASK + post("/v1/completions", {"prompt": "b"}))
    wire.server(stream_head() + delta(content="a") + DONE + recorded("completions"))
    assert [(turn.route, turn.state) for turn in wire.store.turns] == [
        (Route.CHAT, TurnState.DONE),
        (Route.COMPLETIONS, TurnState.DONE),
    ]


def test_a_gap_in_the_middle_of_the_answer() -> None:
    wire = started()
    wire.server(stream_head() + delta(content="a"))
    wire.gap(server=10_000)
    assert (wire.turn().record, wire.turn().state) == (Record.TRUNCATED, TurnState.IN_FLIGHT)
    wire.server(delta(content="z") + DONE)
    wire.client(ASK)
    wire.server(stream_head() + delta(content="b") + DONE)
    one, two = wire.store.turns
    assert (one.state, one.record, one.ended_at) == (None, Record.TRUNCATED, None)
    assert (two.state, two.record) == (TurnState.DONE, Record.COMPLETE)


def test_a_resumed_connection() -> None:
    wire = Wire()
    wire.open(resumed=True)
    wire.server(delta(content="z") + DONE)
    wire.client(ASK)
    wire.server(stream_head() + delta(content="b") + DONE)
    assert (wire.turn().state, wire.turn().record) == (TurnState.DONE, Record.COMPLETE)


def test_the_recorder_ends_in_the_middle() -> None:
    wire = started()
    wire.server(stream_head() + delta(content="a"))
    wire.recorder.end(wire.now_ns)
    assert (wire.turn().state, wire.turn().ended_at) == (None, None)
    assert wire.store.responses[1].startswith(b"data:")


def test_the_tap_ends_the_connection() -> None:
    wire = started()
    wire.server(stream_head() + delta(content="a"))
    wire.frame(Kind.CLOSE)
    assert (wire.turn().state, wire.turn().error) == (TurnState.CUT, CUT_BY_TAP)


@pytest.mark.parametrize(
    "ask",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
        post("/tokenize", {"prompt": "a"}),
        post("/v1/messages/count_tokens", {"messages": []}),
        post("/upload", b"not json"),
        b"OPTIONS /v1/messages HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_what_is_no_turn(ask: bytes) -> None:
    wire = started(ask)
    wire.server(answer(b"{}"))
    wire.frame(Kind.CLOSE)
    assert wire.store.turns == []


def test_another_post_with_json_is_a_turn() -> None:
    wire = started(post("/v1/rerank", {"model": "r", "query": "q"}))
    wire.server(answer(b'{"usage":{"prompt_tokens":7}}'))
    turn = wire.turn()
    assert (turn.route, turn.model, turn.prompt_tokens, turn.state) == (Route.OTHER, "r", 7, TurnState.DONE)


def test_bodies_over_the_budget_are_cut_and_say_so() -> None:
    wire = Wire(budget=Budget(200))
    wire.open()
    wire.client(post(CHAT, {"messages": [{"role": "user", "content": "x" * 300}]}))
    turn = wire.turn()
    assert (turn.record, turn.request_bytes) == (Record.TRUNCATED, 343)
    wire.server(stream_head() + delta(content="y" * 300) + DONE)
    turn = wire.turn()
    assert (turn.record, turn.state) == (Record.TRUNCATED, TurnState.DONE)
    assert wire.recorder._desk.budget.left == 200


def test_a_body_over_the_budget_is_kept_up_to_where_it_went_over() -> None:
    """What comes later would fit into what was granted before, and stand behind a hole that nobody sees."""
    wire = Wire(budget=Budget(70_000))
    wire.open()
    whole = post(CHAT, {"messages": [{"role": "user", "content": "x" * 100_000}]})
    wire.client(whole[:1_000])
    wire.client(whole[1_000:-10])
    wire.client(whole[-10:])
    kept = wire.store.requests[1]
    assert (wire.turn().record, kept) == (Record.TRUNCATED, whole.partition(b"\r\n\r\n")[2][: len(kept)])
    assert 0 < len(kept) < 1_000


def test_the_budget_is_given_back_however_it_ends() -> None:
    wire = Wire(budget=Budget(10_000))
    for conn, end in enumerate((Kind.CLOSE, Kind.CLIENT_RESET, Kind.SERVER_END), 1):
        wire.open(conn)
        wire.client(ASK + post("/other", b"text") + ASK, conn)
        wire.server(stream_head() + delta(content="y"), conn)
        wire.frame(end, conn=conn)
    wire.recorder.end(wire.now_ns)
    assert wire.recorder._desk.budget.left == 10_000


@pytest.mark.parametrize("path", [CHAT, "/other"])
@pytest.mark.parametrize("key", ["messages", "tools", "documents"])
def test_a_body_of_very_many_values_is_kept_and_not_read(path: str, key: str) -> None:
    body = b'{"model":"m","stream":true,"%s":[%s[]]}' % (key.encode(), b"[]," * (MAX_VALUES // 2))
    wire = Wire()
    wire.open()
    tracemalloc.start()
    wire.client(post(path, body, "User-Agent: pi/1.0"))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    wire.server(answer(b'{"usage":{"prompt_tokens":7}}'))
    turn = wire.turn()
    assert (turn.outline, turn.prompt_unproven, turn.agent, turn.state) == ([], CROWDED, "pi", TurnState.DONE)
    assert (turn.prompt_tokens, turn.record, wire.store.requests) == (7, Record.COMPLETE, {1: body})
    assert most < 10 * len(body)


@pytest.mark.parametrize("sent", [100, 200])
def test_the_answer_to_an_upload_that_is_no_turn_is_given_back(sent: int) -> None:
    """It begins before the upload is whole, when nobody knows yet that this is no turn."""
    wire = Wire(budget=Budget(1_000_000))
    wire.open()
    upload = post("/upload", b"x" * 500)
    wire.client(upload[:-sent])
    wire.server(answer(b"too large", status="413 Content Too Large")[:-4])
    wire.client(upload[-sent:][:100])
    wire.server(b"arge")
    wire.frame(Kind.CLOSE)
    assert (wire.store.turns, wire.recorder._desk.budget.left) == ([], 1_000_000)


SECRET = "SeCrEt0123456789abcdef"


def test_secrets_of_the_head_reach_nothing_that_is_kept() -> None:
    wire = started(
        post(
            f"{CHAT}?api_key={SECRET}&beta=true",
            {"model": "m"},
            f"Authorization: Bearer {SECRET}",
            f"x-api-key: {SECRET}",
            f"Cookie: a={SECRET}",
            f"X-Session-Token: {SECRET}",
        )
    )
    wire.server(answer(f'{{"error":"no sk-{SECRET}"}}'.encode(), f"Set-Cookie: s={SECRET}", status="401 Unauthorized"))
    turn = wire.turn()
    assert turn.path == f"{CHAT}?api_key=(removed)&beta=true"
    assert ("Authorization", "(removed)") in turn.request_headers
    assert all(SECRET not in repr(row) for row in wire.store.history)


def test_the_fault_of_one_connection_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(SECRET)

    wire = Wire()
    said: list[str] = []
    wire.recorder = Recorder(desk(wire.store), said.append)
    for conn in (1, 2):
        wire.open(conn)
        wire.client(ASK, conn)
    with monkeypatch.context() as patched:
        patched.setattr("kvtop.capture.recorder.exchange.TurnExchange.answered", broken)
        wire.server(stream_head(), 1)
    wire.server(stream_head() + delta(content="a") + DONE, 2)
    assert [turn.state for turn in wire.store.turns] == [None, TurnState.DONE]
    assert said == ["a connection is not followed any further: RuntimeError"]


def test_the_fault_of_one_connection_at_the_end_leaves_no_other_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(exchange: TurnExchange, how: End, at_ns: int) -> None:
        nonlocal faults
        faults += 1
        if faults == 1:
            raise RuntimeError(SECRET)
        ends(exchange, how, at_ns)

    wire, faults, ends = Wire(), 0, TurnExchange.ends
    for conn in (1, 2):
        wire.open(conn)
        wire.client(ASK, conn)
    monkeypatch.setattr(TurnExchange, "ends", broken)
    wire.recorder.end(wire.now_ns)
    assert wire.store.turns[1].state is None


@pytest.mark.parametrize("fault", ["read_answer", "read_request"])
def test_a_fault_leaves_no_turn_in_flight_and_no_counters_read(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(SECRET)

    watched: list[str] = []
    said: list[str] = []

    class Watch:
        def ended(self, turn: Captured, learnt: Callable[[Captured], None]) -> None:
            watched.append("ended")
            learnt(turn)

    def watch(_: str) -> Watch:
        watched.append("begun")
        return Watch()

    store = FakeStore()
    wire = Wire(store)
    around = desk(store)
    around.watch, around.say = watch, said.append
    wire.recorder = Recorder(around)
    with monkeypatch.context() as patched:
        patched.setattr(f"kvtop.capture.recorder.exchange.{fault}", broken)
        wire.open()
        wire.client(ASK)
        wire.server(stream_head() + delta(content="a") + DONE)
    wire.client(ASK)  # what comes next on the connection is recorded whole
    wire.server(stream_head() + delta(content="a") + DONE)
    wire.frame(Kind.CLOSE)
    assert watched == ["begun", "ended"] * 2
    assert around.budget.left == MAX_OPEN_BYTES
    first, second = store.turns
    assert (second.state, second.record, len(second.outline)) == (TurnState.DONE, Record.COMPLETE, 1)
    assert first.status == 200
    if fault == "read_answer":
        assert (first.state, first.record, len(first.outline)) == (None, Record.TRUNCATED, 1)
        assert said == ["an answer could not be read: RuntimeError"]
    else:
        assert (first.state, first.record, first.outline) == (TurnState.DONE, Record.COMPLETE, [])
        assert (first.stream, first.prompt_unproven) == (None, UNREAD)
        assert said == ["a request's body could not be read: RuntimeError"]


def test_an_other_tap_knows_nothing_of_a_frame_without_its_connection() -> None:
    wire = Wire(FakeStore())
    wire.client(ASK)
    wire.frame(Kind.CLOSE)
    wire.frame(Kind.OPEN, b"not json")
    assert wire.store.turns == []
