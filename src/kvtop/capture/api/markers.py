"""Texts by which agents tell what a message is: a summary in place of the history, a side call, their own instructions.

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


_PROGRAMS = (
    ("act as an expert software developer", "take requests for changes to the supplied code.", "aider"),
    ("act as an expert software developer", "*search/replace block*", "aider"),
    ("act as an expert software developer and make changes", "output a copy of each file that needs", "aider"),
    ("act as an expert architect engineer and provide direction to your editor engineer.", "", "aider"),
    ("act as an expert code analyst.", "answer questions about the supplied code.", "aider"),
    ("act as an expert code analyst.", "determine all the existing sources files", "aider"),
    ("you are an expert on the ai coding tool called aider.", "", "aider"),
    ("you are cline, a", "", "cline"),
    ("you are roo, a", "", "Roo Code"),
    ("you are kilo, a", "", "Kilo Code"),
    ("you are kilo code, a", "", "Kilo Code"),
    ("you are an agent in the continue cli.", "", "Continue"),
    ("you are openhands agent,", "", "OpenHands"),
    ("you are gptme v", "", "gptme"),
    ("you are a general-purpose ai agent called goose,", "", "goose"),
    ("you are operating as and within mistral vibe,", "", "Mistral Vibe"),
    ("you are a coding agent running in the codex cli,", "", "Codex"),
    ("you are opencode, an", "", "opencode"),
    ("you are qwen code, a", "", "qwen-code"),
    ("you are claude code, anthropic's official cli", "", "Claude Code"),
    ("you are a coding assistant running inside pi,", "", "pi"),
)
"""How the instructions of a program begin, what else they hold, and its name. Only what nobody else would write: an
opening that any prompt may have (`Act as an expert software developer`) needs a second mark."""

_LINES = (("you are mistral vibe, a cli coding agent built by mistral ai.", "Mistral Vibe"),)
"""Lines of its own by which a program names itself further down."""


def program(instructions: str) -> str:
    """The name of the program that writes a system prompt like this; empty where that cannot be told."""
    head = instructions[:_LOOK].lstrip().lower()
    for opening, more, name in _PROGRAMS:
        if head.startswith(opening) and (not more or more in instructions.lower()):
            return name
    lines = instructions.lower().splitlines()
    return next((name for line, name in _LINES if line in lines), "")
