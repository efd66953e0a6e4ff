"""A state folder that takes nothing any more, in a mount of its own: a server is ended and told all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ALONE = ("unshare", "--user", "--map-root-user", "--mount")
COMMON = """
import contextlib, json, os, subprocess, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from profilebox import LOGS, Box, own
from kvtop.errors import KvtopError
from kvtop.profiles.running import client, look, record
from kvtop.profiles.running.lock import Lock
home, out = Path(sys.argv[1]), Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(home)], check=True)
os.environ["KVTOP_HOME"] = os.environ["KVTOP_TEST_BOX"] = str(home)
box = Box(home)
after = {{"start": {{"after_stop": [f"echo run >> {{out}}"]}}}}
chosen = box.chosen("x", profile=after, log=str(LOGS / "good-0.32.txt"))

def full():
    with contextlib.suppress(OSError), open(home / "filler", "wb", 0) as filler:
        while filler.write(bytes(512)):
            pass

def left():
    return sorted(file.name for file in record.folder().iterdir() if file.name.startswith("."))

{then}
"""
STOPPED = """
seen = [box.ready(chosen).state]
{then}
state = client.stop("x", "a test")
lives = [one.lives for one in (state.server, state.keeper)]
first = (state.state, state.after_owed, own(state.notes))
{back}
later = look.look("x").record
print(json.dumps([seen, lives, first, (later.state, later.after_owed, later.why), left(), out.read_text()]))
"""
READ_ONLY = """
subprocess.run(["mount", "--bind", str(home), str(home)], check=True)
subprocess.run(["mount", "-o", "remount,bind,ro", str(home)], check=True)
"""


NEVER = """
Lock("makes the folder").close()
full()
for _ in range(2):
    try:
        box.start(chosen)
        said = box.until("x", "failed").record.why
    except KvtopError as error:
        said = str(error)
(home / "filler").unlink()
state = record.read("x")
lives = [who.lives for who in (state.keeper,)] if state else []
print(json.dumps([said, lives, box.processes(), left(), out.exists()]))
"""


def told(tmp_path: Path, then: str) -> list[object]:
    if subprocess.run((*ALONE, "true"), capture_output=True, check=False).returncode:
        pytest.skip("no mounts of one's own here")
    (home := tmp_path / "home").mkdir()
    script = COMMON.format(here=str(HERE), then=then)
    words = (*ALONE, sys.executable, "-c", script, str(home), str(tmp_path / "out"))
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert isinstance(said, list)
    return said


def test_on_a_full_disk_the_last_word_is_written(tmp_path: Path) -> None:
    good = ["stopped", False, []]
    seen, lives, first, later, left, ran = told(
        tmp_path, STOPPED.format(then="full()", back='(home / "filler").unlink()')
    )
    assert (seen, lives, first) == (["running"], [False, False], good)
    assert later == ["stopped", False, ""] and left == []
    assert ran == "run\n"


def test_in_a_folder_that_takes_nothing_a_server_is_ended(tmp_path: Path) -> None:
    seen, lives, first, _, _, ran = told(tmp_path, STOPPED.format(then=READ_ONLY, back=""))
    assert (seen, lives) == (["running"], [False, False])
    unknown = "whether its after_stop has run is not known"
    assert first == ["stopped", False, ["its record could not be written: Read-only file system", unknown]]
    assert ran == "run\n"


def test_a_start_on_a_full_disk_runs_nothing_and_says_why(tmp_path: Path) -> None:
    said, lives, processes, left, ran = told(tmp_path, NEVER)
    assert isinstance(said, str) and "No space left on device" in said
    assert (True not in lives, processes, left, ran) == (True, [], [], False)
