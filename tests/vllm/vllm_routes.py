"""The same question on every route, and what each route's answers say of themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vllm_agent import SYSTEM, Usage

SCHEMA = {
    "type": "object",
    "properties": {"mode": {"type": "string", "enum": ["on", "off"]}},
    "required": ["mode"],
    "additionalProperties": False,
}
SAYS = "Switch the light on or off."
CHAT_TOOL = {"type": "function", "function": {"name": "switch", "description": SAYS, "parameters": SCHEMA}}
MESSAGES_TOOL = {"name": "switch", "description": SAYS, "input_schema": SCHEMA}
RESPONSES_TOOL = {"type": "function", "name": "switch", "description": SAYS, "parameters": SCHEMA}


@dataclass(frozen=True)
class Shape:
    """One kind of request."""

    route: str
    path: str
    body: dict[str, Any]
    stream: bool

    @property
    def name(self) -> str:
        return f"{self.route}{' stream' if self.stream else ''}{' tools' if 'tools' in self.body else ''}"


def shapes(task: str, *, max_tokens: int = 40) -> Iterator[Shape]:
    """Every route, whole and streamed, without and with tools."""
    common = {"model": "tiny", "temperature": 0, "seed": 7}
    talk = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
    chat = common | {"messages": talk, "max_tokens": max_tokens}
    text = common | {"prompt": SYSTEM + task, "max_tokens": max_tokens}
    messages = common | {"system": SYSTEM, "messages": talk[1:], "max_tokens": max_tokens}
    responses = common | {"instructions": SYSTEM, "input": task, "max_output_tokens": max_tokens}
    named = {"type": "function", "function": {"name": "switch"}}
    bodies = (
        ("chat", "/v1/chat/completions", chat),
        ("chat", "/v1/chat/completions", chat | {"tools": [CHAT_TOOL], "tool_choice": named}),
        ("completions", "/v1/completions", text),
        ("messages", "/v1/messages", messages),
        ("messages", "/v1/messages", messages | {"tools": [MESSAGES_TOOL], "tool_choice": {"type": "any"}}),
        ("responses", "/v1/responses", responses),
        (
            "responses",
            "/v1/responses",
            responses | {"tools": [RESPONSES_TOOL], "tool_choice": {"type": "function", "name": "switch"}},
        ),
    )
    for route, path, body in bodies:
        yield Shape(route, path, body, stream=False)
        usage = {"stream_options": {"include_usage": True}} if route in ("chat", "completions") else {}
        yield Shape(route, path, body | {"stream": True} | usage, stream=True)


@dataclass(frozen=True)
class Told:
    """What one answer said of itself."""

    usage: Usage
    finish: str
    id: str


def told(shape: Shape, body: bytes) -> Told:
    """Reads an answer as that route's client does."""
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    document = events[-1] if shape.stream else json.loads(body)
    if shape.route == "messages":
        start = events[0]["message"] if shape.stream else document
        end = next(event for event in events if event["type"] == "message_delta") if shape.stream else document
        usage = end["usage"]
        cached = usage["cache_read_input_tokens"]
        prompt = usage["input_tokens"] + cached + usage["cache_creation_input_tokens"]
        finish = (end["delta"] if shape.stream else document)["stop_reason"]
        return Told(Usage(prompt, cached, usage["output_tokens"]), finish, start["id"])
    if shape.route == "responses":
        document = document["response"] if shape.stream else document
        usage = document["usage"]
        details = document["incomplete_details"]
        return Told(
            Usage(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]),
            details["reason"] if details else document["status"],
            document["id"],
        )
    choices = [choice for event in (events or [document]) for choice in event["choices"]]
    (finish,) = filter(None, (choice["finish_reason"] for choice in choices))
    usage = document["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Told(Usage(usage["prompt_tokens"], cached, usage["completion_tokens"]), finish, document["id"])
