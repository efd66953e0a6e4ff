"""One request body a line in the shape of OpenAI's or Anthropic's API; or `{"request": …, "response": …}`; or a batch
file's `{"url": …, "body": …}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from kvtop.capture.importers.exchange import Bad, Exchange, Item, as_json, body_path, missing, taken
from kvtop.capture.importers.files import Source, objects, parsed, source, unix_time

TIMES = ("started_at", "timestamp", "time", "created_at")


def read(given: bytes | Source) -> Iterator[Item]:
    """The lines in the file's order. A body's bytes are those of its line where the line holds nothing else."""
    for found in objects(source(given)):
        yield found if isinstance(found, Bad) else taken(found.where, "no request", _entry, *found)


def _entry(where: str, entry: Mapping[str, Any], exact: bytes) -> Item:
    inner = _object(entry.get("request", entry.get("body")))
    body = inner or entry
    path = body_path(dict(body))
    if path is None:
        return Bad(where, "no messages, prompt or input in it: no request body")
    url = entry.get("url", entry.get("path"))
    if inner and isinstance(url, str) and url:
        try:
            parts = urlsplit(url)
        except ValueError:
            return Bad(where, "its URL is none")
        path = parts.path + (f"?{parts.query}" if parts.query else "")
    answer = entry.get("response") if inner else None
    return Exchange(
        where=where,
        path=path,
        request=as_json(inner) if inner else exact or as_json(entry),
        response=_bytes(answer),
        stream=None if isinstance(answer, str) else False if answer else None,
        started_at=next((at for name in TIMES if inner and (at := unix_time(entry.get(name)))), None),
        unproven=missing(dict(body)),
    )


def _bytes(answer: object) -> bytes | None:
    if isinstance(answer, str):
        return answer.encode("utf-8", "replace")
    return as_json(answer) if isinstance(answer, dict) else None


def _object(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = parsed(value.encode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
