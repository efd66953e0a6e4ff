"""One GET, waited for: with h11, since with http.client the keeper beside every server would be 6 MB larger."""

from __future__ import annotations

import socket
import time
from base64 import b64encode
from urllib.parse import unquote, urlsplit

import h11

ASK_S = 2.0
WHOLE_S = 10.0
"""For a whole answer: one that trickles would hold a keeper, which has a server to end, for hours."""
_MAX_BYTES = 4_000_000
_CHUNK = 1 << 16


def get(url: str, whole_s: float = WHOLE_S) -> tuple[int, bytes]:
    """(status, body) of what answers there; of a long body the beginning. No redirect is followed.

    Raises OSError where nothing answers in time, or the answer does not end within `whole_s`; ValueError for what is
    no HTTP, or no URL.
    """
    parts = urlsplit(url)
    host, tls = parts.hostname or "127.0.0.1", parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    user, at, place = parts.netloc.rpartition("@")
    headers = [("Host", place), ("Connection", "close")]
    if at:
        headers.append(("Authorization", f"Basic {b64encode(unquote(user).encode()).decode()}"))
    with socket.create_connection((host, parts.port or (443 if tls else 80)), ASK_S) as plain:
        if not tls:
            return _exchange(plain, path, headers, whole_s)
        import ssl

        with ssl.create_default_context().wrap_socket(plain, server_hostname=host) as secured:
            return _exchange(secured, path, headers, whole_s)


def listens(host: str, port: int) -> bool:
    """Whether anybody takes a connection there. vLLM holds its port from early on, and listens when it is ready."""
    try:
        socket.create_connection((host, port), ASK_S).close()
    except (OSError, UnicodeError):  # the latter: it can be no name of a host
        return False
    return True


def _exchange(link: socket.socket, path: str, headers: list[tuple[str, str]], whole_s: float) -> tuple[int, bytes]:
    talk = h11.Connection(h11.CLIENT)
    status, body = 0, b""
    until = time.monotonic() + whole_s
    try:
        asked = h11.Request(method="GET", target=path, headers=headers)
        link.sendall(talk.send(asked) + talk.send(h11.EndOfMessage()))
        while len(body) < _MAX_BYTES:
            event = talk.next_event()
            if event is h11.NEED_DATA:
                if time.monotonic() > until:
                    raise TimeoutError(f"the answer did not end within {whole_s:g} s")
                talk.receive_data(link.recv(_CHUNK))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                break
    except (h11.ProtocolError, TypeError) as error:
        raise ValueError(f"no HTTP answer: {error}") from None
    if not status:
        raise ValueError("no HTTP answer")
    return status, body
