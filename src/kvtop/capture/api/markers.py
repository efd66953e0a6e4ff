"""Texts by which agents mark a message as something else than talk: a summary in place of the history, a side call.

For the maker of the outline: it has the text at hand, the linker has digests alone. The word goes into `Part.name`.
"""

from __future__ import annotations

SUMMARY = "summary"
SUGGESTION = "suggestion"
_LOOK = 600
"""Characters from the start that are looked at: reminders may stand before the mark."""

_MARKS = (
    ("this session is being continued from a previous conversation", SUMMARY),  # Claude Code
    ("another language model started to solve this problem", SUMMARY),  # Codex
    ("<state_snapshot>", SUMMARY),  # Gemini CLI, qwen-code
    ("the conversation history before this point was compacted into the following summary", SUMMARY),  # pi
    ("[suggestion mode:", SUGGESTION),  # Claude Code, qwen-code
)


def marker(text: str) -> str:
    """`summary`, `suggestion`, or empty for a message that is nothing but talk."""
    head = text[:_LOOK].lower()
    return next((word for mark, word in _MARKS if mark in head), "")
