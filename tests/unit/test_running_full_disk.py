"""A tap's file on a full disk still takes what the tap has to say."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kvtop.capture.control import running
from kvtop.capture.control.running import Mapped
from kvtop.capture.tap.ended import Cut, Ended, Missed

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_on_a_full_disk_the_file_is_written_over(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = running.myself("mine", [Mapped("127.0.0.1:1", "http://127.0.0.1:2")], drain_s=1, store=own_home, log=None)
    running.claim(mine)
    really = os.open

    def full(path: Any, flags: int, *more: Any, **other: Any) -> int:
        if str(path).endswith(".new"):
            raise FULL
        return really(path, flags, *more, **other)

    monkeypatch.setattr(os, "open", full)
    for missed in (Missed(connections=3, bytes=10, unwritten="the disk is full"), Missed(connections=3, bytes=10)):
        running.missed(mine, missed)
        assert [one.missed for one in running.alive()] == [missed]
    cut = Cut(peer="127.0.0.1:50000", upstream="http://127.0.0.1:2", began_at=1.5, ran_s=2.5)
    running.ended(mine, Ended(cut=50, served=60, cuts=[cut] * 50))
    (said,) = running.alive()
    assert said.ended is not None and (said.ended.cut, said.ended.served) == (50, 60)
    assert 0 < len(said.ended.cuts) < 50, "as many as its block holds"
    assert running.state_path("mine").stat().st_size <= 4096
