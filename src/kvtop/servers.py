"""What is wrong with the servers of config.toml: URLs that are none, and API keys that cannot be had."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from kvtop.config import Server, located, read_key_file
from kvtop.errors import Problem, UsageError, keyless, printable
from kvtop.sources.url import normalise

_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,39}")
"""What looks like a variable's name. Anything else may be a key in the wrong place, and is not shown."""


def problems(servers: Sequence[Server], file: Path) -> tuple[Problem, ...]:
    """One for each thing that is wrong, without a key in it; `file` is their config.toml. Never raises, never waits."""
    found: list[Problem] = []
    for nth, server in enumerate(servers):
        try:
            url = normalise(server.url)
        except UsageError as error:
            named = f" {keyless(server.name, 40)}" if server.name else ""
            found.append(
                Problem(
                    "server",
                    f"[[server]]{named} url: {error.what}; it is left out",
                    "mend its url",
                    file,
                    place=("server", "url", nth),
                )
            )
            continue
        who = keyless(server.name, 40) or url
        wrong = _variable(server.api_key_env) if server.api_key_env else _file(server.api_key_file)
        if wrong is not None:
            place = ("server", "api_key_env" if server.api_key_env else "api_key_file", nth)
            found.append(Problem("server", f"[[server]] {who}: {wrong[0]}", wrong[1], file, place=place))
    return located(found)


def _variable(name: str) -> tuple[str, str] | None:
    if not _NAME.fullmatch(name) and name not in os.environ:
        fix = 'write the name of the variable that holds the key: api_key_env = "VLLM_API_KEY"'
        return "api_key_env names no variable that is set", fix
    if not os.environ.get(name):
        return f"api_key_env names {name}, which is not set", f"export {name}=..., or remove api_key_env"
    return None


def _file(name: str) -> tuple[str, str] | None:
    if not name:
        return None
    # a path is shown whole, to be found; anything else may be the key itself
    shown = printable(name, 200) if name.startswith(("/", "~", ".")) else keyless(name, 200)
    try:
        key, mode = read_key_file(name)
    except (OSError, ValueError, RuntimeError) as error:  # no such file, no text, no such home
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not a readable text"
        return f"api_key_file {shown} cannot be read: {why}", "name a file that you may read, with the key in line 1"
    if not key:
        return f"api_key_file {shown} is empty", "put the key into its first line"
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        return f"api_key_file {shown} may be read by others", f"chmod 600 {shown}"
    return None
