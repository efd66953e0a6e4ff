"""What a start needs, looked for as the start looks: programs, folders, files, the unit, secrets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from check_box import facts, profile

from kvtop.errors import keyless
from kvtop.profiles.check import needs
from kvtop.profiles.check.facts import gather
from kvtop.profiles.check.installed import installed
from kvtop.profiles.check.report import judged
from kvtop.profiles.check.rules import modules, needed
from kvtop.profiles.check.rules.modules import plugin_missing
from kvtop.profiles.check.rules.service import model_path_missing
from kvtop.profiles.check.seen import Facts, Lacks, Says
from kvtop.profiles.flags import Flags
from kvtop.profiles.launch import launch, venv_command
from kvtop.profiles.profile import Profile
from kvtop.profiles.running.order import missing_secrets


def program(at: Path, script: str = "exit 0") -> Path:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(f"#!/bin/sh\n{script}\n")
    at.chmod(0o755)
    return at


def lacks(made: Profile) -> list[tuple[str, str, str]]:
    return [(one.key, one.what, one.kind) for one in needs.absent(made, launch("p", made))]


def test_a_program_is_looked_for_in_the_path_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert lacks(profile()) == [("venv.command", "vllm", "program")]
    program(tmp_path / "bin" / "vllm")
    assert lacks(profile(env={"set": {"PATH": str(tmp_path / "bin")}})) == []
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert lacks(profile()) == []
    assert lacks(profile(env={"set": {"PATH": "/nowhere"}})) == [("venv.command", "vllm", "program")]


def test_a_program_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    there = profile(venv={"command": ["~/v/vllm", "serve"]})
    assert lacks(there) == [("venv.command", f"{tmp_path}/v/vllm", "program")]
    program(tmp_path / "v" / "vllm")
    assert lacks(there) == []
    (tmp_path / "v" / "vllm").chmod(0o644)
    assert lacks(there) == [("venv.command", f"{tmp_path}/v/vllm", "program")]


def test_a_wrapper_and_the_folder(tmp_path: Path) -> None:
    assert lacks(profile(venv={"wrap": ["/no/wrap"], "command": ["/no/vllm"]})) == [
        ("venv.wrap", "/no/wrap", "program")
    ]
    program(tmp_path / "nice")
    wrapped = profile(venv={"wrap": [str(tmp_path / "nice")], "command": ["/no/vllm"]})
    assert lacks(wrapped) == [("venv.command", "/no/vllm", "program")]
    program(tmp_path / "ssh")  # what it runs is elsewhere
    assert lacks(profile(venv={"wrap": [str(tmp_path / "ssh"), "box"], "command": ["/no/vllm"]})) == []
    assert lacks(profile(venv={"cwd": "/no/folder"})) == [("venv.cwd", "/no/folder", "folder")]


@pytest.mark.parametrize(
    "wrap",
    [
        ["env", "-S", "PATH=/x/bin:${PATH}"],
        ["env", "-S", 'PATH="/x y:${PATH}"'],
        ["env", "PATH=/x"],
        ["env", "-u", "PATH"],
        ["systemd-run", "--scope", "-E", "PATH=/x"],
        ["env", "-S", "PATH=/x:${PATH}", "uv", "run"],
        ["env", "A=1", "uv", "run"],
        ["nice", "-n", "5", "ssh", "box"],
        ["env", "-S", "A=1 uv run"],
    ],
)
def test_where_a_wrapper_decides_what_a_name_means_nothing_is_claimed(
    wrap: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (wrap[0], "vllm"):
        program(tmp_path / name)
    monkeypatch.setenv("PATH", str(tmp_path))
    made = profile(venv={"wrap": wrap, "command": ["python3.99", "-m", "vllm.entrypoints.openai.api_server"]})
    assert lacks(made) == []
    assert list(needed.program_missing(facts(like=made))) == [
        Lacks("the program that python3.99 means behind the words of venv.wrap")
    ]
    named = profile(venv={"wrap": wrap})  # another vllm than the one on kvtop's own PATH, perhaps
    assert gathered(named).installed is None


@pytest.mark.parametrize(
    "wrap",
    [
        ["systemd-run", "--user", "--scope", "-p", "MemoryMax=90%"],
        ["numactl", "--cpunodebind", "0-1,3", "-m", "all"],
        ["env", "PYTHONPATH=/x", "nice", "-n", "5"],
        ["stdbuf", "-o", "L"],
    ],
)
def test_behind_a_wrapper_that_is_known_a_name_is_looked_for(
    wrap: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / wrap[0])
    monkeypatch.setenv("PATH", str(tmp_path))
    made = profile(venv={"wrap": wrap})
    assert lacks(made) == [("venv.command", "vllm", "program")]
    program(tmp_path / "vllm")
    assert lacks(made) == [] and gathered(made).installed is not None
    by_path = profile(venv={"wrap": ["env", "-S", "PATH=/x:${PATH}"], "command": ["/no/vllm"]})
    assert ("venv.command", "/no/vllm", "program") in lacks(by_path)


def test_the_file_of_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "vllm")
    monkeypatch.setenv("PATH", str(tmp_path))
    whole = profile(serve={"config": f"{tmp_path}/box.yaml"})
    beside = profile(serve={"args": ["m", "--config", "box.yaml"]}, venv={"cwd": str(tmp_path)})
    for made in (whole, beside):
        assert lacks(made) == [("serve.config", f"{tmp_path}/box.yaml", "file")]
    assert lacks(profile(serve={"config": "box.yaml"})) == []  # relative_path tells that
    (tmp_path / "box.yaml").write_text("port: 1")
    assert lacks(whole) == lacks(beside) == []


def test_containers(tmp_path: Path) -> None:
    assert lacks(profile(runner="docker", docker={"image": "i", "program": "/no/podman"})) == [
        ("docker.program", "/no/podman", "program")
    ]
    docker = str(program(tmp_path / "docker"))
    compose = {"program": [docker, "compose"], "service": "s", "files": [f"{tmp_path}/c.yml"]}
    assert lacks(profile(runner="compose", compose=compose)) == [("compose.files", f"{tmp_path}/c.yml", "file")]
    (tmp_path / "c.yml").write_text("")
    assert lacks(profile(runner="compose", compose=compose)) == []
    program(tmp_path / "docker", "exit 1")
    assert lacks(profile(runner="compose", compose=compose)) == [("compose.program", f"{docker} compose", "tool")]


DOWN = "Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?"


def test_a_daemon_that_does_not_answer(tmp_path: Path) -> None:
    docker = str(program(tmp_path / "docker", f'[ "$1" != version ] || {{ echo Client:; echo "{DOWN}" >&2; exit 1; }}'))
    assert lacks(profile(runner="docker", docker={"image": "i", "program": docker})) == [
        ("docker.program", DOWN, "daemon")
    ]
    lone = str(program(tmp_path / "docker-compose"))
    for words in ([docker, "compose"], [lone]):
        compose = profile(runner="compose", compose={"program": words, "service": "s"})
        assert lacks(compose) == [("compose.program", DOWN, "daemon")], words
    program(tmp_path / "docker", "exit 1")  # says nothing: nothing is known
    assert lacks(profile(runner="docker", docker={"image": "i", "program": docker})) == []
    program(tmp_path / "docker", "echo fine")
    assert lacks(profile(runner="docker", docker={"image": "i", "program": docker})) == []
    shell = str(program(tmp_path / "sudo", "exit 1"))
    assert lacks(profile(runner="compose", compose={"program": [shell, "-n", "x"], "service": "s"})) == [
        ("compose.program", f"{shell} -n x", "tool")
    ]


def test_a_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = profile(runner="systemd", systemd={"unit": "v.service"})
    monkeypatch.setenv("PATH", "/nowhere")
    assert lacks(unit) == [("systemd.unit", "systemctl", "program")]
    program(tmp_path / "systemctl", "echo LoadState=not-found")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lacks(unit) == [("systemd.unit", "v.service", "unit")]
    program(tmp_path / "systemctl", "echo LoadState=loaded")
    assert lacks(unit) == []
    program(tmp_path / "systemctl", "echo Failed to connect to bus: no such file >&2; exit 1")
    assert lacks(unit) == [("systemd.unit", "Failed to connect to bus: no such file", "tool")]
    program(tmp_path / "systemctl", "echo busy >&2; exit 1")
    assert lacks(unit) == []


def test_secrets(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1\n")
    run = launch(
        "p",
        profile(
            env={"from_env": {"A": "KEY", "B": "KEY_2"}, "from_file": {"C": f"{tmp_path}/key", "D": f"{tmp_path}/none"}}
        ),
    )
    assert missing_secrets(run, {"KEY": "x", "KEY_2": ""}) == {
        "B": "B is to come from the variable KEY_2, which is not set; set it",
        "D": f"D is to come from {tmp_path}/none: No such file or directory",
    }


def test_vllm_is_asked_where_its_path_is_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "v" / "lib" / "python3.12" / "site-packages" / "vllm-0.32.0.dist-info").mkdir(parents=True)
    program(tmp_path / "v" / "bin" / "vllm")
    program(tmp_path / "v" / "bin" / "python")
    for words in (
        ["~/v/bin/vllm", "serve"],
        ["~/v/bin/python", "-m", "vllm.entrypoints.cli.main", "serve"],
        ["~/v/bin/python", "~/v/bin/vllm", "serve"],
    ):
        found = installed(venv_command(profile(venv={"command": words})), None, {}, ask=False)
        assert found is not None and found.version == "0.32.0", words


def test_a_server_without_a_folder_runs_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert launch("p", profile()).cwd == str(tmp_path)
    assert launch("p", profile(venv={"cwd": "~/w"})).cwd == str(tmp_path / "w")
    assert launch("p", profile(venv={"cwd": "/srv"})).cwd == "/srv"
    assert launch("p", profile(runner="docker", docker={"image": "i"})).cwd is None


SPEC = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"spec_name": "Mine", "spec_module_path": "host_offload_spec.deep"},
}


def gathered(made: Profile) -> Facts:
    class One:
        name = "p"
        idle = ()

        def usable(self) -> Profile:
            return made

    return gather(One(), ask_vllm=False)


def test_of_a_model_that_is_not_there_the_folder_that_is(tmp_path: Path) -> None:
    (said,) = model_path_missing(gathered(profile(serve={"model": f"{tmp_path}/none/deep/model"})))
    assert isinstance(said, Says)
    assert said.fix == f"name a folder that has the model; of this path {keyless(str(tmp_path), 120)} is there"


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("models/qwen3-8b", "models/Qwen3-8B"),
        ("model/qwen3-8b", "models/Qwen3-8B"),
        ("models/Qwen3-8B-FP8", "models/Qwen3-8B"),
        ("models/qwen3-8b.ggu", "models/qwen3-8b.gguf"),
        ("models/notes", None),  # a file is no model
        ("models/entirely-else", None),
        ("models/readme.txt/x", None),
    ],
)
def test_a_model_of_nearly_the_same_name_is_told(tmp_path: Path, asked: str, near: str | None) -> None:
    (tmp_path / "models" / "Qwen3-8B").mkdir(parents=True)
    for name in ("notes.txt", "qwen3-8b.gguf", "readme.txt"):
        (tmp_path / "models" / name).touch()
    found = gathered(profile(serve={"model": f"{tmp_path}/{asked}"})).near
    assert found == ({f"{tmp_path}/{asked}": f"{tmp_path}/{near}"} if near else {})


def test_a_file_of_nearly_the_same_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").touch()
    found = gathered(profile(serve={"model": "org/m", "args": ["--chat-template", f"{tmp_path}/chats.jinja"]}))
    assert found.near == {f"{tmp_path}/chats.jinja": f"{tmp_path}/chat.jinja"}


def test_the_ports_of_other_profiles_are_known(own_home: Path) -> None:
    where = own_home / "config" / "profiles"
    where.mkdir(parents=True)
    for name, port in (("p", 8000), ("q", 8001), ("r", 8002)):
        (where / f"{name}.toml").write_text(f'[serve]\nmodel = "m"\nport = {port}\n')
    (where / "broken.toml").write_text("a = = 1")
    assert gathered(profile(serve={"model": "m"})).other_ports == {8001, 8002}


def test_of_another_machine_nothing_is_claimed() -> None:
    serve = {"model": "/nowhere/model", "args": ["--kv-offloading-size", "900000"]}
    errors = {one.rule for one in judged(gathered(profile(serve=serve, venv={"command": ["/bin/sh"]}))).of("error")}
    assert {"model_path_missing", "shm_too_small"} <= errors
    far = judged(gathered(profile(serve=serve, venv={"wrap": ["ssh", "box"], "command": ["/bin/sh"]})))
    assert {one.rule for one in far.of("error")} <= {"program_missing", "units_suspicious"}
    assert {"model_path_missing", "shm_too_small", "vram_held"} <= {one.rule for one in far.silent}


def looked(made: Profile) -> tuple[dict[str, bool], list[object]]:
    found = gathered(made)
    return dict(found.plugins), list(plugin_missing(found))


def test_a_module_is_looked_for_by_the_python_of_the_server(tmp_path: Path) -> None:
    vllm = tmp_path / "bin" / "vllm"
    vllm.parent.mkdir()
    vllm.write_text(f"#!{sys.executable}\nraise SystemExit('it was run')\n")
    vllm.chmod(0o755)
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "host_offload_spec.py").write_text("raise SystemExit('it was imported')\n")
    serve = {"model": "m", "json": {"kv-transfer-config": SPEC}}
    command = [str(vllm), "serve"]
    seen, said = looked(profile(serve=serve, venv={"command": command}))
    assert seen == {"host_offload_spec.deep": False}
    assert said == [
        Says(
            "error",
            "--kv-transfer-config",
            "vLLM's Python finds no module host_offload_spec.deep",
            'PYTHONPATH = "…" in [env.set]: the folder that holds host_offload_spec, or install it',
        )
    ]
    there = {"host_offload_spec.deep": True}
    for more in (
        {"env": {"set": {"PYTHONPATH": str(plugins)}}},
        {"env": {"set": {"PYTHONPATH": "plugins"}}, "venv": {"command": command, "cwd": str(tmp_path)}},
        {"venv": {"command": [sys.executable, "-m", "vllm.entrypoints.openai.api_server"], "cwd": str(plugins)}},
    ):
        assert looked(profile(**{"serve": serve, "venv": {"command": command}, **more})) == (there, [])
    wrapped = {"command": command, "wrap": ["env", f"PYTHONPATH={plugins}"]}
    assert looked(profile(serve=serve, venv=wrapped)) == (
        {},
        [Lacks("whether its Python finds the module host_offload_spec.deep")],
    )


def test_which_modules_a_command_line_names() -> None:
    tiers = [{"type": "fs", "module_path": "no"}, {"type": "mine", "module_path": "a.tier"}]
    inner = {**SPEC, "kv_connector_extra_config": {"eviction_policy": "lru", "cache_policy_module_path": "no"}}
    one = {"kv_connector": "X", "kv_connector_module_path": "a.conn", "secondary_tiers": tiers}
    config = json.dumps({"kv_connector_extra_config": {"connectors": [SPEC, inner, one]}})
    words = ["m", "--kv-transfer-config", config, "--worker-extension-cls", "b.ext.Class", "--worker-cls", "auto"]
    words += ["--logits-processors", "c.logits:One", "d:Two"]
    assert {module for _, module in modules.named(Flags.read(words))} == {
        "host_offload_spec.deep",
        "a.conn",
        "a.tier",
        "b.ext",
        "c.logits",
        "d",
    }
    own = {"spec_name": "TieringOffloadingSpec", "spec_module_path": "no"}
    assert not list(modules.named(Flags.read(["m", "--kv-transfer-config", json.dumps(own)])))
