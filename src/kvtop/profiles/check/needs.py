"""What a start cannot do without and this machine lacks: programs, the folder it runs in, files of compose, a unit."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from kvtop.profiles.check.seen import Absent
from kvtop.profiles.check.wraps import is_found_alike, is_here
from kvtop.profiles.flags import Flags
from kvtop.profiles.launch import Launch, venv_command, whole_path
from kvtop.profiles.profile import Profile
from kvtop.profiles.running import tools

_NO_SYSTEMD = re.compile(r"not been booted with systemd|Failed to connect to (?:user scope )?bus", re.IGNORECASE)


def absent(profile: Profile, run: Launch) -> tuple[Absent, ...]:
    """What is not there. Blocks for a moment where systemd is asked."""
    env = {name: value for name, value in {**os.environ, **run.set}.items() if name not in run.unset}
    found = {
        "venv": _of_venv,
        "docker": _of_docker,
        "compose": _of_compose,
        "systemd": _of_systemd,
    }.get(profile.runner)
    return () if found is None else tuple(found(profile, run, env))


def _of_venv(profile: Profile, run: Launch, env: Mapping[str, str]) -> Iterator[Absent]:
    if run.cwd is not None and not _is_folder(run.cwd):
        yield Absent("venv.cwd", run.cwd, "folder")
        return
    wrap = profile.venv.wrap
    if wrap and _lacks(run.argv[0], run.cwd, env):
        yield Absent("venv.wrap", run.argv[0], "program")
    program = venv_command(profile)[0]
    if is_found_alike(wrap, program) and _lacks(program, run.cwd, env):
        yield Absent("venv.command", program, "program")
    if is_here(wrap):
        config = Flags.read(run.serve).config
        if config is not None and (Path(config).is_absolute() or profile.venv.cwd):
            yield from _file("serve.config", str(Path(run.cwd or "/", config)))


def _of_docker(profile: Profile, run: Launch, env: Mapping[str, str]) -> Iterator[Absent]:
    if _lacks(run.argv[0], run.cwd, env):
        yield Absent("docker.program", run.argv[0], "program")
    else:
        yield from _daemon("docker.program", [run.argv[0]], env)
    for file in profile.docker.env_files:
        yield from _file("docker.env_files", file)


def _of_compose(profile: Profile, run: Launch, env: Mapping[str, str]) -> Iterator[Absent]:
    if _lacks(run.argv[0], run.cwd, env):
        yield Absent("compose.program", run.argv[0], "program")
    else:
        program = list(run.argv[: run.argv.index("-f")] if "-f" in run.argv else profile.compose.program)
        program = program or ["docker", "compose"]
        if _fails([*program, "version"], env):  # docker without its plugin
            yield Absent("compose.program", " ".join(program), "tool")
        else:
            yield from _daemon("compose.program", _client(program), env)
    for file in profile.compose.files:
        yield from _file("compose.files", file)
    for file in profile.compose.env_files:
        yield from _file("compose.env_files", file)


def _of_systemd(profile: Profile, run: Launch, env: Mapping[str, str]) -> Iterator[Absent]:
    if _lacks("systemctl", None, env):
        yield Absent("systemd.unit", "systemctl", "program")
        return
    words = ["systemctl", *(["--user"] if profile.systemd.user else []), "show", "--property=LoadState"]
    try:
        done = tools.run([*words, profile.systemd.unit])
    except tools.Failed:
        return
    if done.code and _NO_SYSTEMD.search(done.err):
        yield Absent("systemd.unit", done.why, "tool")
    if done.code == 0 and done.out.strip() == "LoadState=not-found":
        yield Absent("systemd.unit", profile.systemd.unit, "unit")


def _client(program: list[str]) -> list[str]:
    """What asks about containers: the program of compose without compose."""
    if program[-1] == "compose":
        return program[:-1]
    return [program[0].removesuffix("-compose")] if len(program) == 1 else []


def _daemon(key: str, words: list[str], env: Mapping[str, str]) -> Iterator[Absent]:
    """docker's own `version` asks its daemon, and fails where that does not answer; podman has none."""
    if not words or _lacks(words[0], None, env):
        return
    try:
        done = tools.run([*words, "version"], env=env)
    except tools.Failed:
        return  # it takes long: that says nothing
    if done.code and done.err.strip():
        yield Absent(key, done.why, "daemon")


def _fails(words: list[str], env: Mapping[str, str]) -> bool:
    try:
        return tools.run(words, env=env).code != 0
    except tools.Failed:
        return False  # it takes long: that says nothing


def _lacks(program: str, cwd: str | None, env: Mapping[str, str]) -> bool:
    """Whether the start, which looks in the PATH that the server gets, does not find it."""
    place = str(Path(cwd or "/", program)) if "/" in program else program
    return shutil.which(place, path=env.get("PATH", os.defpath)) is None


def _file(key: str, name: str) -> Iterator[Absent]:
    try:
        there = Path(whole_path(name)).is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        yield Absent(key, name, "file")


def _is_folder(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False
