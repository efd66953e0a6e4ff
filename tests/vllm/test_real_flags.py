"""kvtop reads a command line as the installed vLLM does, and knows its flags."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from vllm_servers import status

from kvtop.profiles.check.installed import installed as find_installed
from kvtop.profiles.check.report import judged
from kvtop.profiles.check.seen import Facts, Installed
from kvtop.profiles.flags import Flags
from kvtop.profiles.profile import Profile

pytestmark = [pytest.mark.vllm, pytest.mark.long]

PARSE = """
import contextlib, dataclasses, io, json, sys
from vllm.entrypoints.cli import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
subparsers = parser.add_subparsers(dest="subparser")
for command in serve.cmd_init():
    command.subparser_init(subparsers)

def plain(value):
    if dataclasses.is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    return value

NAMES = json.loads(sys.argv[1])
out = []
for words in json.load(sys.stdin):
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            found = parser.parse_args(["serve", *words])
        out.append({name: plain(getattr(found, name)) for name in NAMES} | {"model_tag": found.model_tag})
    except BaseException as error:
        out.append(f"{type(error).__name__}: {error}")
print("\\n" + json.dumps(out, default=str))
"""

PIECES: list[list[str]] = [
    ["--port", "8001"], ["--port=8002"], ["--po", "8003"], ["--max_model_len", "4k"], ["--max-model-len=8192"],
    ["--max-model-l", "2K"], ["-tp", "2"], ["-tp=4"], ["--tensor_parallel_size", "8"], ["-O3"], ["-O=2"], ["-O", "1"],
    ["--enable-prefix-caching"], ["--no-enable-prefix-caching"], ["--no_enable_prefix_caching"],
    ["--enable-prefix-cach"], ["--kv-offloading-size", "48"], ["--kv-offloading-s=1.5"], ["--kv-offloading", "1"],
    ["--served-model-name", "a", "b"], ["--served-model-name=c"], ["--host", "127.0.0.1"], ["--host", ""],
    ["--seed", "-1"], ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'],
    ["--speculative-config.method", "eagle3"], ["--speculative_config.num_speculative_tokens", "5"],
    ["-sc", '{"method": "mtp"}'], ["--kv-transfer-config", '{"kv_connector": "X", "kv_role": "kv_both"}'],
    ["--kv-transfer-config.kv_connector", "Y", "--kv-transfer-config.kv_role=kv_consumer"],
    ["--kv-transfer-config.kv_role=kv_both"],
    ["--kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use", "64g"], ["--disable-log-stats"],
    ["--typo-typo", "1"], ["--port"], ["--enable-prefix-caching=true"], ["stray"], ["--api-key", "k1", "k2"],
    ["--gpu-memory-utilization=0.5"], ["--block-size", "32"], ["--", "x"],
]  # fmt: skip
NAMES = (
    "port", "max_model_len", "tensor_parallel_size", "optimization_level", "enable_prefix_caching",
    "kv_offloading_size", "served_model_name",
    "host", "seed", "speculative_config", "kv_transfer_config", "disable_log_stats", "api_key",
    "gpu_memory_utilization", "block_size",
)  # fmt: skip


def venv() -> Path:
    return Path(status()["venv"])


@pytest.fixture(scope="module")
def theirs(installed: None) -> Installed:
    found = find_installed([str(venv() / "bin" / "vllm"), "serve"], None, {"PATH": "/usr/bin:/bin"})
    assert found is not None and found.known is not None
    return found


def parsed(lines: list[list[str]]) -> list[Any]:
    """What vLLM's own parser makes of each; a text where it refuses the line."""
    done = subprocess.run(
        [str(venv() / "bin" / "python"), "-c", PARSE, json.dumps(NAMES)],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_command_lines_are_read_as_vllm_reads_them(theirs: Installed) -> None:
    chance = random.Random(5)
    lines = PIECES + [["m", *piece] for piece in PIECES]
    for _ in range(400):
        pieces = chance.sample(PIECES, chance.randint(1, 5))
        lines.append(["m", *(word for piece in pieces for word in piece)])
    told = parsed(lines)
    nothing = parsed([["m"]])[0]
    refused = 0
    for words, found in zip(lines, told, strict=True):
        ours = Flags.read(words, known=theirs.known)
        if isinstance(found, str):
            refused += 1
            if words[0] == "m":
                assert ours.stray or any(one.problem for one in ours.given), (words, found)
            continue
        assert not any(one.problem for one in ours.given), words
        assert ours.model == found["model_tag"], words
        for name in NAMES:
            _same(ours, name, found[name], nothing[name], words)
    assert 50 < refused < 400


VALUES = (
    "--dtype bf16", "--dtype half", "--dtype HALF", "--runner pooling", "--runner x", "--mamba-cache-mode align",
    "--moe-backend TRITON", "--moe-backend batched-triton", "--moe-backend nope", "--max-lora-rank 016",
    "--max-lora-rank 17", "--kv-offloading-backend native", "--kv-offloading-backend cpu", "--max-num-seqs eight",
    "--max-num-seqs 8", "--max-num-seqs 8k", "--max-num-batched-tokens 8k", "--max-model-len auto",
    "--max-model-len 8.5K", "--max-model-len 1e5", "--kv-cache-memory-bytes 8Gi", "--kv-cache-memory-bytes 8.5g",
    "--kv-cache-memory-bytes None", "--gpu-memory-utilization 90%", "--gpu-memory-utilization nan", "--port 8_000",
    "--port eighty", "--block-size 16.0", "--kv-offloading-size 4G", "--kv-offloading-size 1e1", "--seed -1",
    "--cpu-offload-gb 4", "--data-parallel-size two", "--api-server-count 1", "--long-prefill-token-threshold x",
    "--mm-encoder-attn-dtype None", "--tool-call-parser mine", "--attention-backend flashinfer", "-tp x",
)  # fmt: skip


def test_values_are_refused_as_vllm_refuses_them(theirs: Installed) -> None:
    """Where kvtop says that vLLM refuses a value, it does; it knows all of these but for one in other letters."""
    lines = [["m", *line.split()] for line in VALUES]
    theirs_refused = {line for line, found in zip(VALUES, parsed(lines), strict=True) if isinstance(found, str)}
    ours = {
        line
        for line, words in zip(VALUES, lines, strict=True)
        for one in judged(Facts("x", Profile(), Flags.read(words, known=theirs.known), installed=theirs)).findings
        if one.rule == "value_refused"
    }
    assert ours <= theirs_refused
    assert theirs_refused - ours == {"--dtype HALF"}


def _same(ours: Flags, name: str, found: Any, default: Any, words: list[str]) -> None:
    told = (name, found, words)
    if ours.find(name) is None:
        assert found == default, told
    elif isinstance(found, bool):
        assert ours.on(name) is found, told
    elif isinstance(found, int | float):
        assert ours.number(name) == found, told
    elif isinstance(found, list):
        assert list(ours.values(name)) == found, told
    elif isinstance(found, dict):
        mine = ours.json(name)
        assert mine is not None and mine.items() <= found.items(), told
    elif found is None:  # vLLM's own word for nothing
        assert ours.value(name) in ("", "None"), told
    else:
        assert ours.value(name) == found, told


def test_unknown_flags_by_its_own_help(theirs: Installed) -> None:
    assert theirs.version is not None and theirs.version.startswith("0.32")
    line = "m --max_model_len 4096 --max-modle-len 4 --kv-offloading-size 8 --kv_transfer-config.kv_role kv_both -tp 2"
    box = Facts("x", Profile(), Flags.read(line.split(), known=theirs.known), installed=theirs)
    found = [one for one in judged(box).findings if one.rule == "unknown_flag"]
    assert [(one.flag, one.fix) for one in found] == [("--max-modle-len", "--max-model-len")]
