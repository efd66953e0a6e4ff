"""The memory limit of the control group that kvtop is in, and so of all that it starts."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")
_MOST = 1 << 60
"""Version 1 writes 'no limit' as a number beyond it."""


def memory_limit(root: Path = _ROOT) -> int | None:
    """Bytes: the least of it and the groups above it; None: there is none, or it cannot be told."""
    try:
        text = Path(psutil.PROCFS_PATH, "self", "cgroup").read_text("utf-8", "replace")
    except OSError:
        return None
    limits: list[int] = []
    for controllers, path in re.findall(r"^\d+:([^:]*):(/.*)$", text, re.MULTILINE):
        if not controllers:
            limits += _up(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _up(root / "memory", path, "memory.limit_in_bytes")
    return min(limits, default=None)


def _up(root: Path, path: str, name: str) -> list[int]:
    """The limits from that group up to the root. In a container the path may lead out of what it sees: then the root
    is its own group."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    found: list[int] = []
    for count in range(len(parts), -1, -1):
        try:
            text = root.joinpath(*parts[:count], name).read_text("ascii", "replace").strip()
        except OSError:
            continue
        if text.isdecimal() and len(text) < 20 and int(text) < _MOST:
            found.append(int(text))
    return found
