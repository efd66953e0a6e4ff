"""Whether the Python that runs vLLM finds a module, with the environment and the folder that the server gets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvtop.files import read_start
from kvtop.profiles.running import tools

_MOST = 20
_MOST_CHARACTERS = 200
_HEAD = 2000
_RUNS = re.compile(rb"#! *(?P<plain>/\S+)|#!/bin/sh\r?\n'''exec' \"?(?P<long>/[^\"\n]+?)\"? \"\$0\"")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_LOOKS = """\
import importlib.util, json, sys
if not getattr(sys.flags, "safe_path", False):
    sys.path[0] = sys.argv[1]
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
print(json.dumps([there(name) for name in sys.argv[2:]]))
"""
"""Nothing of what it looks for is imported: the first part of a name is found without that."""


def found(
    modules: Sequence[str], program: str, command: Sequence[str], cwd: str | None, env: Mapping[str, str]
) -> dict[str, bool]:
    """Module -> whether Python finds the package that it is in; less those that are not known. Runs that Python.

    `program`: what the command's first word is on the disk.
    """
    asked = [one for one in dict.fromkeys(modules) if len(one) <= _MOST_CHARACTERS and "\0" not in one][:_MOST]
    place = _python(Path(program), command, cwd)
    if not asked or place is None:
        return {}
    python, beside = place
    try:
        done = tools.run([python, "-c", _LOOKS, beside, *(one.partition(".")[0] for one in asked)], cwd=cwd, env=env)
        told = json.loads(done.out)
    except (tools.Failed, ValueError):
        return {}
    if not isinstance(told, list) or len(told) != len(asked):
        return {}
    return {one: bool(there) for one, there in zip(asked, told, strict=True)}


def _python(program: Path, command: Sequence[str], cwd: str | None) -> tuple[str, str] | None:
    """(the Python that runs it, the folder in which it looks first); None for another program."""
    here = cwd or "/"
    if _PYTHON.fullmatch(program.name):
        script = next((word for word in command[1:] if not word.startswith("-")), "")
        return str(program), here if "-m" in command else str(Path(here, script).parent)
    try:
        head, _ = read_start(program, _HEAD)
        runs = _RUNS.match(head)
        if runs is None:
            return None
        python = (runs["long"] or runs["plain"]).decode()
        beside = str(program.resolve().parent)
    except (OSError, ValueError):
        return None
    return (python, beside) if _PYTHON.fullmatch(Path(python).name) else None
