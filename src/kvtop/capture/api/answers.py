"""What an answer says: tokens, how it ended, errors. Each route has its own arithmetic.

Of a stream only the events that can tell are parsed: the first ones, and the last ones backwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from kvtop.capture.api import redact
from kvtop.capture.api.canonical import crowded, decode, members, object_of
from kvtop.capture.api.sse import line_ends
from kvtop.capture.turn import Route, possible
from kvtop.errors import printable

MAX_ERROR = 300
"""Characters of an error."""
MOST_TOKENS = 10**10
"""A larger count is nonsense."""

_HEAD_EVENTS, _TAIL_EVENTS = 3, 24
_MOST_LINES = 10_000
"""That are looked at from either end for these, where they are no JSON objects."""
_FAILED = ("response.failed", "error")


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What one answer says. None is 'not told'."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    usage: dict[str, object] = {}
    """As it came; of the messages route, that of its start with what its end says over it."""
    finish_reason: str | None = None
    """In the route's own words."""
    response_id: str | None = None
    error: str | None = None
    """One line, fit to be shown."""
    queue_s: float | None = None
    prefill_s: float | None = None
    """From vLLM's `metrics`, whose time to first token starts at scheduling."""
    whole: bool = False
    """Of a stream: its last event came. Else: the body is a JSON document."""


def is_stream(headers: Sequence[tuple[str, str]]) -> bool:
    """Whether an answer is a stream of server-sent events."""
    return any(
        name.lower() == "content-type" and value.lower().lstrip().startswith("text/event-stream")
        for name, value in headers
    )


def read_answer(
    route: Route, status: int | None, headers: Sequence[tuple[str, str]], body: bytes, stream: bool
) -> Answered:
    """Reads an answer, whole or broken off. `body` unpacked; `stream`: it was asked for as a stream, which counts where
    the headers do not say what came. Never raises."""
    typed = any(name.lower() == "content-type" for name, _ in headers)
    if is_stream(headers) or (stream and not typed and body.lstrip()[:1] not in (b"{", b"[")):
        return _from_events(route, status, body)
    try:
        document = _document(body) if body.strip() else None
    except ValueError:
        return Answered(error=_text_error(body) if status is not None and status >= 400 else None)
    failed = status is not None and status >= 400
    if not isinstance(document, dict):
        return Answered(error=_text_error(body) if failed else None, whole=document is not None or not body.strip())
    inner = document.get("status") == "failed" or document.get("type") == "error"
    error = error_of(document) if failed or inner or "error" in document else None
    if failed and error is None:
        error = _text_error(body)
    if inner and error is None:
        error = _word(document.get("status") or document.get("type"))
    return _told(route, document, _usage(document), error=error, whole=True)


def _document(body: bytes) -> Any:
    """The JSON value; of an object that is crowded what is not crowded in it, as the usage beside embeddings. Raises
    ValueError."""
    if not crowded(body):
        return decode(body)
    return {key: decode(value) for key, value in members(body).items() if not crowded(value)}


def _from_events(route: Route, status: int | None, body: bytes) -> Answered:
    first = (event_of(data) for data in islice(_forwards(body), _MOST_LINES))
    head = list(islice((event for event in first if event is not None), _HEAD_EVENTS))
    tail: list[dict[str, Any]] = []
    done = False
    for data in islice(_backwards(body), _MOST_LINES):
        if data == b"[DONE]":
            done = True
        elif (event := event_of(data)) is not None:
            tail.append(event)
        if len(tail) >= _TAIL_EVENTS:
            break
    usage: dict[str, object] = {}
    document: dict[str, Any] = {}
    error = None
    for event in (*head, *reversed(tail)):
        kind = event.get("type")
        inner = event.get("response") or event.get("message")
        inner = inner if isinstance(inner, dict) else {}
        for holder in (event, inner):
            found = _usage(holder)
            if kind == "message_start":
                found.pop("output_tokens", None)  # so far: the count stands in the event at the end
            if found:
                usage = _over(usage, found) if route is Route.MESSAGES else found
            for key in ("id", "metrics", "incomplete_details", "stop_reason"):
                if holder.get(key):
                    document[key] = holder[key]
        if isinstance(inner.get("status"), str):
            document["status"] = inner["status"]
        delta = event.get("delta")
        if isinstance(delta, dict) and delta.get("stop_reason"):
            document["stop_reason"] = delta["stop_reason"]
        if _finish(event):
            document["choices"] = event["choices"]
        if kind in _FAILED or event.get("error"):
            error = error_of(inner if kind == "response.failed" else event) or error or _word(kind)
        done = done or kind in _LAST.get(route, ())
    if error is None and status is not None and status >= 400:
        error = _text_error(body)
    return _told(route, document, usage, error=error, whole=done)


_LAST = {
    Route.MESSAGES: ("message_stop",),
    Route.RESPONSES: ("response.completed", "response.incomplete", "response.failed"),
}
"""Types of the event that ends a stream; elsewhere it is `data: [DONE]`."""


def _told(
    route: Route, document: dict[str, Any], usage: dict[str, object], *, error: str | None, whole: bool
) -> Answered:
    prompt, cached, completion, reasoning = _tokens(route, usage)
    response_id = document.get("id")
    queue_s, prefill_s = _metrics(document.get("metrics"))
    return Answered(
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        reasoning_tokens=reasoning,
        usage=usage,
        finish_reason=_finish_reason(route, document),
        response_id=printable(response_id, 200) if isinstance(response_id, str) and response_id else None,
        error=error,
        queue_s=queue_s,
        prefill_s=prefill_s,
        whole=whole,
    )


def _tokens(route: Route, usage: dict[str, object]) -> tuple[int | None, int | None, int | None, int | None]:
    """prompt, cached, completion and reasoning tokens."""
    # Gateways put these keys into OpenAI's usage as well, where `prompt_tokens` holds them already.
    if route is Route.MESSAGES or ("cache_read_input_tokens" in usage and "prompt_tokens" not in usage):
        return _messages_tokens(usage)
    details = object_of(usage.get("prompt_tokens_details")) or object_of(usage.get("input_tokens_details"))
    out = object_of(usage.get("completion_tokens_details")) or object_of(usage.get("output_tokens_details"))
    prompt = _first_count(usage, "prompt_tokens", "input_tokens")
    completion = None if route is Route.EMBEDDINGS else _first_count(usage, "completion_tokens", "output_tokens")
    cached = possible(_count(details.get("cached_tokens")), prompt)
    return prompt, cached, completion, _count(out.get("reasoning_tokens"))


def tells_cached(usage: dict[str, object]) -> bool:
    """A usage says something of cached tokens, be it true or not."""
    details = (object_of(usage.get("prompt_tokens_details")), object_of(usage.get("input_tokens_details")))
    told = [*(one.get("cached_tokens") for one in details), usage.get("cache_read_input_tokens")]
    return any(isinstance(one, int | float) and not isinstance(one, bool) for one in told)


def _messages_tokens(usage: dict[str, object]) -> tuple[int | None, int | None, int | None, int | None]:
    """`input_tokens` is what was neither read from the cache nor written to it."""
    new = _count(usage.get("input_tokens"))
    read = _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens"))
    prompt = None if new is None else new + (read or 0) + (written or 0)
    return prompt, read, _count(usage.get("output_tokens")), None


def _usage(holder: dict[str, Any]) -> dict[str, object]:
    usage = holder.get("usage")
    return {str(key): value for key, value in usage.items()} if isinstance(usage, dict) else {}


def _over(start: dict[str, object], end: dict[str, object]) -> dict[str, object]:
    """The usage of a stream's start with what its end says; what the end leaves open stays as it was."""
    return start | {key: value for key, value in end.items() if value is not None or key not in start}


def _finish(event: dict[str, Any]) -> str | None:
    choices = event.get("choices")
    if isinstance(choices, list):
        for choice in choices:
            if isinstance(choice, dict) and isinstance(reason := choice.get("finish_reason"), str) and reason:
                return reason
    return None


def _finish_reason(route: Route, document: dict[str, Any]) -> str | None:
    if route is Route.RESPONSES:
        reason = object_of(document.get("incomplete_details")).get("reason") or document.get("status")
        reason = None if reason in ("in_progress", "queued") else reason
    elif route is Route.MESSAGES:
        reason = document.get("stop_reason")
    else:
        reason = _finish(document)
    return printable(reason, 60) if isinstance(reason, str) and reason else None


def _metrics(metrics: object) -> tuple[float | None, float | None]:
    told = object_of(metrics)
    return _seconds(told.get("queue_time_ms")), _seconds(told.get("time_to_first_token_ms"))


def error_of(document: dict[str, Any]) -> str | None:
    """What an error document says, in one line: OpenAI's and Anthropic's `error`, FastAPI's `detail`, `message`."""
    for holder in (document.get("error"), document.get("detail"), document):
        if isinstance(holder, str) and holder.strip():
            return _line(holder)
        if isinstance(holder, list) and holder and isinstance(holder[0], dict):  # FastAPI's validation
            loc = holder[0].get("loc")
            where = ".".join(str(step) for step in loc) if isinstance(loc, list) else ""
            return _line(f"{where}: {holder[0].get('msg', '')}".removeprefix(": "))
        if isinstance(holder, dict) and isinstance(text := holder.get("message"), str) and text.strip():
            return _line(text)
    if isinstance(inner := document.get("error"), dict):
        return _line(str(inner.get("type") or inner.get("code") or "error"))
    return None


def _word(kind: object) -> str:
    """For a failure that says no more than that it is one."""
    return _line(kind) if isinstance(kind, str) and kind in (*_FAILED, "failed") else "error"


def _text_error(body: bytes) -> str | None:
    text = body[: 4 * MAX_ERROR].decode("utf-8", "replace").strip()
    return _line(text) if text else None


def _line(text: str) -> str:
    return printable(" ".join(redact.error(text[: 8 * MAX_ERROR]).split()), MAX_ERROR)


def events(body: bytes) -> Iterator[dict[str, Any]]:
    """The events' JSON objects, from the first one on."""
    return (event for data in _forwards(body) if (event := event_of(data)) is not None)


def _forwards(body: bytes) -> Iterator[bytes]:
    """The events' data from the first one on. Lines of another kind are skipped all at once: millions of them may keep
    a stream alive."""
    body = line_ends(body)
    at = 0 if body.startswith(b"data:") else body.find(b"\ndata:") + 1 or len(body)
    lines: list[bytes] = []
    while at < len(body):
        end = body.find(b"\n", at)
        end = len(body) if end < 0 else end
        lines.append(body[at + 5 : end].strip())
        at = body.find(b"\ndata:", end) + 1 or len(body)
        if _apart(body, end, at, lines):
            if len(lines) == 1:
                yield lines[0]
            else:
                yield from _data(lines)
            lines = []
    yield from _data(lines)


def _backwards(body: bytes) -> Iterator[bytes]:
    """The events' data from the last one back. A last line without an end is cut and not told."""
    body = line_ends(body)
    end = body.rfind(b"\n")
    lines: list[bytes] = []
    while end > 0:
        start = body.rfind(b"\ndata:", 0, end)
        if start < 0 and not body.startswith(b"data:"):
            break
        stop = body.find(b"\n", start + 1)
        if lines and _apart(body, stop, end + 1, lines):
            yield from reversed(list(_data(lines[::-1])))
            lines = []
        lines.append(body[start + 6 : stop].strip())
        end = start
    yield from reversed(list(_data(lines[::-1])))


def _apart(body: bytes, end: int, following: int, lines: list[bytes]) -> bool:
    """Whether the line that ends there and the data line that follows are of two events: an empty one lies between."""
    return (
        body.startswith((b"\n\n", b"\n\r\n"), end)  # as a rule
        or body.find(b"\n\n", end, following) >= 0
        or body.find(b"\n\r\n", end, following) >= 0
        or len(lines) >= _MOST_LINES
    )


def _data(lines: list[bytes]) -> Iterator[bytes]:
    """What the data lines of one event say together; each by itself where a sender leaves the empty lines away."""
    if len(lines) > 1 and event_of(whole := b"\n".join(lines)) is not None:
        yield whole
    else:
        yield from lines


def event_of(data: bytes) -> dict[str, Any] | None:
    """The JSON object that these bytes are."""
    try:
        value = decode(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _first_count(usage: dict[str, object], *keys: str) -> int | None:
    return next((n for key in keys if (n := _count(usage.get(key))) is not None), None)


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_TOKENS:
        return None
    return int(value)


def _seconds(ms: object) -> float | None:
    if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 <= ms < 1e10:
        return None
    return ms / 1000.0
