"""PATH and other lists of folders as a script changes them. In [env.set] nobody would expand the $PATH of
`PATH=/x:$PATH`; `env -S` does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

LISTS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LIBRARY_PATH", "CPATH")
_BARE = re.compile(r"[\w/.:+@%~,=-]*")
_RUN_NOTHING = frozenset(("sleep", "mkdir", "rm", "mount", "umount", "cp", "mv", "ln", "touch", "chmod", "chown"))


def outer(name: str) -> str:
    """In the value of a list: what it was before, known only when it runs."""
    return f"${{{name}}}"


def is_open(name: str, value: str) -> bool:
    """Whether what a list was before stands in its value."""
    return name in LISTS and outer(name) in value


def wrap(lists: Mapping[str, str]) -> list[str]:
    """Words in front of a command that give it these lists, and none for one that stays as it is."""
    told = [assigned(name, value) for name, value in lists.items() if value not in ("", outer(name))]
    return [word for one in told for word in ("env", "-S", one)]


def assigned(name: str, value: str) -> str:
    """NAME=… as `env -S` and a shell both read it."""
    parts = [re.sub(r'([\\"$`])', r"\\\1", part) for part in value.split(outer(name))]
    text = outer(name).join(parts)
    return f"{name}={text}" if all(map(_BARE.fullmatch, parts)) else f'{name}="{text}"'


def matters_to(program: str) -> bool:
    """Whether a program may look for others by their names."""
    return Path(program).name not in _RUN_NOTHING
