"""Why another program failed, by what it said."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile

import pytest

from kvtop.profiles.running import tools
from kvtop.profiles.running.record import Who
from kvtop.profiles.running.spawn import spawn
from kvtop.profiles.running.tools import Done, Failed

NO_COMPOSE = """unknown shorthand flag: 'f' in -f

Usage:  docker [OPTIONS] COMMAND [ARG...]

Run 'docker --help' for more information
"""
PULL = """ vllm Pulling
 vllm Error manifest unknown
Error response from daemon: manifest unknown
"""
PORT = """time="2026-01-01" level=warning msg="the attribute is obsolete: not a mistake"
 Container vllm  Creating
 Container vllm  Created
Error response from daemon: driver failed: port is already allocated
"""


@pytest.mark.parametrize(
    ("out", "err", "why"),
    [
        ("", NO_COMPOSE, "unknown shorthand flag: 'f' in -f"),
        ("", PULL, "vllm Error manifest unknown"),
        ("", PORT, "Error response from daemon: driver failed: port is already allocated"),
        ("no configuration file provided: not found\n", "\n", "no configuration file provided: not found"),
        ("", "it went wrong\nin the end\n", "in the end"),
        ("", "Run 'docker --help' for more information\n", "Run 'docker --help' for more information"),
        ("", "", ""),
    ],
)
def test_the_first_error_is_told(out: str, err: str, why: str) -> None:
    assert Done(1, out, err).why == why


BOTH = "import os\nfor i in range(4): os.write(1 + i % 2, b'line %d\\n' % i)\n"


def test_a_log_has_both_streams_in_their_order_and_of_a_long_one_the_end() -> None:
    words = [sys.executable, "-c", BOTH]
    assert tools.log(words) == b"line 0\nline 1\nline 2\nline 3\n"
    assert tools.log(words, 9) == b"line 3\n", "whole lines: a piece of one may be a piece of a secret"


def test_a_log_that_its_tool_does_not_give() -> None:
    with pytest.raises(Failed, match=r"failed: no such container$"):
        tools.log([sys.executable, "-c", "print('no such container'); raise SystemExit(1)"])


def test_of_a_long_answer_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_MAX_BYTES", 8)
    assert tools.run([sys.executable, "-c", "print('0123\\n456\\n789')"]).out == "789\n"


def test_without_room_for_an_answer_nothing_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper that asks docker or systemctl takes this for no answer; an OSError would end the server."""

    def full() -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(Failed, match=r"^docker cannot be run: no temporary file: No space left on device$"):
        tools.run(["docker", "inspect"])


def test_ctrl_c_as_a_program_is_started_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    spawn, made = subprocess.Popen, []

    def interrupted(*words: object, **more: object) -> object:
        made.append(spawn(*words, **more))  # type: ignore[call-overload]
        signal.raise_signal(signal.SIGINT)
        return made[0]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tools.subprocess, "Popen", interrupted)
        tools.run(["sleep", "60"])
    assert made[0].poll() == -signal.SIGKILL


def test_a_command_that_cannot_be_killed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int, number: int) -> None:
        raise PermissionError

    begun: list[subprocess.Popen[bytes]] = []
    told: list[Who | None] = []
    monkeypatch.setattr(tools, "KILL_S", 0.05)
    monkeypatch.setattr(tools, "spawn", lambda *words, **more: begun.append(spawn(*words, **more)) or begun[-1])
    with monkeypatch.context() as only:
        only.setattr(tools.os, "killpg", refused)
        with pytest.raises(Failed, match=r"sleep did not end within 0\.1 s"):
            tools.run(["sleep", "60"], timeout_s=0.1, known=told.append)
    assert told and None not in told, "it stays known"
    begun[0].kill()
    begun[0].wait()
