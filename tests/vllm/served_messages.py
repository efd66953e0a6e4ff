"""What vLLM's own code makes of requests: run with the server's Python, one request a line in, one answer a line out.

In: {"route", "body", "merge_system"}. Out: {"messages", "tools", ...} or {"refused": the kind of error}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import (
    construct_input_messages,
    construct_tool_dicts,
    should_continue_final_message,
)


def of_messages(body: dict[str, Any], merge_system: bool) -> dict[str, Any]:
    request = AnthropicMessagesRequest.model_validate(body)
    chat = AnthropicServingMessages.to_chat_completion_request(request, merge_inline_system=merge_system)
    return of_chat(chat)


def of_chat(chat: ChatCompletionRequest) -> dict[str, Any]:
    chosen = chat.tool_choice
    return {
        "messages": list(chat.messages),
        "tools": [tool.model_dump() for tool in chat.tools] if chat.tools is not None else None,
        "tool_choice": chosen if chosen is None or isinstance(chosen, str) else chosen.model_dump(),
        "reasoning_effort": chat.reasoning_effort,
        "response_format": chat.response_format.model_dump(by_alias=True) if chat.response_format else None,
        "chat_template_kwargs": chat.chat_template_kwargs,
        "cache_salt": chat.cache_salt,
        "model": chat.model,
    }


def of_responses(body: dict[str, Any]) -> dict[str, Any]:
    request = ResponsesRequest.model_validate(body)
    messages = construct_input_messages(request_instructions=request.instructions, request_input=request.input)
    return {
        "messages": [plain(message) for message in messages],
        "tools": construct_tool_dicts(request.tools, request.tool_choice),
        "continue_final_message": should_continue_final_message(request.input),
    }


def plain(value: Any) -> Any:
    """Without pydantic's one-shot iterators."""
    if isinstance(value, dict):
        return {key: plain(member) for key, member in value.items()}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if hasattr(value, "model_dump"):
        return value.model_dump()
    return [plain(item) for item in value]


def main() -> None:
    for line in sys.stdin:
        given = json.loads(line)
        try:
            if given["route"] == "messages":
                out = of_messages(given["body"], given["merge_system"])
            else:
                out = of_responses(given["body"])
            out = plain(out)
        except Exception as error:  # noqa: BLE001  whatever it is, the server would not have served it
            out = {"refused": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
