"""The words of an answer: what it said, thought and called, from its body. Never raises: what cannot be read is left
out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvtop.capture.api.answers import event_of, events
from kvtop.capture.api.canonical import encode, object_of
from kvtop.capture.turn import Route

TEXT, REASONING, CALL = "text", "reasoning", "call"


class Piece(msgspec.Struct, frozen=True):
    """A run of an answer that is of one kind."""

    kind: str
    """text, reasoning or call (of a tool)."""
    text: str
    """Of a call its arguments as they came."""
    name: str = ""
    """Of a call: the tool."""


class _Pieces:
    """Joins what comes in small bits."""

    def __init__(self) -> None:
        self._runs: list[tuple[str, str, object, list[str]]] = []

    def add(self, kind: str, text: object, *, name: object = "", key: object = None) -> None:
        """A bit. Another kind, or another `key`, begins another piece."""
        words = text if isinstance(text, str) else ""
        called = name if isinstance(name, str) else ""
        last = self._runs[-1] if self._runs else None
        if last is not None and (last[0], last[2]) == (kind, key):
            last[3].append(words)
            if called and not last[1]:
                self._runs[-1] = (kind, called, key, last[3])
        elif words or called:
            self._runs.append((kind, called, key, [words]))

    def made(self) -> list[Piece]:
        return [Piece(kind, _whole("".join(bits)), _whole(name)) for kind, name, _, bits in self._runs]


def _whole(text: str) -> str:
    """The text with halves of characters put together: some servers cut a character between two events."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def pieces(route: Route, body: bytes) -> list[Piece]:
    """In the order in which they came. Of several choices the first one. `body`: whole and unpacked, a JSON document
    or a stream of server-sent events, also one that broke off."""
    out = _Pieces()
    take = _TAKES.get(route)
    if take is None:
        return []
    if body.lstrip()[:1] == b"{":
        document = event_of(body)
        if document is not None:
            take(document, out)
        return out.made()
    for event in events(body):
        take(event, out)
    return out.made()


def _first(value: object) -> dict[str, Any]:
    found = value[0] if isinstance(value, list) and value else None
    return found if isinstance(found, dict) else {}


def _dicts(value: object) -> Iterator[dict[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def _chat(event: dict[str, Any], out: _Pieces) -> None:
    choice = _first(event.get("choices"))
    said = object_of(choice.get("delta") or choice.get("message"))
    out.add(REASONING, said.get("reasoning") or said.get("reasoning_content"))
    out.add(TEXT, said.get("content"))
    for place, call in enumerate(_dicts(said.get("tool_calls"))):
        function = object_of(call.get("function"))
        out.add(CALL, function.get("arguments"), name=function.get("name"), key=call.get("index", place))


def _completions(event: dict[str, Any], out: _Pieces) -> None:
    out.add(TEXT, _first(event.get("choices")).get("text"))


def _messages(event: dict[str, Any], out: _Pieces) -> None:
    for place, block in enumerate(_dicts(event.get("content"))):
        _block(block, out, place)
    index = event.get("index")
    if event.get("type") == "content_block_start":
        _block(object_of(event.get("content_block")), out, index)
    elif event.get("type") == "content_block_delta":
        delta = object_of(event.get("delta"))
        kind = delta.get("type")
        if kind == "thinking_delta":
            out.add(REASONING, delta.get("thinking"), key=index)
        elif kind == "input_json_delta":
            out.add(CALL, delta.get("partial_json"), key=index)
        else:
            out.add(TEXT, delta.get("text"), key=index)


def _block(block: dict[str, Any], out: _Pieces, key: object) -> None:
    kind = block.get("type")
    if kind == "tool_use":
        given = block.get("input")
        out.add(CALL, _arguments(given) if given else "", name=block.get("name"), key=key)
    elif kind == "thinking":
        out.add(REASONING, block.get("thinking"), key=key)
    else:
        out.add(TEXT, block.get("text"), key=key)


def _arguments(given: object) -> str:
    try:
        return encode(given).decode()
    except ValueError:
        return ""


def _responses(event: dict[str, Any], out: _Pieces) -> None:
    for item in _dicts(event.get("output")):
        kind = item.get("type")
        if kind == "function_call":
            out.add(CALL, item.get("arguments"), name=item.get("name"), key=item.get("id"))
        for part in (*_dicts(item.get("summary")), *_dicts(item.get("content"))):
            out.add(REASONING if kind == "reasoning" else TEXT, part.get("text"), key=item.get("id"))
    kind, key = event.get("type"), event.get("output_index")
    if kind == "response.output_item.added":
        item = object_of(event.get("item"))
        if item.get("type") == "function_call":
            out.add(CALL, "", name=item.get("name"), key=key)
    elif kind == "response.function_call_arguments.delta":
        out.add(CALL, event.get("delta"), key=key)
    elif kind == "response.output_text.delta":
        out.add(TEXT, event.get("delta"), key=key)
    elif kind in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
        out.add(REASONING, event.get("delta"), key=key)


_TAKES = {
    Route.CHAT: _chat,
    Route.COMPLETIONS: _completions,
    Route.MESSAGES: _messages,
    Route.RESPONSES: _responses,
}
