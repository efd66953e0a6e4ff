"""What looks like a secret is gone."""

from __future__ import annotations

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
    ],
)
def test_what_is_no_secret_stays(name: str, value: str) -> None:
    assert redact.headers([(name, value)]) == [(name, value)]


@pytest.mark.parametrize(
    "given, shown",
    [
        ("/v1/messages?beta=true", "/v1/messages?beta=true"),
        (f"/v1/chat/completions?api_key={SECRET}&x=1", f"/v1/chat/completions?api_key={redact.REMOVED}&x=1"),
        (f"/v1?key={SECRET}", f"/v1?key={redact.REMOVED}"),
        (f"/v1?access_token={SECRET}#a", f"/v1?access_token={redact.REMOVED}"),
        (f"/v1?api%5Fkey={SECRET}", f"/v1?api%5Fkey={redact.REMOVED}"),
        (f"http://me:{SECRET}@127.0.0.1:8000/v1?a=b", "/v1?a=b"),
    ],
)
def test_the_target(given: str, shown: str) -> None:
    assert redact.target(given) == shown


def test_an_error_that_quotes_a_key() -> None:
    assert "abcdefgh" not in redact.text("Incorrect API key provided: sk-abcdefgh12345678. See https://x:abcdefgh@y/")


def test_an_error_about_tokens_stays() -> None:
    said = "This model's maximum context length is 4096 tokens, each token counts; basic authentication is off"
    assert redact.text(said) == said


def test_many_and_long_headers_are_cut() -> None:
    kept = redact.headers([("a", "x" * 100_000)] * 5_000)
    assert len(kept) == redact.MAX_HEADERS
    assert len(kept[0][1]) == redact.MAX_VALUE


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    redact.headers([(text, text)])
    redact.target(text)
