"""Who asks: the program behind a request, told from its user-agent, else from other headers that only it sends, else
from the instructions that only it writes.

A user-agent is text from outside: what comes back is printable and short.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kvtop.errors import printable

UNKNOWN = "unknown"
NAME_LIMIT = 40
VERSION_LIMIT = 24
_READ = 500
"""Characters of a header that are looked at: a name stands in front."""

AGENTS = {
    "claude-cli": "Claude Code",
    "claude-code": "Claude Code",
    "opencode": "opencode",
    "qwencode": "qwen-code",
    "qwen-code": "qwen-code",
    "codex": "Codex",
    "pi": "pi",
    "pi-coding-agent": "pi",
    "omp": "oh-my-pi",
    "oh-my-pi": "oh-my-pi",
    "aider": "aider",
    "cline": "cline",
    "roocode": "Roo Code",
    "roo-code": "Roo Code",
    "kilo": "Kilo Code",
    "kilo-code": "Kilo Code",
    "kilocode": "Kilo Code",
    "opencode-kilo": "Kilo Code",
    "continue": "Continue",
    "gemini-cli": "Gemini CLI",
    "geminicli": "Gemini CLI",
    "goose": "goose",
    "crush": "Crush",
    "charm-crush": "Crush",
    "hermes": "Hermes",
    "hermes-agent": "Hermes",
    "hermesagent": "Hermes",
    "mistral-vibe": "Mistral Vibe",
    "vibe": "Mistral Vibe",
    "openhands": "OpenHands",
    "gptme": "gptme",
    "mini-swe-agent": "mini-swe-agent",
    "kimi-cli": "Kimi CLI",
    "kimicli": "Kimi CLI",
    "zed": "Zed",
    "cursor": "Cursor",
    "githubcopilotchat": "Copilot Chat",
    "open-webui": "Open WebUI",
    "openclaw": "OpenClaw",
}
"""The first product of a user-agent, in small letters, and the name that its users say."""

USE_TOOLS = frozenset(
    {
        "Claude Code",
        "opencode",
        "qwen-code",
        "Codex",
        "pi",
        "oh-my-pi",
        "Kilo Code",
        "Gemini CLI",
        "Hermes",
        "Crush",
        "goose",
    }
)
"""Agents that offer tools with every turn of their talk: a request of theirs without any is a side call."""

LIBRARIES = {
    "openai/python": "OpenAI Python",
    "asyncopenai/python": "OpenAI Python",
    "openai/js": "OpenAI JS",
    "anthropic/python": "Anthropic Python",
    "asyncanthropic/python": "Anthropic Python",
    "anthropic/js": "Anthropic JS",
    "ai-sdk": "AI SDK",
    "ai": "AI SDK",
    "litellm": "LiteLLM",
    "curl": "curl",
    "mozilla": "browser",
}
"""Libraries and plain clients: their name is given only where nothing tells the program that uses them."""
HTTP = frozenset(
    {
        "python-httpx",
        "httpx",
        "python-requests",
        "python-urllib",
        "python-urllib3",
        "aiohttp",
        "python",
        "go-http-client",
        "node",
        "node-fetch",
        "undici",
        "axios",
        "got",
        "bun",
        "deno",
        "okhttp",
        "java",
        "java-http-client",
        "apache-httpclient",
        "reqwest",
        "hyper",
        "ruby",
        "faraday",
        "guzzlehttp",
        "dart",
    }
)
"""What any program may send with: these names say nothing of who asks."""

_SIGNS = (
    ("x-claude-code-session-id", "Claude Code"),
    ("x-codex-window-id", "Codex"),
    ("x-codex-turn-metadata", "Codex"),
    ("x-opencode-session", "opencode"),
    ("x-kilocode-taskid", "Kilo Code"),
)
"""Headers that one program alone sends."""
_NAMING = ("originator", "x-title", "x-openrouter-title")
"""Headers whose value is the program's name."""

_PRODUCT = re.compile(
    r"\s*([^\s/()]+(?:/(?:Python|JS|openai-compatible|openai|anthropic))?)(?:[/ ]v?([0-9][\w.+-]*))?", re.I
)


def name_of(
    headers: Sequence[tuple[str, str]], hints: Mapping[str, str], instructions: str = ""
) -> tuple[str, str | None]:
    """The program's name and version. `hints` are looked at for headers that an import no longer has; `instructions`
    is the program that the system prompt tells.

    An agent that its user-agent names comes first, then one that other headers tell, then one whose instructions stand
    in the prompt under the user-agent of a library or of none, then that library, unless any program may send with it.
    An own user-agent stays its own.
    """
    seen = {name.lower(): value for name, value in hints.items()}
    seen.update((name.lower(), value) for name, value in headers)
    product, version = _product(seen.get("user-agent", ""))
    agent = _agent(product)
    if agent:
        return agent, version
    agent = next((name for sign, name in _SIGNS if seen.get(sign)), "") or _named(seen)
    if agent:
        return agent, None
    library = _library(product)
    nobody = not product or product.lower().split("/", 1)[0] in HTTP
    if instructions and (library or nobody):
        return instructions, None
    if nobody:
        return UNKNOWN, None
    return library or printable(product, NAME_LIMIT) or UNKNOWN, version


def _product(text: str) -> tuple[str, str | None]:
    found = _PRODUCT.match(text[:_READ])
    if not found:
        return "", None
    version = found[2]
    return found[1], printable(version, VERSION_LIMIT) if version else None


def _agent(product: str) -> str:
    low = product.lower()
    if low.startswith(("codex_", "codex-")):  # codex_exec, codex_cli_rs, codex_vscode, codex-tui
        return AGENTS["codex"]
    return AGENTS.get(low, "")


def _named(seen: Mapping[str, str]) -> str:
    for header in _NAMING:
        value = seen.get(header, "")[:_READ].strip()
        if value:
            return _agent("-".join(value.split())) or printable(value, NAME_LIMIT)
    return ""


def _library(product: str) -> str:
    low = product.lower()
    return LIBRARIES.get(low) or LIBRARIES.get(low.split("/", 1)[0], "")
