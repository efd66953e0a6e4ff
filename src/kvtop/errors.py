"""Errors that a user sees: one or two lines that say what, where and what to do.

KvtopError            base; `exit_code` 1: it ran and the answer is bad
+-- UsageError        `exit_code` 2: bad flag, unreadable file, bad configuration
"""

from __future__ import annotations


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
