"""Whether what answers for a sidecar was there before its start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from kvtop.profiles.running import strangers
from kvtop.profiles.running.record import Who
from kvtop.profiles.running.strangers import stranger


def who(pid: int) -> Who:
    found = Who.of(pid)
    assert found is not None
    return found


@pytest.fixture
def later() -> Iterator[Who]:
    """A process that is younger than this one."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield who(child.pid)
        child.kill()


def test_one_that_was_there_before_is_a_stranger(later: Who) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        url = f"http://127.0.0.1:{one.getsockname()[1]}/health"
        assert stranger(url, later) == os.getpid()
        assert stranger(url, who(os.getpid())) is None, "its start is as old"
        assert stranger(url, who(1)) is None, "it came since"
        assert stranger(url, Who(later.pid, "another-boot/999999999999")) is None
    assert stranger(url, later) is None, "nobody is there"


def test_what_the_table_does_not_tell_is_no_stranger(later: Who, monkeypatch: pytest.MonkeyPatch) -> None:
    for pids, told in (([1], 1), ([1, 1], 1), ([1, None], None), ([1, later.pid], None), ([2**22 + 1], None)):
        monkeypatch.setattr(strangers, "at_address", lambda host, port, pids=pids: pids)
        monkeypatch.setattr(strangers, "_for_others", lambda port, pid: False)
        assert stranger("http://localhost/", later) == told


@pytest.mark.parametrize(
    ("name", "told"), [("python3", True), ("rootlesskit", False), ("pasta.avx2", False), ("systemd", False)]
)
def test_one_that_listens_for_others_is_no_stranger(
    later: Who, monkeypatch: pytest.MonkeyPatch, name: str, told: bool
) -> None:
    monkeypatch.setattr(psutil.Process, "name", lambda self: name)
    with socket.create_server(("127.0.0.1", 0)) as one:
        assert (stranger(f"http://127.0.0.1:{one.getsockname()[1]}/", later) is not None) == told
