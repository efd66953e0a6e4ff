"""Make or mend the checkout's own virtual environment. Standard library only: it runs before anything is installed.

usage: environment.py ROOT PROGRAM (runtime|dev)

ROOT/.venv is rebuilt when a lock file, the Python or the checkout's place changed. The stamp that says so is written
last, so an interrupted run is repaired by the next one; a file lock makes a second caller wait for the first.
"""

from __future__ import annotations

import compileall
import contextlib
import fcntl
import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

NETWORK = re.compile(r"connection|resolve|resolution|timed out|unreachable|ProxyError|SSLError", re.IGNORECASE)

# A shell line, so that the path may be long or hold spaces; Python reads it as a string.
LAUNCHER = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import sys

from kvtop.__main__ import entry

sys.exit(entry())
"""


class EnvironmentProblem(Exception):
    """Why there is no environment, as the one line that the user reads."""


def wanted(root: Path, kind: str) -> str:
    """What the stamp must hold: the checkout's path and the lock texts. scripts/lib/python.sh compares the same."""
    parts = [str(root), (root / "requirements.lock").read_text().rstrip("\n")]
    if kind == "dev":
        parts.append((root / "requirements-dev.lock").read_text().rstrip("\n"))
    return "\n".join(parts)


def current(root: Path, kind: str) -> bool:
    """The environment is there and is the one that the lock asks for."""
    home = root / ".venv"
    with contextlib.suppress(OSError):
        runs = os.access(home / "bin" / "python", os.X_OK)
        return runs and (home / f"kvtop-{kind}.stamp").read_text().rstrip("\n") == wanted(root, kind)
    return False


def create(home: Path) -> None:
    """An empty environment in place of whatever is there, tied to the exact Python and not to a link that may move."""
    python = Path(sys.executable).resolve()
    command = [str(python), "-I", "-m", "venv", "--clear", str(home)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        said = (made.stderr or made.stdout).strip().splitlines() or ["no word why"]
        raise EnvironmentProblem(f"cannot make {home} with {python}: {said[-1]}")


def install(root: Path, home: Path, kind: str) -> None:
    """The locked packages, exactly: no resolver, nothing that the lock does not name."""
    lock = root / ("requirements.lock" if kind == "runtime" else "requirements-dev.lock")
    log = home / "install.log"
    command = [str(home / "bin" / "python"), "-I", "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "3", "-r", str(lock)]
    with log.open("w") as out:
        code = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | {"PIP_USER": "0"}, check=False
        ).returncode
    if code == 0:
        return
    said = log.read_text(errors="replace").splitlines()
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR")] or said[-1:] or ["no word why"]
    if any(NETWORK.search(line) for line in said):
        raise EnvironmentProblem(f"cannot fetch the packages of {lock.name}: no network to the package index ({log})")
    raise EnvironmentProblem(f"pip could not install {lock.name}: {errors[0]} ({log})")


def add_checkout(root: Path, home: Path) -> Path:
    """Put src/ on the path and write the command, as an editable install does; that one would need a build tool."""
    packages = next(home.glob("lib/python3*/site-packages"))
    (packages / "kvtop-checkout.pth").write_text(f"{root / 'src'}\n")
    command = home / "bin" / "kvtop"
    command.write_text(LAUNCHER.format(python=home / "bin" / "python"))
    command.chmod(0o755)
    return packages


def precompile(*folders: Path) -> None:
    """Bytecode now, so that the first start is as quick as the others; a read-only checkout does without."""
    with contextlib.redirect_stdout(io.StringIO()):
        for folder in folders:
            compileall.compile_dir(folder, quiet=2, workers=0, rx=re.compile(r"/(pip|setuptools|tests?)/"))


def ensure(root: Path, program: str, kind: str) -> None:
    home = root / ".venv"
    with (root / "requirements.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if current(root, kind):
            return
        started = time.monotonic()
        fresh = not current(root, "runtime")
        print(f"{program}: {'making' if fresh else 'adding to'} {home} …", file=sys.stderr, flush=True)
        if fresh:
            create(home)
        install(root, home, kind)
        precompile(add_checkout(root, home), root / "src")
        for name in ("runtime", "dev") if kind == "dev" else ("runtime",):
            (home / f"kvtop-{name}.stamp").write_text(wanted(root, name) + "\n")
        print(f"{program}: done in {time.monotonic() - started:.0f} s", file=sys.stderr)


def main(argv: list[str]) -> int:
    root, program, kind = Path(argv[1]), argv[2], argv[3]
    try:
        ensure(root, program, kind)
    except EnvironmentProblem as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
