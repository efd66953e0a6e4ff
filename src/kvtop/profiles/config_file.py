"""The YAML file of `--config FILE` as the words that vLLM makes of it (vLLM 0.32)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtop.errors import keyless, printable
from kvtop.files import read_start

MOST_BYTES = 1_000_000
_MOST_VALUES = 20_000
"""In one file. An alias in YAML costs nothing to write and may stand for millions of values."""
_DEEPEST = 40


@dataclass(frozen=True, slots=True)
class FileWords:
    """What vLLM makes of such a file."""

    words: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    """Keys whose value is false: vLLM leaves them out."""
    problem: str | None = None
    """Why it cannot be used, in a few words."""


NOTHING = FileWords()


def config_text(name: str, folder: Path | None = None) -> str | None:
    """The text of such a file; `folder`: where vLLM will run. None: there is none, or it cannot be read."""
    try:
        data, _ = read_start((folder or Path()) / name, MOST_BYTES + 1)
        return data.decode("utf-8") if len(data) <= MOST_BYTES else None
    except (OSError, ValueError):  # ValueError: no name of a file; or not UTF-8
        return None


def file_words(text: str) -> FileWords:
    """The file's text as words: true is a bare flag, false is left out, a list repeats, a table becomes JSON."""
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = keyless(str(getattr(error, "problem", "") or "not YAML"), 80)
        return FileWords(problem=f"line {mark.line + 1}: {what}" if mark is not None else what)
    except (ValueError, RecursionError, OverflowError) as error:  # a date or a number that is none
        return FileWords(problem=keyless(str(error), 80) or "not YAML")
    if found is None:
        return NOTHING
    if not isinstance(found, dict):
        return FileWords(problem="not a table of flags: `flag: value`, one a line")
    if not _is_small(found):
        return FileWords(problem="nested too deeply, or too large")
    words: list[str] = []
    dropped: list[str] = []
    for key, value in found.items():
        name = str(key)
        if value is False:
            dropped.append(printable(name, 80))
        else:
            words += _words_of(name, value)
    return FileWords(tuple(words), tuple(dropped))


def _words_of(name: str, value: Any) -> list[str]:
    if value is True:
        return [f"--{name}"]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)] if value else []
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value, default=str, skipkeys=True)]
    return [f"--{name}", str(value)]


def _is_small(value: Any) -> bool:
    """Whether its values, each counted where it stands, are few enough to be written out."""
    left = _MOST_VALUES
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        one, depth = todo.pop()
        left -= 1
        if left < 0 or depth > _DEEPEST:
            return False
        if isinstance(one, dict):
            todo += ((inner, depth + 1) for inner in one.values())
        elif isinstance(one, list | tuple | set):
            todo += ((inner, depth + 1) for inner in one)
    return True
