"""`kvtop profile …` in a home of its own, with profiles of a stand-in server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from profilebox import Box, box, free_port

from kvtop.cli import profile
from kvtop.cli.profile import checking, stop, switch


@pytest.fixture(name="home")
def commands_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """A box whose profiles are files; servers of others on this machine are not seen."""
    from kvtop.cli.profile import chosen

    with box(tmp_path / "home", monkeypatch.setenv) as made:
        every = chosen.foreign

        def own() -> list[object]:
            pids = made.processes()
            return [one for one in every() if one.who.pid in pids]

        monkeypatch.setattr(stop, "foreign", own)
        monkeypatch.setattr(switch, "foreign", own)
        monkeypatch.setattr(checking, "allowed", lambda entry, **_: True)
        yield made


def write(home: Box, name: str, port: int | None = None, start: str = "", **env: str) -> int:
    port = port or free_port()
    variables = "".join(f"STANDIN_{key.upper()} = {json.dumps(value)}\n" for key, value in env.items())
    text = (
        f'[serve]\nmodel = "/models/tiny"\nnames = ["tiny"]\nport = {port}\n'
        f"[venv]\ncommand = {json.dumps([sys.executable, str(home.program), 'serve'])}\n"
        f"[start]\nstop_wait_s = 2.0\n{start}\n[env.set]\n{variables}"
    )
    folder = home.home / "config" / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(text)
    return port


def run(*argv: str) -> int:
    return profile.main(argv)


def started_by_hand(home: Box, name: str) -> Iterator[subprocess.Popen[bytes]]:
    from kvtop.cli.profile.chosen import choose
    from kvtop.profiles import folder

    run_ = choose(folder.find(name)).launch
    env = {**os.environ, **run_.set}
    child = subprocess.Popen(run_.argv, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()


@pytest.fixture(name="by_hand")
def started_beside(home: Box) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    made: list[Iterator[subprocess.Popen[bytes]]] = []

    def start(name: str) -> subprocess.Popen[bytes]:
        made.append(started_by_hand(home, name))
        return next(made[-1])

    yield start
    for one in made:
        next(one, None)
