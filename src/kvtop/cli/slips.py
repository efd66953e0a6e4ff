"""A mistyped command is no host: the dashboard of a server that there is not would say nothing of the slip."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kvtop.errors import UsageError

HOSTS = Path("/etc/hosts")
"""Names of servers that are known without asking anybody: a name service may take seconds to say that there is none."""

_BARE = re.compile(r"[A-Za-z_-]*[A-Za-z]")
_MOST = 64
"""Letters of a word that is compared with commands; a longer one is no slip of theirs."""


def refuse(word: str, commands: Iterable[str]) -> None:
    """Raises UsageError for a word without dot, colon or digit that is neither localhost nor a name in /etc/hosts."""
    if word.startswith("-") or len(word) > _MOST or not _BARE.fullmatch(word) or word.lower() in _known():
        return
    from difflib import get_close_matches

    names = list(commands)
    near = [name for name in names if len(word) > 1 and name.startswith(word.lower())]
    near = near or get_close_matches(word.lower(), names, 1, 0.5)
    hint = f"; did you mean {near[0]}?" if near else f": there are {', '.join(names)}"
    what = f"no command '{word}'{hint}"
    raise UsageError(what, f"a host of that name needs its port: kvtop {word}:8000, or kvtop http://{word}:8000")


def _known() -> set[str]:
    try:
        lines = HOSTS.read_text(errors="replace").lower().splitlines()
    except OSError:
        lines = []
    return {"localhost", *(name for line in lines for name in line.partition("#")[0].split()[1:])}
