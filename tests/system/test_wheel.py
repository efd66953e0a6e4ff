"""The package as a stranger installs it: a wheel, into an environment of its own, away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = Path(pytest.__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_wheel_ships_the_package_and_its_themes(wheel: Path) -> None:
    assert wheel.name == "kvtop_tui-0.1.0-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    themes = {f"kvtop/themes/{path.name}" for path in (ROOT / "themes").glob("*.toml")}
    assert themes
    assert themes <= names
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "kvtop").rglob("*.py")}
    assert sources <= names
    assert not any(name.startswith(("tests/", "scripts/")) for name in names)


def test_installed_wheel_runs_and_finds_its_themes(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "installed"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (packages,) = home.glob("lib/python3*/site-packages")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        home / "bin" / "python",
        "install",
        "--quiet",
        "--no-deps",
        wheel,
    ]
    subprocess.run(install, check=True, capture_output=True)
    # Its dependencies are those of this environment: only where kvtop itself comes from is in question here.
    shared = [path for path in SITE.glob("*") if not path.name.startswith(("kvtop", "_kvtop"))]
    for path in shared:
        if path.suffix != ".pth" and not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

    def say(*command: Path | str) -> list[str]:
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert say(home / "bin" / "kvtop", "--version") == ["kvtop 0.1.0"]
    asked = "from kvtop.paths import builtin_themes as b; print(b()); print(*(p.name for p in b().glob('*.toml')))"
    folder, names = say(home / "bin" / "python", "-c", asked)
    assert Path(folder) == packages / "kvtop" / "themes"
    assert sorted(names.split()) == sorted(path.name for path in (ROOT / "themes").glob("*.toml"))
