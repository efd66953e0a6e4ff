"""Causes in the request as a whole: what is no text of the prompt, but is in its hash or in its template's hands."""

from __future__ import annotations

from kvtop.capture.turn import Route
from kvtop.triage.causes.board import Board
from kvtop.triage.changes import Change, What
from kvtop.triage.kinds import Kind
from kvtop.triage.tree import ABSENT
from kvtop.triage.values import salt

_TEMPLATE = frozenset(
    {
        "chat_template",
        "chat_template_kwargs",
        "reasoning_effort",
        "thinking",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "tool_choice",
        "mm_processor_kwargs",
        "media_io_kwargs",
        "add_special_tokens",
        "truncate_prompt_tokens",
        "truncation_side",
        "truncation",
        "prompt_embeds",
    }
)
_UNSAID = {
    "add_generation_prompt": True,
    "continue_final_message": False,
    "tool_choice": "auto",
    "add_special_tokens": False,
    "truncation": "disabled",
}
"""What it is where it is not said."""


def model_changed(board: Board) -> None:
    """Another model or adapter: its blocks have other hashes. https://github.com/vllm-project/vllm/issues/23301"""
    if changes := _inputs(board, "model"):
        was, now = changes[0].old, changes[0].new
        board.claim(
            Kind.MODEL_CHANGED,
            changes,
            f"the model or adapter changed from {_word(was)} to {_word(now)}; a cache is one model's alone",
            "keep one model or adapter for a conversation",
        )


def template_inputs_changed(board: Board) -> None:
    """What the chat template is given besides messages and tools: kwargs, effort, documents, tool_choice.
    https://github.com/vllm-project/vllm/issues/17177"""
    changes = [
        change
        for change in _inputs(board, *_TEMPLATE)
        if _said(board, change.old, change.path) != _said(board, change.new, change.path)
        and (change.path != ("tool_choice",) or _may_hide_tools(board, change))  # else it only binds the answer
    ]
    if changes:
        names = ", ".join(str(change.path[0]) for change in changes)
        verb = "changes" if len(changes) == 1 else "change"
        board.claim(
            Kind.TEMPLATE_INPUTS_CHANGED,
            changes,
            f"{names} {verb} between the two turns; the server makes another prompt of them",
            f"send the same {names} on every turn of a conversation",
        )


def response_format_changed(board: Board) -> None:
    """A schema that the template prints, for models that print it."""
    changes = [c for c in _inputs(board, "response_format") if _format(c.old) != _format(c.new)]
    if changes:
        board.claim(
            Kind.RESPONSE_FORMAT_CHANGED,
            changes,
            "the response format changes between the two turns; some templates print it into the system prompt",
            "send the same response_format on every turn, or only on calls of its own conversation",
        )


def cache_salt_changed(board: Board) -> None:
    """The salt is in the hash of the first block, and so in all (vLLM 0.9 and newer)."""
    if changes := _inputs(board, "cache_salt"):
        board.claim(
            Kind.CACHE_SALT_CHANGED,
            changes,
            f"the cache_salt changed from {salt(changes[0].old)} to {salt(changes[0].new)}; no block of the earlier "
            "prompt can be found under another one",
            "keep one cache_salt for all turns that may share a cache",
        )


def prompt_logprobs_set(board: Board) -> None:
    """A request that asks for prompt_logprobs reads nothing from the cache (vLLM, to 0.33). `echo` asks for them where
    the answer's are asked for. https://github.com/vllm-project/vllm/issues/57596"""
    changes = [change for change in _inputs(board, "prompt_logprobs", "echo") if change.new is not ABSENT]
    if changes:
        board.claim(
            Kind.PROMPT_LOGPROBS_SET,
            changes,
            f"{changes[0].path[0]} is set: vLLM reads no cached block for such a request",
            "ask for prompt_logprobs in a request of its own",
        )


def leftover_inputs(board: Board) -> None:
    """Inputs that change nothing where they stand (an unset value said aloud) explain nothing, and are no cause."""
    board.drop(board.free(What.INPUT))


def _inputs(board: Board, *names: str) -> list[Change]:
    return [change for change in board.free(What.INPUT) if change.path[0] in names]


def _may_hide_tools(board: Board, change: Change) -> bool:
    """A tool_choice from or to none, where there are tools that a server may leave out because of it."""
    tools = board.comparison.old.tools or board.comparison.new.tools
    return bool(tools) and "none" in (change.old, change.new)


def _format(value: object) -> object:
    """Plain text is what is answered where no format is said."""
    return None if value is ABSENT or value == {"type": "text"} else value


def _said(board: Board, value: object, path: tuple[str | int, ...]) -> object:
    default = _UNSAID.get(str(path[0]))
    if path == ("add_special_tokens",):
        default = board.comparison.new.route is Route.COMPLETIONS
    if value is ABSENT or value is None:
        return default
    return None if value in ({}, []) else value


def _word(value: object) -> str:
    return "none" if value is ABSENT else f"“{value}”"


RULES = (
    model_changed,
    template_inputs_changed,
    response_format_changed,
    cache_salt_changed,
    prompt_logprobs_set,
    leftover_inputs,
)
