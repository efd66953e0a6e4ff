"""Who asks: names and versions from what real programs send, and from hostile user-agents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.api.markers import _PROGRAMS, program
from kvtop.capture.api.routes import read_request
from kvtop.capture.conversations.agents import AGENTS, NAME_LIMIT, VERSION_LIMIT, name_of


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("claude-cli/2.1.332 (external, cli)", ("Claude Code", "2.1.332")),
        ("claude-cli/2.1.332 (external, sdk-cli)", ("Claude Code", "2.1.332")),
        ("opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14", ("opencode", "1.18.33")),
        ("QwenCode/0.24.4 (linux; x64)", ("qwen-code", "0.24.4")),
        ("codex_exec/0.171.0 (Debian 12.0.0; x86_64) xterm-256color (codex_exec; 0.171.0)", ("Codex", "0.171.0")),
        ("codex_cli_rs/0.171.0 (Mac OS 15.1; arm64)", ("Codex", "0.171.0")),
        ("pi/1.6.0 (linux; node/v24.22.3; x64)", ("pi", "1.6.0")),
        ("RooCode/3.1.0", ("Roo Code", "3.1.0")),
        ("Charm-Crush/0.9", ("Crush", "0.9")),
        ("OpenAI/Python 2.20.0", ("OpenAI Python", "2.20.0")),
        ("AsyncOpenAI/Python 2.54.0", ("OpenAI Python", "2.54.0")),
        ("Anthropic/JS 0.71.2", ("Anthropic JS", "0.71.2")),
        ("ai-sdk/openai-compatible/3.0.37 ai-sdk/provider-utils/5.0.30 runtime/bun/1.3.13", ("AI SDK", "3.0.37")),
        ("litellm/1.90.0", ("LiteLLM", "1.90.0")),
        ("python-httpx/0.28.1", ("unknown", None)),
        ("curl/8.5.0", ("curl", "8.5.0")),
        ("Bun/1.4.6", ("unknown", None)),
        ("Go-http-client/2.0", ("unknown", None)),
        ("axios/1.7.2", ("unknown", None)),
        ("MyThing/v2.1-beta extra", ("MyThing", "2.1-beta")),
        ("just words", ("just", None)),
        ("", ("unknown", None)),
        ("()", ("unknown", None)),
    ],
)
def test_a_user_agent_tells_the_name_that_users_say(agent: str, expected: tuple[str, str | None]) -> None:
    assert name_of([("Host", "x"), ("User-Agent", agent)], {}) == expected


def test_headers_that_one_program_sends_come_before_the_library_that_it_uses() -> None:
    library = ("User-Agent", "OpenAI/Python 2.20.0")
    assert name_of([library, ("X-Claude-Code-Session-Id", "1e37")], {})[0] == "Claude Code"
    assert name_of([library, ("originator", "codex_vscode")], {})[0] == "Codex"
    assert name_of([library, ("X-Title", "Kilo Code")], {})[0] == "Kilo Code"
    assert name_of([library, ("X-Title", "My own agent")], {}) == ("My own agent", None)
    assert name_of([("User-Agent", "opencode/1.2"), ("X-Title", "other")], {}) == ("opencode", "1.2")


def test_a_library_of_http_says_nothing_of_who_asks() -> None:
    library = ("User-Agent", "python-httpx/0.28.1")
    assert name_of([library], {}, "Mistral Vibe") == ("Mistral Vibe", None)
    assert name_of([library, ("X-Title", "My own agent")], {}) == ("My own agent", None)
    assert name_of([library], {}) == ("unknown", None)


def test_hints_stand_in_for_headers_that_are_gone() -> None:
    assert name_of([], {"x-codex-window-id": "01a2:0"})[0] == "Codex"
    assert name_of([], {}) == ("unknown", None)


VIBE = """You help with anything.

You are Mistral Vibe, a CLI coding agent built by Mistral AI.
Act first.
"""
AIDER = """Act as an expert software developer.
Always use best practices when coding.
Take requests for changes to the supplied code.
"""


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        (AIDER, "aider"),
        ("Act as an expert software developer who edits source code.\nUse a *SEARCH/REPLACE block* for each.", "aider"),
        ("Act as an expert code analyst.\nAnswer questions about the supplied code.\n", "aider"),
        ("You are Cline, an AI coding agent. Your primary goal", "cline"),
        ("\n  You are Roo, a highly skilled software engineer with", "Roo Code"),
        ("You are an agent in the Continue CLI. Given the user's prompt", "Continue"),
        ("You are OpenHands agent, a helpful AI assistant that can interact with a computer", "OpenHands"),
        ("You are gptme v0.35.1, a general-purpose AI assistant", "gptme"),
        ("Act as an expert software developer.\nWrite a parser.", ""),
        ("You are a helpful assistant. Answer like aider or Cline.", ""),
        ("You are Hermes, a large language model.", ""),
        ("", ""),
    ],
)
def test_instructions_tell_the_program_that_alone_writes_them(instructions: str, expected: str) -> None:
    assert program(instructions) == expected
    assert {name for _, _, name in _PROGRAMS} <= set(AGENTS.values())


def test_a_library_s_user_agent_gives_way_to_the_program_that_the_instructions_tell() -> None:
    library = ("User-Agent", "OpenAI/Python 2.20.0")
    assert name_of([library], {}, "aider") == ("aider", None)  # the version is the library's
    assert name_of([], {}, "aider") == ("aider", None)
    assert name_of([("User-Agent", "QwenCode/0.24.4")], {}, "aider") == ("qwen-code", "0.24.4")
    assert name_of([("User-Agent", "MyThing/2.1")], {}, "aider") == ("MyThing", "2.1")
    assert name_of([library, ("X-Title", "My own agent")], {}, "aider")[0] == "My own agent"
    assert name_of([library], {}, "") == ("OpenAI Python", "2.20.0")


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "system", "content": AIDER}]}, "aider"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "system", "content": [{"type": "text", "text": AIDER}]}]},
            "aider",
        ),
        ("/v1/messages", {"system": AIDER, "messages": []}, "aider"),
        ("/v1/messages", {"system": VIBE, "messages": []}, "Mistral Vibe"),
        ("/v1/messages", {"system": f"It wrote: {VIBE.splitlines()[2]}", "messages": []}, ""),
        ("/v1/messages", {"system": [{"type": "text", "text": "x-y: z"}, {"type": "text", "text": AIDER}]}, "aider"),
        ("/v1/responses", {"instructions": AIDER, "input": "hi"}, "aider"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": AIDER}]}, ""),
        ("/v1/chat/completions", {"messages": [{"role": "system", "content": None}]}, ""),
    ],
)
def test_a_request_tells_the_program_of_its_system_prompt(path: str, body: dict[str, object], expected: str) -> None:
    assert read_request("POST", path, [], json.dumps(body).encode()).program == expected


@given(st.text(max_size=2000))
def test_a_hostile_user_agent_is_printable_and_short(text: str) -> None:
    for headers in ([("user-agent", text)], [("x-title", text)]):
        name, version = name_of(headers, {})
        assert name and name.isprintable() and len(name) <= NAME_LIMIT
        assert version is None or (version.isprintable() and 0 < len(version) <= VERSION_LIMIT)
