"""What stands in JSON and YAML of others, by its kind: what is of another kind is as good as not there."""

from __future__ import annotations

from typing import Any


def table(value: object) -> dict[Any, Any]:
    """A table; empty for anything else."""
    return value if isinstance(value, dict) else {}


def rows(value: object) -> list[Any]:
    """A list; empty for anything else."""
    return value if isinstance(value, list) else []


def tables(value: object) -> list[dict[Any, Any]]:
    """The tables in a list."""
    return [one for one in rows(value) if isinstance(one, dict)]
