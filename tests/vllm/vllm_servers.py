"""scripts/real-vllm as the tests call it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

MANAGE = Path(__file__).parents[2] / "scripts" / "real-vllm"


def manage(*arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/real-vllm; with `check` a failure carries what it said."""
    env = os.environ | environment
    done = subprocess.run([MANAGE, *arguments], capture_output=True, text=True, env=env, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done


def status() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(manage("status", "--json").stdout)
    return found
