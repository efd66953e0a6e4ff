"""The YAML file of `--config FILE` as the words that vLLM makes of it (vLLM 0.32)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvtop.errors import printable
from kvtop.files import read_start
from kvtop.profiles.yaml_text import NoYaml, loaded

MOST_BYTES = 256_000
"""Of one file: PyYAML reads about 90 kB a second. Real ones have some kB."""


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


@lru_cache(16)
def file_words(text: str) -> FileWords:
    """The file's text as words: true is a bare flag, false is left out, a list repeats, a table becomes JSON."""
    try:
        found = loaded(text)
    except NoYaml as error:
        return FileWords(problem=f"line {error.line}: {error.what}" if error.line else error.what)
    if found is None:
        return NOTHING
    if not isinstance(found, dict):
        return FileWords(problem="not a table of flags: `flag: value`, one a line")
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
