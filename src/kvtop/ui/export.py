"""`e`: the screen as an SVG picture, and its numbers as a JSON document, side by side.

The picture is made of what is on the screen and of nothing else. The document is the BoxView with the contract's key
names. Both are 0600, and a file that is there is never written over.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvtop import __version__, paths
from kvtop.clock import iso
from kvtop.config import located
from kvtop.errors import KvtopError, Problem, printable
from kvtop.model.document import plain
from kvtop.model.view import BoxView
from kvtop.sources.masking import masked

TIMES = frozenset(
    {
        "at",
        "started_at",
        "ended_at",
        "state_since",
        "last_good_at",
        "reset_at",
        "reset_seen_at",
        "waiting_since",
        "watched_since",
        "last_busy_at",
    }
)
"""Unix times among the view's fields: ISO 8601 in documents, as everywhere in kvtop's JSON."""
TURNS = 500
"""Of each server, in flight and newest first: `kvtop turns` has all that were captured."""
_LINK = re.compile(r"@font-face\s*\{[^}]*\}", re.DOTALL)
_USERINFO = re.compile(r"//[^/@\s]*@")
"""A name and password in a URL."""
_TRIES = 100


class ExportError(KvtopError):
    """The files could not be written."""


def document(view: BoxView, problems: Sequence[Problem] = ()) -> dict[str, Any]:
    """The whole view as JSON values: keys are the fields' names, unknown is null, NaN and infinite are null too.

    `problems`: what kvtop went on without when it started.
    """
    named: dict[str, Callable[[Any], Any]] = {**dict.fromkeys(TIMES, iso), "command": lambda words: list(masked(words))}
    servers = tuple(replace(server, turns=server.turns[:TURNS]) for server in view.servers)
    view = replace(view, servers=servers)

    def made(value: object) -> Any:
        return plain(value, lambda text: _USERINFO.sub("//", text), named)

    document = {"kvtop_version": __version__, **made(view), "problems": made(problems)}
    for server, shown in zip(servers, document["servers"], strict=True):
        for turn, row in zip(server.turns, shown["turns"], strict=True):
            # no number that the store may have given, and none that is another one's in a moment
            row["id"] = None if not turn.numbered else turn.name if turn.beside else turn.id
    return document


def tidy(svg: str) -> str:
    """The picture without the web fonts that it would load from elsewhere when it is looked at."""
    return _LINK.sub("", svg).replace("Fira Code", "DejaVu Sans Mono, Fira Code, monospace")


def write(
    folder: Path, svg: str, view: BoxView | None, at: float, problems: Sequence[Problem] = ()
) -> tuple[Path, ...]:
    """Write kvtop-YYYYMMDD-HHMMSS.svg and .json into the folder. Raises ExportError; then neither file is left."""
    texts = {".svg": tidy(svg)}
    if view is not None:
        texts[".json"] = json.dumps(document(view, problems), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(at))
    try:
        for n in range(1, _TRIES):
            stem = f"kvtop-{stamp}" if n == 1 else f"kvtop-{stamp}-{n}"
            if (made := _write_all(folder, stem, texts)) is not None:
                return made
    except (OSError, ValueError) as error:  # ValueError: a folder's name with a null byte
        why = getattr(error, "strerror", None) or str(error)
        raise ExportError(f"{printable(str(folder))}: {why}; nothing was exported") from None
    raise ExportError(f"{folder}: too many exports of one second; nothing was exported")


def _write_all(folder: Path, stem: str, texts: Mapping[str, str]) -> tuple[Path, ...] | None:
    """All files, or None where one of the names is taken; OSError leaves none behind."""
    made: list[Path] = []
    try:
        for suffix, text in texts.items():
            path = folder / f"{stem}{suffix}"
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            made.append(path)
            with os.fdopen(fd, "w", encoding="utf-8") as out:
                out.write(text)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            return None
        raise
    return tuple(made)


def folder_of(setting: str) -> Path:
    """Where exports go: `export_dir` of config.toml, or the current folder. Raises ExportError where there is none."""
    try:
        return Path(setting).expanduser() if setting else Path.cwd()
    except (OSError, RuntimeError):
        what = f"there is no home folder for '{printable(setting, 40)}'" if setting else "the current folder is gone"
        raise ExportError(f"{what}; nothing was exported") from None


def problems(setting: str, file: Path) -> tuple[Problem, ...]:
    """What is wrong with `export_dir` of this config.toml; nothing where it is not set. It asks the disk."""
    if not setting:
        return ()
    shown = printable(setting, 200)
    try:
        folder = Path(setting).expanduser()
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except (OSError, RuntimeError, ValueError) as error:  # no such folder, no such home, no name of one
        why = getattr(error, "strerror", None) or "no name of a folder"
    else:
        if is_folder and os.access(folder, os.W_OK | os.X_OK):
            return ()
        why = "you may not write to it" if is_folder else "Not a directory"
    what = f"export_dir {shown}: {why}; nothing can be exported"
    fix = "make that folder, or name another one"
    return located([Problem("config", what, fix, file, place=("", "export_dir", 0))])


def said(made: tuple[Path, ...]) -> str:
    """What was written: the names in one line, and the folder in another where it is not the current one."""
    first, *more = made
    names = " and ".join([f"saved {first.name}", *(path.suffix for path in more)])
    if first.parent in (Path(), _here()):
        return names
    return f"{names}\nin {paths.with_tilde(printable(str(first.parent)))}"


def _here() -> Path | None:
    try:
        return Path.cwd()
    except OSError:
        return None
