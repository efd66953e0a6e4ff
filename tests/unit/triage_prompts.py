"""Prompts made by hypothesis: like those of agents, and like nothing at all."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvtop.triage.prompt import Prompt, from_chat

WORDS = st.sampled_from(
    ["fix the bug", "line\n", "2026-03-22 10:01:02", "<system-reminder>plan mode off</system-reminder>", "é\u0301", " ",
     "call_a1b2c3d4", "fc9aab5b-da05-4cc7-bbe2-410a1c472151", "Today is Sun Mar 22 2026.", "/tmp/x/y", "12 tokens left",
     "\x1b[31m", "\u202e", "[bold]", '{"a": 1, "b": 2}', '{"b": 2, "a": 1}', "# Memory", "[Old tool result cleared]"]
)  # fmt: skip
TEXT = st.lists(WORDS | st.text(max_size=12), max_size=6).map("\n".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
BLOCK = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}),
    st.fixed_dictionaries(
        {"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": st.text(max_size=4)})}
    ),
    JSON,
)
CALL = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["call_1", "call_2", "call_a1b2c3d4"]),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": st.sampled_from(["read", "bash"]), "arguments": TEXT}),
    }
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXT | st.lists(BLOCK, max_size=3)},
    optional={
        "reasoning": TEXT,
        "tool_calls": st.lists(CALL | JSON, max_size=3),
        "tool_call_id": st.sampled_from(["call_1", "call_2"]),
        "name": st.text(max_size=3),
    },
)
NAMES = st.sampled_from(["read", "grep", "bash", "mcp__a__x", "t_7f3a9b", "t_1c2d3e"])
TOOL = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["read", "grep", "bash", "mcp__a__x", "t_7f3a9b", "t_1c2d3e"]),
                "description": TEXT,
            },
            optional={"parameters": st.dictionaries(st.sampled_from("abc"), JSON, max_size=3), "strict": st.booleans()},
        ),
    }
)
CHAT = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE | JSON, max_size=6)},
    optional={"tools": st.lists(TOOL | JSON, max_size=4)},
)
INPUTS = st.dictionaries(st.sampled_from(["model", "cache_salt", "tool_choice", "prompt_logprobs"]), JSON, max_size=3)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Prompt, Prompt]:
    """Two prompts of which the second is the first one edited, as often as not."""
    old = draw(CHAT)
    new = draw(CHAT) if draw(st.booleans()) else _edited(draw, old)
    return from_chat(old, draw(INPUTS)), from_chat(new, draw(INPUTS))


def _edited(draw: st.DrawFn, chat: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, of in (("messages", MESSAGE), ("tools", TOOL)):
        items = list(chat.get(key, []))
        for _ in range(draw(st.integers(0, 3))):
            at = draw(st.integers(0, len(items)))
            match draw(st.sampled_from(["insert", "remove", "replace", "edit", "swap"])):
                case "insert":
                    items.insert(at, draw(of))
                case "remove" if at < len(items):
                    del items[at]
                case "replace" if at < len(items):
                    items[at] = draw(of)
                case "edit" if (
                    at < len(items) and isinstance(items[at], dict) and isinstance(items[at].get("content"), str)
                ):
                    text = items[at]["content"]
                    cut = draw(st.integers(0, len(text)))
                    items[at] = {
                        **items[at],
                        "content": text[:cut] + draw(TEXT) + text[cut + draw(st.integers(0, 3)) :],
                    }
                case "swap" if at + 1 < len(items):
                    items[at], items[at + 1] = items[at + 1], items[at]
        out[key] = items
    return out
