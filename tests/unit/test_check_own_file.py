"""What a compose file or a unit says now is what runs, whatever the profile expects of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from check_box import GIB, profile

from kvtop.profiles.check import edits, facts
from kvtop.profiles.check.report import Report, report
from kvtop.profiles.check.seen import Container, Facts
from kvtop.profiles.importers import compose as importer
from kvtop.profiles.importers.draft import Draft
from kvtop.profiles.profile import Profile

COMMAND = "command: [--model, m, --max-model-len, '4096']"
PORTS = "ports: ['8045:8000']"


class One:
    name = "p"
    idle = ()

    def __init__(self, made: Profile) -> None:
        self._made = made

    def usable(self) -> Profile:
        return self._made


Compose = Callable[..., Profile]


@pytest.fixture
def compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compose:
    """A profile of a service with these rows."""
    for name in ("VLLM_API_KEY", "PYTHONHASHSEED"):
        monkeypatch.delenv(name, raising=False)

    def made(*rows: str, **tables: Any) -> Profile:
        file = tmp_path / "c.yml"
        body = "".join(f"    {row}\n" for row in ("image: vllm/vllm-openai:v0.32.0", *rows))
        file.write_text(f"services:\n  v:\n{body}  web:\n    environment: [OPENAI_API_KEY=$VLLM_API_KEY]\n")
        serve = {"args": ["--model", "m", "--max-model-len", "4096"]}
        return profile(
            **{"runner": "compose", "compose": {"files": [str(file)], "service": "v"}, "serve": serve, **tables}
        )

    return made


def gathered(made: Profile) -> Facts:
    return facts.gather(One(made), ask_vllm=False)


def checked(made: Profile) -> Report:
    return report(One(made), ask_vllm=False)


def said(made: Profile, rule: str) -> list[tuple[str, str]]:
    return [(one.says, one.fix) for one in checked(made).findings if one.rule == rule]


KEY = {"env": {"from_env": {"VLLM_API_KEY": "MY_KEY"}}}
OPEN = "it is reached from the network (-p 8045:8000), without a key"


def test_a_key_that_the_compose_file_does_not_take_closes_nothing(
    compose: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-1")
    lost = compose(PORTS, COMMAND, **KEY)
    file = edits.file_of(gathered(lost))
    there = f"(in {file}, then import it again)"
    assert said(lost, "exposed_without_key") == [(OPEN, f"127.0.0.1:8045:8000 under ports, or VLLM_API_KEY {there}")]
    assert said(lost, "not_in_its_file") == [
        (f"VLLM_API_KEY of [env] does not reach the server: {file} does not name it", f"VLLM_API_KEY {there}")
    ]
    for row in ("environment: [VLLM_API_KEY]", "environment: {VLLM_API_KEY: '${VLLM_API_KEY:-}'}"):
        taken = compose(PORTS, COMMAND, row, **KEY)
        assert said(taken, "exposed_without_key") == said(taken, "not_in_its_file") == []
        assert "sk-1" not in str(gathered(taken).env)


def test_a_key_of_the_environment_that_compose_hands_on(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    made = compose(PORTS, COMMAND, "environment: [VLLM_API_KEY]")
    ((says, fix),) = said(made, "exposed_without_key")
    assert says == OPEN and fix.endswith("; or VLLM_API_KEY from a file")
    monkeypatch.setenv("VLLM_API_KEY", "sk-1")
    assert said(made, "exposed_without_key") == []


@pytest.mark.parametrize(
    "row",
    [
        "environment: [VLLM_API_KEY=sk-1]",
        "environment: {VLLM_API_KEY: '${OTHER:?give one}'}",
        "env_file: gone.env",
        "env_file: [{path: key.env}]",
        "extends: {service: base}",
    ],
)
def test_a_key_that_may_be_there(compose: Compose, tmp_path: Path, row: str) -> None:
    (tmp_path / "key.env").write_text("VLLM_API_KEY=sk-1\n")
    assert said(compose(PORTS, COMMAND, row), "exposed_without_key") == []


def test_a_key_in_the_file_of_variables(compose: Compose, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("VLLM_API_KEY=sk-1\n")
    assert said(compose(PORTS, COMMAND, "environment: [VLLM_API_KEY]"), "exposed_without_key") == []
    assert said(compose(PORTS, COMMAND), "exposed_without_key")


def test_the_ports_are_those_of_the_file(compose: Compose) -> None:
    told = {"docker": {"options": ["-p", "8045:8000"]}}
    closed = compose("ports: ['127.0.0.1:8045:8000']", COMMAND, **told)
    assert said(closed, "exposed_without_key") == said(closed, "port_not_published") == []
    still = compose(PORTS, COMMAND, docker={"options": ["-p", "127.0.0.1:8045:8000"]})
    assert said(still, "exposed_without_key")
    moved = compose("ports: [{target: 8000, published: 8046, host_ip: 127.0.0.1}]", COMMAND, **told)
    assert gathered(moved).port == 8046
    ((says, fix),) = said(moved, "port_not_published")
    assert says.endswith("c.yml publishes it at port 8046, this profile asks port 8045") and fix == "import it again"
    by_variable = compose("ports: ['${PORT:-8045}:8000']", COMMAND, **told)
    assert (gathered(by_variable).port, said(by_variable, "port_not_published")) == (8045, [])
    assert said(compose(COMMAND), "port_not_published")


def test_a_setting_of_the_profile_does_not_silence_what_the_file_runs(compose: Compose) -> None:
    args = ["--model", "m", "--max-model-len", "4096", "--enable-prompt-tokens-details"]
    wrong = compose(COMMAND, serve={"args": args})
    ((says, _),) = said(wrong, "not_in_its_file")
    assert says.startswith("--enable-prompt-tokens-details of [serve] is not run")
    assert said(compose("command: [--model, m, --max-model-len, '4096', --enable-prompt-tokens-details]",
                        serve={"args": args}), "not_in_its_file") == []  # fmt: skip
    seed = gathered(compose(COMMAND, env={"set": {"PYTHONHASHSEED": "0"}}))
    assert "PYTHONHASHSEED" not in seed.env and seed.env_known
    assert gathered(compose(COMMAND, "environment: [PYTHONHASHSEED=0]")).env["PYTHONHASHSEED"] == "0"
    shm = compose("shm_size: 1gb", COMMAND, docker={"options": ["--shm-size=64g"]})
    assert gathered(shm).container == Container(GIB)


def test_what_a_shell_in_the_container_sets_is_as_it_was_imported(compose: Compose) -> None:
    script = """command: ["bash", "-c", "unset PYTORCH_CUDA_ALLOC_CONF; export PYTHONHASHSEED=0; exec vllm serve m"]"""
    rows = "environment: [PYTORCH_CUDA_ALLOC_CONF=x, PYTHONHASHSEED=random]"
    env = {"unset": ["PYTORCH_CUDA_ALLOC_CONF"], "set": {"PYTHONHASHSEED": "0"}}
    seen = gathered(compose(script, rows, serve={"model": "m"}, env=env))
    assert seen.env == {"PYTHONHASHSEED": "0"} and seen.env_known


def test_what_a_script_of_its_own_runs_is_not_known(compose: Compose) -> None:
    elsewhere = compose("command: /opt/start.sh", PORTS, env={"set": {"PYTHONHASHSEED": "0"}})
    seen = gathered(elsewhere)
    assert seen.env["PYTHONHASHSEED"] == "0" and not seen.env_known
    assert said(elsewhere, "not_in_its_file") == said(elsewhere, "exposed_without_key") == []


def test_the_fix_of_a_flag_names_the_file(compose: Compose) -> None:
    there = f"(in {edits.file_of(gathered(compose(COMMAND)))}, then import it again)"
    assert [fix for _, fix in said(compose(COMMAND), "no_kv_cache_metrics")] == [f"add --kv-cache-metrics {there}"]
    box = gathered(compose(COMMAND))
    mine = gathered(profile())
    seed = edits.told(box, "hash_seed_unset", edits.variable(box, "PYTHONHASHSEED", "0"))
    assert seed == f"PYTHONHASHSEED=0 {there}"
    assert edits.variable(mine, "PYTHONHASHSEED", "0") == 'set = { PYTHONHASHSEED = "0" } in [env]'
    assert [edits.no_variable(one, "A") for one in (box, mine)] == ["take A out", 'unset = ["A"] in [env]']
    typed = gathered(profile(env={"set": {"A": "1"}}))
    assert edits.no_variable(typed, "A") == "take A out of [env.set]"
    table = "as a table [serve.json.…] nothing needs quotes"
    assert [edits.json_flag(one) for one in (box, mine)] == ["quotes that the shell leaves", table]
    assert [edits.json_flag(one, "x") for one in (box, mine)] == ["x", f"x; {table}"]
    assert edits.told(box, "port_taken", "x") == "x"
    assert edits.told(box, "connector_unknown", "x") == f"x {there}"
    assert edits.told(mine, "hash_seed_unset", "x") == "x"


UNIT = """[Service]
Environment=PYTHONHASHSEED=0
ExecStart=/opt/v/bin/vllm serve m --port 8051
"""


@pytest.mark.parametrize(
    ("line", "ports"),
    [
        ("-p 8007:8000", ["8007:8000"]),
        ("-p127.0.0.1:8007:8000 --publish=[::1]:8008:8001", ["127.0.0.1:8007:8000", "[::1]:8008:8001"]),
        ("-p '8000-8001:8000-8001'", ["8000-8001:8000-8001"]),
        ("-p ${BIND}:8007:8000", []),
        ("-p 8007:8000/udp", []),
        ("-p 8007:8000 -p $OTHER:8001", []),
        ("-v a:b", []),
    ],
)
def test_the_ports_of_a_unit_that_runs_docker(systemctl: Path, line: str, ports: list[str]) -> None:
    systemctl.write_text(
        f"ExecStartPre=/bin/mkdir -p /srv\nExecStart=/usr/bin/docker run --rm {line} vllm:v1 --model m\n"
    )
    told = ["--ipc=host", "-p", "127.0.0.1:9:8000"]
    made = profile(
        runner="systemd",
        systemd={"unit": "v.service"},
        docker={"image": "vllm:v1", "options": told},
        serve={"args": ["--model", "m"]},
    )
    assert [*gathered(made).options] == (["--ipc=host", *(f"-p={one}" for one in ports)] if ports else told)


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the one unit that there is."""
    unit, tool = tmp_path / "v.service", tmp_path / "bin" / "systemctl"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nif [ "$1" = cat ]; then cat {unit}; else echo LoadState=loaded; fi\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    return unit


def test_a_unit(systemctl: Path, tmp_path: Path) -> None:
    made = profile(
        runner="systemd", systemd={"unit": "v.service"}, serve={"model": "m", "port": 8051},
        env={"set": {"PYTHONHASHSEED": "0"}, "from_env": {"VLLM_API_KEY": "HOME"}},
    )  # fmt: skip
    systemctl.write_text(UNIT)
    assert gathered(made).env == {"PYTHONHASHSEED": "0"}
    assert said(made, "exposed_without_key") == [
        ("it is reached on every interface, without a key",
         "--host 127.0.0.1, or VLLM_API_KEY (in v.service, then import it again)")]  # fmt: skip
    ((says, _),) = said(made, "not_in_its_file")
    assert says == "VLLM_API_KEY of [env] does not reach the server: systemd does not hand it on"
    for more in (
        "EnvironmentFile=/nowhere/key.env",
        "PassEnvironment=VLLM_API_KEY",
        f"EnvironmentFile=-{tmp_path}/key",
    ):
        (tmp_path / "key").write_text("VLLM_API_KEY=sk-1\n")
        systemctl.write_text(f"{UNIT}{more}\n")
        assert said(made, "exposed_without_key") == [], more
    (tmp_path / "bin" / "systemctl").write_text("#!/bin/sh\necho busy >&2; exit 1\n")
    assert said(made, "exposed_without_key") == []


def test_a_later_compose_file_adds_to_an_earlier_one(compose: Compose, tmp_path: Path) -> None:
    made = compose(PORTS, COMMAND, "environment: {VLLM_API_KEY: }", "shm_size: 1gb")
    later = tmp_path / "later.yml"
    later.write_text(
        "services: {v: {ports: ['9045:9000'], environment: [VLLM_API_KEY=sk-1], shm_size: 2gb, env_file: key.env}}"
    )
    (tmp_path / "key.env").write_text("A=1\n")
    both = profile(
        runner="compose",
        compose={"files": [made.compose.files[0], str(later)], "service": "v"},
        serve={"args": list(made.serve.args)},
    )
    seen = gathered(both)
    assert seen.options == ("--shm-size=2gb", "-p=8045:8000", "-p=9045:9000")
    assert seen.env == {"VLLM_API_KEY": "***"} and seen.env_known and seen.container == Container(2 * GIB)
    assert edits.file_of(seen).endswith("later.yml")


@pytest.mark.parametrize(
    "key", ["ports", "volumes", "environment", "env_file", "tmpfs", "command", "entrypoint", "deploy"]
)
@pytest.mark.parametrize(
    "value", ["5", "x", "[[1]]", "{a: b}", "[{a: b}]", "[{path: [1]}]", "''", "[null]", "{1: {2: 3}}"]
)
def test_an_odd_compose_file_is_no_accident(compose: Compose, key: str, value: str) -> None:
    assert checked(compose(f"{key}: {value}")).profile == "p"


DEVICES = "deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ['0', '1']}]}}}"


def test_the_cards_are_those_of_the_file(compose: Compose) -> None:
    made = compose(COMMAND, DEVICES, gpus=["1"])
    assert gathered(made).profile.gpus == ["0", "1"]
    ((says, fix),) = said(made, "not_in_its_file")
    assert says.endswith("c.yml, which names 0, 1") and fix.startswith("GPU 1 of this machine (in ")
    assert said(compose(COMMAND, DEVICES, gpus=["0", "1"]), "not_in_its_file") == []
    visible = compose(COMMAND, "environment: [CUDA_VISIBLE_DEVICES=2]", gpus=["2"])
    assert gathered(visible).profile.gpus == ["2"] and said(visible, "not_in_its_file") == []


OTHERS = DEVICES.replace("['0', '1']", "['3', '2']")


@pytest.mark.parametrize(
    ("rows", "gpus"),
    [
        ([OTHERS, "environment: [CUDA_VISIBLE_DEVICES=1]"], ["3"]),
        (["environment: {NVIDIA_VISIBLE_DEVICES: '2,3', CUDA_VISIBLE_DEVICES: 0}"], ["2"]),
        (["environment: [NVIDIA_VISIBLE_DEVICES=all, CUDA_VISIBLE_DEVICES=4]"], ["4"]),
        (["environment: ['NVIDIA_VISIBLE_DEVICES=MIG-1a/2/0']"], ["MIG-1a/2/0"]),
        ([DEVICES.replace("device_ids: ['0', '1']", "count: all"), "environment: [NVIDIA_VISIBLE_DEVICES=2]"], None),
        ([DEVICES.replace("device_ids: ['0', '1']", "count: 1"), "environment: [CUDA_VISIBLE_DEVICES=0]"], None),
        ([OTHERS, "environment: [CUDA_VISIBLE_DEVICES=7]"], None),
        ([OTHERS, "environment: [CUDA_VISIBLE_DEVICES]"], None),
        (["environment: ['CUDA_VISIBLE_DEVICES=${G:-0}']"], None),
        (["environment: ['NVIDIA_VISIBLE_DEVICES=${G:-0}', CUDA_VISIBLE_DEVICES=0]"], None),
        (["environment: [NVIDIA_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES=0]"], None),
    ],
)
def test_the_cards_of_a_file_are_those_that_an_import_tells(
    compose: Compose, rows: list[str], gpus: list[str] | None
) -> None:
    """None: that file does not tell them, the profile's own stand."""
    made = compose(COMMAND, *rows, gpus=["9"])
    assert gathered(made).profile.gpus == (gpus or ["9"])
    if gpus is not None:
        draft, file = Draft(), Path(made.compose.files[0])
        importer.read(draft, file.read_text(), file, service="v")
        assert draft.made().profile.gpus == gpus
