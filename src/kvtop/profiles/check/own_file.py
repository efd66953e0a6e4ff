"""Reading what the runner's own file says now: the service of a compose file, a unit. Nothing of it is run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvtop.profiles import cards
from kvtop.profiles.check.edits import flags_in, mentions
from kvtop.profiles.check.seen import OwnFile
from kvtop.profiles.config_file import config_text
from kvtop.profiles.docker_options import listed, of_service, pairs
from kvtop.profiles.flags import Flags
from kvtop.profiles.launch import VISIBLE, Launch, environment, whole_path
from kvtop.profiles.profile import Profile
from kvtop.profiles.running import tools
from kvtop.profiles.yaml_text import NoYaml, loaded
from kvtop.sources.masking import MASK

ASKED = re.compile(r"\b(?:VLLM_\w+|LMCACHE_\w+|PYTORCH_\w+|CUDA_VISIBLE_DEVICES|PYTHONHASHSEED)\b")
"""The variables that rules ask for."""
_PORTS = re.compile(
    r"(?<!\S)(?:-p[= ]?|--publish[= ])['\"]?((?:[\w.\[\]:]+:)?\d+(?:-\d+)?:\d+(?:-\d+)?)(?![\w:-]|/udp)"
)
"""In a unit: the ports that its `docker run` publishes."""
_PORTS_OPEN = re.compile(r"(?<!\S)(?:-p[= ]?|--publish[= ])\S*[$%]")
"""A variable decides that."""
_ALONE = re.compile(r"\$\{?(\w+)(?:\}|:?[-?].*\})?", re.DOTALL)
"""A value that is one variable, with or without a default."""
_JOINED = ("ports", "volumes", "tmpfs", "environment", "env_file")
"""Keys of which a later compose file adds to an earlier one; of others its value is taken."""
_ELSEWHERE = ("PassEnvironment=", "--env-file")
"""In a unit: variables that another place sets."""
_ENV_FILE = re.compile(r"^[ \t]*EnvironmentFile[ \t]*=[ \t]*-?(\S.*?)[ \t]*$", re.MULTILINE)


def read(profile: Profile, run: Launch, missing: Mapping[str, str]) -> OwnFile | None:
    """None for a runner that has no file of its own. `missing`: secrets without a value here. Blocks for a moment where
    systemd is asked."""
    if profile.runner == "compose":
        found = service(profile)
        own = OwnFile() if found is None else _of_service(profile, found, run, missing)
    elif profile.runner == "systemd":
        own = _of_unit(profile)
    else:
        return None
    # what a script of its own sets, or an image, is not known here
    return own if _holds_command(own.command, run) else replace(own, text=None, env_whole=False)


def _holds_command(command: str, run: Launch) -> bool:
    flags = Flags.read(run.serve)
    named = flags_in(command) & {one.name for one in flags.given}
    return bool(named) or (flags.model is not None and mentions(command, flags.model))


def service(profile: Profile) -> Mapping[str, Any] | None:
    """The service of its compose files, the later over the earlier; None where they cannot be read."""
    found: dict[str, Any] = {}
    for name in profile.compose.files:
        text = config_text(whole_path(name))
        try:
            document = loaded(text, as_typed=True) if text is not None else None
        except NoYaml:
            return None
        services = document.get("services") if isinstance(document, dict) else None
        one = services.get(profile.compose.service) if isinstance(services, dict) else None
        if isinstance(one, dict):
            found |= {key: _joined(found.get(key), value) if key in _JOINED else value for key, value in one.items()}
    return found or None


def _joined(earlier: object, later: object) -> object:
    if isinstance(earlier, dict) and isinstance(later, dict):
        return {**earlier, **later}
    if isinstance(earlier, dict) or isinstance(later, dict):  # a table and a list of NAME=VALUE
        return [*_rows(earlier), *_rows(later)]
    return [*listed(earlier), *listed(later)]


def _rows(value: object) -> list[object]:
    if isinstance(value, dict):
        return [str(name) if one is None else f"{name}={one}" for name, one in value.items()]
    return listed(value)


def _of_service(profile: Profile, found: Mapping[str, Any], run: Launch, missing: Mapping[str, str]) -> OwnFile:
    options = _options(profile, found)
    if found.get("extends"):
        return OwnFile(options=options or None)
    whole, files = True, ""
    folder = Path(whole_path(profile.compose.files[0])).parent
    for one in listed(found.get("env_file")):
        name = str(one.get("path", "")) if isinstance(one, Mapping) else str(one)
        more = config_text(whole_path(name), folder)
        files, whole = f"{files}\n{more or ''}", whole and more is not None
    command = " ".join(_texts([found.get("entrypoint"), found.get("command")]))
    open_names = set(ASKED.findall(f"{command} {files}"))
    env: dict[str, str] = {}
    outer = {name: value for name, value in os.environ.items() if name not in profile.env.unset}
    outer |= profile.compose.variables
    outer |= {name: MASK for name in run.secrets if name not in missing}
    for name, value in _variables(found.get("environment")):
        alone = _ALONE.fullmatch(value or "")
        if mentions(command, name):  # its shell sets it anew: the import has read that
            continue
        if value is None and name in outer:
            env[name] = outer[name]
        elif value is None and _in_dotenv(profile, folder, name):
            open_names.add(name)
        elif value is not None and "$" not in value:
            env[name] = value
        elif alone and outer.get(alone[1]):
            env[name] = outer[alone[1]]
        elif value is not None:
            open_names.add(name)
    text = " ".join([*_texts(found), files])
    whole = whole and not _unknown(profile, open_names - env.keys())
    return OwnFile(text, command, env, whole, options, _cards(found))


def _unknown(profile: Profile, names: set[str]) -> set[str]:
    """Those of which a rule asks, and of which the import did not tell either."""
    return {name for name in names if ASKED.fullmatch(name)} - environment(profile).keys() - set(profile.env.unset)


def _texts(value: object) -> Iterator[str]:
    """All words that stand in a part of a document, in its order."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield str(key)
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif value is not None:
        yield str(value)


def _cards(found: Mapping[str, Any]) -> tuple[str, ...]:
    """The cards of this machine that its vLLM sees, as an import tells them; none where that is not told."""
    env = dict(_variables(found.get("environment")))
    given, visible = _given(found, env), env.get(VISIBLE, "") or ""
    if given is None or (VISIBLE in env and not cards.named(visible)):
        return ()
    return tuple(cards.seen(given, visible))


def _given(found: Mapping[str, Any], env: Mapping[str, str | None]) -> list[str] | None:
    """The cards that the container is given, none for all of them; None: not told."""
    part: object = found
    for key in ("deploy", "resources", "reservations", "devices"):
        part = part.get(key) if isinstance(part, Mapping) else None
    rows = [one for one in listed(part) if isinstance(one, Mapping)]
    if len(rows) > 1:
        return None
    if rows:
        ids = rows[0].get("device_ids")
        by_number = str(rows[0].get("count", "all")) != "all"  # which ones is not told
        text = ",".join(map(str, listed(ids))) if ids else "" if by_number else "all"
    elif found.get("gpus"):
        text = str(found["gpus"])
    else:
        text = env.get("NVIDIA_VISIBLE_DEVICES", "all") or ""
    return [] if text == "all" else cards.named(text) or None


def _variables(environment: object) -> Iterator[tuple[str, str | None]]:
    for row in _rows(environment):
        name, equals, value = str(row).partition("=")
        yield name, value if equals else None


def _in_dotenv(profile: Profile, folder: Path, name: str) -> bool:
    """Whether docker compose finds a variable in its own file of variables."""
    files = [whole_path(file) for file in profile.compose.env_files] or [str(folder / ".env")]
    return any(mentions(config_text(file) or "", name) for file in files)


def _options(profile: Profile, found: Mapping[str, Any]) -> tuple[str, ...]:
    """As words of `docker run`. Where variables decide, what the profile was told of it when it was imported."""
    rows = list(of_service(found))
    told = list(pairs(profile.docker.options))
    unknown = {flag for flag, value in rows if "$" in value} & {flag for flag, _ in told}
    rows = [(flag, value) for flag, value in rows if flag not in unknown]
    return tuple(
        f"{flag}={value}" for flag, value in [*rows, *((flag, value) for flag, value in told if flag in unknown)]
    )


def _of_unit(profile: Profile) -> OwnFile:
    words = ["systemctl", *(["--user"] if profile.systemd.user else []), "cat", "--", profile.systemd.unit]
    try:
        done = tools.run(words)
    except tools.Failed:
        return OwnFile()
    if done.code:
        return OwnFile()
    text, whole = done.out, not any(word in done.out for word in _ELSEWHERE)
    for name in _ENV_FILE.findall(done.out):
        more = config_text(name)
        text, whole = f"{text}\n{more or ''}", whole and more is not None
    options = _published(profile, done.out)
    return OwnFile(text, done.out, options=options, env_whole=whole and not _unknown(profile, set(ASKED.findall(text))))


def _published(profile: Profile, text: str) -> tuple[str, ...] | None:
    """What the profile was told of its container, with the ports that the unit publishes now; None: it tells none."""
    found = _PORTS.findall(text)
    if not profile.docker.image or not found or _PORTS_OPEN.search(text):
        return None
    told = pairs(profile.docker.options)
    others = (pair for pair in told if pair[0].startswith("-") and pair[0] not in ("-p", "--publish"))
    return tuple(f"{flag}={value}" for flag, value in [*others, *(("-p", value) for value in found)])
