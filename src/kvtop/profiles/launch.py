"""What a profile runs: exact words, exact environment, secrets by reference only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Secret:
    """Where the value of a variable is read when the server starts; never the value."""

    kind: Literal["file", "env"]
    where: str
    """Path of the file whose first line it is, or the variable of kvtop's own environment."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of one profile."""

    argv: tuple[str, ...]
    """What kvtop runs: vLLM itself (venv), `docker run …`, `docker compose … up -d SERVICE`, `systemctl start UNIT`;
    empty for attach."""
    serve: tuple[str, ...]
    """What vLLM gets, from the model on, as far as it is known: behind `vllm serve`, or behind the image."""
    set: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    secrets: dict[str, Secret] = field(default_factory=dict)
    """Variable -> where its value is. docker gets such a variable by name (`-e NAME`), never in its command line."""
    cwd: str | None = None
    port: int = 8000
    """Where HTTP will answer."""
    host: str = "127.0.0.1"
    """Where kvtop asks it."""
