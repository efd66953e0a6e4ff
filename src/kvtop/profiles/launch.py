"""What a profile runs: exact words, exact environment, secrets by reference only."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kvtop.errors import UsageError, printable
from kvtop.profiles.config_file import config_text
from kvtop.profiles.docker_options import host_network, published_at
from kvtop.profiles.flags import Flags
from kvtop.profiles.profile import Profile
from kvtop.sources.url import VLLM_PORT, parse

READY_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"
VISIBLE = "CUDA_VISIBLE_DEVICES"
ALL = ["all"]
_LOOPBACK = "127.0.0.1"
_EVERYWHERE = ("", "0.0.0.0", "::", "[::]", "*")
_ELSEWHERE = frozenset(("ssh", "mosh", "kubectl", "srun", "docker", "podman", "lxc", "incus", "machinectl"))
"""Wrappers that run their command on another machine, or in another network."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Where the value of a variable is read when the server starts; never the value."""

    kind: Literal["file", "env"]
    where: str
    """Path of the file whose first line that is not blank it is, or the variable of kvtop's own environment."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of one profile. `set`, `unset` and `secrets` make the environment of `argv`, on top of kvtop's own."""

    argv: tuple[str, ...]
    """What kvtop runs: vLLM itself (venv), `docker run …`, `docker compose … up -d SERVICE`, `systemctl start UNIT`;
    empty for attach."""
    serve: tuple[str, ...]
    """What vLLM gets, from the model on, as far as it is known: behind `vllm serve`, or behind the image."""
    set: dict[str, str] = field(default_factory=dict)
    """For docker the variables of the container stand in `argv`, and none here."""
    unset: tuple[str, ...] = ()
    secrets: dict[str, Secret] = field(default_factory=dict)
    """Variable -> where its value is. docker gets such a variable by name (`-e NAME`), never in its command line."""
    cwd: str | None = None
    """Where it runs; None: where does not matter, all paths are whole."""
    port: int = VLLM_PORT
    """Where HTTP will answer."""
    host: str = _LOOPBACK
    """Where kvtop asks it."""


def launch(name: str, profile: Profile) -> Launch:
    """What `name` runs. Raises UsageError where its runner lacks what it cannot do without."""
    serve = serve_words(profile)
    port, host = _address(name, profile, serve)
    argv: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    secrets: dict[str, Secret] = {}
    cwd = None
    if profile.runner == "venv":
        argv = (*map(whole_path, profile.venv.wrap), *venv_command(profile), *serve)
        variables, unset, secrets = environment(profile), tuple(profile.env.unset), secrets_of(profile)
        cwd = folder_of(profile)
    elif profile.runner == "docker":
        argv, unset, secrets = _docker(name, profile, serve), tuple(profile.env.unset), secrets_of(profile)
    elif profile.runner == "compose":
        argv, unset, secrets = _compose(name, profile), tuple(profile.env.unset), secrets_of(profile)
        variables = dict(profile.compose.variables)
    elif profile.runner == "systemd":
        unit = _needed(name, "systemd.unit", profile.systemd.unit)
        argv = ("systemctl", *(["--user"] if profile.systemd.user else []), "start", unit)
    else:
        _needed(name, "attach.url", profile.attach.url)
    return Launch(argv, serve, variables, unset, secrets, cwd, port, host)


def venv_command(profile: Profile) -> list[str]:
    """What the runner venv runs in front of the flags, whole paths for those from ~: no shell reads them."""
    return [whole_path(word) for word in profile.venv.command or ["vllm", "serve"]]


def folder_of(profile: Profile) -> str | None:
    """Where the runner venv runs its command: [venv] cwd, else the home of the user. None for the other runners, and
    where there is no home."""
    if profile.runner != "venv":
        return None
    home = whole_path("~")
    if home == "~":
        return profile.venv.cwd or None
    return str(Path(home, whole_path(profile.venv.cwd)))


def serve_words(profile: Profile) -> tuple[str, ...]:
    """What stands behind `vllm serve`: model, fields, args, JSON flags."""
    serve = profile.serve
    words = [whole_path(serve.model)] if serve.model else []
    if serve.config:
        words += ["--config", whole_path(serve.config)]
    if serve.names:
        words += ["--served-model-name", *serve.names]
    if serve.host:
        words += ["--host", serve.host]
    if serve.port is not None:
        words += ["--port", str(serve.port)]
    words += serve.args
    for flag, value in serve.json.items():
        words += [f"--{flag}", compact(value)]
    return tuple(words)


def asked(serve: Sequence[str], cwd: str | None = None) -> Flags:
    """What a command line behind `vllm serve` asks for, with the file of --config below it where it can be read."""
    file = config_of(serve, cwd)
    text = None if file is None else config_text(str(file))
    return Flags.read(serve) if text is None else Flags.read(serve, yaml=text)


def config_of(serve: Sequence[str], cwd: str | None = None) -> Path | None:
    """The file of --config that `asked` reads, whether it is there or not; None: none is named."""
    named = Flags.read(serve).config
    return None if named is None else Path(cwd or "", whole_path(named))


def in_container(profile: Profile) -> bool:
    """Whether vLLM runs in a container: by docker, compose, or a unit that runs docker."""
    return profile.runner in ("docker", "compose") or (profile.runner == "systemd" and bool(profile.docker.image))


def own_port(profile: Profile, flags: Flags, options: Sequence[str] | None = None) -> int | None:
    """The port of this machine at which the server itself listens; `options`: what is known better of its container
    than [docker] options. None: that is not told, it may stand in a configuration file that cannot be read, or in the
    file of the runner, or nothing publishes it, or it runs on another machine."""
    if profile.runner == "attach" or is_elsewhere(profile):
        return None
    unread = flags.config is not None and not any(one.from_file for one in flags.given)
    told = flags.value("port") is not None
    if has_own_network(profile, options):
        return published_at(profile.docker.options if options is None else options, inner_port(flags))
    own = profile.runner in ("compose", "systemd") and not flags.words
    return inner_port(flags) if told or not (unread or own) else None


def place_is_told(profile: Profile, flags: Flags) -> bool:
    """Whether it is known where kvtop asks the server: `Launch.port` is no guess."""
    return profile.runner == "attach" or bool(profile.start.health_url) or own_port(profile, flags) is not None


def inner_port(flags: Flags) -> int:
    """Where vLLM itself listens, in its container where it runs in one."""
    number = flags.number("port")
    return number if isinstance(number, int) and 0 < number < 65536 else VLLM_PORT


def is_elsewhere(profile: Profile) -> bool:
    """Whether words of [venv] wrap run vLLM on another machine, or in a container that is there."""
    return profile.runner == "venv" and any(
        "=" not in word and Path(word).name in _ELSEWHERE for word in profile.venv.wrap
    )


def has_own_network(profile: Profile, options: Sequence[str] | None = None) -> bool:
    """Whether vLLM runs in a container with a network of its own; `options`: as of `own_port`."""
    return in_container(profile) and not host_network(profile.docker.options if options is None else options)


def compact(value: Any) -> str:
    """JSON as short as it can be written."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def environment(profile: Profile) -> dict[str, str]:
    """The variables that vLLM gets, less secrets: those of the profile, its cards, its start timeout."""
    env = profile.env
    said = {*env.set, *env.unset, *env.from_file, *env.from_env}
    made = {}
    if profile.gpus not in ([], ALL) and profile.runner != "docker" and VISIBLE not in said:
        made[VISIBLE] = ",".join(profile.gpus)
    if READY_TIMEOUT not in said and profile.runner in ("venv", "docker"):
        made[READY_TIMEOUT] = str(math.ceil(profile.start.timeout_s))
    return {**made, **env.set}


def secrets_of(profile: Profile) -> dict[str, Secret]:
    """Where the values of secret variables are."""
    files = {name: Secret("file", whole_path(where)) for name, where in profile.env.from_file.items()}
    return files | {name: Secret("env", where) for name, where in profile.env.from_env.items()}


def container_name(name: str, profile: Profile) -> str:
    """Of the runner docker."""
    return profile.docker.name or f"kvtop-{name}"


def _docker(name: str, profile: Profile, serve: tuple[str, ...]) -> tuple[str, ...]:
    docker = profile.docker
    image = _needed(name, "docker.image", docker.image)
    words = [*_program([docker.program]), "run", "-d", "--name", container_name(name, profile)]
    if profile.gpus == ALL:
        words += ["--gpus", "all"]
    elif profile.gpus:
        cards = f"device={','.join(profile.gpus)}"
        # docker reads this value as a row of CSV: a comma needs quotes around it
        words += ["--gpus", f'"{cards}"' if len(profile.gpus) > 1 else cards]
    words += docker.options
    for file in docker.env_files:
        words += ["--env-file", whole_path(file)]
    for variable, value in environment(profile).items():
        words += ["-e", f"{variable}={value}"]
    # by name alone: docker takes the value from its own environment, and unsets what is not there
    for variable in (*profile.env.from_file, *profile.env.from_env, *profile.env.unset):
        words += ["-e", variable]
    if docker.entrypoint:
        words += ["--entrypoint", docker.entrypoint[0]]
    return (*words, image, *docker.entrypoint[1:], *docker.command, *serve)


def _compose(name: str, profile: Profile) -> tuple[str, ...]:
    compose = profile.compose
    service = _needed(name, "compose.service", compose.service)
    words = _program(compose.program or ["docker", "compose"])
    for flag, values in (
        ("-f", [whole_path(file) for file in compose.files]),
        ("-p", [compose.project] if compose.project else []),
        ("--profile", compose.profiles),
        ("--env-file", [whole_path(file) for file in compose.env_files]),
    ):
        words += [word for value in values for word in (flag, value)]
    return (*words, "up", "-d", service)


def _address(name: str, profile: Profile, serve: tuple[str, ...]) -> tuple[int, str]:
    """(port, host) where kvtop asks the server: its own, whatever answers at the health URL may be another program.
    Only where its own is not told, or is not one of this machine, the health URL has to do."""
    flags = asked(serve, folder_of(profile))
    host = printable(flags.value("host") or "")
    key, url = "start.health_url", profile.start.health_url
    if profile.runner == "attach":
        key, url = "attach.url", profile.attach.url
    port = own_port(profile, flags)
    if url:
        try:
            place = parse(url)
        except UsageError as error:
            raise UsageError(f"profile {printable(name, 100)}: {key}: {error.what}", error.fix) from None
        if port in (None, place.port):
            return place.port, place.host
    if has_own_network(profile):
        return port or inner_port(flags), _LOOPBACK
    return port or inner_port(flags), _LOOPBACK if host in _EVERYWHERE else host


def _program(words: list[str]) -> list[str]:
    return [whole_path(words[0]), *words[1:]]


def whole_path(path: str) -> str:
    """A path from ~ as a whole one; no shell will do that."""
    if path == "~" or path.startswith("~/"):
        return str(Path(os.path.expanduser(path)))  # noqa: PTH111  Path's own raises where there is no home
    return path


def _needed(name: str, key: str, value: str) -> str:
    if not value:
        raise UsageError(
            f"profile {printable(name, 100)}: {key} is missing", "docs/profiles.md says what its runner needs"
        )
    return value
