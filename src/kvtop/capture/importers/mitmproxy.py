"""mitmproxy's flow files (.mitm): tnetstrings, one after the other, each the state of a flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvtop.capture.importers.exchange import Bad, Exchange, Item, LeftOut, Odd, taken, words
from kvtop.capture.importers.files import unix_time
from kvtop.sources.url import authority

_DEPTH = 64
"""Nesting of a flow's state; real ones have 5."""


def read(data: bytes) -> Iterator[Item]:
    """The flows in the file's order. A file that is cut ends with a bad record."""
    at, number = 0, 0
    while at < len(data):
        number += 1
        where = f"flow {number}"
        try:
            flow, at = pop(data, at)
        except (ValueError, RecursionError) as error:
            yield Bad(where, f"the file is cut or damaged from byte {at:,}: {words(error)}")
            return
        yield taken(where, "not as mitmproxy writes it", _flow, where, flow)


def pop(data: bytes, at: int, depth: int = 0) -> tuple[Any, int]:
    """One value of a tnetstring and where it ends. Raises ValueError for what is none."""
    colon = data.find(b":", at, at + 13)
    digits = data[at:colon] if colon > at else b""
    if not digits.isdigit():
        raise Odd("no length where one should stand")
    start = colon + 1
    end = start + int(digits)
    if end >= len(data):
        raise Odd("it ends before its length says")
    kind, content = data[end : end + 1], data[start:end] if data[end : end + 1] not in (b"]", b"}") else b""
    if kind == b",":
        return content, end + 1
    if kind == b";":
        return content.decode("utf-8", "replace"), end + 1
    if kind == b"#":
        return int(content), end + 1
    if kind == b"^":
        return float(content), end + 1
    if kind == b"!":
        return content == b"true", end + 1
    if kind == b"~":
        return None, end + 1
    if kind not in (b"]", b"}") or depth >= _DEPTH:
        raise Odd("a kind of value that is not known")
    found: list[Any] = []
    while start < end:
        value, start = pop(data, start, depth + 1)
        found.append(value)
    if start != end:
        raise Odd("a part is longer than the whole")
    if kind == b"]":
        return found, end + 1
    if len(found) % 2:
        raise Odd("a key without a value")
    return {_text(key): value for key, value in zip(found[::2], found[1::2], strict=True)}, end + 1


def _flow(where: str, flow: Any) -> Item:
    from kvtop.capture.api.routes import may_be_turn

    if not isinstance(flow, dict):
        return Bad(where, "no flow")
    if flow.get("type") != "http" or flow.get("websocket"):
        return LeftOut(where)
    request, response = flow["request"], flow.get("response")
    method, path = _text(request["method"]), _text(request["path"])
    if not may_be_turn(method, path):
        return LeftOut(where)
    if request.get("content") is None:
        return Bad(where, "its request body was not kept (streaming was on)")
    scheme, host, port = _text(request["scheme"]), _text(request["host"]), request["port"]
    error = flow.get("error")
    answer: dict[str, Any] = {}
    if response:
        status = response["status_code"]
        answer = {
            "response": _unpacked(response),
            "response_headers": _headers(response),
            "status": status if isinstance(status, int) else None,
            "first_byte_at": unix_time(response.get("timestamp_start")),
            "ended_at": unix_time(response.get("timestamp_end")),
        }
    return Exchange(
        where=where,
        method=method,
        path=path,
        upstream=f"{scheme}://{authority(host, port)}",
        request=_unpacked(request) or b"",
        request_headers=_headers(request),
        error=_text(error["msg"]) if isinstance(error, dict) else None,
        started_at=unix_time(request.get("timestamp_start")),
        sent_at=unix_time(request.get("timestamp_end")),
        **answer,
    )


def _unpacked(message: Mapping[str, Any]) -> bytes | None:
    from kvtop.capture.api.codings import Unpacker

    content = message.get("content")
    if content is None:
        return None
    if not isinstance(content, bytes):
        raise Odd("a body that is no bytes")
    unpacked: bytes = Unpacker(_headers(message)).feed(content)
    return unpacked


def _headers(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    given = message.get("headers")
    pairs = [pair for pair in given if isinstance(pair, list) and len(pair) == 2] if isinstance(given, list) else []
    return [(_text(name), _text(value)) for name, value in pairs]


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
