"""HAR 1.2: what browsers and proxies write, mitmproxy's `hardump` too."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from kvtop.capture.importers.exchange import Bad, Exchange, Item, LeftOut, Odd, taken
from kvtop.capture.importers.files import BOM, parsed, unix_time
from kvtop.errors import printable
from kvtop.sources.url import authority


def read(data: bytes) -> Iterator[Item]:
    """The entries in the file's order. Raises ValueError where it is no HAR."""
    document = parsed(data.removeprefix(BOM))
    log = document.get("log") if isinstance(document, dict) else None
    entries = log.get("entries") if isinstance(log, dict) else None
    if not isinstance(entries, list):
        raise Odd("no log.entries in it")
    for at, entry in enumerate(entries, 1):
        where = f"entry {at}"
        yield taken(where, "not as HAR 1.2 says", _entry, where, entry)


def _entry(where: str, entry: Mapping[str, Any]) -> Item:
    from kvtop.capture.api.routes import may_be_turn

    request, response = entry["request"], entry.get("response") or {}
    url = urlsplit(str(request["url"]))
    path = url.path + (f"?{url.query}" if url.query else "")
    if not may_be_turn(str(request["method"]), path):
        return LeftOut(where)
    posted = request.get("postData") or {}
    if not isinstance(posted, dict) or not posted.get("text"):
        return Bad(where, "its request body was not kept")
    content = response.get("content") or {}
    text = content.get("text")
    status = response.get("status")
    started = unix_time(entry.get("startedDateTime"))
    timings = entry.get("timings") or {}
    sent, first, ended = _moments(started, timings, entry.get("time"))
    return Exchange(
        where=where,
        method=str(request["method"]),
        path=path,
        upstream=f"{url.scheme}://{authority(url.hostname or '', url.port)}",
        request=_bytes(posted["text"], posted.get("encoding") or posted.get("_encoding")),
        request_headers=_headers(request),
        response=_bytes(text, content.get("encoding")) if text else None,
        response_headers=_headers(response),
        status=status if isinstance(status, int) and status > 0 else None,
        error=printable(str(response["_error"])) if response.get("_error") else None,
        started_at=started,
        sent_at=sent,
        first_byte_at=first,
        ended_at=ended,
    )


def _moments(
    started: float | None, timings: Mapping[str, Any], total: object
) -> tuple[float | None, float | None, float | None]:
    """Sent, first byte, end. `ssl` is part of `connect`; -1 is 'does not apply'."""
    if started is None:
        return None, None, None
    send, wait, receive = (_ms(timings.get(name)) for name in ("send", "wait", "receive"))
    before = sum(_ms(timings.get(name)) or 0.0 for name in ("blocked", "dns", "connect"))
    if send is None or wait is None:
        span = _ms(total)
        return None, None, None if span is None else started + span / 1000
    sent = started + (before + send) / 1000
    first = sent + wait / 1000
    return sent, first, None if receive is None else first + receive / 1000


def _ms(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9 else None


def _headers(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Those that are well-formed, without content-encoding: the texts of a HAR are unpacked."""
    given = message.get("headers")
    given = given if isinstance(given, list) else []
    pairs = [(one.get("name"), one.get("value")) for one in given if isinstance(one, dict)]
    found = [(name, value) for name, value in pairs if isinstance(name, str) and isinstance(value, str)]
    return [(name, value) for name, value in found if name.lower() != "content-encoding"]


def _bytes(text: str, encoding: object) -> bytes:
    if encoding != "base64":
        return text.encode("utf-8", "replace")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise Odd("a body is said to be base64 and is not") from None
