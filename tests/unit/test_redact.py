"""What looks like a secret is gone."""

from __future__ import annotations

import json
import time
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.api import redact

SECRET = "sEcReT-0123456789"


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "Authorization",
        "x-api-key",
        "api-key",
        "X-Goog-Api-Key",
        "Ocp-Apim-Subscription-Key",
        "cookie",
        "Set-Cookie",
        "proxy-authorization",
        "X-Auth",
        "x-session-token",
        "x-client-secret",
        "x-password",
        "X-Amz-Signature",
        "x-csrf",
        "X-Passphrase",
        "X-Pass",
        "X-Session",
        "Session",
        "X-Session-Secret",
        "X-User-Session",
        "X-Otp",
        "X-Pin",
        "X-Sid",
        "X-Access",
        "X-JSessionId",
        "DPoP",
        "X-Client-Cert",
        "X-SSL-Client-Cert",
        "X-Forwarded-Client-Cert",
        "X-Pw",
        "X-Tok",
    ],
)
def test_a_header_that_may_carry_a_secret(name: str) -> None:
    assert redact.headers([(name, SECRET), ("Accept", "*/*")]) == [(name, redact.REMOVED), ("Accept", "*/*")]


@pytest.mark.parametrize(
    "name, value",
    [
        ("x-note", "Bearer abcdefghijkl0123"),
        ("x-note", "sk-proj-abcdefgh0123"),
        ("x-note", "eyJhbGciOi.eyJzdWIiOi.abc"),
        ("referer", "https://a.example/x?token=abcdefghijkl&a=1"),
        ("http-referer", "https://me:abcdefghijkl@a.example/"),
    ],
)
def test_a_value_that_looks_like_a_secret(name: str, value: str) -> None:
    ((_, shown),) = redact.headers([(name, value)])
    assert "abcdefgh" not in shown
    assert "eyJ" not in shown


@pytest.mark.parametrize(
    "name, value",
    [
        ("x-claude-code-session-id", "3f2a0b1c-0000-4000-8000-123456789abc"),
        ("session-id", "019c2f0a-aaaa-7bbb-8ccc-0123456789ab"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("user-agent", "claude-cli/2.1.332 (external, sdk-cli)"),
        ("x-stainless-runtime-version", "v24.3.0"),
        ("anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14"),
        ("accept", "application/json"),
        ("x-session-id", "ses_5a1c0f3e2ffeMCG8pnZm2xWcQ1"),
        ("x-session-affinity", "3f2a0b1c-0000-4000-8000-123456789abc"),
        ("x-opencode-session", "any-thing"),
        ("x-litellm-session-id", "any-thing"),
        ("x-codex-turn-metadata", '{"session_id":"a","request_kind":"turn"}'),
        ("access-control-allow-origin", "*"),
        ("x-ratelimit-passed", "5"),
        ("x-pinned", "5"),
        ("x-code", "5"),
        ("x-certainty", "0.5"),
        ("x-top-k", "5"),
        ("user-agent", "Bot/1.0 (+mailto:bob@example.com; contact: a@b.example)"),
        ("user-agent", "OpenAI/Python 1.99.0 (secret agent; token counter)"),
        ("content-type", "multipart/form-data; boundary=----a1b2@c"),
        ("x-model", "ollama/llama3:8b@v2"),
        ("x-image", "vllm/vllm-openai:v0.33.0@sha256:0123456789abcdef"),
        ("x-package", "npm:left-pad@1.3.0"),
        ("referer", "http://127.0.0.1:8000/v1/models/a@b"),
        ("from", "bob@example.com"),
        ("sec-websocket-protocol", "realtime, openai-beta.realtime-v1"),
        ("x-note", "api key of the team"),
    ],
)
def test_what_is_no_secret_stays(name: str, value: str) -> None:
    assert redact.headers([(name, value)]) == [(name, value)]


@pytest.mark.parametrize(
    "name", ["x-session-id", "Session_Id", "session-id", "X-Session-Affinity", "x-parent-session-id"]
)
def test_a_session_that_may_let_somebody_in_is_kept_as_what_tells_it_from_others(name: str) -> None:
    ((_, shown),) = redact.headers([(name, SECRET)])
    assert SECRET not in shown and shown not in ("", redact.REMOVED)
    assert redact.headers([(name, SECRET)]) == redact.headers([(name, shown)])
    assert redact.headers([(name, f"{SECRET}x")]) != redact.headers([(name, SECRET)])


@pytest.mark.parametrize(
    "name",
    [
        *("pass", "passphrase", "passwd", "pwd", "pin", "otp", "totp", "code", "k", "access", "sid", "session"),
        *("pw", "tok", "sessionId", "session_id", "PHPSESSID", "connect.sid"),
    ],
)
def test_a_parameter_that_may_carry_a_secret(name: str) -> None:
    assert redact.target(f"/v1?a=1&{name}={SECRET}") == f"/v1?a=1&{name}={redact.REMOVED}"
    ((_, shown),) = redact.headers([("referer", f"http://h/x?a=1&{name}={SECRET}&b=2")])
    assert shown == f"http://h/x?a=1&{name}={redact.REMOVED}&b=2"


@pytest.mark.parametrize("name", ["pinned", "passes", "compass", "side", "opcode", "top_k", "sort", "model", "encode"])
def test_a_parameter_that_is_called_much_alike_stays(name: str) -> None:
    assert redact.target(f"/v1?{name}=5") == f"/v1?{name}=5"


@pytest.mark.parametrize(
    "given, shown",
    [
        ("/v1/messages?beta=true", "/v1/messages?beta=true"),
        (f"/v1/chat/completions?api_key={SECRET}&x=1", f"/v1/chat/completions?api_key={redact.REMOVED}&x=1"),
        (f"/v1?key={SECRET}", f"/v1?key={redact.REMOVED}"),
        (f"/v1?access_token={SECRET}#a", f"/v1?access_token={redact.REMOVED}"),
        (f"/v1?api%5Fkey={SECRET}", f"/v1?api%5Fkey={redact.REMOVED}"),
        (f"http://me:{SECRET}@127.0.0.1:8000/v1?a=b", "/v1?a=b"),
        (f"//me:{SECRET}@127.0.0.1:8000/v1?a=b", "/v1?a=b"),
        (f"http://me:a/{SECRET}@127.0.0.1:8000/v1?a=b", "/v1?a=b"),
        (f"http://me:a@{SECRET}@127.0.0.1:8000/v1?a=b", "/v1?a=b"),
        ("//v1/chat/completions", "//v1/chat/completions"),
        ("/v1/models/a@b?c=d@e", "/v1/models/a@b?c=d@e"),
        (f"/v1?x=1;api_key={SECRET};y=2", f"/v1?x=1;api_key={redact.REMOVED};y=2"),
        (f"/v1?x=1&amp;api_key={SECRET}", f"/v1?x=1&amp;api_key={redact.REMOVED}"),
        (f"/v1?x=1?api_key={SECRET}", f"/v1?x=1?api_key={redact.REMOVED}"),
        (f"/v1?%2561pi_key={SECRET}", f"/v1?%2561pi_key={redact.REMOVED}"),
        (f"/v1;token={SECRET}/chat/completions", f"/v1;token={redact.REMOVED}/chat/completions"),
        (f"/v1/token/{SECRET}/chat/completions", f"/v1/token/{redact.REMOVED}/chat/completions"),
        ("/auth/v1/chat/completions", "/auth/v1/chat/completions"),
        (f"/v1?foo=sk%2D{SECRET}&a=1", f"/v1?foo={redact.REMOVED}&a=1"),
        (f"/sk%2D{SECRET}/v1/chat/completions", f"/{redact.REMOVED}/v1/chat/completions"),
        (f"/v1?to=http%3A%2F%2Fme%3A{SECRET}%40h%2F", f"/v1?to={redact.REMOVED}"),
    ],
)
def test_the_target(given: str, shown: str) -> None:
    assert redact.target(given) == shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (f"token={SECRET}", "token=(removed)"),
        (f"a; token = {SECRET}; b=1", "a; token = (removed); b=1"),
        (f"a Authorization: Bearer {SECRET}", "a Authorization: (removed)"),
        (f'{{"api_key":"{SECRET}","b":"c"}}', '{"api_key":"(removed)","b":"c"}'),
        (f'{{"a":{{"api_key": "x\\"{SECRET}"}}}}', '{"a":{"api_key": "(removed)"}}'),
        (rf'"{{\"api_key\":\"{SECRET}\",\"b\":1}}"', r'"{\"api_key\":\"(removed)\",\"b\":1}"'),
        (f"https://a.example/x#access_token={SECRET}", "https://a.example/x#access_token=(removed)"),
        (f"https://me:a@{SECRET}@a.example/x", "https://(removed)@a.example/x"),
        (f"to=a%26token%3D{SECRET}", "(removed)"),
        ("Basic dXNlcjpwYXNz", "(removed)"),
        (f"api_key {SECRET}", "(removed)"),
        ("my-token hunter", "(removed)"),
        (f"see api-key {SECRET} of it", "see (removed) of it"),
        (f"user:{SECRET}@host", "user:(removed)@host"),
        (f"via :{SECRET}@10.0.0.1:6379", "via :(removed)@10.0.0.1:6379"),
        ("max-age=5, private", "max-age=5, private"),
        ('{"turn_id":"a","n":1,"at":"http://a/b?c=d"}', '{"turn_id":"a","n":1,"at":"http://a/b?c=d"}'),
    ],
)
def test_a_secret_with_its_name_inside_a_value(given: str, shown: str) -> None:
    assert redact.headers([("x-note", given)]) == [("x-note", shown)]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (f"realtime, openai-insecure-api-key.{SECRET}, v1", "realtime, openai-insecure-api-key.(removed), v1"),
        (f"access_token, {SECRET}", "access_token, (removed)"),
        (f"base64url.bearer.authorization.k8s.io.{SECRET}, v4.channel.k8s.io", "(removed), v4.channel.k8s.io"),
        (f"token-{SECRET}", "(removed)"),
        ("graphql-transport-ws", "graphql-transport-ws"),
    ],
)
def test_a_protocol_of_a_websocket_that_lets_one_in(given: str, shown: str) -> None:
    assert redact.headers([("Sec-WebSocket-Protocol", given)]) == [("Sec-WebSocket-Protocol", shown)]
    assert redact.headers([("Sec-WebSocket-Protocol", shown)]) == [("Sec-WebSocket-Protocol", shown)]


def encoded(given: str, times: int, *, all_of_it: bool) -> str:
    for _ in range(times):
        given = "".join(f"%{byte:02X}" for byte in given.encode()) if all_of_it else quote(given, safe="")
    return given


SAFE = st.text("abcdxyz0123456789", max_size=6)
HIDDEN = st.text("ghijkl0123456789", min_size=12, max_size=30).map(lambda tail: f"Q7{tail}")
NAMES = st.sampled_from(
    ["token", "api_key", "api-key", "API KEY", "access_token", "auth[token]", "key", "sig", "password"]
)
TIMES = st.integers(0, 3)


@given(SAFE, NAMES, HIDDEN, st.data())
def test_no_parameter_of_a_target_shows_a_secret(word: str, called: str, hidden: str, data: st.DataObject) -> None:
    all_of_it, apart = data.draw(st.booleans()), data.draw(st.sampled_from("?&;"))
    pair = f"{encoded(called, max(1, data.draw(TIMES)), all_of_it=all_of_it)}={hidden}"
    nested = encoded(f"{word}={word}&{called.replace(' ', '_')}={hidden}", data.draw(TIMES), all_of_it=all_of_it)
    for target in (f"/v1?{word}={word}{apart}{pair}{apart}a=b", f"/v1;{pair}/x", f"/v1?{word}={nested}"):
        shown = redact.target(target)
        assert hidden not in unquoted(shown)
        assert redact.target(shown) == shown


@given(
    SAFE,
    HIDDEN,
    st.sampled_from(["sk-", "sk-proj-", "hf_", "ghp_", "ghr_", "gsk_", "pk-", "nvapi-"]),
    TIMES,
    st.booleans(),
)
def test_what_is_shaped_like_a_key_is_shown_nowhere(
    before: str, hidden: str, shape: str, times: int, all_of_it: bool
) -> None:
    key = encoded(shape + hidden, times, all_of_it=all_of_it)
    for target in (
        f"/v1?{before}={key}",
        f"/v1?{key}",
        f"/{before}/{key}/v1",
        f"/v1;{before}={key}",
        f"/v1?{key}={before}",
    ):
        assert hidden not in unquoted(redact.target(target))
    for value in (key, f"{before} {key}", f"{before}={key}", f"http://h/{key}?{before}#{key}"):
        assert hidden not in unquoted(redact.headers([("x-note", value)])[0][1])


@given(SAFE, HIDDEN, NAMES.filter(lambda name: " " not in name), TIMES, st.booleans())
def test_no_value_of_a_header_shows_a_secret(word: str, hidden: str, called: str, times: int, all_of_it: bool) -> None:
    values = [
        f"{called}={hidden}",
        f"{word}; {called}={hidden}",
        f"{word}={called}={hidden}",
        json.dumps({word: word, called: hidden}),
        f"http://h/{word}#{called}={hidden}",
        f"http://{word}:{hidden}@h/",
    ]
    for plain in values:
        value = encoded(plain, times, all_of_it=all_of_it)
        (kept,) = redact.headers([("x-note", value)])
        assert hidden not in unquoted(kept[1])
        assert redact.headers([kept]) == [kept]


def unquoted(given: str) -> str:
    for _ in range(9):
        given = unquote(given)
    return given


@given(st.text("ab=:;&?%2\"'\\/#@ {}[],.", max_size=80))
def test_any_marks(text: str) -> None:
    (kept,) = redact.headers([("x-note", text)])
    assert kept[1] in (text, redact.REMOVED) or redact.REMOVED in kept[1]  # no name in it is a secret's
    redact.target(text)


def test_a_value_of_many_pairs_is_read_once() -> None:
    for part in ("a=", "a:", "secret ", "a:b", "max_tokens: ", '"', "%25", 'a":"', "http://", "token", '\\"'):
        began = time.process_time()
        redact.headers([("x-note", part * 4_000)])
        redact.target("/" + part * 4_000)
        redact.error(part * 1_000)
        assert time.process_time() - began < 2.0


def test_an_error_that_quotes_a_key() -> None:
    assert "abcdefgh" not in redact.text("Incorrect API key provided: sk-abcdefgh12345678. See https://x:abcdefgh@y/")


def test_an_error_about_tokens_stays() -> None:
    said = "This model's maximum context length is 4096 tokens, each token counts; basic authentication is off"
    assert redact.text(said) == said


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (f"no https://bob:PW@h/x?api_key={SECRET} there", "no https://(removed)@h/x?api_key=(removed) there"),
        (f'bad "password": "{SECRET}", x', 'bad "password": "(removed)", x'),
        (f"password: {SECRET}", "password: (removed)"),
        (f"cannot reach bob:{SECRET}@db.example", "cannot reach bob:(removed)@db.example"),
        (f"at http://h/?x=a%26token%3D{SECRET} it failed", "at (removed) it failed"),
    ],
)
def test_an_error_that_names_a_secret(given: str, shown: str) -> None:
    assert redact.error(given) == shown == redact.error(shown)


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 4096 tokens, each token counts; basic authentication is off",
        "litellm.AuthenticationError: AuthenticationError: OpenAIException - Incorrect API key provided",
        "KeyError: 'messages'",
        "body.max_tokens: Input should be a valid integer",
        "max_tokens=5000 is more than max_completion_tokens: 4096; prompt_token_ids: [1, 2]",
        "api_key: must be set",
        "tokenizer: cannot be loaded",
        "Unauthorized: no key was given",
    ],
)
def test_an_error_that_speaks_of_a_name_stays(said: str) -> None:
    assert redact.error(said) == said


@given(SAFE, HIDDEN, NAMES.filter(lambda name: " " not in name), st.sampled_from(["=", ": ", ":", '": "', "': '"]))
def test_no_error_shows_a_named_secret(word: str, hidden: str, called: str, between: str) -> None:
    assert hidden not in redact.error(f"{word} {called}{between}{hidden}, {word}")


def test_many_and_long_headers_are_cut() -> None:
    kept = redact.headers([("a", "x" * 100_000)] * 5_000)
    assert len(kept) == redact.MAX_HEADERS
    assert len(kept[0][1]) == redact.MAX_VALUE


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    redact.headers([(text, text)])
    redact.target(text)
