"""The two commands of a fresh checkout: what they build, mend and say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


# Making an environment takes seconds: one worker runs these, on one checkout where that will do.
pytestmark = pytest.mark.xdist_group("checkout")


def copy_checkout(folder: Path) -> Path:
    """A copy of this checkout without an environment, whose lock names nothing, so that no package is fetched."""
    copy = folder / "a checkout"
    for name in ("scripts", "src"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "requirements.lock").write_text("# nothing\n")
    (copy / "requirements-dev.lock").write_text("-r requirements.lock\n")
    return copy


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return copy_checkout(tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout that was run once; a test that harms it also sees it mended."""
    copy = copy_checkout(tmp_path_factory.mktemp("built"))
    first = run(copy, "--version")
    assert (first.returncode, first.stdout) == (0, "kvtop 0.1.0\n"), first.stderr
    assert "making" in first.stderr
    return copy


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH with what the scripts call, and no Python at all."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "dirname", "readlink", "env"):
        (folder / name).symlink_to(shutil.which(name) or "")
    return folder


def fake(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def run(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VIRTUAL_ENV", "PYTHON", "KVTOP"))} | environment
    command = [str(checkout / "scripts" / "kvtop"), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The error of a run that failed, which must be one line."""
    assert done.returncode == 1
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.endswith("…")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_the_second_run_only_starts(built: Path) -> None:
    second = run(built, "--version")
    assert (second.stdout, second.stderr) == ("kvtop 0.1.0\n", "")


def test_the_command_of_the_environment_runs(built: Path) -> None:
    done = subprocess.run([built / ".venv/bin/kvtop", "--version"], capture_output=True, text=True, check=False)
    assert done.stdout == "kvtop 0.1.0\n", done.stderr


def test_runs_from_any_folder_through_a_link(built: Path, tmp_path: Path) -> None:
    (tmp_path / "kvtop.py").write_text("raise SystemExit('the wrong kvtop')\n")
    (tmp_path / "link").symlink_to(built / "scripts" / "kvtop")
    command = [tmp_path / "link", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "kvtop 0.1.0\n", done.stderr


def test_changed_lock_rebuilds(built: Path) -> None:
    mark = built / ".venv" / "of-the-old-environment"
    mark.touch()
    (built / "requirements.lock").write_text("# nothing, in other words\n")
    assert "making" in run(built, "--version").stderr
    assert not mark.exists()


def test_interrupted_first_run_is_repaired(built: Path) -> None:
    (built / ".venv" / "kvtop-runtime.stamp").unlink()
    (built / ".venv" / "bin" / "kvtop").write_text("half a fi")
    done = run(built, "--version")
    assert done.stdout == "kvtop 0.1.0\n", done.stderr


def test_vanished_python_is_repaired(built: Path) -> None:
    python = built / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3.11")
    done = run(built, "--version")
    assert done.stdout == "kvtop 0.1.0\n", done.stderr


def test_two_first_runs_at_once(checkout: Path) -> None:
    command = [checkout / "scripts" / "kvtop", "--version"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [out for out, _ in said] == ["kvtop 0.1.0\n"] * 2, said
    assert sum("making" in err for _, err in said) == 1


def test_no_python(checkout: Path, tools: Path) -> None:
    assert "found no python3" in one_line(run(checkout, PATH=str(tools)))


def test_old_python(checkout: Path, tools: Path) -> None:
    fake(tools, "python3", "[[ $2 == *print* ]] && echo 3.9; [[ $2 != *version_info\\ \\<* ]]")
    said = one_line(run(checkout, PATH=str(tools)))
    assert "needs Python 3.11 or newer; python3 here is 3.9" in said


def test_newer_python_beside_an_old_one_is_taken(checkout: Path, tools: Path) -> None:
    fake(tools, "python3", "exit 1")
    (tools / "python3.12").symlink_to(Path(sys.executable).resolve())
    assert run(checkout, "--version", PATH=str(tools)).stdout == "kvtop 0.1.0\n"


def test_python_that_cannot_make_environments(checkout: Path, tools: Path) -> None:
    real = Path(sys.executable).resolve()
    fake(tools, "python3", f'[[ $2 == *ensurepip* ]] && exit 1; exec "{real}" "$@"')
    said = one_line(run(checkout, PATH=str(tools)))
    assert f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv" in said


def test_no_network(checkout: Path, tmp_path: Path) -> None:
    (checkout / "requirements.lock").write_text("textual==8.2.8\n")
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_FIND_LINKS": str(tmp_path)}
    said = one_line(run(checkout, **nowhere))
    assert "no network to the package index" in said
    assert "requirements.lock" in said


def test_locks_name_every_dependency_exactly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for lock, wanted in (
        ("requirements.lock", project["project"]["dependencies"]),
        ("requirements-dev.lock", project["dependency-groups"]["dev"]),
    ):
        lines = [line for line in (ROOT / lock).read_text().splitlines() if line and line[0] not in "#-"]
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in lines)
        assert "://" not in (ROOT / lock).read_text()
        pins = {re.sub(r"[-_.]+", "-", name).lower(): pin for name, pin in (line.split("==") for line in lines)}
        for text in wanted:
            requirement = Requirement(text)
            pin = pins.get(re.sub(r"[-_.]+", "-", requirement.name).lower())
            assert pin is not None, f"{lock} lacks {requirement.name}"
            assert requirement.specifier.contains(pin), f"{lock} pins {requirement.name} {pin}"


def test_locked_packages_agree_with_each_other() -> None:
    """What each locked package asks for is locked too, and in a version that it takes."""
    from importlib.metadata import requires

    lines = (ROOT / "requirements-dev.lock").read_text() + (ROOT / "requirements.lock").read_text()
    for name in re.findall(r"^([A-Za-z0-9._-]+)==", lines, re.MULTILINE):
        for text in requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            try:
                there = version(requirement.name)
            except PackageNotFoundError:
                pytest.fail(f"{name} needs {requirement.name}, which no lock names")
            assert requirement.specifier.contains(there, prereleases=True), f"{name} needs {text}, got {there}"
