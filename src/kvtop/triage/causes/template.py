"""What no change of the request explains: the work of the chat template, or of the server."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from kvtop.triage.changes import Comparison
from kvtop.triage.kinds import Kind, Varies, Who
from kvtop.triage.prompt import Path, in_words
from kvtop.triage.result import Cause
from kvtop.triage.spans import varying
from kvtop.triage.values import SYSTEM, role, text_of

HANDFUL = 16
"""Tokens: an old prompt ends with so many at most that only ask for an answer, and that the next one need not hold."""
_THINK = re.compile(r"<think|</think|<\|channel\|>|<seed:think|\[THINK\]|◁think", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Leftover:
    """The place where two prompts part although nothing of the request does, as the server prints them."""

    lost: int
    """Tokens of the old prompt from there to its end."""
    before: str
    """Text before the place, the same in both: some hundred characters."""
    old: str
    new: str
    """Text behind it in either prompt: some hundred characters, at least the line."""


def explain(comparison: Comparison, left: Leftover, unit: int | None) -> Cause | None:
    """The cause of a leftover; None where nothing fits. What is smaller than a unit at the very end is no cause."""
    if left.lost <= HANDFUL and not left.new.startswith(left.old):
        return _empty_think(comparison, left, unit)
    for rule in (_hoisted, _reasoning_dropped, _server_date):
        if cause := rule(comparison, left):
            return cause
    return None


def not_printed(comparison: Comparison, cause: Cause, old: str, new: str) -> Cause:
    """A tool_choice from or to none that took the tools out of the prompt.
    https://github.com/ai-dynamo/dynamo/pull/7391. `old`, `new`: the texts of both prompts behind the place."""
    ids = {change.id for change in comparison.changes if change.path == ("tool_choice",)}
    name = str(comparison.new.tools[0].get("name", "")) if comparison.new.tools else ""
    gone = _says(old, name)
    if not (cause.changes & ids) or gone == _says(new, name):
        return cause
    return replace(
        cause,
        kind=Kind.TOOLS_NOT_RENDERED,
        who=Who.TEMPLATE,
        says=f"tool_choice {'took the tools out of' if gone else 'brought the tools into'} the prompt",
        fix="keep one tool_choice, or start the server without --exclude-tools-when-tool-choice-none",
    )


def _empty_think(comparison: Comparison, left: Leftover, unit: int | None) -> Cause | None:
    """The generation prompt opens a think block that the history does not hold. https://github.com/QwenLM/Qwen3/issues/1826"""
    if unit is None or left.lost < unit or not _THINK.search(left.old):
        return None
    last = len(comparison.old.messages)
    return _cause(
        Kind.EMPTY_THINK,
        comparison,
        ("messages", last),
        left,
        says="the template opens a think block where an answer begins, and prints none in the history",
        fix="use a chat template that prints the same think block in the history",
        who=Who.TEMPLATE,
    )


def _hoisted(comparison: Comparison, left: Leftover) -> Cause | None:
    """A later system message is printed into the head. https://github.com/vllm-project/vllm/issues/53393; vLLM 0.24 and
    newer log it once."""
    head = next((i for i, m in enumerate(comparison.old.messages) if role(m) not in SYSTEM), 0)
    for j in comparison.appended:
        message = comparison.new.messages[j]
        if role(message) in SYSTEM and j > head and _begins(left, text_of(message)):
            return _cause(
                Kind.SYSTEM_TURN_HOISTED,
                comparison,
                ("messages", j),
                left,
                says="a later system message is printed into the head of the prompt, before the history",
                fix="use a chat template that prints system messages where they stand, or send it as a user message",
                who=Who.SERVER,
            )
    return None


def _reasoning_dropped(comparison: Comparison, left: Leftover) -> Cause | None:
    """The template prints the reasoning of the last turn only, and drops it once a user speaks.
    https://github.com/QwenLM/Qwen3.8/issues/131"""
    for i, message in enumerate(comparison.old.messages):
        thought = message.get("reasoning")
        if not isinstance(thought, str) or not thought.strip():
            continue
        here = thought.strip()[:40] in left.old or _THINK.search(left.old[:40]) is not None
        if here and thought.strip()[:40] not in left.new[: len(left.old)] and _near(comparison, left, i):
            asked = any(role(comparison.new.messages[j]) == "user" for j in comparison.appended)
            when = " once a new user message follows" if asked else ""
            return _cause(
                Kind.REASONING_DROPPED_BY_TEMPLATE,
                comparison,
                ("messages", i),
                left,
                says=f"the template drops the reasoning of earlier messages{when}",
                fix="set chat_template_kwargs preserve_thinking where the template has it; else it is the model's way",
                who=Who.TEMPLATE,
            )
    return None


def _near(comparison: Comparison, left: Leftover, i: int) -> bool:
    """Whether the place lies at that message: what it says is printed there."""
    thought = str(comparison.old.messages[i].get("reasoning", "")).strip()
    return thought[:40] in left.before[-60:] + left.old


def _server_date(comparison: Comparison, left: Leftover) -> Cause | None:
    """The template prints today's date."""
    old, new = left.old.splitlines()[:1], left.new.splitlines()[:1]
    tail = left.before.splitlines()[-1:] if left.before and not left.before.endswith("\n") else [""]
    one, other = (tail + old), (tail + new)
    values = varying("".join(one), "".join(other))
    if values is None or Varies.DATE_TIME not in values:
        return None
    return _cause(
        Kind.SERVER_DATE,
        comparison,
        (),
        left,
        says="the chat template prints the date, and the date has changed",
        fix="a template without a date, or one that takes it from the request",
        who=Who.SERVER,
        values=(Varies.DATE_TIME,),
    )


def _begins(left: Leftover, message: str) -> bool:
    """Whether a message begins near the place in the new prompt, where the old one does not say it."""
    words = message.strip()[:24].rstrip()
    return _says(left.new[:200], words) and not _says(left.old[:200], words)


def _says(text: str, words: str) -> bool:
    """Whether these words stand in it, and not inside of others."""
    if not words:
        return False
    before, behind = (r"(?<!\w)" if words[0].isalnum() else ""), (r"(?!\w)" if len(words) < 24 else "")
    return re.search(before + re.escape(words) + behind, text) is not None


def _cause(
    kind: Kind,
    comparison: Comparison,
    path: Path,
    left: Leftover,
    *,
    says: str,
    fix: str,
    who: Who,
    values: tuple[Varies, ...] = (),
) -> Cause:
    at: Any = comparison.new.at if kind is Kind.SYSTEM_TURN_HOISTED else comparison.old.at
    return Cause(
        kind=kind,
        pointer=at(path),
        section=in_words(at(path)) or "the template",
        says=says,
        fix=fix,
        who=who,
        values=values,
        lost_tokens=left.lost,
    )
