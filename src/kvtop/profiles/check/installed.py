"""The vLLM that a profile's command runs: its version, and its own flags by `vllm serve --help=all`.

That help takes it many seconds, so what it said is kept in the state folder until the executable changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from kvtop import paths
from kvtop.errors import UsageError
from kvtop.files import read_start
from kvtop.profiles.check.seen import Installed, Version
from kvtop.profiles.running import tools
from kvtop.profiles.vocabulary import Vocabulary
from kvtop.sources.processes import role

HELP_TIMEOUT_S = 120.0
"""It imports torch: 50 s on a cold disk have been seen."""
ASK_AGAIN_S = 600.0
"""After a help that failed."""
_MOST_BYTES = 2_000_000
_FORM = 2
"""Of the rows that are kept: others are asked for anew."""
_VERSION = re.compile(r"^vllm(?:_cpu)?-(\d{1,3}\.\d{1,4}[\w.]*)")


class _Kept(msgspec.Struct):
    """A file of the cache."""

    key: str
    rows: str
    """Empty: the help could not be read."""
    at: float
    """Unix time."""


def installed(
    command: Sequence[str],
    cwd: str | None,
    env: Mapping[str, str],
    *,
    ask: bool = True,
    asking: Callable[[str], None] | None = None,
) -> Installed | None:
    """The vLLM of a command such as `vllm serve` or `python -m vllm.entrypoints.openai.api_server`, without flags.

    None where it is not on this machine, or the command is none of vLLM's: another program is never run. Blocks up to
    HELP_TIMEOUT_S at the first look, and calls `asking` with the program before; not without `ask`, and then the flags
    may be unknown.
    """
    words = list(command) or ["vllm", "serve"]
    if role(words) != "api":
        return None
    place = str(Path(cwd or ".", words[0])) if "/" in words[0] else words[0]
    program = shutil.which(place, path=env.get("PATH", os.environ.get("PATH")))
    if program is None:
        return None
    version, packages = _version(Path(program))
    try:
        key = f"{_FORM} {' '.join([program, *words[1:]])} {Path(program).stat().st_mtime_ns} {packages}"
        file = _cache() / f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:24]}.json"
    except (OSError, UsageError):
        return Installed(program, version, None)
    kept = _read(file, key)
    if kept is None and ask:
        if asking is not None:
            asking(program)
        kept = _Kept(key, _help([program, *words[1:]], cwd, env), time.time())
        _write(file, kept)
    known = Vocabulary.from_rows(kept.rows) if kept is not None and kept.rows else None
    return Installed(program, version, known)


def version_of(text: str | None) -> Version | None:
    """`0.32.0+cpu` -> (0, 32)."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", text or "")
    return (int(found[1]), int(found[2])) if found else None


def _cache() -> Path:
    return paths.state_dir() / "vllm-flags"


def _version(program: Path) -> tuple[str | None, str]:
    """(version, what tells one installation from the next) by the packages beside the program."""
    found: list[tuple[str, str]] = []
    for site in sorted(program.parent.parent.glob("lib/python3*/site-packages")):
        try:
            names = sorted(one.name for one in site.iterdir())
        except OSError:
            continue
        for name in names:
            version = _VERSION.match(name)
            if version and name.endswith(".dist-info"):
                found.append((version[1].removesuffix(".dist"), name))
    return (found[0][0] if found else None), ",".join(name for _, name in found)


def _help(words: list[str], cwd: str | None, env: Mapping[str, str]) -> str:
    """Its flags as rows; empty where it did not tell them."""
    quiet = {"COLUMNS": "200", "VLLM_LOGGING_LEVEL": "ERROR", "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    try:
        done = tools.run([*words, "--help=all"], cwd=cwd, env={**env, **quiet}, timeout_s=HELP_TIMEOUT_S)
    except tools.Failed:
        return ""
    found = Vocabulary.from_help(done.out)
    return found.rows() if found is not None else ""


def _read(file: Path, key: str) -> _Kept | None:
    try:
        data, _ = read_start(file, _MOST_BYTES)
        kept = msgspec.json.decode(data, type=_Kept)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    if kept.key != key or (not kept.rows and not 0 <= time.time() - kept.at < ASK_AGAIN_S):
        return None
    return kept


def _write(file: Path, kept: _Kept) -> None:
    """A cache that cannot be written costs time alone."""
    part = file.with_suffix(f".{os.getpid()}")
    try:
        paths.make_private(file.parent)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(msgspec.json.encode(kept))
        part.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
