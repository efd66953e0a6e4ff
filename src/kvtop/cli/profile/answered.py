"""An error that has more to tell to a program than to a person."""

from __future__ import annotations

from typing import Any

from kvtop.errors import KvtopError


class Answered(KvtopError):
    """Exit code 1."""

    def __init__(self, what: str, fix: str, document: dict[str, Any]) -> None:
        """`document`: what --json prints, with `error` and `fix` beside it. Fit to be shown."""
        super().__init__(what, fix)
        self.document = document
