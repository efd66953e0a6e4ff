"""The shapes in which people start vLLM: each becomes a profile, which comes back as a command that does the same."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvtop.profiles import folder
from kvtop.profiles.differences import flag_values
from kvtop.profiles.importers import pick
from kvtop.profiles.importers.draft import Refused
from kvtop.profiles.launch import READY_TIMEOUT, VISIBLE, Secret, environment, launch
from kvtop.profiles.profile import Profile
from kvtop.profiles.text import to_toml

SHAPES = Path(__file__).parents[1] / "fixtures" / "profiles"
HOME = str(Path.home())
OFFLOAD = '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {%s}}'


@dataclass(frozen=True)
class Shape:
    """What a source starts, as its author would say it."""

    file: str
    serve: Sequence[str]
    """Behind `vllm serve`, or behind the image."""
    env: Mapping[str, str] = field(default_factory=dict)
    runner: str = "venv"
    argv: Sequence[str] = ("vllm", "serve")
    """How the command begins."""
    unset: Sequence[str] = ()
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    service: str = ""
    told: str = ""
    """A piece of what the importer says."""
    port: int = 8000


IMPORTED = [
    Shape(
        "01-lmcache.compose.yml",
        [
            "/models/Qwen3.6-27B-FP8",
            *[
                "--served-model-name",
                "qwen3.6-27b",
                "coder",
                "--tensor-parallel-size",
                "2",
                "--max-model-len",
                "131072",
            ],
            *["--speculative-config", '{"method":"mtp","num_speculative_tokens":3}', "--kv-transfer-config"],
            '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both",'
            '"kv_connector_extra_config":{"lmcache.mp.port":5555}}',
            *["--host", "0.0.0.0", "--port", "8000"],
        ],
        {"PYTHONHASHSEED": "0", "LMCACHE_CHUNK_SIZE": "1568", "NVIDIA_VISIBLE_DEVICES": "all", VISIBLE: "0,1"},
        "compose",
        ["docker", "compose", "-f", str(SHAPES / "01-lmcache.compose.yml"), "up", "-d", "vllm-lmcache"],
        unset=["PYTORCH_CUDA_ALLOC_CONF"],
        port=8020,
    ),
    Shape(
        "02-dflash.compose.yml",
        [
            *["/models/Qwen3.8-27B-FP8", "-tp", "2", "--max-num-batched-tokens", "8192", "--enable-prefix-caching"],
            "--speculative-config",
            '{"method": "dflash", "model": "/models/Qwen3.8-27B-DFlash", "num_speculative_tokens": 7}',
            *["--override-generation-config", '{"temperature": 0.6, "top_p": 0.95}'],
        ],
        {"DRAFT_DIR": "/models/Qwen3.8-27B-DFlash"},
        "compose",
        ["docker", "compose", "-f", str(SHAPES / "02-dflash.compose.yml"), "up", "-d", "vllm"],
    ),
    Shape(
        "03-knobs/docker-compose.yml",
        [
            *["--model", "/models/Qwen3.6-27B-FP8", "--max-model-len", "98304"],
            *["--gpu-memory-utilization", "0.92", "--kv-cache-dtype", "fp8"],
        ],
        {VISIBLE: "1,2", "VLLM_USE_FLASHINFER_SAMPLER": "1", "HF_TOKEN": "***"},
        "compose",
        ["docker", "compose", "-f", str(SHAPES / "03-knobs/docker-compose.yml"), "up", "-d", "vllm"],
        told="VLLM_API_KEY is handed on from the environment of docker compose",
    ),
    Shape(
        "04-anchors/docker-compose.yml",
        ["--model=/models/Qwen3.8-27B", "--max-num-seqs=64", "--max-model-len=32768"],
        {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_USE_V1": "1", "VLLM_API_KEY": "***"},
        "compose",
        [
            *["docker", "compose", "-f", str(SHAPES / "04-anchors/docker-compose.yml"), "-p", "qwen"],
            *["--profile", "batch", "up", "-d", "batch"],
        ],
        service="batch",
        told="docker compose starts before it: prepare",
        port=8001,
    ),
    Shape(
        "user/06-serving.service",
        [
            *["/models/Qwen3.8-27B-W4A16", "--port", "8000", "--max-model-len", "131072"],
            *["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}'],
        ],
        {VISIBLE: "0", "VLLM_CACHE_ROOT": f"{HOME}/.cache/vllm", "NCCL_DEBUG": "WARN"},
        "systemd",
        ["systemctl", "--user", "start", "06-serving.service"],
        told="systemd runs ExecStartPre: /bin/bash -c 'until [",
    ),
    Shape(
        "07-exports.sh",
        [
            *["--model", "/opt/deploy/models/Qwen3.8-27B-AWQ", "--device-ids", "0,1", "--tensor-parallel-size", "2"],
            *["--host", "127.0.0.1", "--port", "8001", "--compilation-config"],
            '{"cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": [1, 2, 4]}',
            *["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'],
            *["--kv-transfer-config", OFFLOAD % '"cpu_bytes_to_use": 4000000000'],
            *["--override-generation-config", '{"temperature": 0.7}'],
            *["--limit-mm-per-prompt", '{"image": 0, "video": 0}'],
            *["--default-chat-template-kwargs", '{"enable_thinking": false}'],
            *["--kv-events-config", '{"enable_kv_cache_events": true, "publisher": "zmq", "topic": null}'],
        ],
        {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "VLLM_ATTENTION_BACKEND": "FLASHINFER",
            "NCCL_P2P_LEVEL": "SYS",
            "PYTHONHASHSEED": "0",
        },
        argv=["/opt/deploy/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server"],
        port=8001,
    ),
    Shape(
        "08-tiering.sh",
        [
            *["/srv/models/Qwen3.8-27B-GPTQ", "--enable-prefix-caching", "--block-size", "16", "--kv-transfer-config"],
            OFFLOAD % '"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 25769803776, "secondary_tiers": '
            '[{"type": "fs", "root_dir": "/mnt/kv", "n_read_threads": 8}]',
        ],
        {VISIBLE: "0,1", "VLLM_SLEEP_WHEN_IDLE": "1"},
        argv=["/opt/vllm/bin/vllm", "serve"],
        told="its output went to /var/log/vllm.log",
    ),
    Shape(
        "10-docker.sh",
        [
            *["--model", "/models/Qwen3-32B-AWQ", "--served-model-name", "qwen3", "--max-model-len", "32768"],
            *["--rope-scaling", '{"rope_type":"yarn","factor":4.0}', "--enable-reasoning"],
        ],
        {"VLLM_USE_MODELSCOPE": "true"},
        "docker",
        [
            *[
                "docker",
                "run",
                "-d",
                "--name",
                "qwen",
                "--gpus",
                "all",
                "--restart",
                "always",
                "--ipc=host",
                "--ulimit",
            ],
            *["memlock=-1", "--ulimit", "stack=67108864", "--cpuset-cpus", "0-15", "-p", "8000:8000"],
            *["-v", "/data/models:/models", "-e", f"{READY_TIMEOUT}=1800", "-e", "VLLM_USE_MODELSCOPE=true"],
            "vllm/vllm-openai:v0.8.5",
        ],
        told="`docker rm -f qwen` was left out",
    ),
    Shape(
        "11-underscores.sh",
        [
            *["--model", "Qwen/Qwen2.5-7B-Instruct", "--max_model_len", "8192", "--gpu_memory_utilization=0.9"],
            "--enable_prefix_caching",
        ],
        {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"},
        "docker",
        [
            *["docker", "run", "-d", "--name", "kvtop-shape", "--gpus", "device=0", "--shm-size", "8g"],
            *["-p", "127.0.0.1:9000:8000", "-v", f"{HOME}/.cache/huggingface:/models/huggingface"],
            *["-e", f"{READY_TIMEOUT}=1800", "-e", "NCCL_P2P_DISABLE=1", "-e", "NCCL_IB_DISABLE=1", "-e", "HF_TOKEN"],
            "vllm/vllm-openai:latest",
        ],
        secrets={"HF_TOKEN": Secret("env", "HF_TOKEN")},
        port=9000,
    ),
    Shape(
        "12-start.sh",
        ["openai/gpt-oss-120b", "--tensor-parallel-size", "4", "--port", "8008"],
        {VISIBLE: "1,2,3,4"},
        argv=["/home/llm/lexi/.venv/bin/vllm", "serve"],
        port=8008,
    ),
    Shape(
        "12-journal.service",
        [],
        {},
        "systemd",
        ["systemctl", "start", "12-journal.service"],
        told="`/home/llm/lexi/start_vllm.sh`",
    ),
    Shape(
        "13-scope.sh",
        ["TheModel/7B-AWQ", "--max-model-len", "4096", "--tensor-parallel-size", "8"],
        {"NCCL_P2P_DISABLE": "1", "OMP_NUM_THREADS": "4", "VIRTUAL_ENV": "/home/rig/vllm-env"},
        argv=[
            *["env", "-S", "PATH=/home/rig/vllm-env/bin:${PATH}"],
            *["systemd-run", "--user", "--scope", "-p", "MemoryMax=90%", "-p", "MemorySwapMax=0"],
            *["/home/rig/vllm-env/bin/vllm", "serve"],
        ],
        told="`ulimit -n 65536` was left out",
    ),
    Shape(
        "14-container.service",
        [
            *["--model", "/models/GLM-4.7-Flash"],
            *["--kv-transfer-config", OFFLOAD % '"cpu_bytes_to_use": 17179869184'],
        ],
        {"VLLM_API_KEY": "***", "MODEL": "/models/GLM-4.7-Flash", VISIBLE: "0,1"},
        "systemd",
        ["systemctl", "start", "14-container.service"],
        told="systemd runs ExecStartPre: -/usr/bin/docker rm -f vllm",
    ),
    Shape(
        "15-config/start.sh",
        ["--config", "/srv/llm/qwen.yaml", "--port", "8005"],
        {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "TORCH_CUDA_ARCH_LIST": "8.6"},
        port=8005,
    ),
    Shape(
        "15-config/qwen.yaml",
        ["--config", str(SHAPES / "15-config/qwen.yaml")],
        told="enable-prefix-caching: false is dropped by vLLM",
    ),
    Shape(
        "17-quotes.compose.yml",
        # what its shell leaves of '{"mode": "3"}' inside of double quotes
        ["openai/gpt-oss-120b", "--port", "8888", "--cc", "{mode: 3}"],
        {},
        "compose",
        ["docker", "compose", "-f", str(SHAPES / "17-quotes.compose.yml"), "up", "-d", "spark"],
        port=8888,
    ),
]
BY_HAND = {
    "05-launcher-long": ("05-launcher.sh", "line 6: `case`: the script has logic"),
    "05-launcher-short": ("05-launcher.sh", "line 6: `case`: the script has logic"),
    "09-kubernetes": ("09-kubernetes.yaml", "a Kubernetes manifest"),
    "16-chat": ("16-module.nix", "a NixOS module: logic decides what it becomes"),
}


def made_env(profile: Profile) -> dict[str, str]:
    return {name: value for name, value in environment(profile).items() if name != READY_TIMEOUT}


@pytest.mark.parametrize("shape", IMPORTED, ids=lambda shape: shape.file)
def test_what_is_imported_runs_the_same(shape: Shape, tmp_path: Path) -> None:
    made, _ = pick.import_file(SHAPES / shape.file, service=shape.service)
    file = tmp_path / "shape.toml"
    file.write_text(to_toml(made.profile, made.notes), encoding="utf-8")
    profile = folder.find("shape", tmp_path).usable()
    assert profile == made.profile
    run = launch("shape", profile)
    assert profile.runner == shape.runner
    assert flag_values(run.serve) == flag_values(shape.serve)
    assert made_env(profile) == shape.env
    assert list(run.argv[: len(shape.argv)]) == list(shape.argv)
    if shape.runner in ("venv", "docker"):
        assert run.argv[len(shape.argv) :] == run.serve
    assert list(run.unset) == list(shape.unset)
    assert run.secrets == shape.secrets
    assert run.port == shape.port
    assert any(shape.told in note for note in made.notes) or not shape.told
    assert "madeup" not in file.read_text().lower().replace("_", "").replace("-", "")


@pytest.mark.parametrize("name", BY_HAND)
def test_what_is_written_by_hand_is_refused_with_its_reason_and_can_be_read(name: str) -> None:
    source, why = BY_HAND[name]
    with pytest.raises(Refused) as refused:
        pick.import_file(SHAPES / source)
    assert refused.value.what == why
    assert "docs/profiles.md" in refused.value.fix
    launch(name, folder.find(name, SHAPES).usable())


def test_a_launcher_s_choices_are_profiles_that_extend_one() -> None:
    long, short = (
        launch(name, folder.find(name, SHAPES).usable()) for name in ("05-launcher-long", "05-launcher-short")
    )
    assert long.argv == (
        *("/srv/qwen/venv/bin/vllm", "serve", "/models/Qwen3.8-27B-W4A16", "--max-model-len", "131072"),
        *("--kv-cache-memory", "9663676416"),
        *("--speculative-config", '{"method":"mtp","num_speculative_tokens":2}'),
    )
    assert short.argv == (
        *("/srv/qwen/venv/bin/vllm", "serve", "/models/Qwen3.8-27B-W4A16", "--max-model-len", "32768"),
        *("--kv-cache-memory", "4294967296"),
    )
    assert long.secrets == short.secrets == {"VLLM_API_KEY": Secret("file", f"{HOME}/.config/vllm-key")}


def test_a_variant_differs_in_its_cards_alone(tmp_path: Path) -> None:
    made, _ = pick.import_file(SHAPES / "12-start.sh")
    (tmp_path / "12-start.toml").write_text(to_toml(made.profile))
    shutil.copy(SHAPES / "12-variant-b.toml", tmp_path)
    run = launch("b", folder.find("12-variant-b", tmp_path).usable())
    assert run.set == {VISIBLE: "0,1,2,3", READY_TIMEOUT: "1800"}
    assert run.argv == launch("a", made.profile).argv


def test_an_attached_server_is_not_started() -> None:
    run = launch("k", folder.find("09-kubernetes", SHAPES).usable())
    assert run.argv == () and (run.host, run.port) == ("127.0.0.1", 8000)
    assert "--kv-transfer-config.kv_connector_extra_config.secondary_tiers" in flag_values(run.serve)


def test_the_commands_around_the_server_are_kept() -> None:
    made, _ = pick.import_file(SHAPES / "08-tiering.sh")
    assert made.profile.start.before == [
        ["mkdir", "-p", "/mnt/kv"],
        "mount -o loop,noatime /srv/kv.img /mnt/kv || true",
        "rm -f /dev/shm/vllm_offload_*.mmap",
    ]


def test_the_limits_of_a_service_are_told_to_check() -> None:
    made, _ = pick.import_file(SHAPES / "01-lmcache.compose.yml")
    assert made.profile.docker.options[:4] == ["--ipc=host", "--shm-size=32gb", "--memory=70g", "--memory-swap=70g"]
    assert (
        pick.import_file(SHAPES / "04-anchors/docker-compose.yml", service="single")[0].profile.start.timeout_s == 2400
    )


def test_several_services_are_asked_about() -> None:
    with pytest.raises(Refused) as refused:
        pick.import_file(SHAPES / "04-anchors/docker-compose.yml")
    assert (refused.value.what, refused.value.fix) == (
        "2 services may run vLLM",
        "choose one: --service single | batch",
    )
    with pytest.raises(Refused, match="there is no service 'x'"):
        pick.import_file(SHAPES / "04-anchors/docker-compose.yml", service="x")
