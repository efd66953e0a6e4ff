"""`kvtop profile import` of every form with a secret in every place: it is in no output and in no file."""

# ruff: noqa: E501  a line is a place

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtop.cli.main import main

CANARY = "Vogelbauer7"
"""Like no key by itself: what stands beside it must tell."""

HIDDEN: dict[str, list[str]] = {
    "a flag": ["--api-key", CANARY],
    "several": ["--api-key", "first", CANARY],
    "one word": [f"--api-key={CANARY}"],
    "a flag and its value in one word": [f"--api-key {CANARY}"],
    "header": ["-H", f"Authorization: Bearer {CANARY}"],
    "cookie": ["-H", f"Cookie: a={CANARY}"],
    "url": [f"http://u:{CANARY}@h/"],
    "query": [f"http://h/?access_token={CANARY}"],
    "variable": [f"REDIS_AUTH={CANARY}"],
    "option": ["--log-opt", f"splunk-token={CANARY}"],
    "label": ["-l", f"com.example.token={CANARY}"],
    "list of variables": [f"--export=ALL,API_KEY={CANARY}"],
    "list of headers": [f"OTEL_EXPORTER_OTLP_HEADERS=x-team={CANARY},a=b"],
    "logins": ["--label", f"traefik.http.middlewares.x.basicauth.users=u:{CANARY}"],
    "authorization in one word": [f"--x=Bearer {CANARY}"],
    "command in one word": [f"--health-cmd=curl -u a:{CANARY} http://h"],
    "variable of one word": [f"MYPASS={CANARY}"],
    "flag as a value": [f"Z=--api-key={CANARY}"],
    "json": ["--x", json.dumps({"a": {"password": CANARY}})],
    "json list": ["--x", json.dumps({"list": ["--api-key", CANARY]})],
    "json text": ["--x", json.dumps({"b": f"--api-key {CANARY}"})],
    "pattern": ["--api-key", f"*{CANARY}"],
    "private key": ["--x", f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----"],
}
VARIABLES = ["VLLM_API_KEY", "HF_TOKEN", "TOKEN_HF", "REDIS_AUTH", "AUTH_HEADER", "PASSWORD1", "COOKIE", "PASSPHRASE"]


def quoted(words: list[str]) -> str:
    import shlex

    return " ".join(map(shlex.quote, words))


def alone(words: list[str]) -> str:
    """One word of them that tells by itself."""
    return f"--api-key={CANARY}" if words[-1].removeprefix("*") == CANARY else words[-1]


def for_systemd(words: list[str]) -> str:
    return " ".join('"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"' for word in words)


def compose(**service: Any) -> str:
    return json.dumps({"services": {"v": {"image": "vllm/vllm-openai", **service}}})


def inspect(**config: Any) -> str:
    return json.dumps([{"Name": "/x", "Config": {"Image": "vllm/vllm-openai", **config}, "HostConfig": {}}])


PLACES: dict[str, tuple[str, Callable[[list[str]], str]]] = {
    "script: vllm": ("a.sh", lambda words: f"vllm serve m {quoted(words)}"),
    "script: before": ("a.sh", lambda words: f"prepare {quoted(words)}\nvllm serve m"),
    "script: curl": ("a.sh", lambda words: f"curl --user u:{CANARY} -u{CANARY} {quoted(words)}\nvllm serve m"),
    "script: may fail": ("a.sh", lambda words: f"prepare {quoted(words)} || true\nvllm serve m"),
    "script: after": ("a.sh", lambda words: f"vllm serve m\nclean {quoted(words)}"),
    "script: sidecar": ("a.sh", lambda words: f"lmcache server {quoted(words)} &\nvllm serve m"),
    "script: left out": ("a.sh", lambda words: f"pkill {quoted(words)}\nvllm serve m"),
    "script: in front": ("a.sh", lambda words: f"AWS_SECRET_ACCESS_KEY={CANARY} aws s3 sync {quoted(words)}\nvllm serve m"),
    "script: redirected": ("a.sh", lambda words: f"prepare > f {quoted(words)}\nvllm serve m > {quoted([alone(words)])}"),
    "script: wrap": ("a.sh", lambda words: f"somewrap {quoted(words)} vllm serve m"),
    "script: pipe": ("a.sh", lambda words: f"prepare {quoted(words)} | grep x\nvllm serve m"),
    "script: docker": ("a.sh", lambda words: f"docker run -d {quoted(words[:2])} vllm/vllm-openai --model m {quoted(words)}"),
    "script: docker env": ("a.sh", lambda words: f"docker run -e '{alone(words)}' -e COOKIE={CANARY} -l '{alone(words)}' vllm/vllm-openai --model m"),
    "script: used again": ("a.sh", lambda words: f"A_TOKEN={CANARY}\nprepare -x $A_TOKEN\ncd /$A_TOKEN\nvllm serve m --seed a$A_TOKEN {quoted(words)}"),
    "script: bash -c": ("a.sh", lambda words: f"bash -c {quoted([f'vllm serve m {quoted(words)}'])}"),
    "script: default": ("a.sh", lambda words: f"export VLLM_API_KEY=\"${{X:-'{CANARY}'}}\"\nvllm serve m"),
    "script: default in a command": ("a.sh", lambda words: f"export VLLM_API_KEY=$(echo {CANARY})\nvllm serve m"),
    "script: dollar": ("a.sh", lambda words: f"export VLLM_API_KEY=\"a${{{CANARY}\"\nvllm serve m"),
    "script: computed": ("a.sh", lambda words: f"export VLLM_API_KEY=\"${{A%{CANARY}}}\"\nvllm serve m"),
    "script: arithmetic": ("a.sh", lambda words: f"export VLLM_API_KEY=$(( 7{CANARY} + {quoted(words)} ))\nvllm serve m"),
    "script: export": ("a.sh", lambda words: f"export HF_TOKEN:{CANARY}\nvllm serve m"),
    "script: default of a secret": ("a.sh", lambda words: f"export X=${{API_KEY:-{CANARY}}}\nexport Y={CANARY}\nZ=${{A_TOKEN:={CANARY}}} vllm serve m --x ${{HF_TOKEN:-{CANARY}}} {quoted(words)}"),
    "script: handed on": ("a.sh", lambda words: f"API_KEY={CANARY}\nB=$API_KEY\nC=x$B\nexport D=$B$C\nE=$C prepare $B > /x/$B\nPATH=/$B:$PATH E=a$C proxy &\nvllm serve m --x a$B {quoted(words)}"),
    "script: a shell in it": ("a.sh", lambda words: f"API_KEY={CANARY}\nbash -c \"X=$API_KEY vllm serve m\""),
    "script: a shell finds it": ("a.sh", lambda words: f"API_KEY={CANARY} bash -c 'export X=$API_KEY; vllm serve m --x $API_KEY'"),
    "script: docker, handed on": ("a.sh", lambda words: f"PW=1\nPASSWORD={CANARY}\ndocker run -e A=$PASSWORD -e=B=x$PASSWORD --env=C=$PASSWORD -l a=$PASSWORD --tmpfs $PASSWORD vllm/vllm-openai --model m --x $PASSWORD"),
    "script: element": ("a.sh", lambda words: f"API_KEYS[1]={CANARY}\nA_TOKEN[0]+={CANARY} prepare\nvllm serve m"),
    "script: told again": ("a.sh", lambda words: f"API_KEY={CANARY}\ntrap {CANARY} EXIT\nunset $API_KEY\nexport HF_TOKEN=$(cat /x/{CANARY})\nvllm serve m --x"),
    "script: told in a refusal": ("a.sh", lambda words: f"API_KEY={CANARY}\nvllm serve m --x {CANARY}*"),
    "script: told in a refusal of a file": ("a.sh", lambda words: f"API_KEY={CANARY}\nsource ./x{CANARY}\nvllm serve m"),
    "script: told in a refusal of a command": ("a.sh", lambda words: f"API_KEY={CANARY}\n/x/{CANARY} | y\nvllm serve m --x $({CANARY})"),
    "script: environment program": ("a.sh", lambda words: f"K_TOKEN={CANARY}\nenv -C /x/$K_TOKEN -u $K_TOKEN vllm serve m"),
    "script: container, handed on": ("a.sh", lambda words: f"K_TOKEN={CANARY}\ndocker run -d --name v$K_TOKEN --env-file /x/$K_TOKEN --gpus $K_TOKEN --privileged=$K_TOKEN -e FOO$K_TOKEN=1 vllm/vllm-openai bash -c \"vllm serve m --x $K_TOKEN\""),
    "script: container, its shell": ("a.sh", lambda words: f"K_TOKEN={CANARY}\ndocker run -d vllm/vllm-openai bash -c \"prep --x a$K_TOKEN; vllm serve m\""),
    "script: path": ("a.sh", lambda words: f"K_TOKEN={CANARY}\nPATH=/x/$K_TOKEN:$PATH\nsource /v/bin/activate\nproxy &\nvllm serve m"),
    "compose: command": ("compose.yml", lambda words: compose(command=["--model", "m", *words])),
    "compose: text": ("compose.yml", lambda words: compose(command=f"--model m {quoted(words)}".replace("$", "$$"))),
    "compose: entrypoint": ("compose.yml", lambda words: compose(entrypoint=["run", *words], command=["--model", "m"])),
    "compose: shell": ("compose.yml", lambda words: compose(entrypoint=["bash", "-c"], command=[f"prepare {quoted(words)} && exec vllm serve m"])),
    "compose: logic": ("compose.yml", lambda words: compose(entrypoint=["bash", "-c"], command=[f"if x {quoted(words)}; then vllm serve m; fi"])),
    "compose: environment": ("compose.yml", lambda words: compose(command="--model m", environment={"FOO": f"Bearer {CANARY}", "A": alone(words), **dict.fromkeys(VARIABLES, CANARY)})),
    "compose: rows": ("compose.yml", lambda words: compose(command="--model m", environment=[f"HF_TOKEN: {CANARY}", alone(words)])),
    "compose: options": ("compose.yml", lambda words: compose(command="--model m", volumes=[alone(words)], tmpfs=[alone(words)], ports=[alone(words)])),
    "compose: dollar": ("compose.yml", lambda words: compose(command=f"--model m --api-key a$!{CANARY}")),
    "compose: braces": ("compose.yml", lambda words: compose(command=f"--model m --api-key ${{X!{CANARY}}}")),
    "compose: default of a secret": ("compose.yml", lambda words: compose(command=f"--model m --x ${{API_KEY:-{CANARY}}}", environment={"X": f"${{HF_TOKEN-{CANARY}}}", "Y": f"a${{B_TOKEN:-{CANARY}}}", "Z": CANARY})),
    "compose: rows with a default": ("compose.yml", lambda words: compose(command=["--model", "m", "--x", f"${{API_KEY:-{CANARY}}}"], environment=[f"X=b${{HF_TOKEN-{CANARY}}}"])),
    "compose: elsewhere": ("compose.yml", lambda words: json.dumps({"x-k": {"api_key": CANARY}, "services": {"v": {"image": "vllm/vllm-openai", "command": ["--model", "m", "--x", CANARY], "environment": {"B": f"a{CANARY}"}}, "o": {"image": "other", "environment": [f"A_TOKEN={CANARY}"]}}})),
    "compose: handed on": ("compose.yml", lambda words: compose(command=f"--model m --x a${{K_TOKEN:-{CANARY}}} --y=${{K_TOKEN:-{CANARY}}}", image=f"r/${{K_TOKEN:-{CANARY}}}/vllm")),
    "compose: its shell": ("compose.yml", lambda words: compose(command=["bash", "-c", f"trap ${{K_TOKEN:-{CANARY}}} EXIT; vllm serve m --x ${{K_TOKEN:-{CANARY}}}"])),
    "compose: alias": ("compose.yml", lambda words: f"services: {{v: {{image: vllm, environment: {{HF_TOKEN: *{CANARY}}}}}}}"),
    "unit: vllm": ("u.service", lambda words: f"[Service]\nExecStart=/usr/bin/vllm serve m {for_systemd(words)}"),
    "unit: unknown": ("u.service", lambda words: f"[Service]\nExecStart=/usr/local/bin/run-vllm {for_systemd(words)}"),
    "unit: shell": ("u.service", lambda words: f"[Service]\nExecStart=/bin/bash -c {for_systemd([f'for x in {quoted(words)}; do vllm serve m; done'])}"),
    "unit: around": ("u.service", lambda words: f"[Service]\nExecStartPre=/usr/bin/x {for_systemd(words)}\nExecStop=/usr/bin/curl --user u:{CANARY}\nExecStart=/usr/bin/vllm serve m"),
    "unit: environment": ("u.service", lambda words: "[Service]\nExecStart=/usr/bin/vllm serve m\n" + "".join(f'Environment="{name}={CANARY}"\n' for name in VARIABLES)),
    "unit: variables": ("u.service", lambda words: f'[Service]\nEnvironment="HF_TOKEN={CANARY}"\nExecStart=/usr/bin/vllm serve m --x ${{HF_TOKEN}}\nExecStop=/usr/bin/x {CANARY}'),
    "inspect: command": ("i.json", lambda words: inspect(Cmd=["--model", "m", *words])),
    "inspect: entrypoint": ("i.json", lambda words: inspect(Entrypoint=["run", *words, "vllm", "serve"], Cmd=["m"])),
    "inspect: environment": ("i.json", lambda words: inspect(Cmd=["--model", "m"], Env=[f"VLLM_X={alone(words)}", f"HF_TOKEN={CANARY}"])),
    "unit: handed on": ("u.service", lambda words: f'[Service]\nEnvironment="K_TOKEN={CANARY}"\nExecStart=/usr/bin/vllm serve m --x ${{K_TOKEN}} --y a${{K_TOKEN}} $K_TOKEN'),
    "unit: not known": ("u.service", lambda words: f'[Service]\nEnvironment="K_TOKEN={CANARY}"\nUnsetEnvironment={CANARY}\nExecStart=/usr/bin/run-vllm --x ${{K_TOKEN}}'),
    "unit: container": ("u.service", lambda words: f'[Service]\nEnvironment="K_TOKEN={CANARY}"\nExecStart=/usr/bin/docker run -e Y=a${{K_TOKEN}} vllm/vllm-openai --model m'),
    "inspect: elsewhere": ("i.json", lambda words: inspect(Env=[f"API_KEY={CANARY}"], Cmd=["--model", "m", "--x", CANARY], Entrypoint=["run", CANARY, "vllm", "serve"], WorkingDir=f"/x/{CANARY}", User=CANARY, Labels={"com.docker.compose.project": CANARY})),
    "inspect: shell": ("i.json", lambda words: inspect(Entrypoint=["bash", "-c", f"x {quoted(words)}; vllm serve m"])),
    "inspect: options": ("i.json", lambda words: inspect(Cmd=["--model", "m"], WorkingDir=alone(words), User=alone(words))),
    "config": ("c.yaml", lambda words: f"api-key: {CANARY}\nhf-token: {CANARY}\n{json.dumps(alone(words))}: false"),
}  # fmt: skip


def everything(capsys: pytest.CaptureFixture[str], home: Path, argv: list[str]) -> str:
    """What is said, and what stands in any file afterwards; of the profile too, as it is shown and would be run."""
    made = home / "config/profiles/p.toml"
    made.unlink(missing_ok=True)
    main(["profile", "import", "--name", "p", *argv])
    if made.exists():
        for words in (["show", "p"], ["show", "p", "--json"], ["command", "p"], ["command", "p", "--json"]):
            main(["profile", *words])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    files = [Path(at, name) for at, _, names in os.walk(home) for name in names]
    return said.out + said.err + "".join(file.read_text() for file in files)


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_is_in_no_output_and_in_no_file(
    place: str, own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, text = PLACES[place]
    file = tmp_path / name
    for kind, words in HIDDEN.items():
        file.write_text(text(words))
        said = everything(capsys, own_home, [str(file)])
        assert CANARY not in said, (place, kind, said)


def test_a_file_that_is_sourced_is_quoted_nowhere(
    own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, sourced = tmp_path / "a.sh", tmp_path / "e"
    file.write_text("source ./e\nvllm serve m")
    for text in (
        f"if a; then\n  mytool --api-key {CANARY} --x=$Y\nfi",
        f"mytool --api-key {CANARY} --x=$Y (",
        f"A_TOKEN={CANARY}\nexport B=x$A_TOKEN (",
        f"export A_TOKEN={CANARY}\nB=$A_TOKEN\nexport C=a$B",
    ):
        sourced.write_text(text)
        said = everything(capsys, own_home, [str(file)])
        assert CANARY not in said and 'model = "m"' in said, said


SHORT = [
    "script: default of a secret",
    "script: handed on",
    "script: a shell in it",
    "script: a shell finds it",
    "script: docker, handed on",
    "script: environment program",
    "script: container, handed on",
    "script: container, its shell",
    "script: path",
    "compose: handed on",
    "compose: its shell",
    "unit: handed on",
    "unit: not known",
    "unit: container",
]
"""Where it comes through its variable alone."""


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("place", SHORT)
def test_a_short_one_is_hidden_wherever_its_variable_is_named(
    place: str, length: int, own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, text = PLACES[place]
    short = "ßöäüéèç"[:length]  # in no word of kvtop's own
    file = tmp_path / name
    # what is written out once more is known as a secret by its length alone
    literal = (f"export Y={CANARY}", f"UnsetEnvironment={CANARY}")
    whole = "\n".join(line for line in text(["--y"]).splitlines() if line not in literal)
    file.write_text(whole.replace(CANARY, short))
    said = everything(capsys, own_home, [str(file)])
    assert short not in said, said


@pytest.mark.parametrize("length", [4, 5, 7])
def test_a_short_one_is_hidden_where_it_is_all_of_another_variable(
    length: int, own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = "ßöäüéèç"[:length]
    file = tmp_path / "a.sh"
    for text in (
        f"export P={short}; API_KEY=$P vllm serve m",
        f"PASSWORD={short} env FOO={short} vllm serve m",
        f"API_KEY={short} true; P={short}; export W=$P\nvllm serve m",
    ):
        file.write_text(text)
        said = everything(capsys, own_home, [str(file)])
        assert short not in said and 'model = "m"' in said, said


@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize(
    "line",
    [
        ["vllm", "serve", "m", "HERE"],
        ["somewrap", "HERE", "vllm", "serve", "m"],
        ["env", "HERE", "vllm", "serve", "m"],
        ["docker", "run", "HERE", "vllm/vllm-openai", "--model", "m"],
        ["docker", "HERE", "run", "vllm/vllm-openai", "--model", "m"],
        ["docker", "run", "--entrypoint", "x", "vllm/vllm-openai", "HERE", "vllm", "serve", "m"],
        ["HERE"],
    ],
    ids=" ".join,
)
def test_no_command_line_that_is_imported_leaves_one(
    line: list[str], kind: str, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = HIDDEN[kind][:2] if line[:2] == ["docker", "run"] else HIDDEN[kind]
    words = [one for word in line for one in (given if word == "HERE" else [word])]
    assert CANARY not in everything(capsys, own_home, ["--", *words])
