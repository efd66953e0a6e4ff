"""Where the real server, its models and its run-time files are, and the one error type."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCK = HERE / "requirements.lock"
PLUGIN = HERE / "plugin"


class Problem(Exception):
    """What is wrong and what to do, in one or two lines for the user."""


@dataclass(frozen=True)
class Places:
    """The folders under one home."""

    home: Path

    @classmethod
    def default(cls) -> Places:
        """$KVTOP_VLLM_DIR, else kvtop-vllm in the user's cache folder."""
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(Path(os.environ.get("KVTOP_VLLM_DIR") or Path(cache) / "kvtop-vllm").expanduser().absolute())

    @property
    def venv(self) -> Path:
        """The server's environment; $KVTOP_VLLM_VENV names one that stands elsewhere."""
        return Path(os.environ.get("KVTOP_VLLM_VENV") or self.home / "venv").expanduser().absolute()

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def run(self) -> Path:
        """Logs and state of the servers."""
        return self.home / "run"

    def model(self, kind: str) -> Path:
        return self.home / "models" / kind
