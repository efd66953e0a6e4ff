"""What a server is asked for a prompt's tokens: bodies for the render routes and for /tokenize. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvtop.capture.api.canonical import encode, object_of
from kvtop.capture.turn import Route
from kvtop.triage.convert import version as v
from kvtop.triage.convert.converted import Converted, items

RENDER = {
    Route.CHAT: "/v1/chat/completions/render",
    Route.COMPLETIONS: "/v1/completions/render",
    Route.MESSAGES: "/v1/messages/render",
    Route.RESPONSES: "/v1/responses/render",
}
"""Chat and completions since 0.15, messages 0.29, responses 0.30; from 0.30 only with --enable-scale-out."""

_CHAT = (
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "mm_processor_kwargs",
    "media_io_kwargs",
)
"""What /tokenize has in common with the chat route (all by 0.9.2, media_io_kwargs by 0.18)."""

_PICTURES = re.compile(rb'"(?:image|image_url|input_image|video_url|audio_url|input_audio|source)"')


def without_media(body: bytes) -> bytes:
    """A render request that leaves the tensors of pictures out of the answer: megabytes each, and nobody needs them."""
    at = body.find(b"{")
    if at < 0 or not _PICTURES.search(body) or b'"mm_payload"' in body or body[at + 1 :].lstrip()[:1] == b"}":
        return body
    # mm_payload since 0.32, before that its older name; who knows neither ignores them.
    return body[: at + 1] + b'"mm_payload":"none","return_mm_kwargs":false,' + body[at + 1 :]


def render_chat(chat: Mapping[str, Any]) -> bytes:
    """A converted request for the chat route's render. Raises ValueError where it is nested too deeply."""
    # The chat route refuses an empty list of tools, which the other routes may have.
    return without_media(encode({key: value for key, value in chat.items() if key != "tools" or value}))


def tokenize_chat(chat: Mapping[str, Any], version: str | None) -> bytes:
    """A chat request for /tokenize, which knows neither reasoning_effort nor documents and has no server default for
    them: they go where the chat route puts them, into the template's arguments. Raises ValueError."""
    body = {key: chat[key] for key in _CHAT if chat.get(key) is not None}
    arguments = dict(object_of(chat.get("chat_template_kwargs")))
    effort = chat.get("reasoning_effort")
    if effort is not None and "enable_thinking" not in arguments and v.at_least(version, v.EFFORT_ENABLES_THINKING):
        arguments["enable_thinking"] = effort != "none"
    for key in ("documents", "reasoning_effort"):
        if chat.get(key) not in (None, "auto"):
            arguments[key] = chat[key]
    if arguments:
        body["chat_template_kwargs"] = arguments
    if v.at_least(version, v.REASONING_RENAMED) and isinstance(body.get("messages"), list):
        body["messages"] = [_renamed(message) for message in body["messages"]]
    return encode(body)


def _renamed(message: Any) -> Any:
    """As the chat route reads it: since 0.22 it takes `reasoning_content` for `reasoning`, which /tokenize does not."""
    if not isinstance(message, dict) or "reasoning_content" not in message:
        return message
    kept = {key: value for key, value in message.items() if key != "reasoning_content"}
    if kept.get("reasoning") is None and message["reasoning_content"] is not None:
        kept["reasoning"] = message["reasoning_content"]
    return kept


def tokenize_text(prompt: str, body: Mapping[str, Any]) -> bytes:
    """A completions prompt for /tokenize. Raises ValueError."""
    asked = {key: body[key] for key in ("model", "add_special_tokens") if body.get(key) is not None}
    return encode(asked | {"prompt": prompt})


def digest(route: Route, made: Converted, inputs: Mapping[str, Any]) -> bytes:
    """Equal for requests of a route whose prompts are: 16 bytes over what reaches a prompt. Raises ValueError."""
    chat = made.chat or {}
    said = [chat.get("messages"), chat.get("tools"), chat.get("reasoning_effort")]
    parts = [route.value, made.prompt, said, dict(inputs)]
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        text = encode(part)
        hashed.update(len(text).to_bytes(8, "little") + text)
    return hashed.digest()


def media(chat: Mapping[str, Any] | None) -> Iterator[tuple[tuple[str | int, ...], bytes]]:
    """The pictures and sounds of a chat request, in order: the path of each, and a digest of what it is given as."""
    for n, message in enumerate(object_of(chat).get("messages") or ()):
        for part, at in items(object_of(message).get("content"), ""):
            found = object_of(part)
            if found.get("type") in (None, "text", "thinking", "refusal", "tool_reference") or not found:
                continue
            try:
                yield ("messages", n, "content", int(at[1:])), hashlib.blake2b(encode(found), digest_size=16).digest()
            except ValueError:
                continue
