"""`kvtop profile check`: looking at this machine, the text, the JSON, the exit code."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from check_box import GIB, card, facts, listener, offloading, server

from kvtop.cli.profile.check import main, text
from kvtop.errors import UsageError
from kvtop.profiles import folder
from kvtop.profiles.check import facts as facts_of
from kvtop.profiles.check import report
from kvtop.profiles.check.facts import gather
from kvtop.profiles.check.report import Silent, judged
from kvtop.profiles.check.seen import Answer, Container, LastStart
from kvtop.sources.host import HostSource
from kvtop.sources.limits import memory_limit

HEAD = '[venv]\ncommand = ["/nowhere/vllm", "serve"]\n[serve]\n'


Write = Callable[[str, str], Path]


@pytest.fixture
def write(own_home: Path) -> Write:
    def write(name: str, toml: str) -> Path:
        file = own_home / "config" / "profiles" / f"{name}.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(toml)
        return file

    return write


def test_the_text_in_the_language_of_the_screens() -> None:
    box = facts(
        "m --kv-offloading-size 64 --enable-prompt-tokens-details --enable-force-include-usage --host 127.0.0.1 -tp 2 "
        "--disable-uvicorn-access-log",
        cards=(card(0, {501: 17.9}), card(1, {501: 17.9})),
        shm_free_bytes=int(62.8 * GIB),
        servers=(server(),),
        listeners=None,
        replacing=frozenset({500, 501}),
    )
    assert list(text(judged(box))) == [
        "check qwen27: 1 error, 4 notes; it would not start",
        " × shm_too_small        tier 64.0 GiB, /dev/shm has 62.8 GiB free of 64.0 GiB",
        "                        fix --kv-offloading-size 61, or mount -o remount,size=67G /dev/shm",
        " · vram_held            GPU 0: 6.1 GiB of 24.0 GiB free, 24.0 GiB after the stop",
        "                        fix nothing: the switch stops it first",
        " · vram_held            GPU 1: 6.1 GiB of 24.0 GiB free, 24.0 GiB after the stop",
        "                        fix nothing: the switch stops it first",
        " · gpu_overlap          coder runs on GPU 0 and 1",
        "                        fix nothing: the switch stops it first",
        " · no_kv_cache_metrics  without it nothing shows that blocks were evicted",
        "                        fix add --kv-cache-metrics",
        " memory   tier 64.0   /dev/shm 62.8   host free 104.0   GPU free 6.1 + 6.1 of 24 + 24   all in GiB",
        " size     --kv-offloading-size: 64.0 GiB in all, 32.0 GiB a GPU, about 640,000 tokens",
        " 1 rule could not tell; --verbose says what it lacks",
    ]
    whole = list(text(judged(box), verbose=True))
    assert whole[-1] == " – port_taken           cannot tell: lacks who listens on which port"


def test_what_a_rule_lacks_stands_in_the_columns_of_the_findings_and_is_wrapped_alike() -> None:
    lacks = "what the compose file /srv/models/qwen/compose.yaml says of the port that is published"
    found = replace(
        judged(facts("m --host 127.0.0.1 --kv-cache-metrics")), silent=(Silent("health_answered_by_other", lacks),)
    )
    lines = list(text(found, verbose=True))
    assert lines[-3:] == [
        " – health_answered_by_other  cannot tell: lacks what the compose file",
        "                             /srv/models/qwen/compose.yaml says of the port that",
        "                             is published",
    ]
    assert " · polls_fill_log            each poll of kvtop and other watchers is a line of" in lines
    assert not any("health_answered_by_other" in line for line in text(found)), "only where it is asked for"


def test_nothing_to_say() -> None:
    wanted = "--enable-prompt-tokens-details --enable-force-include-usage --host 127.0.0.1 --kv-cache-metrics"
    box = facts(f"m {wanted} --disable-access-log-for-endpoints /metrics")
    assert next(text(judged(box))) == "check qwen27: ready to start"


def test_what_is_not_known_is_a_dash() -> None:
    box = facts("m", cards=None, shm_free_bytes=None, memory_available_bytes=None)
    assert " memory   tier –   /dev/shm –   host free –   GPU free –   all in GiB" in list(text(judged(box)))


@pytest.mark.parametrize(("tier", "shown"), [(1.25, "1.2"), (0.25, "0.25"), (0.125, "0.125"), (1 / GIB, "1 byte")])
def test_a_small_tier_is_told_to_the_last_digit(tier: float, shown: str) -> None:
    (line,) = [line for line in text(judged(facts(offloading(tier)))) if line.startswith(" memory")]
    assert line.startswith(f" memory   tier {shown}   /dev/shm 63.0")


def test_a_byte_has_no_share_of_a_gpu() -> None:
    lines = list(text(judged(facts(f"{offloading(1 / GIB)} -tp 2"))))
    assert " size     --kv-transfer-config: 1 byte in all, about 0 tokens" in lines


def test_a_number_is_not_parted_from_its_unit() -> None:
    box = facts("m", listeners={8000: listener()}, health=Answer("http://127.0.0.1:8000/health", "x" * 50))
    for line in text(judged(box)):
        assert not line.lstrip().startswith(("GiB", "tokens"))


def test_json_and_exit_code(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("bad", HEAD + 'model = "/nowhere/model"\n')
    assert main(["bad", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["profile"], document["ok"]) == ("bad", False)
    assert "model_path_missing" in [one["rule"] for one in document["findings"]]
    assert document["command"][:2] == ["/nowhere/vllm", "serve"]
    assert document["memory"]["memory_available_bytes"] > 0


def test_an_error_of_the_file_is_wrong_use(write: Write) -> None:
    write("broken", "runner = 5\n")
    for name in ("broken", "none"):
        with pytest.raises(UsageError):
            main([name])


def test_a_path_is_taken_too(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shm = tmp_path / "shm"  # in the machine's own, others may have left something
    shm.mkdir()
    monkeypatch.setattr(facts_of, "HostSource", lambda: HostSource(shm=shm))
    file = tmp_path / "mine.toml"
    (tmp_path / "model").mkdir()
    program = tmp_path / "serve"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    head = HEAD.replace("/nowhere/vllm", str(program))
    file.write_text(head + f'model = "{tmp_path}/model"\nhost = "127.0.0.1"\nport = {free_port()}\n')
    assert main([str(file), "--verbose"]) == 0
    told = capsys.readouterr().out
    first = told.partition("\n")[0]
    # a file that another program of this machine left in /dev/shm is a warning
    assert first in ("check mine: 3 notes; ready to start", "check mine: 1 warning, 3 notes; ready to start")
    assert re.search(r"^ – unknown_flag +cannot tell: lacks the help of the vLLM that is to$", told, re.MULTILINE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_who_has_the_port_and_who_answers(write: Write) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write("busy", HEAD + f'model = "m"\nport = {port}\n')
        told = report(folder.find("busy"))
    found = next(one for one in told.findings if one.rule == "port_taken")
    assert found.says.startswith(f"port {port}: process ") and found.says.endswith("listens there")
    assert "health_answered_by_other" not in [one.rule for one in told.findings]


def test_what_is_gathered(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("VLLM_API_KEY", "geheim")
    (tmp_path / "box.yaml").write_text("block-size: 32\nenable-prefix-caching: false\n")
    write(
        "whole",
        HEAD.replace("[serve]", f'cwd = "{tmp_path}"\n[serve]')
        + 'model = "m"\nconfig = "box.yaml"\n[env]\nunset = ["PYTORCH_CUDA_ALLOC_CONF"]\n'
        + f'from_file = {{ HF_TOKEN = "~/t" }}\n[log]\nfile = "{tmp_path}/log"\n',
    )
    (tmp_path / "log").write_text("INFO Available KV cache memory: 2.00 GiB\nINFO GPU KV cache size: 4,096 tokens\n")
    seen = gather(folder.find("whole"))
    assert (seen.flags.number("block-size"), seen.flags.dropped) == (32, ("enable-prefix-caching",))
    assert seen.last == LastStart(4096, None, 2 * GIB, hybrid=False)
    assert (seen.env["PYTHONHASHSEED"], seen.env["VLLM_API_KEY"]) == ("0", "***")
    assert "HF_TOKEN" not in seen.env and "HF_TOKEN is to come from " in seen.secrets_missing["HF_TOKEN"]
    assert "PYTORCH_CUDA_ALLOC_CONF" not in seen.env
    assert seen.installed is None and seen.container is None and seen.paths == {}


COMPOSE = "services:\n  vllm:\n    image: vllm/vllm-openai:v0.32.0\n    shm_size: 32gb\n    mem_limit: 70g\n"


def test_a_model_in_a_mount(write: Write, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("there", "gone"):
        write(
            name,
            f'runner = "docker"\n[serve]\nmodel = "/models/{name}"\n[docker]\nimage = "vllm:v0.30.1"\n'
            f'options = ["-v", "{tmp_path}:/models"]\n',
        )
        seen = gather(folder.find(name))
        assert (seen.paths[f"/models/{name}"], seen.version) == (name == "there", (0, 30))
        assert seen.above == ({} if name == "there" else {f"/models/{name}": str(tmp_path)})
        assert seen.container == Container(64 << 20)


def test_a_compose_file_is_read(write: Write, tmp_path: Path) -> None:
    (tmp_path / "compose.yml").write_text(COMPOSE)
    table = f'runner = "compose"\n[compose]\nfiles = ["{tmp_path}/compose.yml"]\nservice = '
    write("box", table + '"vllm"\n')
    write("other", table + '"none"\n')
    seen = gather(folder.find("box"))
    assert (seen.container, seen.version) == (Container(32 * GIB, False, 70 * GIB), (0, 32))
    assert gather(folder.find("other")).container == Container(readable=False)


def test_the_limit_of_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    (tmp_path / "proc" / "self").mkdir(parents=True)
    group = tmp_path / "proc" / "self" / "cgroup"
    root = tmp_path / "groups"
    (root / "user" / "me").mkdir(parents=True)
    (root / "memory" / "old").mkdir(parents=True)
    assert memory_limit(root) is None
    group.write_text("0::/user/me\n")
    assert memory_limit(root) is None
    (root / "user" / "me" / "memory.max").write_text("max\n")
    (root / "user" / "memory.max").write_text(f"{8 * GIB}\n")
    assert memory_limit(root) == 8 * GIB
    group.write_text("3:cpu,memory:/old\n0::/../user/me\n")
    (root / "memory" / "old" / "memory.limit_in_bytes").write_text(f"{4 * GIB}\n")
    (root / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_limit(root) == 4 * GIB


def found(capsys: pytest.CaptureFixture[str], *rules: str) -> dict[str, str]:
    main(["box", "--json"])
    document = json.loads(capsys.readouterr().out)
    return {one["rule"]: one["says"] for one in document["findings"] if one["rule"] in rules}


def test_a_folder_whose_name_looks_like_a_key_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    model = tmp_path / "hf_models_quantized_v2" / "qwen"
    file = tmp_path / "config" / "profiles" / "box.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'[serve]\nmodel = "{model}"\n')
    assert set(found(capsys, "model_path_missing")) == {"model_path_missing"}
    model.mkdir(parents=True)
    assert found(capsys, "model_path_missing") == {}


def test_what_a_compose_file_says_of_shm_counts_where_the_profile_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVTOP_HOME", str(tmp_path))
    file = tmp_path / "config" / "profiles" / "box.toml"
    file.parent.mkdir(parents=True)
    compose = tmp_path / "compose.yml"
    file.write_text(
        f'runner = "compose"\n[compose]\nfiles = ["{compose}"]\nservice = "vllm"\n'
        '[docker]\noptions = ["-p", "8020:8000"]\n[serve]\nmodel = "m"\nargs = ["--kv-offloading-size", "1"]\n'
    )
    compose.write_text("services: {vllm: {shm_size: 512m}}")
    assert found(capsys, "shm_too_small") == {"shm_too_small": "tier 1.0 GiB, the container's /dev/shm has 512 MiB"}
    compose.write_text("services: {vllm: {volumes: ['big:/dev/shm']}}")
    assert found(capsys, "shm_too_small") == {}
