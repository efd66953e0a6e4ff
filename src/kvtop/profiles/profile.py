"""What a profile's file may hold: one TOML file each, `NAME.toml` in the folder profiles/ beside config.toml.

Every key is optional. A profile that extends another takes what it does not say itself from there: tables are merged,
`serve.args` are put behind those of the base (of a flag that is given twice vLLM takes the last), other lists and
values replace. A flag or a variable that both name, the base in another form, is the profile's own alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

# The description of a limit is what its user reads as 'expected'.
Runner = Literal["venv", "docker", "compose", "systemd", "attach"]
Words = Annotated[list[str], Meta(description='a list of words: ["vllm", "serve"]')]
Command = Annotated[list[str] | str, Meta(description="a command: a text for the shell, or a list of words")]
Port = Annotated[int, Meta(ge=1, le=65535, description="a port from 1 to 65535")]
Seconds = Annotated[float, Meta(gt=0, le=86_400, description="more than 0, at most 86400 (seconds)")]
Size = Annotated[int, Meta(ge=10_000, le=1_000_000_000, description="a whole number from 10000 to 1000000000 (bytes)")]


class _Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """A table of the file."""


class Serve(_Part, frozen=True):
    """`[serve]`: the command line of vLLM itself, behind `vllm serve`.

    For the runners compose and systemd, whose own file holds it, it is what that file is expected to run: `check` and
    the screen read it, `start` does not.
    """

    model: str = ""
    """The model, in front of all flags. Empty: `--model` in args, or `model:` in the configuration file, or vLLM's
    own."""
    names: list[str] = []
    """`--served-model-name`."""
    host: str = ""
    """`--host`; empty: not given, and vLLM listens on all interfaces."""
    port: Port | None = None
    """`--port`; None: not given, and vLLM takes 8000."""
    config: str = ""
    """`--config FILE`: a YAML file of flags."""
    args: Words = []
    """All other flags as they are typed, one word each."""
    json: dict[str, dict[str, Any]] = {}
    """Flags whose value is JSON, as tables: `[serve.json.kv-transfer-config]`. Names without the two dashes."""
    drop: list[str] = []
    """Flags of the base that this profile does not want, without the two dashes: with their values."""


class Env(_Part, frozen=True):
    """`[env]`: the environment of vLLM, on top of kvtop's own (venv) or of the image's (docker).

    For the runners compose and systemd, whose own file holds it, `set` is read by `check` and the screen, and not by
    `start`; a compose file gets what it asks for by name: `unset`, `from_file` and `from_env` are those of
    `docker compose` itself.
    """

    set: dict[str, str] = {}
    unset: list[str] = []
    from_file: dict[str, str] = {}
    """Variable -> a file whose first line that is not blank is its value, by its whole path or from ~/. For secrets:
    read at the start, never shown."""
    from_env: dict[str, str] = {}
    """Variable -> the variable of kvtop's own environment that holds its value. For secrets: never shown."""


class Venv(_Part, frozen=True):
    """`[venv]`: vLLM from a virtual environment, or any other program of this machine."""

    command: Words = []
    """What stands before the flags. Empty: ["vllm", "serve"]."""
    wrap: Words = []
    """Words in front of it: systemd-run --user --scope -p MemoryMax=90%, numactl, nice."""
    cwd: str = ""
    """Where it runs; empty: the home of the user."""


class Docker(_Part, frozen=True):
    """`[docker]`: one container, by `docker run`. For compose: what the compose file is expected to ask for."""

    image: str = ""
    """With its tag or digest."""
    name: str = ""
    """The container's; empty: kvtop-NAME."""
    program: str = "docker"
    """Or podman, or a path."""
    options: Words = []
    """Words of `docker run` in front of the image: --ipc=host, --shm-size=32g, -v …; without -d, --rm, --name, --gpus,
    -e, --env-file, --entrypoint."""
    env_files: list[str] = []
    """Files of variables (`--env-file`): what stands in them is never shown."""
    entrypoint: Words = []
    """Instead of the image's own; the first word is --entrypoint, the rest stands behind the image."""
    command: Words = []
    """Words behind the image and in front of the flags, where its own entrypoint is not vLLM: ["vllm", "serve"]."""


class Compose(_Part, frozen=True):
    """`[compose]`: one service of a compose file, by `docker compose`."""

    files: list[str] = []
    service: str = ""
    project: str = ""
    profiles: list[str] = []
    env_files: list[str] = []
    variables: dict[str, str] = {}
    """Of the compose file, `${NAME}`: the environment of `docker compose`."""
    program: Words = []
    """Empty: ["docker", "compose"]."""


class Systemd(_Part, frozen=True):
    """`[systemd]`: a unit, by `systemctl` and `journalctl`."""

    unit: str = ""
    user: bool = False
    """A unit of the user's own manager (`systemctl --user`)."""


class Attach(_Part, frozen=True):
    """`[attach]`: a server that somebody else starts; kvtop watches it."""

    url: str = ""


class Sidecar(_Part, frozen=True):
    """`[[sidecar]]`: a process that must run beside vLLM, started before it and stopped after it."""

    name: str
    command: Command
    ready_url: str = ""
    """Asked until it answers with 200; empty: it is ready when it runs."""


class Start(_Part, frozen=True):
    """`[start]`: what is done around the start and the stop."""

    before: list[Command] = []
    """Before vLLM, one after the other; one that fails ends the start."""
    after_stop: list[Command] = []
    """When vLLM is gone, whatever ended it."""
    timeout_s: Seconds = 1800.0
    """From the start to an answering server. Handed to vLLM too (venv, docker), as VLLM_ENGINE_READY_TIMEOUT_S, unless
    `env` has it."""
    health_url: str = ""
    """Empty: /health at the port of [serve]."""
    stop_wait_s: Seconds = 15.0
    """After SIGINT, before SIGKILL."""


class Log(_Part, frozen=True):
    """`[log]`: of the runner venv; docker, compose and systemd keep their own."""

    file: str = ""
    """Empty: NAME.log in kvtop's state folder."""
    max_bytes: Size = 50_000_000
    """Then it is rotated; one older file is kept."""


class Profile(_Part, frozen=True):
    """The whole file."""

    about: str = ""
    """One line for the list; of this profile alone, never of the one that it extends."""
    extends: str = ""
    """Name of another profile."""
    runner: Runner = "venv"
    gpus: list[str] = []
    """Indices or UUIDs of the cards it may use: CUDA_VISIBLE_DEVICES, or --gpus of docker; ["all"]. Empty: not
    said."""
    serve: Serve = Serve()
    env: Env = Env()
    venv: Venv = Venv()
    docker: Docker = Docker()
    compose: Compose = Compose()
    systemd: Systemd = Systemd()
    attach: Attach = Attach()
    sidecar: list[Sidecar] = []
    start: Start = Start()
    log: Log = Log()
