"""Command lines: which are vLLM, what they ask for, and what in them is secret."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.sources.masking import MASK, masked
from kvtop.sources.processes import option, port_of, role


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("/opt/v/bin/python3.11 /opt/v/bin/vllm serve Qwen/Qwen3-8B --port 8001", "api"),
        ("python3 -m vllm.entrypoints.openai.api_server --model x", "api"),
        ("python3 -m vllm.entrypoints.cli.main serve m", "api"),
        ("python3 -m vllm.entrypoints.cli.main bench", None),
        ("python -u -X faulthandler -m vllm.entrypoints.openai.api_server", "api"),
        ("python -m vllm serve x", "api"),
        ("vllm serve x", "api"),
        ("/opt/v/lib/python3.12/site-packages/vllm/vllm-rs serve", "api"),
        ("VLLM::APIServer_1", "api"),
        ("VLLM::EngineCore", "engine"),
        ("VLLM::EngineCore_DP0", "engine"),
        ("VLLM::Worker_TP0", "worker"),
        ("VLLM::DPCoordinator", "worker"),
        ("vllm bench serve", None),
        ("python -m vllm.benchmarks.serve", None),
        ("bash -c 'vllm serve x'", None),
        ("uv run vllm serve x", None),
        ("docker run vllm/vllm-openai serve", None),
        ("vim vllm serve", None),
        ("python -c 'vllm serve'", None),
        ("python -m vllm", None),
        ("python", None),
        ("grep vllm", None),
    ],
)
def test_role(line: str, what: str | None) -> None:
    assert role(shlex.split(line)) == what


def test_role_of_nothing() -> None:
    assert role([]) is None
    assert role([""]) is None


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ("vllm serve x", 8000),
        ("vllm serve x --port 8001", 8001),
        ("vllm serve x --port=8001 --port 8002", 8002),
        ("vllm serve x --port none", None),
        ("vllm serve x --port 0", None),
        ("vllm serve x --port", 8000),
        ("vllm serve x --port " + "9" * 5000, None),
        ("vllm serve x --uds /run/vllm.sock", None),
        ("vllm serve x --headless", None),
        ("vllm serve --config box.yaml", None),
        ("vllm serve --config box.yaml --port 9000", 9000),
        ("VLLM::APIServer_0", None),
    ],
)
def test_port(line: str, port: int | None) -> None:
    assert port_of(shlex.split(line)) == port


def test_option_takes_dashes_and_underscores() -> None:
    assert option(["vllm", "--api_server_count", "2"], "--api-server-count") == "2"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("vllm serve x --api-key geheim", f"vllm serve x --api-key {MASK}"),
        ("vllm serve x --api-key=geheim --port 1", f"vllm serve x --api-key={MASK} --port 1"),
        ("vllm serve x --api-key geheim geheim2 --port 1", f"vllm serve x --api-key {MASK} {MASK} --port 1"),
        ("vllm serve x --hf-token geheim", f"vllm serve x --hf-token {MASK}"),
        ("vllm serve x --api_key geheim", f"vllm serve x --api_key {MASK}"),
        ("env HF_TOKEN=geheim vllm serve", f"env HF_TOKEN={MASK} vllm serve"),
        (
            "vllm serve --otlp-traces-endpoint http://u:geheim@h:1",
            f"vllm serve --otlp-traces-endpoint http://{MASK}@h:1",
        ),
        ('vllm serve --x \'{"auth_token": "geheim", "a": 1}\'', f'vllm serve --x {{"auth_token": "{MASK}", "a": 1}}'),
        ("vllm serve x --api-ke geheim", f"vllm serve x --api-ke {MASK}"),
        ("vllm serve x --api_k=geheim", f"vllm serve x --api_k={MASK}"),
        ("vllm serve x --hf-to geheim", f"vllm serve x --hf-to {MASK}"),
        ("vllm serve x --kv.auth_token geheim", f"vllm serve x --kv.auth_token {MASK}"),
        ("vllm serve x --api-key -geheim --port 1", f"vllm serve x --api-key {MASK} --port 1"),
        ("vllm serve x --api-key --geheim --port 1", f"vllm serve x --api-key {MASK} --port 1"),
        ("vllm serve x --api-key a -geheim", f"vllm serve x --api-key {MASK} {MASK}"),
        (
            "'VLLM::EngineCore x --api-key geheim geheim --port 1'",
            f"VLLM::EngineCore x --api-key {MASK} {MASK} --port 1",
        ),
        ("vllm serve --header 'Authorization: Bearer geheim'", f"vllm serve --header Authorization: Bearer {MASK}"),
        ("vllm serve --api-server-count 2", "vllm serve --api-server-count 2"),
        ("vllm serve --max-num-batched-tokens 8192", "vllm serve --max-num-batched-tokens 8192"),
        ("vllm serve --tokenizer geheim-is-a-name", "vllm serve --tokenizer geheim-is-a-name"),
        ("vllm serve --enable-prompt-tokens-details --port 1", "vllm serve --enable-prompt-tokens-details --port 1"),
    ],
)
def test_secrets_are_masked(line: str, shown: str) -> None:
    assert " ".join(masked(shlex.split(line))) == shown


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.text(alphabet="abcdefgh0123456789", min_size=8), st.lists(st.sampled_from(["--port", "8000", "serve", "x"])))
def test_a_key_never_gets_through(key: str, others: list[str]) -> None:
    for flag in (["--api-key", key], [f"--api-key={key}"]):
        command = masked(["vllm", "serve", *others, *flag])
        assert key not in " ".join(command)


def test_control_characters_do_not_get_through() -> None:
    assert all(word.isprintable() for word in masked(["vllm", "serve", "\x1b[31mx\n"]))
