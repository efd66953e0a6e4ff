"""One request with what is known of its answer, whatever the format, and the turn that it makes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from kvtop.capture.conversations.agents import UNKNOWN, name_of
from kvtop.capture.turn import Captured, Record, Source, TurnState, prompt_bytes
from kvtop.errors import KvtopError, printable

KEY = "import.key"
"""The hint under which an imported turn keeps what tells it from others: the same record is not taken twice."""

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
}


class Bad(NamedTuple):
    """A record that could not be taken."""

    where: str
    """Line or entry, from 1."""
    why: str


class Odd(ValueError):
    """A record is not as its format says, in words for whoever imports it."""


class LeftOut(NamedTuple):
    """A record that is no turn: another request of a browser's or proxy's log."""

    where: str
    answer: bool = False
    """It is an answer, and nothing tells to which request."""


class Exchange(msgspec.Struct, kw_only=True):
    """What a format tells. Times are Unix seconds; None is 'not told'. Bodies are decoded."""

    where: str
    request: bytes
    path: str
    method: str = "POST"
    upstream: str = ""
    request_headers: list[tuple[str, str]] = []
    response: bytes | None = None
    response_headers: list[tuple[str, str]] = []
    status: int | None = None
    error: str | None = None
    stream: bool | None = None
    """Whether the answer is one; None: as the request asks."""
    started_at: float | None = None
    about_at: float | None = None
    """Where the record tells no time: about when, as the file system or a clock without a year tells."""
    sent_at: float | None = None
    first_byte_at: float | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    model: str | None = None
    finish_reason: str | None = None
    hints: dict[str, str] = {}
    agent: str = ""
    """Where the format itself tells the program."""
    unproven: str = ""
    """What of the prompt the format cannot prove."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


Item = Exchange | Bad | LeftOut
Made = TypeVar("Made")


def taken(where: str, why: str, make: Callable[..., Made], *given: Any) -> Made | Bad:
    """What is made of one record. Whatever is wrong with it, it is one bad record, and those after it are read."""
    try:
        return make(*given)
    except Exception as error:  # noqa: BLE001  a record is text from outside, and its kinds of wrong have no end
        return Bad(where, f"{why}: {words(error)}")


def words(error: Exception) -> str:
    """What is wrong with a record, whoever found it; never the words of a program to its programmer."""
    if isinstance(error, Odd | json.JSONDecodeError):
        return printable(str(error), 120)
    if isinstance(error, KvtopError):
        return printable(error.what, 200)
    if isinstance(error, KeyError):
        return f"no {printable(str(error.args[0]), 40)} in it" if error.args else "something is missing in it"
    kinds: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
        (RecursionError, "nested too deeply"),
        (MemoryError, "too large"),
        (OverflowError, "a number is too large"),
        (UnicodeError, "text in no known encoding"),
        ((TypeError, AttributeError, LookupError), "a value is of another kind than it should be"),
    )
    said = next((said for kind, said in kinds if isinstance(error, kind)), "a value is not as it should be")
    return "a number of too many digits" if isinstance(error, ValueError) and "digits" in str(error) else said


def body_path(body: dict[str, Any]) -> str | None:
    """The path of the route that a request body is for, by its fields; None for what is no request."""
    if "messages" in body:
        tools = body.get("tools")
        blocks = isinstance(tools, list) and any(isinstance(tool, dict) and "input_schema" in tool for tool in tools)
        return PATHS["messages" if "system" in body or "anthropic_version" in body or blocks else "chat"]
    if "prompt" in body:
        return PATHS["completions"]
    if "input" in body:
        return PATHS["embeddings" if "embed" in str(body.get("model", "")).lower() else "responses"]
    return None


def missing(body: dict[str, Any]) -> str:
    """What a request body lacks that its format may have dropped: `no tools, no system prompt`, or empty."""
    messages = body.get("messages", body.get("input"))
    if not isinstance(messages, list):
        return ""
    first = messages[0] if messages and isinstance(messages[0], dict) else {}
    system = body.get("system") or body.get("instructions") or first.get("role") in ("system", "developer")
    return ", ".join(
        word for word, there in (("no tools", body.get("tools")), ("no system prompt", system)) if not there
    )


def as_json(value: object) -> bytes:
    """A value as the bytes of a body, where the format keeps no bytes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class Maker:
    """Makes turns of the exchanges of one file."""

    def __init__(self, at: float) -> None:
        """`at`: Unix time of the file, for records that tell none."""
        self._at = at
        self._seen: Counter[str] = Counter()

    def turn(self, given: Exchange, place: int) -> Captured:
        """The turn, not yet placed nor stored. `place`: which record of the file it is."""
        from kvtop.capture.api import answers, redact, routes

        headers = redact.headers(given.request_headers)
        asked = routes.read_request(given.method, given.path, headers, given.request)
        stream = asked.stream if given.stream is None else given.stream
        told = answers.read_answer(
            asked.route, given.status, given.response_headers, given.response or b"", bool(stream)
        )
        hints = {**asked.hints, **given.hints}
        agent, version = name_of(headers, hints, asked.program)
        if agent == UNKNOWN and given.agent:
            agent = given.agent
        error = told.error or (printable(redact.error(given.error[:2400]), 300) if given.error else None)
        failed = error is not None or (given.status is not None and given.status >= 400)
        ended = given.response is not None and told.whole
        state = TurnState.FAILED if failed else TurnState.DONE if ended or given.finish_reason else None
        if state is None and given.response:
            state = TurnState.CUT
        about = self._at if given.about_at is None else given.about_at
        started = about + place * 1e-6 if given.started_at is None else given.started_at
        return Captured(
            source=Source.IMPORT,
            state=state,
            record=Record.COMPLETE,
            upstream=redact.url(given.upstream),
            method=given.method,
            path=redact.target(given.path),
            route=asked.route,
            stream=stream,
            usage_asked=asked.usage_asked,
            model=asked.model or given.model,
            started_at=started,
            sent_at=given.sent_at,
            first_byte_at=given.first_byte_at,
            first_token_at=given.first_token_at,
            ended_at=given.ended_at,
            status=given.status,
            finish_reason=told.finish_reason or given.finish_reason,
            error=error,
            response_id=told.response_id,
            prompt_tokens=given.prompt_tokens if told.prompt_tokens is None else told.prompt_tokens,
            cached_tokens=told.cached_tokens,
            cached_source=None if told.cached_tokens is None else "usage",
            completion_tokens=given.completion_tokens if told.completion_tokens is None else told.completion_tokens,
            reasoning_tokens=told.reasoning_tokens,
            usage=told.usage,
            queue_s=told.queue_s,
            prefill_s=told.prefill_s,
            request_bytes=len(given.request),
            prompt_bytes=prompt_bytes(asked.outline),
            response_bytes=None if given.response is None else len(given.response),
            request_headers=headers,
            response_headers=redact.headers(given.response_headers),
            agent=agent,
            agent_version=version,
            hints={**hints, KEY: self._key(given)},
            outline=asked.outline,
            prompt_unproven=given.unproven or asked.unread,
        )

    def _key(self, given: Exchange) -> str:
        """Over what the record holds. The second of two equal ones in one file is another."""
        told = (given.path, given.started_at, given.status, len(given.request))
        key = hashlib.blake2b(repr(told).encode(), digest_size=16)
        key.update(given.request)
        key.update(given.response or b"")
        found = key.hexdigest()
        self._seen[found] += 1
        return found if self._seen[found] == 1 else f"{found}-{self._seen[found]}"
