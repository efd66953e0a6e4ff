"""Units, compose files, containers, processes and YAML files as profiles; and which of them a file is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.profiles.importers import compose, docker, pick, process, unit
from kvtop.profiles.importers.draft import Draft, Imported, Refused
from kvtop.profiles.importers.interpolate import Interpolation
from kvtop.profiles.importers.variables import matters
from kvtop.profiles.launch import READY_TIMEOUT, VISIBLE, launch

HOME = str(Path.home())


def of_unit(text: str, name: str = "/etc/systemd/system/vllm@big.service") -> Imported:
    draft = Draft()
    unit.read(draft, text, Path(name))
    return draft.made()


def of_compose(text: str, folder: Path | None = None, service: str = "") -> Imported:
    draft = Draft()
    compose.read(draft, text, folder / "compose.yml" if folder else None, service)
    return draft.made()


def test_a_unit_s_line_is_read_as_systemd_reads_it() -> None:
    made = of_unit(
        """
[Unit]
ExecStart=/not/this
[Service]
Environment=A=1 "B=two words" 'C=$x'
Environment=EXTRA="--x 1"
Environment="D=a\\tb" N=3
UnsetEnvironment=GONE
Environment=GPUS=0,1 CUDA_VISIBLE_DEVICES=0,1
ExecStart=
ExecStart=-/v/bin/vllm serve "my model" $EXTRA --n ${N} --t x${N}y '$N' --cost 5$$ --p 100%% --i %i --u %n \\
; a comment
    --last "a \\"b\\""
"""
    )
    profile = made.profile
    assert profile.serve.model == "my model"
    words = "--x 1 --n 3 --t x3y 3 --cost 5$ --p 100% --i big --u vllm@big.service --last"
    assert profile.serve.args == [*words.split(), 'a "b"']
    env = profile.env.set
    assert (env["B"], env["C"], env["D"]) == ("two words", "$x", "a\tb")
    assert profile.env.unset == ["GONE"] and profile.gpus == ["0", "1"]
    assert (profile.systemd.unit, profile.systemd.user) == ("vllm@big.service", False)
    assert launch("p", profile).argv == ("systemctl", "start", "vllm@big.service")


def test_specifiers_that_the_file_does_not_tell_stay() -> None:
    made = of_unit("[Service]\nExecStart=/v/vllm serve %h/m\n")
    assert made.profile.serve.model == "%h/m"
    assert any(note.startswith("%h: systemd puts its value in") for note in made.notes)
    users = of_unit("[Service]\nExecStart=/v/vllm serve %h/m\n[Install]\nWantedBy=default.target\n")
    assert users.profile.serve.model == f"{HOME}/m" and users.profile.systemd.user


def test_a_unit_s_file_of_variables(tmp_path: Path) -> None:
    (tmp_path / "env").write_text('MODEL=m\nVLLM_API_KEY="madeup"\n')
    made = of_unit(
        f"[Service]\nEnvironment=MODEL=n\nEnvironmentFile=-{tmp_path}/env\nEnvironmentFile=/nowhere\n"
        "ExecStart=/v/vllm serve ${MODEL} --api-key ${VLLM_API_KEY}\nTimeoutStartSec=1h 30min\n"
    )
    assert made.profile.serve.model == "m" and made.profile.serve.args == []
    assert made.profile.env.set["VLLM_API_KEY"] == "***"
    assert made.profile.start.timeout_s == 5400
    assert "EnvironmentFile /nowhere cannot be read: what stands in it is not known here" in made.notes


def test_a_unit_that_needs_a_name_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        of_unit("[Service]\nExecStart=/v/vllm serve /models/%i\n", "/etc/systemd/system/vllm@.service")
    assert refused.value.what == "vllm@.service is a template, which systemd starts only with a name behind its @"
    assert refused.value.fix == "systemctl cat vllm@NAME > vllm@NAME.service, and import that"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[Service]\nType=simple", "no line ExecStart"),
        ("[Service]\nExecStart=/a\nExecStart=/b", "2 lines ExecStart"),
        ("[Service]\n\nExecStart=/a 'b", "line 3: a quote has no end"),
    ],
)
def test_units_that_cannot_be_read(text: str, what: str) -> None:
    with pytest.raises(Refused) as refused:
        of_unit(text)
    assert refused.value.what == what


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("$A-${A}", "1-1"),
        ("$$A $${A}", "$A ${A}"),
        ("${E:-d} ${E-d} ${NO:-d} ${NO-d}", "d  d d"),
        ("${NO:-${A:-x}y}", "1y"),
        ("${A:+set}${NO:+set}${E+set}", "setset"),
        ('${NO:-{"a": 1}}', '{"a": 1}'),
        ("${NO}${NO:?needed}", ""),
    ],
)
def test_variables_of_a_compose_file(text: str, filled: str) -> None:
    made = Interpolation({"A": "1", "E": ""}, lambda *_: False)
    assert made.filled(text) == filled
    assert (made.missing, made.required) == ((["NO"], ["NO"]) if text == "${NO}${NO:?needed}" else ([], []))


@pytest.mark.parametrize("text", ["$", "a $-", "${", "${1}", "${A", "${A!x}"])
def test_a_dollar_that_begins_no_variable_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        Interpolation({}, lambda *_: False).filled(text)


@given(st.text(st.sampled_from("${}:-+?AB $x"), max_size=30))
def test_any_text_is_filled_or_refused(text: str) -> None:
    try:
        Interpolation({"A": "1"}, lambda *_: False).filled(text)
    except Refused as error:
        assert error.what.isprintable()


def test_numbers_of_a_compose_file_are_as_they_are_typed() -> None:
    made = of_compose(
        "services:\n  vllm:\n    image: vllm/x:1\n    ports: [22:22, 8008:8000]\n    environment:\n"
        "      A: 0.90\n      B: on\n      C: true\n      D: 010\n      E: 2026-01-02\n"
        "      F:\n    command: [--port, 8000, --x, 0.90]\n"
    )
    assert made.profile.docker.options == ["-p", "22:22", "-p", "8008:8000"]
    assert made.profile.env.set == {"A": "0.90", "B": "on", "C": "true", "D": "010", "E": "2026-01-02"}
    assert (made.profile.serve.port, made.profile.serve.args) == (8000, ["--x", "0.90"])
    assert launch("p", made.profile).port == 8008


def test_a_service_whose_shell_has_logic_can_still_be_started() -> None:
    made = of_compose(
        "services:\n  a:\n    image: vllm/x\n    entrypoint: [bash, -c]\n    command:\n      - |\n"
        '        if [ -n "$$SPEC" ]; then X=--x; fi\n        vllm serve m $$X\n'
    )
    assert made.profile.serve.args == [] and made.profile.serve.model == ""
    assert "what its shell runs is not known to kvtop: line 1: `if`: the script has logic" in made.notes
    assert launch("p", made.profile).argv == ("docker", "compose", "up", "-d", "a")


def test_the_limits_and_cards_of_a_service() -> None:
    made = of_compose(
        "services:\n  a:\n    image: vllm/x\n    command: m\n    network_mode: host\n    deploy:\n      resources:\n"
        "        limits: {memory: 60g}\n        reservations:\n          devices:\n"
        "            - {driver: nvidia, count: all}\n"
    )
    assert made.profile.docker.options == ["--network=host", "--memory=60g"]
    assert made.profile.gpus == ["all"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: 1", "no services in it"),
        ("services: 3", "no services in it"),
        ("services: {}", "there is no service in it"),
        ("services: {a: {command: x}, b: {command: y}}", "2 services may run vLLM"),
        ("a: [1", "line 1: expected ',' or ']', but got '<stream end>'"),
        ("services: {a: {image: vllm, command: 'x ${'}}", "a ${ has no end"),
    ],
)
def test_compose_files_that_cannot_be_read(text: str, what: str) -> None:
    with pytest.raises(Refused) as refused:
        of_compose(text)
    assert refused.value.what == what


def test_an_alias_that_stands_for_millions_is_refused() -> None:
    rows = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(Refused, match="nested too deeply, or too large"):
        of_compose("\n".join(["a0: &a0 [x, x, x]", *rows, "services: {a: {image: vllm}}"]))


INSPECT = {
    "Name": "/qwen",
    "Config": {
        "Image": "vllm/vllm-openai:v0.32.0",
        "Env": ["PATH=/usr/bin", "VLLM_USE_V1=1", "HF_TOKEN=madeup", "CUDA_VERSION=12.9", "NVIDIA_VISIBLE_DEVICES=all"],
        "Entrypoint": ["vllm", "serve"],
        "Cmd": ["m", "--port", "8000", "--kv-transfer-config", '{"a": 1}'],
        "WorkingDir": "/vllm-workspace",
        "Labels": {"com.docker.compose.project": "llm"},
    },
    "HostConfig": {
        "IpcMode": "host",
        "ShmSize": 8 << 30,
        "Memory": 64 << 30,
        "MemorySwap": 128 << 30,
        "Runtime": "runc",
        "NetworkMode": "bridge",
        "RestartPolicy": {"Name": "unless-stopped"},
        "Binds": ["/a:/b:ro"],
        "PortBindings": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8010"}]},
        "DeviceRequests": [{"DeviceIDs": ["0", "1"]}],
        "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
        "Privileged": True,
    },
}


def test_what_docker_inspect_tells(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps([INSPECT]))
    made, form = pick.import_file(tmp_path / "x.json")
    assert form == "inspect"
    assert "madeup" not in str(made.profile)
    run = launch("p", made.profile)
    assert run.argv == (
        *("docker", "run", "-d", "--name", "qwen", "--gpus", '"device=0,1"', "--ipc", "host"),
        *("--shm-size", str(8 << 30), "--memory", str(64 << 30), "--restart", "unless-stopped", "-v", "/a:/b:ro"),
        *("-p", "127.0.0.1:8010:8000", "--ulimit", "memlock=-1:-1", "--workdir", "/vllm-workspace", "--privileged"),
        *("-e", f"{READY_TIMEOUT}=1800", "-e", "VLLM_USE_V1=1", "-e", "NVIDIA_VISIBLE_DEVICES=all", "-e", "HF_TOKEN"),
        *("--entrypoint", "vllm", "vllm/vllm-openai:v0.32.0", "serve", "m", "--port", "8000"),
        *("--kv-transfer-config", '{"a":1}'),
    )
    assert run.port == 8010
    assert any("docker compose made this container (project llm)" in note for note in made.notes)


@pytest.mark.parametrize(
    ("text", "what"), [("[]", "no container is in it"), ("x", "not JSON"), ("[[1]]", "no container")]
)
def test_what_is_no_container(text: str, what: str) -> None:
    with pytest.raises(Refused, match=what):
        docker.inspect(Draft(), text)
    with pytest.raises(Refused, match="2 containers are in it"):
        docker.inspect(Draft(), json.dumps([INSPECT, INSPECT]))


def test_a_running_server_is_read(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text("import time; print('up', flush=True); time.sleep(60)")
    env = {**os.environ, "VLLM_X": "1", "MY_OWN": "2", VISIBLE: "0", "HF_TOKEN": "madeup"}
    env |= {"PYTHONPATH": "/plugins", "TORCH_LOGS": "x", "CUDA_HOME": "/cuda", "XDG_X": "1"}
    words = [sys.executable, str(program), "serve", "m", "--port", "8123", "--api-key", "madeup"]
    with subprocess.Popen(words, env=env, cwd=tmp_path, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == b"up\n"
            draft = Draft()
            process.read(draft, server.pid)
            made = draft.made()
        finally:
            server.kill()
    profile, notes = made.profile, made.notes
    assert profile.venv.cwd == str(tmp_path)
    assert profile.venv.command == words[:3]
    assert (profile.serve.model, profile.serve.port, profile.gpus) == ("m", 8123, ["0"])
    assert profile.env.set["VLLM_X"] == "1" and "MY_OWN" not in profile.env.set
    assert profile.env.from_env == {"HF_TOKEN": "HF_TOKEN", "VLLM_API_KEY": "VLLM_API_KEY"}
    assert "madeup" not in str(profile)
    assert {name: profile.env.set[name] for name in ("PYTHONPATH", "TORCH_LOGS", "CUDA_HOME")} == {
        "PYTHONPATH": "/plugins",
        "TORCH_LOGS": "x",
        "CUDA_HOME": "/cuda",
    }
    (left,) = [note for note in notes if "left out" in note]
    assert re.match(r"\d+ other variables were left out; not set, or otherwise, where kvtop was run: MY_OWN\. ", left)


def test_a_container_is_not_given_what_its_image_sets() -> None:
    assert matters("PYTHONPATH", image=True) and matters("CUDA_HOME") and not matters("CUDA_HOME", image=True)
    assert not any(matters(name) for name in ("PATH", "HOME", "PYTHON", "OLDPWD", "LDX"))


def test_a_process_in_a_container_is_left_to_docker_inspect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text("import time; print('up', flush=True); time.sleep(60)")
    monkeypatch.setattr(process, "in_container", lambda pid: True)
    with subprocess.Popen([sys.executable, str(program), "serve"], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == b"up\n"
            with pytest.raises(Refused, match="runs in a container") as refused:
                process.read(Draft(), server.pid)
        finally:
            server.kill()
    assert "docker inspect" in refused.value.fix


def test_a_form_is_guessed_in_no_time() -> None:
    for text in ("\n" * 1_000_000, "{ " + "lib " * 400_000, "[Unit\n" * 200_000, " " * 1_000_000):
        began = time.process_time()
        pick.guessed(text, "a.txt")
        assert time.process_time() - began < 5


def test_a_process_that_is_no_server() -> None:
    with pytest.raises(Refused, match=rf"process {os.getpid()} is no `vllm serve`"):
        process.read(Draft(), os.getpid())
    with pytest.raises(Refused, match="there is no process 4194305"):
        process.read(Draft(), 4194305)


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("a.sh", "vllm serve m", "script"),
        ("a", "#!/bin/sh\nvllm serve m", "script"),
        ("a", "[Unit]\n[Service]\nExecStart=/vllm serve m", "systemd"),
        ("a.yml", "services:\n  a: {image: vllm/x, command: m}", "compose"),
        ("a.yaml", "model: m\n", "config"),
        ("a.json", json.dumps([INSPECT]), "inspect"),
    ],
)
def test_a_form_is_guessed(tmp_path: Path, name: str, text: str, form: str) -> None:
    (tmp_path / name).write_text(text)
    assert pick.import_file(tmp_path / name)[1] == form


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("a.yaml", b"- 1", "no table of flags: `flag: value`, one a line"),
        ("a.yaml", b"apiVersion: v1\nkind: Pod\nspec: {containers: []}", "a Kubernetes manifest"),
        ("a", b"# x\n{ config, lib, ... }:\n{ }", "a NixOS module: logic decides what it becomes"),
        ("a.sh", b"\xff", "not UTF-8"),
        ("a.sh", b"#" * 2_000_001, "larger than 256 kB"),
    ],
)
def test_files_that_are_no_source(tmp_path: Path, name: str, data: bytes, what: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(Refused) as refused:
        pick.import_file(tmp_path / name)
    assert refused.value.what == what


@given(st.text(max_size=150), st.sampled_from([*pick.FORMATS, None]))
def test_whatever_stands_in_a_file_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str, form: str | None
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text, encoding="utf-8", newline="")
    try:
        pick.import_file(file, form)
    except Refused as error:
        assert error.what.isprintable()
