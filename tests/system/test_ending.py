"""How the process ends while a thread of its own still runs: at once, with its exit code, and without a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from kvtop.sim.server import SimBox
from kvtop.sim.thread import BoxThread

HANGS = """
import threading
from kvtop.cli import main
import kvtop.cli.stdio
started = threading.Event()
def hang():
    started.set()
    threading.Event().wait()
def run(args):
    threading.Thread(target=hang, daemon=DAEMON).start()
    started.wait()
    print("said")
    return 7
main._run = run
main.entry()
print("not reached")
"""


@pytest.mark.parametrize("daemon", ["True", "False"])
def test_a_thread_that_hangs_holds_nothing_up_and_changes_no_exit_code(daemon: str) -> None:
    began = time.monotonic()
    code = HANGS.replace("DAEMON", daemon)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "said\n", "")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("scenario", ["mix", "restart"])
def test_the_demo_is_left_while_its_past_is_played(scenario: str) -> None:
    thread = BoxThread(SimBox(scenario))
    thread.start()
    thread.stop()
    assert not thread._thread.is_alive()


def test_ctrl_c_ends_the_demo_with_130_and_no_word() -> None:
    argv = [sys.executable, "-X", "faulthandler", "-m", "kvtop", "demo", "--headless", "--seconds", "60"]
    ran = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _listens(ran.pid)
        os.kill(ran.pid, signal.SIGINT)
        out, err = ran.communicate(timeout=20)
    finally:
        ran.kill()
    assert (ran.returncode, out, err) == (130, "", "")


def _listens(pid: int) -> None:
    """The box's port is open: the collector begins, and with it the threads."""
    end = time.monotonic() + 20
    while not any(c.status == psutil.CONN_LISTEN for c in psutil.Process(pid).net_connections("tcp")):
        assert time.monotonic() < end
        time.sleep(0.02)
