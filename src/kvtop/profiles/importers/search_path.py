"""PATH as a script changes it. In [env.set] nobody would expand the $PATH of `PATH=/x:$PATH`; `env -S` does."""

from __future__ import annotations

import re
from pathlib import Path

OUTER = "${PATH}"
"""In a value of PATH: what it was before, known only when it runs."""
_BARE = re.compile(r"[\w/.:+@%~,=-]*")
_RUN_NOTHING = frozenset(("sleep", "mkdir", "rm", "mount", "umount", "cp", "mv", "ln", "touch", "chmod", "chown"))


def wrap(path: str) -> list[str]:
    """Words in front of a command that give it this PATH, and nothing where kvtop's own is all of it."""
    return [] if path in ("", OUTER) else ["env", "-S", assigned(path)]


def assigned(path: str) -> str:
    """PATH=… as `env -S` and a shell both read it."""
    parts = [re.sub(r'([\\"$`])', r"\\\1", part) for part in path.split(OUTER)]
    text = OUTER.join(parts)
    return f"PATH={text}" if all(map(_BARE.fullmatch, parts)) else f'PATH="{text}"'


def matters_to(program: str) -> bool:
    """Whether a program may look for others by their names."""
    return Path(program).name not in _RUN_NOTHING
