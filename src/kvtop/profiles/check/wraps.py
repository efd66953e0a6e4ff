"""What is known of a program that stands behind the words of [venv] wrap. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_HERE = frozenset(("systemd-run", "numactl", "nice", "env", "taskset", "chrt", "ionice", "setsid", "stdbuf", "nohup"))
"""Wrappers that run their command on this machine and file system, and find it by the PATH that they get."""
_NO_PROGRAM = re.compile(r"-\S*|[A-Za-z]|all|[\d,+:!-]+|[\w.]+=\S*|PATH=\".*\"")
"""Words behind a wrapper that are surely options, variables, or what an option is given."""
_PATH = re.compile(r"\bPATH\b")
_LIST = re.compile(r"[A-Z_]*PATH=")


def own(wrap: Sequence[str]) -> Sequence[str]:
    """The wrapper itself: what stands behind the lists of folders that an import writes in front of it."""
    while [*wrap[:2]] == ["env", "-S"] and wrap[2:3] and _LIST.match(wrap[2]):
        wrap = wrap[3:]
    return wrap


def is_here(wrap: Sequence[str]) -> bool:
    """Whether what stands behind these words runs on this machine and its file system; False: that is not known."""
    return all(
        Path(word).name in _HERE or (at > 0 and _NO_PROGRAM.fullmatch(word) is not None) for at, word in enumerate(wrap)
    )


def is_found_alike(wrap: Sequence[str], program: str) -> bool:
    """Whether a program behind these words is the one that is found without them; False: that is not known."""
    if not wrap:
        return True
    if "/" in program:
        return is_here(wrap) and Path(program).is_absolute()
    return is_here(wrap) and not any(map(_PATH.search, wrap))
