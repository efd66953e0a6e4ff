"""Token ids that a server gave with its answer, where the client asked for them: the only ones that need no proof.

`return_token_ids` (since 0.10.2): chat has the prompt's ids at the top of the answer, completions in each choice, a
stream in its first chunk; the generated ids stand in the choices. Responses with `enable_response_messages` have both
as messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from kvtop.capture.api.canonical import decode
from kvtop.capture.api.sse import line_ends
from kvtop.capture.turn import Route
from kvtop.triage.ids import pack

_T = TypeVar("_T")


class _Choice(msgspec.Struct):
    index: int | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class _Message(msgspec.Struct):
    type: str = ""
    tokens: list[int] | None = None


class _Answer(msgspec.Struct):
    prompt_token_ids: list[int] | None = None
    choices: list[_Choice] | None = None
    input_messages: list[_Message] | None = None
    output_messages: list[_Message] | None = None


class _Event(msgspec.Struct):
    response: _Answer | None = None


class Served(msgspec.Struct, frozen=True):
    """Packed ids (`kvtop.triage.ids`). None: the answer does not hold them."""

    prompt: bytes | None = None
    reply: bytes | None = None
    """Of the first choice; of an answer that broke off what came of it."""


def served(route: Route, answer: bytes) -> Served:
    """What an answer, whole or a stream, holds. Never raises."""
    if b"token" not in answer:
        return Served()
    prompt: list[int] | None = None
    reply: list[int] = []
    for part in _parts(answer):
        if route is Route.RESPONSES:
            prompt = _first(part.input_messages) or prompt
            reply = _first(part.output_messages) or reply
            continue
        prompt = prompt or part.prompt_token_ids
        for choice in part.choices or ():
            if choice.index in (0, None):
                prompt = prompt or choice.prompt_token_ids
                reply += choice.token_ids or ()
    return Served(_packed(prompt), _packed(reply))


def _first(messages: list[_Message] | None) -> list[int] | None:
    """The ids of the only message; a turn with calls of the server's own tools has several, and prompts of its own."""
    return messages[0].tokens if messages and len(messages) == 1 and messages[0].type == "raw_message_tokens" else None


def _packed(ids: list[int] | None) -> bytes | None:
    try:
        return pack(ids) if ids else None
    except ValueError:
        return None


_EVENT = re.compile(rb"^data:[ ]?(\{[^\n]*token[^\n]*)", re.MULTILINE)


def _parts(answer: bytes) -> Iterator[_Answer]:
    if answer.lstrip()[:1] == b"{":
        yield from _read([answer])
    else:
        yield from _read(found[1] for found in _EVENT.finditer(line_ends(answer)))


def _read(texts: Iterable[bytes]) -> Iterator[_Answer]:
    for text in texts:
        if (part := _decode(text, _Answer)) is None:
            continue
        if part.choices is None and part.prompt_token_ids is None and b'"response"' in text:
            event = _decode(text, _Event)
            part = (event.response if event else None) or part
        yield part


def _decode(text: bytes, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return msgspec.convert(decode(text), kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
