"""What runs in a container, imported: its cards, and what a shell in it finds in its environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtop.profiles.importers import compose, docker, unit
from kvtop.profiles.importers.draft import Draft, Imported
from kvtop.profiles.importers.words import command
from kvtop.profiles.launch import launch


def of_compose(service: str) -> Imported:
    draft = Draft()
    compose.read(draft, f"services:\n  v:\n    image: vllm/x:1\n{service}", None)
    return draft.made()


def of_unit(text: str) -> Imported:
    draft = Draft()
    unit.read(draft, f"[Service]\n{text}", Path("/etc/systemd/system/v.service"))
    return draft.made()


def of_words(*words: str) -> Imported:
    draft = Draft()
    command(draft, words)
    return draft.made()


KEY = "sk-madeup-madeup"
DEVICES = "    deploy: {resources: {reservations: {devices: [{%s}]}}}\n"


@pytest.mark.parametrize("order", ["--gpus all -e CUDA_VISIBLE_DEVICES=1", "-e CUDA_VISIBLE_DEVICES=1 --gpus all"])
def test_a_container_is_given_cards_and_told_which_of_them(order: str) -> None:
    profile = of_words("docker", "run", *order.split(), "vllm/x", "--model", "m").profile
    assert (profile.gpus, profile.env.set) == (["all"], {"CUDA_VISIBLE_DEVICES": "1"})
    argv = " ".join(launch("p", profile).argv)
    assert " --gpus all " in argv and " -e CUDA_VISIBLE_DEVICES=1 " in argv


@pytest.mark.parametrize(
    ("asked", "gpus"), [({"DeviceIDs": ["0", "1"]}, ["0", "1"]), ({"Count": -1, "DeviceIDs": None}, ["all"])]
)
def test_inspect_tells_both(asked: dict[str, object], gpus: list[str]) -> None:
    draft = Draft()
    config = {"Image": "vllm/x", "Env": ["CUDA_VISIBLE_DEVICES=1"], "Entrypoint": ["vllm", "serve"], "Cmd": ["m"]}
    docker.inspect(draft, json.dumps([{"Config": config, "HostConfig": {"DeviceRequests": [asked]}}]))
    profile = draft.made().profile
    assert (profile.gpus, profile.env.set) == (gpus, {"CUDA_VISIBLE_DEVICES": "1"})


@pytest.mark.parametrize(
    ("devices", "env", "gpus"),
    [
        ("count: all", "CUDA_VISIBLE_DEVICES: '0,1'", ["0", "1"]),
        ("count: all", "A: '1'", ["all"]),
        ("device_ids: ['3', '2']", "CUDA_VISIBLE_DEVICES: '1'", ["3"]),
        ("device_ids: ['3', '2']", "CUDA_VISIBLE_DEVICES: '7'", ["3", "2"]),
        ("", "{NVIDIA_VISIBLE_DEVICES: '2,4', CUDA_VISIBLE_DEVICES: '1'}", ["4"]),
        ("", "CUDA_VISIBLE_DEVICES: '0,1'", ["0", "1"]),
        ("", "A: '1'", []),
    ],
)
def test_the_cards_of_a_service_are_those_that_it_sees(devices: str, env: str, gpus: list[str]) -> None:
    env = env if env.startswith("{") else f"{{{env}}}"
    made = of_compose(f"    command: m\n    environment: {env}\n{DEVICES % devices if devices else ''}")
    assert made.profile.gpus == gpus
    assert ("CUDA_VISIBLE_DEVICES" in made.profile.env.set) == ("CUDA" in env)


def test_the_cards_of_a_container_of_a_unit() -> None:
    run = "ExecStart=/usr/bin/docker run --gpus all -e CUDA_VISIBLE_DEVICES=1 vllm/x --model m"
    profile = of_unit(run).profile
    assert (profile.gpus, profile.env.set) == (["1"], {"CUDA_VISIBLE_DEVICES": "1"})


def test_a_shell_of_a_service_finds_its_variables() -> None:
    made = of_compose(
        "    environment: {DRAFT: /models/D, VLLM_API_KEY: sk-madeup-madeup}\n"
        "    entrypoint: [bash, -c]\n    command:\n"
        '      - X="a-$${DRAFT}"; vllm serve /m --tokenizer $$DRAFT --x "$$X" --api-key $$VLLM_API_KEY\n'
    )
    serve = made.profile.serve
    assert (serve.model, serve.args) == ("/m", ["--tokenizer", "/models/D", "--x", "a-/models/D"])
    assert "madeup" not in str(made)


def test_a_shell_of_a_unit_finds_its_variables(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("MODEL=/models/q\nVLLM_API_KEY=sk-madeup-madeup\n")
    made = of_unit(
        f"Environment=CTX=5 B=1\nEnvironmentFile={tmp_path}/env\n"
        "ExecStart=/bin/bash -lc 'B=2; unset C; exec vllm serve $MODEL --len $CTX --api-key $VLLM_API_KEY'"
    )
    profile = made.profile
    assert (profile.serve.model, profile.serve.args) == ("/models/q", ["--len", "5"])
    assert (profile.env.set["B"], profile.env.unset) == ("2", ["C"])
    assert "madeup" not in str(made)


def test_a_shell_finds_what_stands_in_front_of_it() -> None:
    profile = of_words("env", "M=m", "bash", "-c", "vllm serve $M").profile
    assert (profile.serve.model, profile.env.set) == ("m", {"M": "m"})
    words = ("docker", "run", "-e", "M=m", "img", "bash", "-c", "exec vllm serve $M --x $UNSET")
    assert launch("p", of_words(*words).profile).argv[-1] == words[-1]
    keyed = of_words("docker", "run", "-e", f"VLLM_API_KEY={KEY}", *words[2:-1], 'vllm serve --api-key "$VLLM_API_KEY"')
    assert keyed.profile.env.from_env == {"VLLM_API_KEY": "VLLM_API_KEY"} and keyed.profile.serve.args == []
    profile = of_words(*words[:-1], "exec vllm serve $M").profile
    assert (profile.serve.model, profile.docker.command) == ("m", ["vllm", "serve"])


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("exec numactl -N 0 /opt/v/bin/vllm serve m", ["numactl", "-N", "0", "/opt/v/bin/vllm", "serve", "m"]),
        ("cd /x && vllm serve m", ["bash", "-c", "cd /x && vllm serve m"]),
        ("mkdir /x; vllm serve m", ["bash", "-c", "mkdir /x; vllm serve m"]),
    ],
)
def test_a_container_s_shell_runs_the_same(text: str, run: list[str]) -> None:
    profile = of_words("docker", "run", "img", "bash", "-c", text).profile
    assert list(launch("p", profile).argv[-len(run) :]) == run


@pytest.mark.parametrize("words", ["-e TOKEN=madeup-madeup img bash -c", "--x y img bash -c"])
def test_a_secret_in_a_container_s_shell_stays_where_it_is(words: str) -> None:
    made = of_words("docker", "run", *words.split(), "vllm serve m --x=a$TOKEN")
    assert made.profile.docker.command == ["bash", "-c", "vllm serve m --x=a$TOKEN"]
    assert "madeup" not in str(made) and "is not set" not in str(made.notes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("vllm serve $$MODEL", "what is in $MODEL is known only when it runs"),
        ("vllm serve $$HOME/m", "what is in $HOME is known only when it runs"),
        ("vllm serve ~/m", "what ~ stands for is known only when it runs"),
    ],
)
def test_what_an_image_may_set_is_not_said_to_be_unset(text: str, why: str) -> None:
    made = of_compose(f"    entrypoint: [bash, -c]\n    command: ['{text}']\n")
    assert f"what its shell runs is not known to kvtop: line 1: {why}" in made.notes


def test_the_environment_of_a_unit_is_not_that_of_its_container() -> None:
    made = of_unit("Environment=M=m\nExecStart=/usr/bin/docker run vllm/x bash -c 'vllm serve $M'")
    assert "what its shell runs is not known to kvtop: line 1: what is in $M is known only when it runs" in made.notes


def test_a_service_without_vllm_is_told() -> None:
    made = of_compose("    command: [python, /srv/prepare.py]\n")
    assert "it runs no vLLM that kvtop knows: `python /srv/prepare.py`" in made.notes
    assert "[serve] is empty: write it by hand where check is to know what runs" in made.notes
    assert made.profile.serve.args == [] and made.profile.serve.model == ""


@pytest.mark.parametrize(
    ("words", "known"), [("bash start.sh", False), ("/x/run.py --model m", False), ("m --x", True), ("--model m", True)]
)
def test_a_container_that_runs_something_else_is_run_as_it_is(words: str, known: bool) -> None:
    made = of_words("docker", "run", "img", *words.split())
    assert launch("p", made.profile).argv[-3:] == ("img", *words.split())[-3:]
    assert bool(made.notes) != known


def test_what_compose_refuses_to_run_without_is_not_taken_for_nothing() -> None:
    made = of_compose("    command: --model ${MODEL:?set it} --len 5 ${MORE}\n    hostname: ${HOST_X?needed}\n")
    assert made.profile.serve.args == []
    assert "[serve] is empty: what its command runs is known only with MODEL" in made.notes
    for name in ("MODEL", "HOST_X"):
        what = "has no value here, and docker compose refuses to run without: [compose] variables"
        assert f"${{{name}}} {what}" in made.notes
    assert "${MORE} has no value here: docker compose takes it from its environment, else nothing" in made.notes


@pytest.mark.parametrize(("said", "told"), [("always", "always"), ("'no'", ""), ("on-failure:3", "on-failure:3")])
def test_a_restart_by_docker_is_told(said: str, told: str) -> None:
    made = of_compose(f"    command: m\n    restart: {said}\n")
    what = f"restart: {told}: docker starts it again after a crash or a boot without kvtop"
    assert (what in made.notes) == bool(told) and len(made.notes) == bool(told)
