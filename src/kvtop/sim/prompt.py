"""A chat body -> the token ids that the box reads, part by part.

The template prints what a ChatML template with tools prints: system text, one line of JSON a tool, the messages.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from kvtop.sim.cache import extend_chain, root_hash
from kvtop.sim.text import IM_END, IM_START, TOOLS_CLOSE, TOOLS_OPEN, tokenize

Message = Mapping[str, Any]
Tool = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the prompt."""

    ids: array[int]


@lru_cache(maxsize=256)
def _wrap(role: str) -> tuple[array[int], array[int]]:
    before = array("I", [IM_START]) + tokenize(f"{role}\n")
    return before, array("I", [IM_END]) + tokenize("\n")


def generation_prompt() -> array[int]:
    """What asks the model to speak."""
    return _wrap("assistant")[0]


def content_text(message: Message) -> str:
    """The text of a message as the template prints it: content, then each tool call as JSON between tags."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(
            p.get("text", "") for p in content if isinstance(p, Mapping) and isinstance(p.get("text"), str)
        )
    calls = message.get("tool_calls") or ()
    lines = [content] if content else []
    for call in calls:
        made = call.get("function", {}) if isinstance(call, Mapping) else {}
        lines.append(
            f"<tool_call>\n{json.dumps({'name': made.get('name'), 'arguments': made.get('arguments')})}\n</tool_call>"
        )
    return "\n".join(lines)


def message_part(message: Message) -> Part:
    """One message between its control tokens."""
    before, after = _wrap(str(message.get("role", "user")))
    return Part(before + tokenize(content_text(message)) + after)


def head_parts(system: str, tools: Sequence[Tool]) -> list[Part]:
    """System text and tools: everything that stands before the first message."""
    before, after = _wrap("system")
    parts = [Part(before + tokenize(system))]
    if tools:
        parts.append(Part(tokenize("\n\n# Tools\n") + array("I", [TOOLS_OPEN])))
        parts += [Part(tokenize(f"\n{json.dumps(tool)}")) for tool in tools]
        parts.append(Part(array("I", [TOOLS_CLOSE])))
    parts.append(Part(after))
    return parts


def parts_of(body: Mapping[str, Any]) -> list[Part]:
    """The whole prompt of a /v1/chat/completions or /tokenize body, the generation prompt last."""
    messages = [m for m in body.get("messages") or () if isinstance(m, Mapping)]
    first = messages[:1] if messages and messages[0].get("role") == "system" else []
    tools = [t for t in body.get("tools") or () if isinstance(t, Mapping)]
    parts = head_parts(content_text(first[0]) if first else "", tools) if first or tools else []
    parts += [message_part(m) for m in messages[len(first) :]]
    if body.get("add_generation_prompt", True):
        parts.append(Part(generation_prompt()))
    return parts


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids and the hashes of their full blocks."""

    ids: array[int]
    chain: list[int]


@dataclass(slots=True)
class Prompter:
    """Joins parts into prompts; what a prompt shares with the one before it is hashed once."""

    block_tokens: int
    _salt: str = ""
    _parts: list[Part] = field(default_factory=list)
    _last: Prompt = field(default_factory=lambda: Prompt(array("I"), []))

    def join(self, parts: Iterable[Part], salt: str = "") -> Prompt:
        """The prompt of these parts. Parts are compared by identity: equal text in a new part is hashed again."""
        parts = list(parts)
        same, tokens = 0, 0
        if salt == self._salt:
            for a, b in zip(self._parts, parts, strict=False):
                if a is not b:
                    break
                same += 1
                tokens += len(a.ids)
        ids = self._last.ids[:tokens]
        for part in parts[same:]:
            ids.extend(part.ids)
        chain = self._last.chain[: tokens // self.block_tokens] if same else []
        prompt = Prompt(ids, extend_chain(chain, ids, self.block_tokens, root_hash(salt)))
        self._salt, self._parts, self._last = salt, parts, prompt
        return prompt
