"""What each runner runs: exact words, exact environment, secrets by where they are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import msgspec
import pytest

from kvtop.config import read_key_file
from kvtop.errors import UsageError
from kvtop.profiles import shell
from kvtop.profiles.docker_options import published_at
from kvtop.profiles.launch import READY_TIMEOUT, VISIBLE, Launch, Secret, asked, launch, own_port, place_is_told
from kvtop.profiles.profile import Profile

READY = {READY_TIMEOUT: "1800"}


def run(**raw: object) -> Launch:
    return launch("p", msgspec.convert(raw, Profile))


def test_nothing_said_is_vllm_serve() -> None:
    assert run() == Launch(("vllm", "serve"), (), READY, cwd=str(Path.home()))


def test_the_words_of_venv() -> None:
    made = run(
        gpus=["0", "GPU-1a"],
        serve={
            "model": "m",
            "names": ["a", "b"],
            "host": "0.0.0.0",
            "port": 8001,
            "config": "c.yaml",
            "args": ["--x", "1"],
            "json": {"kv-transfer-config": {"a": {"b": [1, "é"]}, "c": True}},
        },
        env={"set": {"A": "1 2"}, "unset": ["B"], "from_file": {"K": "~/k"}, "from_env": {"T": "U"}},
        venv={"command": ["~/v/bin/vllm", "serve"], "wrap": ["nice", "-n", "5"], "cwd": "~/w"},
        start={"timeout_s": 90.5},
    )
    home = str(Path.home())
    serve = (
        *("m", "--config", "c.yaml", "--served-model-name", "a", "b", "--host", "0.0.0.0", "--port", "8001"),
        *("--x", "1", "--kv-transfer-config", '{"a":{"b":[1,"é"]},"c":true}'),
    )
    assert made == Launch(
        ("nice", "-n", "5", f"{home}/v/bin/vllm", "serve", *serve),
        serve,
        {VISIBLE: "0,GPU-1a", READY_TIMEOUT: "91", "A": "1 2"},
        ("B",),
        {"K": Secret("file", f"{home}/k"), "T": Secret("env", "U")},
        f"{home}/w",
        8001,
    )
    assert shell.line(made) == (
        f"""cd {home}/w && K="$(grep -om1 '\\S.*\\S' {home}/k)" T="${{U}}" env -u B """
        f"{VISIBLE}=0,GPU-1a {READY_TIMEOUT}=91 A='1 2' "
        f"nice -n 5 {home}/v/bin/vllm serve m --config c.yaml --served-model-name a b --host 0.0.0.0 "
        """--port 8001 --x 1 --kv-transfer-config '{"a":{"b":[1,"é"]},"c":true}'"""
    )


@pytest.mark.parametrize("table", [{"set": {READY_TIMEOUT: "7"}}, {"unset": [READY_TIMEOUT]}])
def test_what_the_profile_says_of_a_variable_holds(table: dict[str, object]) -> None:
    made = run(env=table, gpus=["1"])
    assert made.set.get(READY_TIMEOUT) == ("7" if "set" in table else None)
    assert made.set[VISIBLE] == "1"
    assert run(env={"set": {VISIBLE: "3"}}, gpus=["1"]).set[VISIBLE] == "3"
    assert VISIBLE not in run(gpus=["all"]).set


def test_the_words_of_docker() -> None:
    made = run(
        runner="docker",
        gpus=["0", "1"],
        serve={"model": "m", "port": 9000, "json": {"c": {"a": 1}}},
        env={"set": {"A": "1"}, "unset": ["B"], "from_file": {"K": "/k"}, "from_env": {"T": "T"}},
        docker={
            "image": "img:1",
            "options": ["--ipc=host", "-p", "127.0.0.1:8010:9000"],
            "env_files": ["/e"],
            "entrypoint": ["python3", "-m", "vllm.entrypoints.cli.main", "serve"],
        },
    )
    assert made.argv == (
        *("docker", "run", "-d", "--name", "kvtop-p", "--gpus", '"device=0,1"', "--ipc=host"),
        *("-p", "127.0.0.1:8010:9000", "--env-file", "/e", "-e", f"{READY_TIMEOUT}=1800", "-e", "A=1"),
        *("-e", "K", "-e", "T", "-e", "B", "--entrypoint", "python3", "img:1", "-m", "vllm.entrypoints.cli.main"),
        *("serve", "m", "--port", "9000", "--c", '{"a":1}'),
    )
    assert made.set == {} and made.unset == ("B",)
    assert made.secrets == {"K": Secret("file", "/k"), "T": Secret("env", "T")}
    assert (made.host, made.port) == ("127.0.0.1", 8010)
    line = shell.line(made)
    assert line.startswith(
        """K="$(grep -om1 '\\S.*\\S' /k)" T="${T}" env -u B docker run -d --name kvtop-p --gpus '"device=0,1"'"""
    )


@pytest.mark.parametrize("text", ["key-1", "key-1\n", "\n \n  key 1 \r\nmore\n", "\tk 1\r\n", " \n"])
def test_a_shell_reads_a_secret_as_kvtop_does(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a key"
    file.write_bytes(text.encode())
    words = shell.line(Launch(("true",), (), secrets={"K": Secret("file", str(file))})).removesuffix(" true")
    done = subprocess.run(["bash", "-c", f'{words}; printf %s "$K"'], capture_output=True, check=True)
    assert done.stdout.decode() == read_key_file(str(file))[0]


def test_one_card_and_all_cards_of_docker() -> None:
    image = {"image": "i", "program": "podman", "name": "n", "command": ["vllm", "serve"]}
    one, every = (run(runner="docker", docker=image, gpus=gpus) for gpus in (["GPU-1"], ["all"]))
    assert one.argv[:7] == ("podman", "run", "-d", "--name", "n", "--gpus", "device=GPU-1")
    assert every.argv[5:7] == ("--gpus", "all")
    assert one.argv[-3:] == ("i", "vllm", "serve")


def test_the_words_of_compose() -> None:
    made = run(
        runner="compose",
        serve={"model": "m"},
        env={"set": {"A": "1"}, "unset": ["B"], "from_env": {"VLLM_API_KEY": "K"}},
        docker={"options": ["-p8020:8000"]},
        compose={
            "files": ["/a.yml", "/b.yml"],
            "service": "s",
            "project": "q",
            "profiles": ["x"],
            "env_files": ["/e"],
            "variables": {"CTX": "1"},
        },
    )
    words = "docker compose -f /a.yml -f /b.yml -p q --profile x --env-file /e up -d s"
    assert made.argv == tuple(words.split())
    assert (made.set, made.unset) == ({"CTX": "1"}, ("B",))
    assert made.secrets == {"VLLM_API_KEY": Secret("env", "K")}
    assert made.port == 8020
    assert run(runner="compose", compose={"service": "s", "program": ["podman-compose"]}).argv[0] == "podman-compose"


def test_the_words_of_systemd_and_of_what_others_start() -> None:
    assert run(runner="systemd", systemd={"unit": "v.service"}).argv == ("systemctl", "start", "v.service")
    made = run(runner="systemd", systemd={"unit": "v.service", "user": True}, env={"set": {"A": "1"}, "unset": ["B"]})
    assert made.argv == ("systemctl", "--user", "start", "v.service")
    assert (made.set, made.unset) == ({}, ())
    attached = run(runner="attach", attach={"url": "gpubox:8005/metrics"})
    assert (attached.argv, attached.host, attached.port) == ((), "gpubox", 8005)
    assert shell.line(attached) == ""


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ({"runner": "docker"}, "profile p: docker.image is missing"),
        ({"runner": "compose"}, "profile p: compose.service is missing"),
        ({"runner": "systemd"}, "profile p: systemd.unit is missing"),
        ({"runner": "attach", "attach": {"url": ""}}, "profile p: attach.url is missing"),
    ],
)
def test_what_a_runner_cannot_do_without(raw: dict[str, object], what: str) -> None:
    with pytest.raises(UsageError) as refused:
        run(**raw)
    assert refused.value.what == what and refused.value.fix


def test_a_bad_url_is_refused() -> None:
    for raw in ({"runner": "attach", "attach": {"url": "ftp://x"}}, {"start": {"health_url": "http://"}}):
        with pytest.raises(UsageError, match=r"^profile p: (attach\.url|start\.health_url): not a server's URL"):
            run(**raw)


@pytest.mark.parametrize(
    ("serve", "start", "place"),
    [
        ({}, {}, ("127.0.0.1", 8000)),
        ({"host": "::", "args": ["--port", "8005"]}, {}, ("127.0.0.1", 8005)),
        ({"host": "10.0.0.7", "port": 1, "args": ["--port=2"]}, {}, ("10.0.0.7", 2)),
        ({"port": 1}, {"health_url": "http://127.0.0.1:8090/health"}, ("127.0.0.1", 1)),
        ({"port": 8090}, {"health_url": "http://10.0.0.7:8090/health"}, ("10.0.0.7", 8090)),
        ({"args": ["--port", "x"]}, {}, ("127.0.0.1", 8000)),
    ],
)
def test_where_it_will_answer(serve: dict[str, object], start: dict[str, object], place: tuple[str, int]) -> None:
    made = run(serve=serve, start=start)
    assert (made.host, made.port) == place


def test_json_flags_are_valid_and_compact() -> None:
    words = run(serve={"json": {"a": {"b c": 'd"e', "f": [{"g": 1.0}]}}}).serve
    assert words == ("--a", '{"b c":"d\\"e","f":[{"g":1.0}]}')
    assert json.loads(words[1]) == {"b c": 'd"e', "f": [{"g": 1.0}]}


def test_a_secret_that_was_typed_is_not_in_the_line() -> None:
    made = run(serve={"args": ["--api-key", "sk-madeup"]}, env={"set": {"HF_TOKEN": "hf_x", "URL": "http://u:pw@h"}})
    line = shell.line(made)
    assert "madeup" not in line and "hf_x" not in line and "pw" not in line
    assert "--api-key '***'" in line


@pytest.mark.parametrize("published", ["9000:8000", "8000:8000", "127.0.0.1:8000:8000/tcp"])
def test_a_port_that_is_published_is_told(published: str) -> None:
    raw = {"runner": "compose", "compose": {"files": ["c.yaml"], "service": "s"}}
    options = {"docker": {"options": ["-p", published]}}
    assert not place_is_told(msgspec.convert(raw, Profile), asked(()))
    assert place_is_told(msgspec.convert(raw | options, Profile), asked(()))


UNIT = {"runner": "systemd", "systemd": {"unit": "v.service"}}
COMPOSE = {"runner": "compose", "compose": {"service": "s"}}
IN_DOCKER = {"image": "i", "options": ["-p", "127.0.0.1:21260:8000"]}
HEALTH = {"start": {"health_url": "http://10.0.0.9:9000/health"}}
M = {"serve": {"model": "m"}}


@pytest.mark.parametrize(
    ("raw", "asks", "own"),
    [
        ({**UNIT, **M}, ("127.0.0.1", 8000), 8000),
        ({**UNIT, **M, "docker": IN_DOCKER}, ("127.0.0.1", 21260), 21260),
        ({**UNIT, **M, "docker": IN_DOCKER, **HEALTH}, ("127.0.0.1", 21260), 21260),
        ({**UNIT, **HEALTH}, ("10.0.0.9", 9000), None),
        ({**COMPOSE, **M}, ("127.0.0.1", 8000), None),
        ({**COMPOSE, "serve": {"port": 8010}, **HEALTH}, ("10.0.0.9", 9000), None),
        ({**COMPOSE, **M, "docker": {"options": ["--network=host"]}}, ("127.0.0.1", 8000), 8000),
        ({"runner": "docker", "docker": {"image": "i"}, "serve": {"port": 8010}}, ("127.0.0.1", 8010), None),
        ({**M, "venv": {"wrap": ["ssh", "box"]}, **HEALTH}, ("10.0.0.9", 9000), None),
        ({**M, "venv": {"wrap": ["env", "-S", "PATH=/x:${PATH}", "ssh", "box"]}, **HEALTH}, ("10.0.0.9", 9000), None),
        ({**M, "venv": {"wrap": ["nsys", "profile"]}, **HEALTH}, ("127.0.0.1", 8000), 8000),
        ({"runner": "attach", "attach": {"url": "http://10.0.0.9:9000"}}, ("10.0.0.9", 9000), None),
    ],
)
def test_its_own_port_and_where_it_is_asked(raw: dict[str, object], asks: tuple[str, int], own: int | None) -> None:
    profile = msgspec.convert(raw, Profile)
    made = launch("p", profile)
    assert (made.host, made.port) == asks
    assert own_port(profile, asked(made.serve)) == own
    assert place_is_told(profile, asked(made.serve)) == (own is not None or asks[1] == 9000)


def test_a_range_of_ports_that_is_published() -> None:
    assert [published_at(["-p", "9000-9009:8000-8009"], port) for port in (8000, 8009, 8010)] == [9000, 9009, None]
    for odd in ("9000-9001:8000-8009", "9009-9000:8009-8000", "0:8000", "8000", ":8000", "a:8000", "99999:8000"):
        assert published_at(["-p", odd], 8000) is None, odd
