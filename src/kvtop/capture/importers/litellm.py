"""LiteLLM's StandardLoggingPayload: a document, a list, or one a line; alone, or under `standard_logging_object`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvtop.capture.api.canonical import object_of
from kvtop.capture.importers.exchange import PATHS, Bad, Exchange, Item, LeftOut, as_json, taken
from kvtop.capture.importers.files import Source, objects, source, unix_time

REWRITTEN = "the request as LiteLLM rewrote it: key order and formatting are its own"

_CALLS = {
    "completion": "chat",
    "acompletion": "chat",
    "text_completion": "completions",
    "atext_completion": "completions",
    "responses": "responses",
    "aresponses": "responses",
    "anthropic_messages": "messages",
    "aanthropic_messages": "messages",
    "embedding": "embeddings",
    "aembedding": "embeddings",
}
_PROMPT = {"completions": "prompt", "responses": "input", "embeddings": "input"}
"""Of the routes whose prompt is not called messages."""


def read(given: bytes | Source) -> Iterator[Item]:
    """The payloads in the file's order."""
    for found in objects(source(given)):
        if isinstance(found, Bad):
            yield found
        else:
            yield taken(found.where, "not as LiteLLM writes it", _payload, found.where, found.value)


def _payload(where: str, entry: Mapping[str, Any]) -> Item:
    inner = entry.get("standard_logging_object")
    payload: Mapping[str, Any] = inner if isinstance(inner, dict) else entry
    call = payload.get("call_type")
    if not isinstance(call, str):
        return Bad(where, "no call_type: no StandardLoggingPayload")
    route = _CALLS.get(call)
    if route is None:
        return LeftOut(where)
    messages = payload.get("messages")
    if not messages or _redacted(messages):
        return Bad(
            where, "no messages: LiteLLM logs them with store_prompts_in_spend_logs, or to a callback, not redacted"
        )
    parameters = object_of(payload.get("model_parameters"))
    if route == "chat" and isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    body = {"model": payload.get("model"), _PROMPT.get(route, "messages"): messages, **parameters}
    answer = payload.get("response")
    failed = payload.get("status") == "failure" or bool(payload.get("error_str"))
    stream = payload.get("stream")
    if isinstance(stream, bool):
        body["stream"] = stream
    metadata = object_of(payload.get("metadata"))
    started, ended = unix_time(payload.get("startTime")), unix_time(payload.get("endTime"))
    first = unix_time(payload.get("completionStartTime"))
    return Exchange(
        where=where,
        path=PATHS[route],
        upstream=_text(payload.get("api_base")).rstrip("/").removesuffix("/v1"),  # as a server is watched
        request=as_json(body),
        request_headers=_headers(payload, metadata),
        response=as_json(answer) if isinstance(answer, dict) else None,
        stream=False,  # the answer is logged put together
        error=_error(payload) if failed else None,
        started_at=started,
        first_token_at=first if stream and first and started and first > started else None,
        ended_at=ended,
        model=_text(payload.get("model")) or None,
        hints={f"litellm.{key}": _text(payload.get(key)) for key in ("id", "trace_id") if _text(payload.get(key))},
        unproven=REWRITTEN,
        prompt_tokens=_count(payload.get("prompt_tokens")),
        completion_tokens=_count(payload.get("completion_tokens")),
    )


def _headers(payload: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    agent = _text(payload.get("user_agent")) or _text(metadata.get("user_agent"))
    found = [("user-agent", agent)] if agent else []
    custom = object_of(metadata.get("requester_custom_headers"))
    return found + [(name, value) for name, value in custom.items() if isinstance(value, str)]


def _error(payload: Mapping[str, Any]) -> str:
    information = object_of(payload.get("error_information"))
    return _text(payload.get("error_str")) or _text(information.get("error_message")) or "failed"


def _redacted(messages: object) -> bool:
    return "redacted-by-litellm" in repr(messages)[:500]


def _count(value: object) -> int | None:
    """LiteLLM writes 0 where it does not know."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
