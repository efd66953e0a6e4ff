"""The lines that point an agent at the tap."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from kvtop.capture.control import howto
from kvtop.capture.control import plan as tap_plan
from kvtop.capture.control.howto import AGENTS, Agent, Known
from kvtop.cli import tap_how
from kvtop.cli.main import main
from kvtop.readings import Model

ALL = Known("http://127.0.0.1:8001", "Qwen/Qwen3-8B", 32768)
BASE_WITHOUT_V1 = {"claude", "anthropic"}


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_everything_known_is_filled_in(agent: Agent) -> None:
    text = howto.lines(agent, ALL)
    assert not re.search(r"<[A-Z0-9]+>", text)
    addresses = set(re.findall(r"http://127\.0\.0\.1:8001(?:/v1)?", text))
    assert ("http://127.0.0.1:8001" if agent.name in BASE_WITHOUT_V1 else "http://127.0.0.1:8001/v1") in addresses
    assert "Qwen/Qwen3-8B" in text


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_what_is_not_known_stays(agent: Agent) -> None:
    text = howto.lines(agent, Known())
    assert "<MODEL>" in text and ("<V1>" in text or "<BASE>" in text)


@pytest.mark.parametrize("name", ["opencode", "kilo", "pi"])
def test_json_files_are_json(name: str) -> None:
    agent = howto.find(name)
    assert agent is not None
    body = "".join(line for line in howto.lines(agent, ALL).splitlines(True) if not line.startswith("#"))
    data, _ = json.JSONDecoder().raw_decode(body)
    [provider] = (data.get("provider") or data["providers"]).values()
    assert "http://127.0.0.1:8001/v1" in json.dumps(provider)


@pytest.mark.parametrize("name", ["codex", "vibe"])
def test_toml_files_are_toml(name: str) -> None:
    agent = howto.find(name)
    assert agent is not None
    file = howto.lines(agent, ALL).partition("# then\n")[0]
    assert "http://127.0.0.1:8001/v1" in json.dumps(tomllib.loads(file))


@pytest.mark.parametrize(
    ("context", "limit"), [(None, ""), (8192, "2048"), (16384, "4096"), (65536, "8192"), (128_000, ""), (262144, "")]
)
def test_an_agent_that_asks_for_more_output_than_fits_is_told_a_limit(context: int | None, limit: str) -> None:
    for name, variable in (("claude", "CLAUDE_CODE_MAX_OUTPUT_TOKENS"), ("qwen", "QWEN_CODE_MAX_OUTPUT_TOKENS")):
        agent = howto.find(name)
        assert agent is not None
        text = howto.lines(agent, Known("http://h:1", "m", context))
        assert (f"export {variable}={limit}\n" in text) == bool(limit) == (variable in text)
        assert "<LIMIT>" not in text and "<OUTPUT>" not in text


def test_names_are_one_agents_each() -> None:
    names = [name for agent in AGENTS for name in (agent.name, *agent.aliases)]
    assert len(set(names)) == len(names)
    wanted = (
        "claude opencode qwen codex pi aider cline kilo continue gptme hermes openhands mini vibe omp openai anthropic"
    )
    assert set(wanted.split()) <= set(names)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Claude-Code", "claude"),
        ("claude code", "claude"),
        ("mini_swe_agent", "mini"),
        ("qwen-code", "qwen"),
        ("nano", ""),
    ],
)
def test_other_names(given: str, name: str) -> None:
    found = howto.find(given)
    assert (found.name if found else "") == name


@pytest.mark.parametrize(
    ("given", "near"), [("cluade", "claude"), ("opencod", "opencode"), ("mistral", "vibe"), ("zz", "")]
)
def test_near_names(given: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tap", "--how", given]) == 2
    err = capsys.readouterr().err
    assert f"no lines for an agent '{given}'" in err
    assert (f"did you mean {near}" in err) if near else ("did you mean" not in err)


@pytest.mark.parametrize("model", ['x"; rm -rf ~; "', "a b", "$(id)", "`id`", "", "x\n", "m\u00e9", "x" * 300, "{a}"])
def test_a_models_name_is_not_pasted_into_a_shell(model: str) -> None:
    for agent in AGENTS:
        assert howto.lines(agent, Known("http://h:1", model, 1000)) == howto.lines(
            agent, Known("http://h:1", None, 1000)
        )


def test_alone_it_lists_the_agents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tap", "--how"]) == 0
    out = capsys.readouterr().out
    assert all(f"{agent.name:<10}  {agent.title}" in out for agent in AGENTS)


def test_the_server_that_is_here_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tap_plan, "servers_here", lambda: ["http://127.0.0.1:8765"])
    asked = []

    def models(server: str) -> tuple[tuple[Model, ...], str]:
        asked.append(server)
        return (Model("tiny", 8192), Model("lora")), ""

    monkeypatch.setattr(tap_how, "_models", models)
    assert main(["tap", "--how", "pi"]) == 0
    out = capsys.readouterr().out
    assert asked == ["http://127.0.0.1:8765"]
    assert '"models": [{"id": "tiny", "contextWindow": 8192, "maxTokens": 2048}]' in out
    assert "kvtop tap --upstream http://127.0.0.1:8765 --detach" in out
    assert "the server's other models: lora" in out


def test_nothing_here_leaves_placeholders(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tap_plan, "servers_here", lambda: [])
    assert main(["tap", "--how", "codex", "--listen", "0.0.0.0:9001"]) == 0
    out = capsys.readouterr().out
    assert 'base_url = "http://127.0.0.1:9001/v1"' in out and 'model = "<MODEL>"' in out
    assert "# to fill in: <MODEL>, <CONTEXT>" in out


def test_a_server_that_does_not_answer_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tap", "--how", "curl", "--upstream", "http://127.0.0.1:9"]) == 0
    out = capsys.readouterr().out
    assert "# http://127.0.0.1:9 does not answer: " in out and '"model": "<MODEL>"' in out
