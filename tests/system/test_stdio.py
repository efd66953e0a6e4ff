"""Standard streams that are closed, full, broken or of another charset are no reason for a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

KVTOP = f"{shlex.quote(sys.executable)} -m kvtop"
DOWN = "http://127.0.0.1:9"
PRINTS = {
    "snapshot": (f"snapshot {DOWN}", 1),
    "snapshot --json": (f"snapshot {DOWN} --json", 1),
    "snapshot --help": ("snapshot --help", 0),
    "doctor": (f"doctor {DOWN}", 0),
    "demo --headless": ("demo --headless --seconds 0.2", 0),
    "demo --help": ("demo --help", 0),
    "turns --help": ("turns --help", 0),
    "--help": ("--help", 0),
    "--version": ("--version", 0),
}
"""What prints, and its exit code where it can."""


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=os.environ | environment,
        stdin=subprocess.DEVNULL, errors="replace",
    )  # fmt: skip


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def buffering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an error shows up differs: at the print, or at the end."""
    monkeypatch.setenv("PYTHONUNBUFFERED", request.param)


@pytest.mark.usefixtures("buffering")
@pytest.mark.parametrize("name", PRINTS)
def test_a_full_disk_is_one_line(name: str) -> None:
    done = shell(f"{KVTOP} {PRINTS[name][0]} >/dev/full")
    assert done.returncode == 1
    assert done.stderr == "kvtop: the output could not be written: No space left on device\n"


@pytest.mark.usefixtures("buffering")
@pytest.mark.parametrize("name", PRINTS)
def test_a_reader_that_is_gone_is_silent(name: str) -> None:
    done = shell(f"(sleep 0.1; {KVTOP} {PRINTS[name][0]}; echo $? >&2) | true")
    assert done.stderr == "141\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("name", PRINTS)
def test_a_closed_stream_is_no_stream(name: str, closed: str) -> None:
    line, code = PRINTS[name]
    done = shell(f"{KVTOP} {line} {closed}")
    assert (done.returncode, done.stderr) == (code, "")
    assert bool(done.stdout) == (">&-" not in closed.split())


def test_errors_that_cannot_be_told_keep_their_exit_code() -> None:
    assert shell(f"{KVTOP} turns --from-metrics /nowhere 2>/dev/full").returncode == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
@pytest.mark.parametrize("command", [DOWN, "demo"])
def test_the_dashboard_without_a_stream_is_refused(command: str, closed: str) -> None:
    done = shell(f"{KVTOP} {command} {closed}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    if closed != "2>&-":
        assert done.stderr.startswith("kvtop: the dashboard needs a terminal\n")


def test_a_charset_without_the_sign_gets_a_question_mark() -> None:
    done = shell(f"{KVTOP} snapshot {DOWN} --line", PYTHONIOENCODING="ascii:strict")
    assert (done.returncode, done.stdout) == (1, "127.0.0.1:9 ? down (refused)\n")
