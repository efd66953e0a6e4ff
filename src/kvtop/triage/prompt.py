"""What of a request reaches the prompt, in one form for every route: tools, messages, inputs of the template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvtop.capture.turn import Route

Path = tuple[str | int, ...]
"""Into the chat form: ("tools", 3, "function", "parameters")."""

_TOOL_KEYS = ("name", "description", "parameters", "strict", "defer_loading")
"""Of a function what vLLM hands to the template (0.27 and newer; older ones hand on any key)."""
_MESSAGE_KEYS = frozenset(
    {"role", "name", "content", "reasoning", "reasoning_content", "tool_calls", "tool_call_id", "tools", "task"}
)
"""Of a message what vLLM hands to the template; what clients and gateways note besides goes no further."""
_NOT_READ = frozenset({"cache_control", "annotations", "id", "status", "index"})
"""Of a block, a call or a tool what no template prints."""


class At(Protocol):
    """Where a path into the chat form stands in the request as it was sent, as a JSON pointer. `at`: the character of
    the text there, which decides where a text was joined from several."""

    def __call__(self, path: Path, at: int | None = None) -> str: ...


def pointer(path: Path, at: int | None = None) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def in_words(pointer: str) -> str:
    """A JSON pointer as people write it: messages[124].content."""
    out = ""
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        out += f"[{step}]" if step.isascii() and step.isdigit() else f".{step}" if out else step
    return out


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in chat form. Plain JSON values; whoever changes one makes a new one."""

    tools: tuple[dict[str, Any], ...] = ()
    """The function objects, in their order."""
    messages: tuple[dict[str, Any], ...] = ()
    """role, content (a text or blocks), reasoning, tool_calls, tool_call_id, name. Of the completions route one, whose
    content is the prompt."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """What else reaches the prompt or the hash of its blocks: model, cache_salt, chat_template_kwargs, ..."""
    route: Route = Route.CHAT
    at: At = pointer
    notes: tuple[str, ...] = ()
    """Why this may not be what the server made of it, one line each."""

    def chat(self) -> dict[str, Any]:
        """A chat request with this prompt."""
        made: dict[str, Any] = {"messages": list(self.messages), **self.inputs}
        if self.tools:
            made["tools"] = [{"type": "function", "function": tool} for tool in self.tools]
        return made


def from_chat(
    chat: Mapping[str, Any],
    inputs: Mapping[str, Any],
    *,
    route: Route = Route.CHAT,
    at: At = pointer,
    notes: tuple[str, ...] = (),
) -> Prompt:
    """The prompt of a body in chat form. What is not as it should be is left out, never an error."""
    tools = chat.get("tools")
    messages = chat.get("messages")
    return Prompt(
        tools=tuple(_tool(tool) for tool in tools) if isinstance(tools, list) else (),
        messages=tuple(_message(message) for message in messages) if isinstance(messages, list) else (),
        inputs=dict(inputs),
        route=route,
        at=at,
        notes=notes,
    )


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict):
        return {"name": "", "parameters": tool}
    inner = tool.get("function")
    inner = inner if isinstance(inner, dict) else tool
    if "name" not in inner:
        return {key: value for key, value in inner.items() if value is not None and key not in _NOT_READ}
    return {key: inner[key] for key in _TOOL_KEYS if inner.get(key) is not None}


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        return {"role": "", "content": message}
    made = {key: value for key, value in message.items() if value is not None and key in _MESSAGE_KEYS}
    if "reasoning_content" in made:
        thought = made.pop("reasoning_content")
        made.setdefault("reasoning", thought)
    if not made.get("tool_calls", True):
        del made["tool_calls"]
    elif isinstance(calls := made.get("tool_calls"), list):
        made["tool_calls"] = [_call(call) for call in calls]
    if made.get("reasoning") == "":
        del made["reasoning"]
    made["content"] = _content(made.get("content", ""))
    return made


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [_block(block) for block in content]


def _block(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    made = {key: value for key, value in block.items() if value is not None and key not in _NOT_READ}
    if isinstance(picture := made.get("image_url"), dict) and "detail" in picture:  # vLLM knows one way to see it
        made["image_url"] = {key: value for key, value in picture.items() if key != "detail"}
    return made


def _call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    return {key: value for key, value in call.items() if value is not None and key != "index"}


def reads_nothing(prompt: Prompt) -> bool:
    """vLLM reads no cached block for a request that asks for prompt_logprobs (to 0.33); `echo` asks for them too."""
    return any(prompt.inputs.get(name) is not None for name in ("prompt_logprobs", "echo"))
