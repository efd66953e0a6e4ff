"""Rules of what a start needs at once: programs, files, secrets, and paths that mean one place alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from kvtop.errors import keyless, printable
from kvtop.profiles.check.edits import file_of, flags_in, lost_variables, there
from kvtop.profiles.check.rules.service import local_paths
from kvtop.profiles.check.seen import Absent, Facts, Lacks, Saying, Says
from kvtop.profiles.check.wraps import is_found_alike, own
from kvtop.profiles.flags import Given
from kvtop.profiles.launch import venv_command

_ONE_WAY = re.compile(r"[\w./:-]+")
"""A word that needs no quotes anywhere."""


def program_missing(facts: Facts) -> Saying:
    """The program, the folder that it runs in, a compose file or the unit is not there: the start fails at once."""
    for one in facts.absent:
        says, fix = _absent(one)
        yield Says("error", one.key, says, fix)
    if facts.profile.runner == "venv":
        program = venv_command(facts.profile)[0]
        if not is_found_alike(facts.profile.venv.wrap, program):
            yield Lacks(f"the program that {keyless(program, 120)} means behind the words of venv.wrap")


def _absent(one: Absent) -> tuple[str, str]:
    what = keyless(one.what, 120)
    table, _, key = one.key.partition(".")
    if one.kind == "program" and what == "systemctl":
        return "there is no program systemctl on PATH", "a machine with systemd, or another runner"
    if one.kind == "program" and "/" not in what:
        return f"there is no program {what} on PATH", f"install it, or its whole path in [{table}] {key}"
    if one.kind == "program":
        return f"there is no program {what}, or it may not be run", f"name one that is there in [{table}] {key}"
    if one.kind == "daemon":
        return f"the daemon of its containers does not answer: {what}", "start its daemon, or see who may ask it"
    if one.kind == "tool" and table == "compose":
        return (
            f"`{what} version` fails: it is not installed",
            "install compose, or name another program",
        )
    if one.kind == "tool":
        return f"systemd does not answer: {what}", "a machine that runs systemd, or another runner"
    if one.kind == "unit":
        return f"systemd has no unit {what}", f"name one that is there in [{table}] {key}"
    return f"there is no {one.kind} {what}", f"name one that is there in [{table}] {key}"


def secret_missing(facts: Facts) -> Saying:
    """A variable of [env.from_env] is not set here, or a file of [env.from_file] cannot be read."""
    for name, why in facts.secrets_missing.items():
        says, _, fix = why.partition("; ")
        yield Says("error", printable(name, 60), says, fix or "the file that is there in [env.from_file]")


def relative_path(facts: Facts) -> Saying:
    """A path that is no whole one: the server runs in [venv] cwd, else in the home of the user, and not where the
    command was typed."""
    for key, path in _relative(facts):
        shown = keyless(path, 120)
        fix = f"write it whole: /…/{shown.lstrip('./')}"
        yield Says("error", key, f"{shown} is no whole path: it depends on where the server runs", fix)


def _relative(facts: Facts) -> Iterator[tuple[str, str]]:
    profile = facts.profile
    if profile.runner == "venv":
        if profile.venv.cwd and not _whole(profile.venv.cwd):
            yield "venv.cwd", profile.venv.cwd
        elif not profile.venv.cwd:
            for word in [*own(profile.venv.wrap)[:1], *profile.venv.command[:1]]:
                if "/" in word and not _whole(word):
                    yield "venv.command", word
            yield from ((flag, path) for flag, path in local_paths(facts) if path.startswith("."))
            config = facts.flags.config
            if config is not None and not _whole(config):
                yield "--config", config
    named = {
        "docker": {"docker.env_files": profile.docker.env_files},
        "compose": {"compose.files": profile.compose.files, "compose.env_files": profile.compose.env_files},
    }
    for key, files in named.get(profile.runner, {}).items():
        yield from ((key, file) for file in files if not _whole(file))
    if profile.runner == "venv" and profile.log.file and not _whole(profile.log.file):
        yield "log.file", profile.log.file


def not_in_its_file(facts: Facts) -> Saying:
    """What the profile sets and the compose file or the unit does not name: it is not run."""
    for name in dict.fromkeys(lost_variables(facts.profile, facts.own) if facts.own is not None else ()):
        flag = printable(name, 60)
        handed = facts.profile.runner != "systemd" or name in facts.profile.env.set
        why = _not_named(facts) if handed else "systemd does not hand it on"
        yield Says("note", flag, f"{flag} of [env] does not reach the server: {why}", there(facts, flag))
    if facts.own is not None and facts.own.gpus and facts.told_gpus not in ((), facts.own.gpus):
        cards = ", ".join(keyless(card, 40) for card in facts.own.gpus)
        says = f"gpus of the profile are not those of {file_of(facts)}, which names {cards}"
        told = ", ".join(keyless(card, 40) for card in facts.told_gpus)
        yield Says("note", "gpus", says, there(facts, f"GPU {told} of this machine"))
    text = facts.own.command if facts.own is not None and facts.own.text is not None else ""
    if not text or "$" in text or "%" in text:  # a variable, or a specifier of systemd, stands for something
        if file_of(facts) and facts.flags.given:
            yield Lacks(f"all that {file_of(facts)} runs")
        return
    named = flags_in(text)
    for one in facts.flags.given:
        flag = keyless(one.typed, 60)
        if one.from_file or one.problem:
            continue
        if one.name not in named:
            yield Says("note", flag, f"{flag} of [serve] is not run: {_not_named(facts)}", there(facts, flag))
        elif (value := next((value for value in _values(one) if value not in text), None)) is not None:
            shown = keyless(value, 60)
            says = f"{flag} of [serve] is not run with {shown}, which {file_of(facts)} does not hold"
            yield Says("note", flag, says, there(facts, shown))


def _values(given: Given) -> Iterator[str]:
    """What stands behind a flag, as far as it can be written in one way alone."""
    for value in given.values:
        yield from (word for word in _leaves(value) if _ONE_WAY.fullmatch(word))


def _leaves(value: str) -> Iterator[str]:
    try:
        ways: list[object] = [json.loads(value)] if value.startswith("{") else [value]
    except (ValueError, RecursionError):
        return
    while ways:
        here = ways.pop()
        if isinstance(here, dict | list):
            ways += here.values() if isinstance(here, dict) else here
        elif isinstance(here, str | int) and not isinstance(here, bool):
            yield str(here)


def _not_named(facts: Facts) -> str:
    return f"{file_of(facts)} does not name it"


def _whole(path: str) -> bool:
    return Path(path).is_absolute() or path == "~" or path.startswith("~/")
