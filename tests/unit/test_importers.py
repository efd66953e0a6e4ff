"""Other tools' records as exchanges: exact bodies, times, what is unproven, and what is wrong with bad ones."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture import document
from kvtop.capture.importers import files, har, jsonl, litellm, mitmproxy, vllm_log
from kvtop.capture.importers.exchange import Bad, Exchange, LeftOut, Maker
from kvtop.capture.importers.read import FORMATS, Opened, guess
from kvtop.capture.turn import Route, TurnState
from kvtop.errors import UsageError

BODY = {
    "model": "m",
    "tools": [{"type": "function"}],
    "messages": [{"role": "system"}, {"role": "user", "content": "é"}],
}
ANSWER = {"id": "chatcmpl-1", "usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}}


def tnet(value: Any) -> bytes:
    if value is None:
        return b"0:~"
    if isinstance(value, bool):
        data, kind = str(value).lower().encode(), b"!"
    elif isinstance(value, int):
        data, kind = str(value).encode(), b"#"
    elif isinstance(value, float):
        data, kind = repr(value).encode(), b"^"
    elif isinstance(value, bytes):
        data, kind = value, b","
    elif isinstance(value, str):
        data, kind = value.encode(), b";"
    elif isinstance(value, dict):
        data, kind = b"".join(tnet(key) + tnet(of) for key, of in value.items()), b"}"
    else:
        data, kind = b"".join(map(tnet, value)), b"]"
    return b"%d:%s%s" % (len(data), data, kind)


def flow(**changes: Any) -> dict[str, Any]:
    request = {
        "path": b"/v1/chat/completions",
        "scheme": b"http",
        "method": b"POST",
        "port": 8000,
        "host": "127.0.0.1",
        "timestamp_start": 1_700_000_000.5,
        "timestamp_end": 1_700_000_000.625,
        "content": json.dumps(BODY).encode(),
        "headers": ((b"User-Agent", b"pi/1.6.0"), (b"Authorization", b"Bearer sk-secret-12345678")),
    }
    response = {
        "status_code": 200,
        "timestamp_start": 1_700_000_001.0,
        "timestamp_end": 1_700_000_002.0,
        "content": gzip.compress(json.dumps(ANSWER).encode()),
        "headers": ((b"content-type", b"application/json"), (b"content-encoding", b"gzip")),
    }
    return {
        "websocket": None,
        "response": response,
        "request": request,
        "error": None,
        "type": "http",
        "version": 21,
    } | changes


def test_mitmproxy_flows() -> None:
    plain = flow()
    plain["request"]["content"] = None
    data = b"".join(map(tnet, [flow(), plain, flow(type="tcp"), flow(response=None, error={"msg": "cut"})]))
    taken, streamed, tcp, failed = mitmproxy.read(data)
    assert isinstance(taken, Exchange)
    assert taken.request == json.dumps(BODY).encode() and json.loads(taken.response or b"") == ANSWER
    assert (taken.upstream, taken.path, taken.status) == ("http://127.0.0.1:8000", "/v1/chat/completions", 200)
    assert (taken.started_at, taken.sent_at) == (1_700_000_000.5, 1_700_000_000.625)
    assert (taken.first_byte_at, taken.ended_at) == (1_700_000_001.0, 1_700_000_002.0)
    assert streamed == Bad("flow 2", "its request body was not kept (streaming was on)") and tcp == LeftOut("flow 3")
    assert isinstance(failed, Exchange) and failed.error == "cut" and failed.response is None
    turn = Maker(0.0).turn(taken, 0)
    assert (turn.agent, turn.agent_version, turn.route, turn.state) == ("pi", "1.6.0", Route.CHAT, TurnState.DONE)
    assert (turn.prompt_tokens, turn.cached_tokens, turn.cached_source) == (7, 4, "usage")
    assert "sk-secret" not in repr(turn)


@pytest.mark.parametrize(
    "host, port, upstream",
    [("::1", 8000, "http://[::1]:8000"), ("::1", None, "http://[::1]"), ("box", None, "http://box")],
)
def test_an_upstream_is_a_url(host: str, port: int | None, upstream: str) -> None:
    given_ = entry()
    given_["request"]["url"] = f"{upstream}/v1/chat/completions"
    found = [*har.read(json.dumps({"log": {"entries": [given_]}}).encode())]
    if port is not None:
        passed = flow()
        passed["request"] |= {"host": host, "port": port}
        found += mitmproxy.read(tnet(passed))
    assert [one.upstream for one in found if isinstance(one, Exchange)] == [upstream] * len(found)


@given(st.integers(0, 3000), st.binary(max_size=12))
def test_a_damaged_flow_file_keeps_what_stands_before_the_damage(at: int, junk: bytes) -> None:
    one = tnet(flow())
    data = one + tnet(flow())
    place = len(one) + at % len(one)
    items = list(mitmproxy.read(data[:place] + junk))
    assert isinstance(items[0], Exchange)
    assert place == len(one) or len(items) >= 2


@given(st.binary(max_size=300))
def test_any_bytes_are_no_flow_and_no_crash(data: bytes) -> None:
    assert all(isinstance(item, Bad | LeftOut) for item in mitmproxy.read(data))


def entry(**changes: Any) -> dict[str, Any]:
    request = {
        "method": "POST",
        "url": "http://127.0.0.1:8000/v1/chat/completions?x=1",
        "headers": [{"name": "user-agent", "value": "opencode/1.2.3"}],
        "postData": {"mimeType": "application/json", "text": json.dumps(BODY, ensure_ascii=False)},
    }
    stream = f"data: {json.dumps(ANSWER)}\n\ndata: [DONE]\n\n".encode()
    response = {
        "status": 200,
        "headers": [
            {"name": "content-type", "value": "text/event-stream"},
            {"name": "Content-Encoding", "value": "br"},
        ],
        "content": {"text": base64.b64encode(stream).decode(), "encoding": "base64"},
    }
    timings = {"blocked": -1, "dns": 0, "connect": 500, "ssl": 400, "send": 100, "wait": 400, "receive": 1000}
    return {
        "startedDateTime": "2026-11-29T12:00:00.5Z",
        "time": 2000,
        "request": request,
        "response": response,
        "timings": timings,
    } | changes


def test_har_entries() -> None:
    unkept = entry()
    del unkept["request"]["postData"]["text"]
    get = entry()
    get["request"]["method"] = "GET"
    lost = entry()
    lost["response"]["content"] = {"size": 900}
    broken = entry()
    broken["response"]["content"]["text"] = "%%%"
    entries = [entry(), unkept, get, lost, broken, {"request": 3}, 7]
    data = json.dumps({"log": {"version": "1.2", "entries": entries}}).encode()
    taken, no_body, other, no_answer, *bad = har.read(b"\xef\xbb\xbf" + data)
    assert isinstance(taken, Exchange) and taken.request == json.dumps(BODY, ensure_ascii=False).encode()
    noon = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()
    assert (taken.started_at, taken.sent_at, taken.first_byte_at, taken.ended_at) == pytest.approx(
        (noon + 0.5, noon + 1.1, noon + 1.5, noon + 2.5)
    )
    assert taken.path == "/v1/chat/completions?x=1" and taken.upstream == "http://127.0.0.1:8000"
    turn = Maker(0.0).turn(taken, 0)
    assert (turn.prompt_tokens, turn.state, turn.agent) == (7, TurnState.DONE, "opencode")
    assert no_body == Bad("entry 2", "its request body was not kept") and other == LeftOut("entry 3")
    assert isinstance(no_answer, Exchange) and no_answer.response is None
    assert Maker(0.0).turn(no_answer, 0).state is None
    assert [item.where for item in bad if isinstance(item, Bad)] == ["entry 5", "entry 6", "entry 7"]


@given(
    st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda of: st.lists(of) | st.dictionaries(st.text(max_size=3), of),
    )
)
def test_any_entry_of_a_har_is_an_exchange_or_bad(value: Any) -> None:
    data = json.dumps({"log": {"entries": [value, entry()]}}).encode()
    *_, last = har.read(data)
    assert isinstance(last, Exchange)


def payload(**changes: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "trace_id": "t1",
        "call_type": "acompletion",
        "stream": True,
        "startTime": 1_700_000_000.0,
        "endTime": 1_700_000_004.0,
        "completionStartTime": 1_700_000_001.0,
        "model": "hosted_vllm/m",
        "api_base": "http://127.0.0.1:8000/v1",
        "messages": BODY["messages"],
        "model_parameters": {"tools": BODY["tools"], "temperature": 0},
        "response": ANSWER,
        "metadata": {"user_agent": "OpenAI/Python 2.20.0", "requester_custom_headers": {"x-session-id": "s"}},
        "prompt_tokens": 7,
        "completion_tokens": 0,
        "status": "success",
    } | changes


def test_litellm_payloads() -> None:
    lines = [
        payload(),
        {"standard_logging_object": payload(call_type="aresponses")},
        payload(call_type="image_generation"),
        payload(messages=None),
        payload(messages=[{"role": "user", "content": "redacted-by-litellm"}]),
        payload(status="failure", error_str="no such model", response=None),
    ]
    data = b"\n".join(json.dumps(line).encode() for line in lines) + b"\n{cut"
    taken, responses, image, *bad, failed, broken = litellm.read(data)
    assert isinstance(taken, Exchange) and taken.unproven == litellm.REWRITTEN
    body = json.loads(taken.request)
    assert (body["tools"], body["messages"], body["stream"]) == (BODY["tools"], BODY["messages"], True)
    turn = Maker(0.0).turn(taken, 0)
    assert (turn.started_at, turn.first_token_at, turn.ended_at) == (1.7e9, 1.7e9 + 1, 1.7e9 + 4)
    assert turn.ttft_s == 1.0
    assert (turn.agent, turn.prompt_tokens, turn.completion_tokens) == ("OpenAI Python", 7, None)
    said = [{"role": "system", "content": "You are Cline, an AI coding agent."}]
    (named,) = litellm.read(json.dumps(payload(messages=said)).encode())
    assert isinstance(named, Exchange) and Maker(0.0).turn(named, 0).agent == "cline"
    assert isinstance(responses, Exchange) and "input" in json.loads(responses.request)
    assert image == LeftOut("line 3") and [item.where for item in bad] == ["line 4", "line 5"]
    assert isinstance(failed, Exchange) and Maker(0.0).turn(failed, 0).error == "no such model"
    assert isinstance(broken, Bad) and broken.where == "line 7"
    assert [type(item) for item in litellm.read(json.dumps([payload(), {}], indent=1).encode())] == [Exchange, Bad]


def test_an_imported_turn_shows_no_named_secret() -> None:
    line = payload(
        status="failure", error_str="password: SECRETLL", response=None, api_base="http://a:b@h/v1?api_key=SECRETM"
    )
    (failed,) = litellm.read(json.dumps(line).encode())
    assert isinstance(failed, Exchange)
    turn = Maker(0.0).turn(failed, 0)
    assert turn.error == "password: (removed)"
    assert turn.upstream == "http://(removed)@h/v1?api_key=(removed)"


def test_lines_of_request_bodies() -> None:
    odd = b'{"messages": [{"role":"user","content":"x"}],   "model":"m"}'
    pair = {"request": json.dumps(BODY), "response": ANSWER, "timestamp": "2026-11-29T12:00:00Z"}
    batch = {"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": {"input": "hi", "model": "m"}}
    lines = [odd, json.dumps(pair).encode(), json.dumps(batch).encode(), b"", b"{}", b"[1]", b"nonsense"]
    first, second, third, *bad = jsonl.read(b"\n".join(lines))
    assert isinstance(first, Exchange) and first.request == odd
    assert (first.path, first.unproven) == ("/v1/chat/completions", "no tools, no system prompt")
    assert isinstance(second, Exchange) and second.unproven == "" and second.started_at == 1795953600.0
    assert json.loads(second.request) == BODY and json.loads(second.response or b"") == ANSWER
    assert isinstance(third, Exchange) and third.path == "/v1/responses"
    assert [item.where for item in bad if isinstance(item, Bad)] == ["line 5", "line 6", "line 7"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"messages": [], "system": "x"}, "/v1/messages"),
        ({"messages": [], "tools": [{"input_schema": {}}]}, "/v1/messages"),
        ({"prompt": "x"}, "/v1/completions"),
        ({"input": "x", "model": "bge-embed"}, "/v1/embeddings"),
    ],
)
def test_the_route_follows_from_the_body(body: dict[str, Any], path: str) -> None:
    (found,) = jsonl.read(json.dumps(body).encode())
    assert isinstance(found, Exchange) and found.path == path


OLD = (
    "INFO 11-28 23:59:58 [logger.py:41] Received request chatcmpl-a: prompt: 'it\\'s \"x\", params: y,"
    " prompt_token_ids: [9]',"
    " params: SamplingParams(n=1, stop=['a']), prompt_token_ids: [1, 2, 3], prompt_embeds shape: None,"
    " lora_request: None.\n"
)
NEW = (
    "(APIServer pid=7) DEBUG 11-29 10:00:00 [request_logger.py:59] Request chatcmpl-b-1a2b3c4d details: prompt: None,"
    " prompt_token_ids: [4, 5], prompt_embeds shape: None.\n"
    "(APIServer pid=7) INFO 11-29 10:00:00 [request_logger.py:68] Received request chatcmpl-b:"
    " params: SamplingParams(n=1), lora_request: None.\n"
    "(APIServer pid=7) INFO 11-29 10:00:02 [request_logger.py:90] Generated response chatcmpl-b (streaming complete):"
    " output: 'it is', finish_reason: stop\n"
)


def test_vllms_log_old_and_new() -> None:
    written = datetime(2026, 11, 29, 11).timestamp()
    head = "INFO 11-28 23:00:00 [utils.py:1] non-default args: {}, served_model_name=tiny, max=1\n"
    data = (head + "\x1b[32m" + OLD + "\x1b[0m" + NEW).encode()
    old, new = vllm_log.read(data, written)
    assert isinstance(old, Exchange) and isinstance(new, Exchange)
    assert json.loads(old.request) == {"prompt": [1, 2, 3]} and json.loads(new.request) == {"prompt": [4, 5]}
    assert (old.where, old.model, old.about_at) == ("line 2", "tiny", datetime(2026, 11, 28, 23, 59, 58).timestamp())
    assert (new.hints["vllm.request_id"], new.finish_reason, new.prompt_tokens) == ("chatcmpl-b-1a2b3c4d", "stop", 2)
    turn = Maker(written).turn(new, 1)
    assert (turn.route, turn.state, turn.prompt_unproven) == (Route.COMPLETIONS, TurnState.DONE, "")


def test_vllms_log_broken_lines_cut_ids_and_no_details() -> None:
    ids = list(range(300))
    broken = NEW.replace(
        "[4, 5]", str(ids).replace(", 150,", ",\n(APIServer pid=7) DEBUG 11-29 10:00:00 [request_logger.py:59] 150,")
    )
    (item,) = vllm_log.read(broken.encode(), 1.8e9)
    assert isinstance(item, Exchange) and json.loads(item.request)["prompt"] == ids
    limit = NEW.replace("None, prompt_token_ids: [4, 5]", f"{'x' * 300!r}, prompt_token_ids: {ids}")
    (item,) = vllm_log.read(limit.encode(), 1.8e9)
    assert isinstance(item, Exchange) and item.unproven == vllm_log.CUT and item.prompt_tokens is None
    half = OLD[: OLD.index("3], ")]
    assert [type(item) for item in vllm_log.read((half + "\n" + NEW).encode(), 1.8e9)] == [Bad, Exchange]
    (item,) = vllm_log.read(NEW.split("\n", 1)[1].encode(), 1.8e9)
    assert item == Bad("line 1", "no prompt in it: start vLLM with VLLM_LOGGING_LEVEL=DEBUG")
    body = "DEBUG 11-29 10:00:00 [x.py:1] Request N/A JSON body: " + json.dumps(BODY) + "\n"
    (item,) = vllm_log.read(body.encode(), 1.8e9)
    assert isinstance(item, Exchange) and json.loads(item.request) == BODY and item.path == "/v1/chat/completions"


@given(st.text(max_size=200), st.booleans(), st.integers(0, 400))
def test_a_vllm_prompt_of_any_text_does_not_mislead(text: str, quotes: bool, cut: int) -> None:
    """Not even one that quotes such a log."""
    text += OLD + NEW if quotes else ""
    line = NEW.replace("prompt: None", f"prompt: {text!r}").encode("utf-8", "replace")
    (item,) = vllm_log.read(line, 1.8e9)
    assert isinstance(item, Exchange) and json.loads(item.request) == {"prompt": [4, 5]}
    list(vllm_log.read(line[:cut], 1.8e9))


def claude_folder(folder: Path) -> Path:
    for name in "ab":
        (folder / f"{name}.request.json").write_text(json.dumps(BODY | {"betas": ["x-1"], "system": name}))
    (folder / "r1.response.json").write_text(json.dumps(ANSWER | {"usage": {"input_tokens": 3}}))
    (folder / "r9.response.json").write_text("{}")
    (folder / "c.request.json").write_text("{cut")
    index = {
        "timestamp": "2026-11-29T12:00:00Z",
        "query_source": "sdk",
        "request_file": "a.request.json",
        "response_file": "r1.response.json",
    }
    (folder / "index.jsonl").write_text(json.dumps(index) + "\nnonsense\n")
    return folder


def test_claude_codes_bodies(tmp_path: Path) -> None:
    opened = Opened(claude_folder(tmp_path))
    assert (opened.format, opened.guessed) == ("claude-bodies", True)
    items = list(opened.items())
    taken = {item.where: item for item in items if isinstance(item, Exchange)}
    assert set(taken) == {"a.request.json", "b.request.json"}
    assert taken["a.request.json"].response == (tmp_path / "r1.response.json").read_bytes()
    turn = Maker(0.0).turn(taken["a.request.json"], 0)
    assert (turn.agent, turn.route, turn.ended_at) == ("Claude Code", Route.MESSAGES, 1795953600.0)
    assert turn.started_at <= 1795953600.0 and turn.prompt_unproven == ""
    assert {item.where for item in items if isinstance(item, Bad)} == {"c.request.json", "index.jsonl line 2"}
    assert LeftOut("r9.response.json", answer=True) in items
    assert len(list(Opened(tmp_path / "a.request.json").items())) == 1
    assert Opened(tmp_path / "index.jsonl").format == "claude-bodies"


def test_the_format_is_guessed() -> None:
    assert guess("x", tnet(flow())) == "mitmproxy"
    assert guess("x", json.dumps({"log": {"version": "1.2", "entries": []}}, indent=1).encode()) == "har"
    assert guess("x", json.dumps(payload()).encode()) == "litellm"
    assert guess("x", OLD.encode()) == guess("x", NEW.encode()) == "vllm-log"
    assert guess("x", json.dumps(BODY).encode() + b"\n") == guess("x", json.dumps([BODY], indent=1).encode()) == "jsonl"
    assert guess("x", b"") == guess("x", b"hello\n") == guess("x", b"\x00\x01") == ""


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gz", "zst"])
def test_packed_files(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "x"
    data = json.dumps(BODY).encode() + b"\n"
    path.write_bytes(pack(data))
    assert [type(item) for item in Opened(path).items()] == [Exchange]
    path.write_bytes(pack(data)[:4] + b"\xff" * 20)
    with pytest.raises(UsageError, match="cannot read"):
        Opened(path)
    path.write_bytes(pack(data)[:9])
    with pytest.raises(UsageError, match="the file ends before its packing does"):
        Opened(path)


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="No such file"):
        Opened(tmp_path / "none")
    with pytest.raises(UsageError, match="folder without"):
        Opened(tmp_path)
    plain = tmp_path / "plain"
    plain.write_text("hello")
    with pytest.raises(UsageError, match=r"cannot tell.*\n.*--format: claude-bodies"):
        Opened(plain)
    with pytest.raises(UsageError, match="is no har: Expecting value"):
        list(Opened(plain, "har").items())
    with pytest.raises(UsageError, match="is no vllm-log: no request in it"):
        list(Opened(plain, "vllm-log").items())
    with pytest.raises(UsageError, match=r"neither a file nor a pipe\n  name the file"):
        Opened(Path("/dev/zero"))
    monkeypatch.setattr(files, "MAX_BYTES", 3)
    with pytest.raises(UsageError, match="holds more than"):
        Opened(plain)


@pytest.mark.parametrize(
    ("why", "line"),
    [
        ("no JSON: nested too deeply", b'{"request":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
        ("no JSON: more than 5,000,000 values", b'{"request":[' + b"0," * 5_000_000 + b"0]}"),
        ("longer than 64 MB", b'{"messages":[],"x":"' + bytes(64 << 20)),
        ("no JSON object", b"7"),
        ("no messages, prompt or input in it: no request body", b'{"a":1}'),
    ],
)
def test_what_is_wrong_with_a_line_is_told_in_words(tmp_path: Path, why: str, line: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(line + b"\n" + json.dumps(BODY).encode() + b"\n" + line)
    bad, good, last = Opened(path, "jsonl").items()
    assert (bad, last) == (Bad("line 1", why), Bad("line 3", why))
    assert isinstance(good, Exchange)


@given(data=st.binary(max_size=60).map(lambda data: data.replace(b"a", b"\n")), size=st.integers(1, 9))
def test_lines_are_those_of_the_whole_however_they_come(data: bytes, size: int) -> None:
    given_ = files.Held(b"")
    given_._pieces = (data[at : at + size] for at in range(0, len(data), size))
    lines = data.split(b"\n")
    assert list(given_.lines()) == (lines if lines[-1] else lines[:-1])


def test_a_line_that_is_too_long_is_left_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 4)
    for size in (1, 3, 100):
        data = b"1234\n12345\n\n123456789\n1\n12345"
        given_ = files.Held(b"")
        given_._pieces = iter([data[at : at + size] for at in range(0, len(data), size)])
        assert list(given_.lines()) == [b"1234", None, b"", None, b"1", None]


def test_an_odd_header_costs_no_entry() -> None:
    odd = [{"name": 5}, 7, None, {"name": "a", "value": "b"}, {"name": "c", "value": None}]
    for headers in (odd, None, 7, {}, "x"):
        asked = {**entry()["request"], "headers": headers}
        whole = {"log": {"entries": [entry(request=asked), {"request": None}, entry(response=7)]}}
        good, missing, other = har.read(json.dumps(whole).encode())
        assert isinstance(good, Exchange)
        assert good.request_headers == ([("a", "b")] if headers is odd else [])
        for bad in (missing, other):
            assert bad == Bad(bad.where, "not as HAR 1.2 says: a value is of another kind than it should be")
    (good,) = mitmproxy.read(tnet(flow(request={**flow()["request"], "headers": [[b"a", b"b"], [b"c"], 7, b"x"]})))
    assert isinstance(good, Exchange) and good.request_headers == [("a", "b")]


def test_mangled_requests_of_a_log_are_counted() -> None:
    odd = "INFO Received request \x1b[31m: prompt: 'x, params: SamplingParams( prompt_token_ids: [1,2,-3\n"
    found = list(vllm_log.read((odd + OLD + odd + odd).encode(), 1.8e9))
    assert [type(item) for item in found] == [Bad, Bad, Bad, Exchange]
    lines = OLD.count("\n")
    at = [bad.where for bad in found if isinstance(bad, Bad)]
    assert at == ["line 1", f"line {lines + 2}", f"line {lines + 3}"]


@given(st.binary(max_size=200), st.sampled_from([name for name in FORMATS if name != "claude-bodies"]))
def test_no_bytes_end_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: bytes, format: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(b"x" + data)
    try:
        list(Opened(path, format).items())
    except UsageError as error:
        assert "Traceback" not in str(error)


ODD = [None, True, -1, 3.5, 10**30, "", "x", "\ud800", "http://[::1", [], [1], {}, {"a": 1}, [{}]]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values inside one."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at that place."""
    if not at:
        return new
    made = dict(value) if isinstance(value, dict) else list(value)
    made[at[0]] = put(made[at[0]], at[1:], new)
    return made


@pytest.mark.parametrize(
    ("reader", "record", "written"),
    [
        (har.read, entry(response={**entry()["response"], "_error": "x"}), lambda of: {"log": {"entries": [of]}}),
        (litellm.read, payload(error_str="x", error_information={"error_message": "x"}), None),
        (jsonl.read, {"request": BODY, "response": ANSWER, "url": "http://h/v1/messages", "time": 5}, None),
        (mitmproxy.read, flow(error={"msg": "x"}), tnet),
    ],
    ids=["har", "litellm", "jsonl", "mitmproxy"],
)
def test_a_field_of_another_type_is_a_turn_or_a_bad_record(reader: Any, record: Any, written: Any) -> None:
    for at in places(record):
        for odd in ODD:
            if written is tnet and odd == "\ud800":
                continue  # a tnetstring holds no half characters
            value = written(put(record, at, odd)) if written else put(record, at, odd)
            for item in reader(value if isinstance(value, bytes) else json.dumps(value).encode()):
                if isinstance(item, Exchange):
                    turn = Maker(0.0).turn(item, 0)
                    assert turn.status is None or isinstance(turn.status, int)
                    json.dumps(document.turn(turn, None), allow_nan=False)


def test_a_line_with_a_url_that_is_none_is_bad_alone() -> None:
    lines = [{"url": "http://[::1", "body": BODY}, {"url": "/v1/messages", "body": BODY}]
    bad, good = jsonl.read(b"\n".join(json.dumps(line).encode() for line in lines))
    assert bad == Bad("line 1", "its URL is none")
    assert isinstance(good, Exchange) and good.path == "/v1/messages"


def test_an_answer_that_a_format_does_not_hold_has_no_size() -> None:
    (old, *_) = vllm_log.read(OLD.encode(), 1.8e9)
    assert isinstance(old, Exchange) and Maker(0.0).turn(old, 0).response_bytes is None
    (taken,) = mitmproxy.read(tnet(flow()))
    assert isinstance(taken, Exchange) and Maker(0.0).turn(taken, 0).response_bytes == len(json.dumps(ANSWER))


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (1_000_000_000, 1e9),
        (1000, None),
        (946_684_799, None),
        ("9999-12-31T23:59:59-23:59", None),
        ("2100-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+23:59", None),
        (1_795_953_600_000, 1795953600.0),
        ("2026-11-29T12:00:00Z", 1795953600.0),
        (True, None),
        (-5, None),
        (1e300, None),
        ("soon", None),
        (None, None),
    ],
)
def test_times(given_: object, expected: float | None) -> None:
    assert files.unix_time(given_) == expected
