"""A URL as a user types it: checked, and completed where it is short."""

from __future__ import annotations

from urllib.parse import urlsplit

DEFAULT_PORT = 8000
"""What `vllm serve` listens on unless told otherwise."""
_SCHEMES = ("http", "https")


def server_url(text: str) -> str:
    """The base URL of a server; `8001`, `box:8000` or `http://box:8000/metrics` is enough. ValueError says why not."""
    text = text.strip()
    if not text:
        raise ValueError("no URL given")
    if not text.isprintable() or any(c.isspace() for c in text):
        raise ValueError("a URL holds no spaces and no control characters")
    if text.isdigit():
        text = f"127.0.0.1:{text}"
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("the port must be a number from 1 to 65535, an IPv6 address stands in [ ]") from None
    if parts.scheme not in _SCHEMES:
        raise ValueError("only http:// and https:// can be watched")
    if parts.username is not None or parts.password is not None:
        raise ValueError("no key in a URL: api_key_env or api_key_file in config.toml names it")
    if not parts.hostname or parts.hostname.startswith("-"):
        raise ValueError("the host is missing: http://host:8000")
    if parts.query or parts.fragment:
        raise ValueError("only http://host:port, without ? and #")
    if port == 0:
        raise ValueError("the port must be a number from 1 to 65535")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = port or (None if parts.scheme == "https" else DEFAULT_PORT)
    path = parts.path.rstrip("/")
    for tail in ("/metrics", "/v1"):
        path = path.removesuffix(tail)
    return f"{parts.scheme}://{host}{f':{shown}' if shown else ''}{path}"
