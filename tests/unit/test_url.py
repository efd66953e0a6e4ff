"""Addresses as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.errors import UsageError
from kvtop.sources.url import normalise, parse


@pytest.mark.parametrize(
    ("given_url", "url"),
    [
        ("8000", "http://127.0.0.1:8000"),
        (":8001", "http://127.0.0.1:8001"),
        ("gpubox", "http://gpubox:8000"),
        ("gpubox:80/", "http://gpubox:80"),
        (" http://gpubox\n", "http://gpubox:80"),
        ("https://gpubox/", "https://gpubox:443"),
        ("HTTP://GPUbox:8000", "http://gpubox:8000"),
        ("http://h:8000/metrics", "http://h:8000"),
        ("http://h:8000/v1/", "http://h:8000"),
        ("http://h:8000/v1/chat/completions", "http://h:8000"),
        ("http://h/gw/v1/models", "http://h:80/gw"),
        ("http://h/a/b/", "http://h:80/a/b"),
        ("::1", "http://[::1]:8000"),
        ("[::1]:9000", "http://[::1]:9000"),
        ("http://[fe80::1]:8000/metrics", "http://[fe80::1]:8000"),
        ("http://0.0.0.0:8000", "http://127.0.0.1:8000"),
        ("http://[::]:8000", "http://[::1]:8000"),
        ("http://user:geheim@h:1/", "http://h:1"),
        ("user:geheim@h:8000", "http://h:8000"),
        ("bücher.example", "http://xn--bcher-kva.example:8000"),
        ("http://h/ü b".replace(" ", ""), "http://h:80/%C3%BCb"),
    ],
)
def test_normalise(given_url: str, url: str) -> None:
    assert normalise(given_url) == url
    assert normalise(url) == url


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        " ",
        "a b",
        "ftp://h",
        "http://",
        "http://h:99999",
        "http://h:0",
        "h:",
        "http://h?x",
        "http://h#x",
        "http://[::1",
        "\x1b[31m",
        "http://h:port",
        "file:///etc/passwd",
        "http://h\\x",
        "http://user:geheim@:1",
        "//h",
        "http://user:gehe/im@h:8000",
        "http://user:geheim@h:99999",
        "http://user:99999999@h:x",
        "²",
        "faß",
        "a" * 64 + "ü",
        "http://[fe80::1%ü]:1",
        "http://user:gehe?im@h",
        "http://h?key=geheim@x",
        "http://u:p@h?api_key=geheim",
        "http://h#geheim",
        "http://h:8000?",
        "user:p//gehe@h:x",
    ],
)
def test_nonsense_is_one_line_without_a_password(nonsense: str) -> None:
    with pytest.raises(UsageError) as caught:
        normalise(nonsense)
    words = str(caught.value)
    assert words.isprintable()
    assert "gehe" not in words


@pytest.mark.parametrize(
    "key",
    [
        "sk-1234",
        "sk-proj-Geheim_4711abc",
        " hf_GeheimGeheim ",
        "ghp_geheim4711",
        "AKIAGEHEIM4711",
        "eyJgeheim.geheim.geheim",
        "4711" * 4 + "geheim" * 4,
    ],
)
def test_a_key_is_no_host_and_is_not_said(key: str) -> None:
    with pytest.raises(UsageError, match="what looks like an API key stands where a server's URL is meant") as caught:
        normalise(key)
    assert key.strip()[:5] not in str(caught.value)


@pytest.mark.parametrize(
    "host", ["hf-proxy", "sk", "npm-cache", "skynet", "gpu-node-0123456789-rack-17-of-berlin", "3f9a0c1b2d4e"]
)
def test_hosts_that_begin_like_a_key_are_hosts(host: str) -> None:
    assert normalise(host) == f"http://{host}:8000"


def test_a_host_that_looks_like_a_key_is_named_with_its_scheme_or_port() -> None:
    assert normalise("http://sk-1234:8000") == normalise("sk-1234:8000") == "http://sk-1234:8000"


def test_a_password_is_not_in_the_repr() -> None:
    endpoint = parse("http://user:geheim@h:1")
    assert endpoint.userinfo == "user:geheim"
    assert "geheim" not in repr(endpoint)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.text(max_size=40) | st.from_regex(r"(https?://)?([a-z]*:[a-z]*@)?[a-z0-9.:\[\]%-]*(:\d*)?(/[a-z0-9/?#]*)?"))
def test_any_text_gives_a_url_that_stays_or_one_line(text: str) -> None:
    try:
        url = normalise(text)
    except UsageError as error:
        assert str(error).isprintable()
    else:
        assert url.isprintable()
        assert normalise(url) == url
        assert "@" not in url
