"""URLs as users type them."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvtop.ui.urls import server_url


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("127.0.0.1:8001", "http://127.0.0.1:8001"),
        ("8001", "http://127.0.0.1:8001"),
        ("box", "http://box:8000"),
        ("  http://box:9000/metrics ", "http://box:9000"),
        ("http://box:9000/v1/", "http://box:9000"),
        ("https://box.example/team-a", "https://box.example/team-a"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_short_forms(typed: str, url: str) -> None:
    assert server_url(typed) == url


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("", "no URL"),
        ("http://", "the host is missing"),
        ("ftp://box", "only http:// and https://"),
        ("http://user:secret@box:8000", "api_key_env"),
        ("http://box:99999", "port"),
        ("http://box:0", "port"),
        ("http://box:80a", "port"),
        ("http://::1:8000", "port"),
        ("http://box?x=1", "without ? and #"),
        ("http://bo x", "spaces"),
        ("http://b\x1b[2Jox", "control characters"),
    ],
)
def test_what_is_wrong_is_said(typed: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("?", r"\?")):
        server_url(typed)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.text(max_size=40))
@example("http://[")
@example("99999999")
def test_anything_typed_is_a_url_or_a_reason(typed: str) -> None:
    try:
        url = server_url(typed)
    except ValueError as error:
        assert str(error).isprintable()
        return
    assert urlsplit(url).scheme in ("http", "https")
    assert urlsplit(url).hostname
    assert server_url(url) == url
