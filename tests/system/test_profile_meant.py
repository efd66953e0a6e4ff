"""`--only`: a yes that was given to one server ends no other one, whatever has come to run meanwhile."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from commandbox import run, write
from profilebox import LOGS, Box, wait

from kvtop.cli.profile import stop
from kvtop.errors import KvtopError
from kvtop.profiles.running import client, look, record

GOOD = str(LOGS / "good-0.32.txt")
OTHER = r"nothing was stopped: what runs has changed, {name} \(process \d+, port \d+\) is not the one that was meant"


def mark(name: str) -> str:
    state = record.read(name)
    assert state is not None
    return state.mark


def test_a_server_that_was_started_anew_is_not_stopped_for_the_one_before(
    home: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home, "one", log=GOOD)
    assert run("start", "one") == 0
    meant = mark("one")
    assert run("switch", "one", "--restart", "--only", meant) == 0
    runs = look.look("one")
    for words in (["stop", "one"], ["stop"], ["switch", "one", "--restart"]):
        capsys.readouterr()
        with pytest.raises(KvtopError, match=OTHER.format(name="one")):
            run(*words, "--only", meant, "--json")
        assert json.loads(capsys.readouterr().out)["error"].startswith("nothing was stopped: what runs has changed")
    with pytest.raises(KvtopError, match="another kvtop started one anew"):
        client.stop("one", "a test", meant=meant)
    assert look.look("one").pid == runs.pid and look.look("one").state == "running"
    for other in ("", str((runs.pid or 0) + 1), "@nan"):
        with pytest.raises(KvtopError, match=OTHER.format(name="one")):
            run("stop", "one", "--only", other)
    capsys.readouterr()
    assert run("list", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["mark"] == mark("one")
    assert run("stop", "one", "--only", str(runs.pid)) == 0


def test_a_switch_stops_no_other_profile_than_the_one_that_was_meant(home: Box) -> None:
    write(home, "old", log=GOOD)
    write(home, "other", log=GOOD)
    write(home, "new", log=GOOD)
    assert run("start", "old") == 0
    meant = mark("old")
    assert run("switch", "other") == 0
    with pytest.raises(KvtopError, match=OTHER.format(name="other")):
        run("switch", "new", "--yes", "--only", meant)
    assert look.look("other").state == "running" and look.look("new").record is None
    assert run("stop") == 0
    assert run("switch", "new", "--yes", "--only", meant) == 0, "what was meant is gone: nothing is to be stopped"


def test_a_server_of_kvtop_is_not_stopped_for_one_of_somebody_else(
    home: Box, by_hand: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    write(home, "mine", log=GOOD)
    port = write(home, "ours", log=GOOD)
    child = by_hand("mine")
    wait(lambda: bool(stop.foreign()), "it is not seen")
    Path(home.home / "config/profiles/mine.toml").unlink()
    assert run("start", "ours") == 0
    write(home, "new", port, log=GOOD)
    with pytest.raises(KvtopError, match=OTHER.format(name="ours")):
        run("switch", "new", "--yes", "--stop-foreign", "--only", str(child.pid))
    assert look.look("ours").state == "running" and child.poll() is None
    with pytest.raises(KvtopError, match="is not the one that was meant"):
        run("stop", str(child.pid), "--yes", "--only", "@1.5")
    assert child.poll() is None
    assert run("stop", str(child.pid), "--yes", "--only", str(child.pid)) == 0
