"""What every test may ask for: the captures of real servers, and a home of its own."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something of the machine, and nothing of the code.
settings.register_profile("kvtop", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("kvtop")

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`captures("vllm-0.32.0")` -> the folder of that capture, unpacked once a session."""
    root = tmp_path_factory.mktemp("captures")

    def folder(name: str) -> Path:
        if not (root / name).is_dir():
            with tarfile.open(FIXTURES / "captures" / f"{name}.tar.xz") as packed:
                packed.extractall(root, filter="data")
        return root / name

    return folder


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's own configuration, data or state."""
    home = tmp_path / "kvtop-home"
    monkeypatch.setenv("KVTOP_HOME", str(home))
    for name in ("NO_COLOR", "COLORTERM", "TMUX"):
        monkeypatch.delenv(name, raising=False)
    return home
