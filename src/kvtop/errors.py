"""Errors that a user sees: one or two lines that say what, where and what to do; and text made fit for them.

A Problem is not raised: kvtop goes on without what is wrong, and says so.

KvtopError            base; `exit_code` 1: it ran and the answer is bad
+-- UsageError        `exit_code` 2: bad flag, unreadable file, bad configuration
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


class KvtopError(Exception):
    """What happened, and what to do about it. `str()` is what the user reads."""

    exit_code = 1

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}\n  {self.fix}" if self.fix else self.what


class UsageError(KvtopError):
    """The command was used wrongly, or a file that it names cannot be read."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the user's own files that kvtop goes on without. No text holds a secret; each is one line."""

    about: str
    """What `kvtop doctor` calls it: config, keys, theme, server."""
    what: str
    """What is wrong, what was expected, and what holds instead."""
    fix: str
    """What to do about it."""
    file: Path | None = None
    line: int | None = None
    """Where in the file, from 1; None where that cannot be told."""
    place: tuple[str, str, int] | None = None
    """Of a setting in config.toml that was taken as it stands and is none all the same: its table, its key, and which
    of the tables of that name that were taken."""

    @property
    def short(self) -> str:
        """With the file's name alone."""
        return self._at(self.file.name if self.file else "")

    def __str__(self) -> str:
        return self._at(str(self.file) if self.file else "")

    def _at(self, file: str) -> str:
        where = f"{file}, line {self.line}" if file and self.line else file
        return printable(f"{where}: {self.what}" if where else self.what, 1000)


def printable(text: str, limit: int = 200) -> str:
    """Text from outside with its control, format and private characters shown as escapes, cut to `limit` characters.

    Nothing that moves a cursor, sets a colour or turns the writing direction gets through.
    """
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[: limit + 1])
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


_KEY = re.compile(
    r"""(?x)(?<![\w+=~-])(?:
    (?i:sk|pk|rk|hf|gsk|xai|gh[a-z]|github|glpat|npm|pypi|nvapi|xox[a-z]|bearer)[-_][\w+=~-]{4,}
    | (?:AKIA|AIza|eyJ)[\w+=~-]{6,}
    | (?=[\w+=~-]*[0-9])[\w+=~-]{16,}
    | [A-Za-z]{24,}
    )"""
)
"""What looks like an API key or a token."""


def keyless(text: str, limit: int = 200) -> str:
    """`printable`, for what may hold a key in the wrong place: of what looks like one, its first 4 characters."""
    return printable(_KEY.sub(lambda found: f"{found[0][:4]}…", text[: limit + 200]), limit)


KEY_BEGINS = r"(?:[spr]k[-_]|hf_|gsk_|gh[a-z]_|github_pat_|glpat-|npm_|nvapi-|pypi-|xai-|xox[a-z]-)"
"""How keys begin that tell whose they are, as a regular expression."""
_BARE_KEY = re.compile(
    rf"""(?x)
    {KEY_BEGINS}[\w+=~-]{{4,}}
    | (?:AKIA|AIza)[\w+=~-]{{6,}}
    | eyJ[\w+=~.-]{{6,}}
    | (?=[\w+=~]*[0-9])(?=[\w+=~]*[A-Za-z])[\w+=~]{{32,}}
    """
)
"""How keys begin, and what is too long and mixed for a machine's name."""


def is_key(text: str) -> bool:
    """A word without scheme, port and domain that is an API key rather than a host's name."""
    return _BARE_KEY.fullmatch(text.strip()) is not None
