"""What a request asks: the route, the model, the prompt's outline in the order of its parts, and session hints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvtop.capture.api import redact
from kvtop.capture.api.canonical import (
    canonical,
    crowded,
    decode,
    digest,
    encode,
    items,
    members,
    text_or_blocks,
)
from kvtop.capture.api.markers import marker, program
from kvtop.capture.api.tags import outside
from kvtop.capture.turn import Part, Route
from kvtop.errors import printable

PIECE_CHARS = 2_000
PIECE_IDS = 512
"""A completions prompt that is longer is outlined in pieces of this size."""
MAX_PARTS = 20_000
"""Parts of one outline; what follows is not told."""
CROWDED = "the request's body has too many values to be read"
"""What is unproven of such a prompt."""
MAX_HINT = 200
"""Characters of a hint."""

_ROUTES = (
    ("/chat/completions", Route.CHAT),
    ("/completions", Route.COMPLETIONS),
    ("/responses", Route.RESPONSES),
    ("/messages", Route.MESSAGES),
    ("/embeddings", Route.EMBEDDINGS),
)
_NO_TURNS = re.compile(
    r"/(?:(?:de)?tokenize|count_tokens|render|metrics|health|ping|version|models|load|server_info|is_sleeping|sleep"
    r"|wake_up|reset_[a-z_]+_cache|(?:un)?load_lora_adapter|(?:start|stop)_profile|pause|resume|scale_elastic_ep)$"
)
"""Asked of a server, but not prompts."""

_HEADER_HINTS = re.compile(
    r"x-claude-code-.*|x-codex-.*|(?:x-)?session[-_]id|x-session-affinity|(?:x-)?thread[-_]id|x-affinity|conversation[-_]id"
    r"|x-conversation-id|originator|traceparent|http-referer|referer|x-title|x-client-request-id|x-request-id|x-user-id"
    r"|x-litellm-(?:session|call|trace)-id|x-agent-.*|x-parent-.*|x-opencode-.*|x-kilocode-.*|x-initiator",
    re.IGNORECASE,
)
_BODY_HINTS = (
    "user",
    "prompt_cache_key",
    "safety_identifier",
    "previous_response_id",
    "conversation",
    "session_id",
    "request_id",
)
_SESSION = re.compile(r"session_?([0-9a-fA-F-]{32,36})")
_OTHERS = (
    "response_format",
    "text",
    "tool_choice",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "reasoning",
    "reasoning_effort",
    "thinking",
)
"""What else may change the prompt; told last, since where it is printed is the template's business."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What one request asks."""

    route: Route
    model: str | None = None
    stream: bool | None = None
    """None: the body tells nothing (it is no JSON, or cut short)."""
    usage_asked: bool | None = None
    """stream_options.include_usage is set."""
    outline: list[Part] = []
    hints: dict[str, str] = {}
    is_json: bool = False
    """The body is a JSON object."""
    unread: str = ""
    """Why nothing of the body was read, though it may be one."""

    @property
    def program(self) -> str:
        """The program whose instructions stand in the system prompt; empty where they tell none."""
        return next((part.name for part in self.outline if part.kind == "system" and part.name), "")


def route_of(path: str) -> Route:
    """The route of a request's path, with or without /v1, below any base path."""
    bare = _bare(path)
    return next((route for end, route in _ROUTES if bare.endswith(end)), Route.OTHER)


def may_be_turn(method: str, path: str) -> bool:
    """Whether a request may be a turn: a POST to anything but what only asks about the server. One to a route that is
    not known is a turn only if its body is JSON."""
    return method == "POST" and not _NO_TURNS.search(_bare(path))


def _bare(path: str) -> str:
    return path.partition("?")[0].rstrip("/")


def read_request(method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes) -> Asked:
    """Reads a request. `headers` without secrets, `body` unpacked. Never raises: what cannot be read is not told."""
    route = route_of(path) if method in ("POST", "") else Route.OTHER
    hints = _header_hints(headers)
    if crowded(body):
        return Asked(route=route, hints=hints, is_json=body.lstrip()[:1] == b"{", unread=CROWDED)
    try:
        raw = members(body)
    except ValueError:
        return Asked(route=route, hints=hints)
    hints |= _body_hints(raw)
    model = _value(raw, "model")
    stream, options = _value(raw, "stream"), _value(raw, "stream_options")
    return Asked(
        route=route,
        model=printable(model, MAX_HINT) if isinstance(model, str) and model else None,
        stream=stream is True,
        usage_asked=isinstance(options, dict) and options.get("include_usage") is True,
        outline=outline(route, raw),
        hints=hints,
        is_json=True,
    )


def outline(route: Route, raw: Mapping[str, msgspec.Raw | bytes]) -> list[Part]:
    """The parts of a prompt in the order in which a chat template prints them. `raw`: the members of the body."""
    parts: list[Part] = []
    for part in _parts(route, raw):
        if len(parts) >= MAX_PARTS:
            break
        parts.append(part)
    return parts


def _parts(route: Route, raw: Mapping[str, msgspec.Raw | bytes]) -> Iterator[Part]:
    yield from (_tool(tool) for tool in _items(raw, "tools"))
    yield from (_tool(tool) for tool in _items(raw, "functions"))
    if route is Route.MESSAGES:
        yield from _system(raw, "system")
    elif route is Route.RESPONSES:
        yield from _system(raw, "instructions")
    if route in (Route.COMPLETIONS, Route.EMBEDDINGS):
        for key in ("prompt", "input", "suffix"):
            yield from _prompts(raw, key)
    yield from _messages(_items(raw, "messages"))
    if route is Route.RESPONSES:
        if (given := raw.get("input")) is not None and isinstance(text := _loose(given), str):
            yield _part("message", given, {"content": text, "role": "user"}, role="user")
        else:
            yield from _messages(_items(raw, "input"))
    for key in _OTHERS:
        value = raw.get(key)
        if value is not None and bytes(value) != b"null":
            yield _part("other", value, canonical_or_raw(value), name=key)


def _items(raw: Mapping[str, msgspec.Raw | bytes], key: str) -> list[msgspec.Raw | bytes]:
    if (value := raw.get(key)) is None:
        return []
    try:
        return items(value)
    except ValueError:
        return []


def _tool(raw: msgspec.Raw | bytes) -> Part:
    tool = canonical_or_raw(raw)
    name = ""
    if isinstance(tool, dict):
        inner = tool.get("function")
        name = (inner if isinstance(inner, dict) else tool).get("name") or tool.get("type") or ""
    return _part("tool", raw, tool, name=_short(name))


def _system(raw: Mapping[str, msgspec.Raw | bytes], key: str) -> Iterator[Part]:
    """A system prompt beside the messages: one part, or one for each of several blocks."""
    value = raw.get(key)
    if value is None or bytes(value) == b"null":
        return
    for block in _items(raw, key) or [value]:
        content = _loose(block)
        try:
            content = text_or_blocks(content if isinstance(content, str) else [content])
        except ValueError:
            content = None
        told = {"content": content, "role": "system"}
        yield _part("system", block, told, role="system", name=program(_text(told)))


def _messages(raws: Sequence[msgspec.Raw | bytes]) -> Iterator[Part]:
    leading, unanswered = True, True
    for raw in raws:
        message = canonical_or_raw(raw)
        role = kind = ""
        if isinstance(message, dict):
            kind = message.get("type") or ""
            role = message.get("role") or _ROLES.get(str(kind), "")
            if kind == "message":
                del message["type"]  # an input item of the responses route that is a plain message
        leading = leading and role in ("system", "developer")
        kind, name = ("system", program) if leading else ("message", marker)
        unanswered = unanswered and role in _ASKS
        bare = _outside(message) if unanswered and role == "user" else ""
        yield _part(kind, raw, message, role=_short(role), name=name(_text(message)), bare=bare)


_ASKS = ("system", "developer", "user")
"""Roles of messages before the first reply."""


def _outside(message: dict[str, Any]) -> str:
    """As `Part.bare`."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"text": content}]
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    said = " ".join(word for text in texts if isinstance(text, str) for word in outside(text).split())
    try:
        return digest(said) if said else ""
    except ValueError:  # half a character
        return ""


def _text(message: Any) -> str:
    """What a message says first, in words."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        texts = (block.get("text") for block in content if isinstance(block, dict))
        content = next((text for text in texts if isinstance(text, str)), None)
    return content if isinstance(content, str) else ""


_ROLES = {
    "function_call": "assistant",
    "custom_tool_call": "assistant",
    "reasoning": "assistant",
    "local_shell_call": "assistant",
    "function_call_output": "tool",
    "custom_tool_call_output": "tool",
    "local_shell_call_output": "tool",
}
"""Of input items without a role."""


def _prompts(raw: Mapping[str, msgspec.Raw | bytes], key: str) -> Iterator[Part]:
    value = raw.get(key)
    if value is None or bytes(value) == b"null":
        return
    content = _loose(value)
    if isinstance(content, list) and content and not isinstance(content[0], int):
        yield from (_part("prompt", item, canonical_or_raw(item)) for item in _items(raw, key))
    elif isinstance(content, str | list) and len(content) > (
        step := PIECE_CHARS if isinstance(content, str) else PIECE_IDS
    ):
        # In pieces, so that a prompt which grows shares its head with the one before.
        pieces = [content[start : start + step] for start in range(0, len(content), step)]
        try:
            encoded = [encode(piece) for piece in pieces]
        except ValueError:
            yield _part("prompt", value, content)
            return
        yield from (_part("prompt", data, piece) for data, piece in zip(encoded, pieces, strict=True))
    else:
        yield _part("prompt", value, content)


def _part(kind: str, raw: msgspec.Raw | bytes, content: Any, *, role: str = "", name: str = "", bare: str = "") -> Part:
    data = bytes(raw)
    try:
        told = digest(content)
    except ValueError:
        told = digest(data.decode("utf-8", "replace"))
    return Part(kind=kind, size=len(data), digest=told, role=role, name=name, bare=bare)


def canonical_or_raw(raw: msgspec.Raw | bytes) -> Any:
    """The canonical form; of what cannot be brought into it the text as it stands."""
    try:
        return canonical(decode(raw))
    except ValueError:
        return bytes(raw).decode("utf-8", "replace")


def _loose(raw: msgspec.Raw | bytes) -> Any:
    try:
        return decode(raw)
    except ValueError:
        return None


def _value(raw: Mapping[str, msgspec.Raw | bytes], key: str) -> Any:
    value = raw.get(key)
    return None if value is None else _loose(value)


def _short(text: object) -> str:
    return printable(text, 100) if isinstance(text, str) else ""


def _hint(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return printable(redact.text(str(value)), MAX_HINT)


def _header_hints(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {
        name.lower(): _hint(value)
        for name, value in headers
        if value and value != redact.REMOVED and _HEADER_HINTS.fullmatch(name)
    }


def _body_hints(raw: Mapping[str, msgspec.Raw | bytes]) -> dict[str, str]:
    hints = {key: text for key in _BODY_HINTS if (text := _hint(_value(raw, key)))}
    for key in ("metadata", "client_metadata"):
        given = _value(raw, key)
        if isinstance(given, dict):
            for name, value in list(given.items())[:16]:
                if not redact.secret(name) and (text := _hint(value)):
                    hints[f"{key}.{printable(name, 60)}"] = text
    # Claude Code packs its session into the user id, behind more than a hint holds.
    user = _value(raw, "metadata")
    user = user.get("user_id") if isinstance(user, dict) else None
    if isinstance(user, str) and (session := _session(user)):
        hints["metadata.user_id.session_id"] = session
    return hints


def _session(user: str) -> str:
    try:
        packed = decode(user.encode("utf-8", "replace"))
    except ValueError:
        found = _SESSION.search(user)
        return found[1] if found else ""
    return _hint(packed.get("session_id")) if isinstance(packed, dict) else ""
