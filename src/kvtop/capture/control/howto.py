"""The lines that point an agent at a tap: environment, configuration file, command. Texts only.

`<BASE>` stands for the tap's address, `<V1>` for the same with /v1, `<MODEL>` for the model as the server calls it,
`<CONTEXT>` for its context in tokens and `<OUTPUT>` for the most tokens of an answer that leave room for a prompt.
What is not known stays as it is, for its reader to fill in. `<LIMIT>` is a line that only some servers need.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

_SAFE = re.compile(r"[\w./:@+-]{1,200}", re.ASCII)
_OUTPUT_TOKENS = 8192
_SHARE = 4
"""At most this part of the context is for the answer: the rest is the prompt's."""


@dataclass(frozen=True)
class Agent:
    """One agent and how it is told."""

    name: str
    title: str
    text: str
    """Lines to copy; what is a remark begins with #."""
    aliases: tuple[str, ...] = ()
    asks: int = 0
    """Output tokens that it asks for whatever the server's context is."""
    limit: str = ""
    """The line in place of `<LIMIT>`, where those are too many."""


@dataclass(frozen=True)
class Known:
    """What can be filled in; None where it is not known."""

    base: str | None = None
    model: str | None = None
    context: int | None = None


def find(name: str) -> Agent | None:
    """The agent of that name or other name, in any case."""
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    return next((agent for agent in AGENTS if wanted in (agent.name, *agent.aliases)), None)


def near(name: str) -> list[str]:
    """Names of agents that may have been meant."""
    words = {word: agent.name for agent in AGENTS for word in (agent.name, *agent.aliases)}
    begun = [agent for word, agent in words.items() if len(name) > 1 and word.startswith(name.lower())]
    alike = [words[word] for word in get_close_matches(name.lower(), words, 3, 0.6)]
    return list(dict.fromkeys(begun + alike))


def lines(agent: Agent, known: Known) -> str:
    """The agent's lines with what is known filled in, ending in a newline."""
    text = agent.text.strip("\n") + "\n"
    many = known.context is not None and agent.asks > known.context // _SHARE
    text = text.replace("<LIMIT>\n", f"{agent.limit}\n" if many else "")
    if known.base is not None:
        text = text.replace("<V1>", f"{known.base}/v1").replace("<BASE>", known.base)
    if usable(known.model):
        text = text.replace("<MODEL>", str(known.model))
    if known.context is not None:
        output = min(_OUTPUT_TOKENS, known.context // _SHARE)
        text = text.replace("<CONTEXT>", str(known.context)).replace("<OUTPUT>", str(output))
    return text


def usable(model: str | None) -> bool:
    """A model's name that means the same in a shell, in JSON, YAML and TOML: others are not written into lines that
    people paste."""
    return model is not None and _SAFE.fullmatch(model) is not None


_AI_SDK = """
{
  "$schema": "https://opencode.ai/config.json",
  "provider": {
    "local": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "local",
      "options": {"baseURL": "<V1>", "apiKey": "local"},
      "models": {
        "<MODEL>": {"name": "<MODEL>", "tool_call": true, "limit": {"context": <CONTEXT>, "output": <OUTPUT>}}
      }
    }
  }
}
"""

_LIMIT = """\
# it asks for 32000 output tokens, too many for this server's context of <CONTEXT>:
export <NAME>=<OUTPUT>"""

AGENTS: tuple[Agent, ...] = (
    Agent(
        "claude",
        "Claude Code (route messages)",
        """
export ANTHROPIC_BASE_URL=<BASE>          # without /v1
export ANTHROPIC_AUTH_TOKEN=local
export ANTHROPIC_MODEL=<MODEL>
export ANTHROPIC_DEFAULT_OPUS_MODEL=<MODEL>
export ANTHROPIC_DEFAULT_SONNET_MODEL=<MODEL>
export ANTHROPIC_DEFAULT_HAIKU_MODEL=<MODEL>
<LIMIT>
# its first system block differs with each conversation's first prompt, and servers that do not drop it read all anew:
export CLAUDE_CODE_ATTRIBUTION_HEADER=0
# no update checks and no telemetry:
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude
""",
        ("claude-code",),
        asks=32_000,
        limit=_LIMIT.replace("<NAME>", "CLAUDE_CODE_MAX_OUTPUT_TOKENS"),
    ),
    Agent(
        "opencode",
        "opencode (route chat)",
        f"""
# opencode.json in the project, or ~/.config/opencode/opencode.json
{_AI_SDK.strip()}
# then
opencode -m local/<MODEL>
# the other routes: "npm": "@ai-sdk/openai" asks responses, "@ai-sdk/anthropic" asks messages
""",
    ),
    Agent(
        "qwen",
        "qwen-code (route chat)",
        """
export OPENAI_BASE_URL=<V1>
export OPENAI_API_KEY=local
export OPENAI_MODEL=<MODEL>
<LIMIT>
qwen --auth-type openai
# the other routes: --auth-type openai-responses; or ANTHROPIC_BASE_URL=<BASE>, ANTHROPIC_API_KEY=local,
# ANTHROPIC_MODEL=<MODEL> and --auth-type anthropic
""",
        ("qwen-code",),
        asks=32_000,
        limit=_LIMIT.replace("<NAME>", "QWEN_CODE_MAX_OUTPUT_TOKENS"),
    ),
    Agent(
        "codex",
        "Codex (route responses, the only one it has)",
        """
# ~/.codex/config.toml, the first three lines before any [table]
model = "<MODEL>"
model_provider = "local"
model_context_window = <CONTEXT>

[model_providers.local]
name = "local"
base_url = "<V1>"
env_key = "LOCAL_KEY"
wire_api = "responses"
# then
LOCAL_KEY=local codex
""",
        ("openai-codex",),
    ),
    Agent(
        "pi",
        "pi (route chat)",
        """
# ~/.pi/agent/models.json
{
  "providers": {
    "local": {
      "baseUrl": "<V1>",
      "api": "openai-completions",
      "apiKey": "local",
      "models": [{"id": "<MODEL>", "contextWindow": <CONTEXT>, "maxTokens": <OUTPUT>}]
    }
  }
}
# then
pi --provider local --model <MODEL>
# the other routes: "api": "openai-responses"; or "anthropic-messages" with "baseUrl": "<BASE>"
""",
    ),
    Agent(
        "aider",
        "aider (route chat, without tools)",
        """
export OPENAI_API_BASE=<V1>
export OPENAI_API_KEY=local
aider --model openai/<MODEL>
# aider streams without usage: its turns show token counts only where the server's counters tell them. To have usage
# sent, put this in .aider.model.settings.yml in the project or in the home folder:
- name: openai/<MODEL>
  extra_params:
    stream_options: {include_usage: true}
""",
    ),
    Agent(
        "cline",
        "Cline (route chat)",
        """
cline auth -p openai -k local -m <MODEL> -b <V1>
cline -P openai -m <MODEL>
# in the editor: API Provider "OpenAI Compatible", Base URL <V1>, API Key local, Model ID <MODEL>
""",
    ),
    Agent(
        "kilo",
        "Kilo Code (route chat)",
        f"""
# ~/.config/kilo/kilo.json
{_AI_SDK.replace('  "$schema": "https://opencode.ai/config.json",' + chr(10), "").strip()}
# then
kilo -m local/<MODEL>
""",
        ("kilocode", "kilo-code"),
    ),
    Agent(
        "continue",
        "Continue (route chat)",
        """
# ~/.continue/config.yaml
name: local
version: 1.0.0
schema: v1
models:
  - name: local
    provider: openai
    model: <MODEL>
    apiBase: <V1>
    apiKey: local
    roles: [chat]
    capabilities: [tool_use]
    defaultCompletionOptions: {contextLength: <CONTEXT>, maxTokens: <OUTPUT>}
# then
cn --config ~/.continue/config.yaml
""",
        ("cn",),
    ),
    Agent(
        "gptme",
        "gptme (route chat)",
        """
export OPENAI_BASE_URL=<V1>
export OPENAI_API_KEY=local
gptme --tool-format tool -m local/<MODEL>
""",
    ),
    Agent(
        "hermes",
        "Hermes (route chat)",
        """
# ~/.hermes/config.yaml; Hermes refuses a context_length below 64000
model:
  default: <MODEL>
  provider: custom
  base_url: <V1>
  api_key: local
  context_length: <CONTEXT>
# then
OPENAI_BASE_URL=<V1> OPENAI_API_KEY=local hermes chat
""",
        ("hermes-agent",),
    ),
    Agent(
        "openhands",
        "OpenHands (route chat)",
        """
export LLM_BASE_URL=<V1>
export LLM_MODEL=openai/<MODEL>
export LLM_API_KEY=local
openhands --override-with-envs
""",
    ),
    Agent(
        "mini",
        "mini-swe-agent (route chat, not streaming)",
        """
export OPENAI_API_KEY=local
export MSWEA_COST_TRACKING=ignore_errors
mini -m openai/<MODEL> -c mini.yaml -c model.model_kwargs.api_base=<V1>
""",
        ("mini-swe-agent", "mini-swe"),
    ),
    Agent(
        "vibe",
        "Mistral Vibe (route chat)",
        """
# ~/.vibe/config.toml
active_model = "local"

[[providers]]
name = "local"
api_base = "<V1>"
api_key_env_var = "LOCAL_KEY"
api_style = "openai"
backend = "generic"

[[models]]
name = "<MODEL>"
provider = "local"
alias = "local"
# then
LOCAL_KEY=local vibe
""",
        ("mistral-vibe",),
    ),
    Agent(
        "omp",
        "oh-my-pi (route chat)",
        """
# ~/.omp/agent/models.yml
providers:
  local:
    baseUrl: <V1>
    api: openai-completions
    apiKey: local
    models:
      - id: <MODEL>
        name: <MODEL>
        reasoning: false
        input: [text]
        cost: {input: 0, output: 0, cacheRead: 0, cacheWrite: 0}
        contextWindow: <CONTEXT>
        maxTokens: <OUTPUT>
# then
omp --model local/<MODEL>
""",
        ("oh-my-pi",),
    ),
    Agent(
        "openai",
        "the openai Python client, and what is built on it",
        """
export OPENAI_BASE_URL=<V1>
export OPENAI_API_KEY=local
# or in the code:
client = openai.OpenAI(base_url="<V1>", api_key="local")
# ask a stream for its usage, else only the server's counters tell its tokens:
client.chat.completions.create(model="<MODEL>", messages=[...], stream=True, stream_options={"include_usage": True})
""",
        ("openai-sdk", "openai-agents", "pydantic-ai"),
    ),
    Agent(
        "anthropic",
        "the anthropic Python client",
        """
export ANTHROPIC_BASE_URL=<BASE>          # without /v1
export ANTHROPIC_API_KEY=local
# or in the code:
client = anthropic.Anthropic(base_url="<BASE>", api_key="local")
client.messages.create(model="<MODEL>", max_tokens=1024, messages=[...])
""",
        ("anthropic-sdk",),
    ),
    Agent(
        "curl",
        "curl (route chat)",
        """
curl -N <V1>/chat/completions -H 'content-type: application/json' -d '{
  "model": "<MODEL>", "stream": true, "stream_options": {"include_usage": true},
  "messages": [{"role": "user", "content": "hello"}]}'
""",
    ),
)
"""In the order in which they are listed."""
