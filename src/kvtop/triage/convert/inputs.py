"""What beside tools and messages reaches a prompt, or the hash of its blocks."""

from __future__ import annotations

from typing import Any

from kvtop.capture.api.canonical import object_of
from kvtop.capture.turn import Route

_PLAIN = (
    "model",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "documents",
    "tool_choice",
    "response_format",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "truncate_prompt_tokens",
    "truncation_side",
    "prompt_logprobs",
    "prompt_embeds",
)
"""Named alike on every route that has them. `model` names the adapter too."""


def render_inputs(route: Route, body: object) -> dict[str, Any]:
    """The members of a request that decide about its prompt beside tools and messages, under the names of the chat
    route; None and what is absent is left out. Never raises."""
    found = object_of(body)
    inputs = {key: found[key] for key in _PLAIN if found.get(key) is not None}
    if route is Route.MESSAGES:
        config = object_of(found.get("output_config"))
        inputs |= _named(reasoning_effort=config.get("effort"), response_format=config.get("format"))
        # Enabled or adaptive, and with whatever budget, it binds the answer alone.
        inputs |= _named(thinking="disabled" if object_of(found.get("thinking")).get("type") == "disabled" else None)
    elif route is Route.RESPONSES:
        effort = object_of(found.get("reasoning")).get("effort")
        inputs |= _named(reasoning_effort=effort, response_format=object_of(found.get("text")).get("format"))
        inputs |= _named(previous_response_id=found.get("previous_response_id"), truncation=found.get("truncation"))
    if found.get("echo") is True and "prompt_logprobs" not in inputs and _logprobs(route, found) is not None:
        inputs["echo"] = True  # which makes the server ask for prompt_logprobs, with which no cache is read
    return inputs


def _logprobs(route: Route, found: dict[str, Any]) -> object:
    """How many of the answer are asked for; None: none."""
    return found.get("logprobs") if route is Route.COMPLETIONS else found.get("top_logprobs", 0)


def _named(**values: object) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
