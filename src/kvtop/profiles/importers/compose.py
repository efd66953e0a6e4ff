"""A service of a compose file. The file goes on to hold what is run; the profile says what is expected of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvtop.files import read_start
from kvtop.profiles.docker_options import of_service
from kvtop.profiles.importers import docker
from kvtop.profiles.importers.draft import Draft, Refused, command_text, read_yaml
from kvtop.profiles.importers.interpolate import Interpolation
from kvtop.profiles.importers.kinds import rows, table, tables
from kvtop.profiles.importers.variables import of_file
from kvtop.profiles.importers.word import is_hidden, part_of
from kvtop.profiles.launch import ALL
from kvtop.profiles.valid import VARIABLE

_MAX_ENV = 256_000
_MANY = ("-v", "-p", "--mount", "--tmpfs")
_SPAN = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?")


def read(draft: Draft, text: str, file: Path | None, service: str = "") -> None:
    """Take over a service; which, where the file has several. Raises Refused."""
    whole = read_yaml(text, as_typed=True)
    if not isinstance(whole, dict) or not isinstance(whole.get("services"), dict):
        raise Refused("no services in it", "name a compose file")
    draft.hide_all(whole)
    reader = _Reader(draft, file)
    draft.raw["runner"] = "compose"
    draft.enter_container()
    services = {str(name): one for name, one in whole["services"].items() if isinstance(one, dict)}
    name = _chosen(services, service, reader)
    one = reader.filled(services[name])
    draft.put("compose", "files", [str(file)] if file else [])
    draft.put("compose", "service", name)
    project = whole.get("name")
    if isinstance(project, str) and "$" not in project:
        draft.put("compose", "project", project)
    profiles = one.get("profiles")
    draft.put("compose", "profiles", [str(profiles[0])] if isinstance(profiles, list) and profiles else [])
    if one.get("extends"):
        draft.note("the service extends another one: what stands there is not seen here")
    if needed := rows(one.get("depends_on")) or list(table(one.get("depends_on"))):
        draft.note(f"docker compose starts before it: {command_text(', '.join(map(str, needed)), 100)}")
    reader.environment(one)
    _options(draft, one)
    _restart(draft, one)
    raw = services[name]
    if lacks := reader.lacks(raw.get("entrypoint"), raw.get("command")):
        draft.note(f"[serve] is empty: what its command runs is known only with {', '.join(lacks)}")
    else:
        _inside(draft, one)
    docker.cards_seen(draft)
    _start(draft, one)
    for variable in reader.missing:
        draft.note(f"${{{variable}}} has no value here: docker compose takes it from its environment, else nothing")
    for variable in reader.required:
        draft.note(f"${{{variable}}} has no value here, and docker compose refuses to run without: [compose] variables")


def _chosen(services: Mapping[str, dict[str, Any]], asked: str, reader: _Reader) -> str:
    if asked:
        if asked not in services:
            raise Refused(
                f"there is no service '{command_text(asked, 60)}'", f"one of {command_text(', '.join(services), 200)}"
            )
        return asked
    likely = [
        name
        for name, one in services.items()
        if "vllm" in str([one.get(k) for k in ("image", "command", "entrypoint")])
    ]
    found = likely or list(services)
    if len(found) != 1:
        raise Refused(
            f"{len(found)} services may run vLLM" if found else "there is no service in it",
            f"choose one: --service {command_text(' | '.join(found), 200)}",
        )
    return found[0]


class _Reader:
    def __init__(self, draft: Draft, file: Path | None) -> None:
        self._draft = draft
        self._folder = file.parent if file else None
        self._known = dict(of_file(self._text(".env") or ""))
        draft.hide_all(self._known)
        self._variables = Interpolation(self._known, draft.hide)

    @property
    def missing(self) -> list[str]:
        return [name for name in self._variables.missing if name not in self.required]

    @property
    def required(self) -> list[str]:
        return self._variables.required

    def lacks(self, *values: Any) -> list[str]:
        """The variables that must be set, and are not, before these values of the file are known."""
        own = Interpolation(self._known, self._draft.hide)
        own.whole(list(values))
        return own.required

    def filled(self, value: Any) -> Any:
        """A value of the file with its variables put in."""
        return self._variables.whole(value)

    def _text(self, name: str) -> str | None:
        if self._folder is None:
            return None
        try:
            data, _ = read_start(self._folder / name, _MAX_ENV)
            return data.decode("utf-8")
        except (OSError, ValueError):
            return None

    def environment(self, service: Mapping[str, Any]) -> None:
        """env_file below environment, as compose has it."""
        files = service.get("env_file") or []
        for one in files if isinstance(files, list) else [files]:
            name = str(one.get("path", "") if isinstance(one, dict) else one)
            text = self._text(name)
            if text is None:
                self._draft.note(
                    f"env_file {command_text(name, 100)} cannot be read: what stands in it is not known here"
                )
            for variable, given in of_file(text or ""):
                self._draft.variable(variable, self._variables.whole(given))
        said = service.get("environment")
        pairs = said.items() if isinstance(said, dict) else (_pair(_scalar(row)) for row in rows(said))
        for variable, value in pairs:
            if value is None:
                self._passed(str(variable))
            else:
                self._draft.variable(str(variable), _scalar(value))

    def _passed(self, name: str) -> None:
        """A variable without a value: that of .env, else that of docker compose's own environment."""
        if name in self._known:
            self._draft.variable(name, self._known[name])
        elif not VARIABLE.fullmatch(name):
            self._draft.note("a row of its environment is no NAME=VALUE: left out")
        else:
            self._draft.note(f"{name} is handed on from the environment of docker compose, where it is set")


def _pair(row: str) -> tuple[str, str | None]:
    name, equals, value = row.partition("=")
    return name, part_of(row, value) if equals else None


def _scalar(value: object) -> str:
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def _options(draft: Draft, one: Mapping[str, Any]) -> None:
    """What a container's limits are, as options of `docker run`: `check` reads them."""
    options: list[str] = []
    for flag, value in of_service(one):
        options += [flag, value] if flag in _MANY else [f"{flag}={value}"]
    resources = table(table(one.get("deploy")).get("resources"))
    image = _scalar(one.get("image") or "")
    if is_hidden([image]):
        draft.note("docker.image holds a secret: left out")
    else:
        draft.put("docker", "image", str(image))
    draft.put("docker", "options", options)
    for device in tables(table(resources.get("reservations")).get("devices")):
        if ids := rows(device.get("device_ids")):
            draft.raw["gpus"] = [str(card) for card in ids]
        elif str(device.get("count", "all")) == "all":
            draft.raw["gpus"] = list(ALL)
        else:
            draft.note(
                f"{command_text(str(device['count']), 20)} cards are asked for by their number: which ones is not told"
            )
    if one.get("gpus") == "all":
        draft.raw["gpus"] = list(ALL)


def _inside(draft: Draft, one: Mapping[str, Any]) -> None:
    """What runs in the container."""
    entrypoint, behind = _words(draft, one.get("entrypoint")), _words(draft, one.get("command"))
    if not entrypoint and not behind:
        draft.note("the service has no command: what its image runs is not known here")
        return
    docker.inside(draft, entrypoint, behind)
    if not draft.served:
        draft.note("[serve] is empty: write it by hand where check is to know what runs")
    for key in ("entrypoint", "command"):
        draft.table("docker").pop(key, None)


def _words(draft: Draft, value: object) -> list[str]:
    """A command as compose reads it: a text is cut as a shell would."""
    if value is None:
        return []
    if isinstance(value, list):
        return [_scalar(one) for one in value]
    text = _scalar(value)
    try:
        words = shlex.split(text)
    except ValueError:
        raise Refused("a quote in its command has no end", "mend the file") from None
    return draft.parts(text, words)


def _restart(draft: Draft, one: Mapping[str, Any]) -> None:
    said = str(one.get("restart") or table(table(one.get("deploy")).get("restart_policy")).get("condition") or "no")
    if said not in ("no", "none"):
        draft.note(f"restart: {command_text(said, 40)}: docker starts it again after a crash or a boot without kvtop")


def _start(draft: Draft, one: Mapping[str, Any]) -> None:
    seconds = _seconds(str(table(one.get("healthcheck")).get("start_period") or ""))
    if seconds and seconds > 1800:
        draft.put("start", "timeout_s", min(seconds, 86_400.0))


def _seconds(span: str) -> float | None:
    found = _SPAN.fullmatch(span)
    if not found or not any(found.groups()):
        return None
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds
