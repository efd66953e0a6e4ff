"""Processes that lost their parent come to the keeper, instead of to the machine's first process: so a server's are
known for its own, however they left it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Collection
from pathlib import Path

import psutil

_SET, _GET = 36, 37
"""PR_SET_CHILD_SUBREAPER and PR_GET_CHILD_SUBREAPER of linux/prctl.h."""


def take() -> None:
    """From now on the descendants of this process that lose their parent become its children. Nothing where the system
    has no such thing."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET, 1, 0, 0, 0)


def reap(own: Collection[int]) -> bool:
    """Take notice of the end of orphans, which nobody else can. `own`: the children that this process started. Whether
    none of those has ended."""
    calm = True
    for pid in _children():
        if pid not in own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        elif os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            calm = False
    return calm


def _children() -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except (OSError, ValueError):  # a kernel without it
        return [child.pid for child in psutil.Process().children()]


def taken() -> bool:
    """Whether they come to this process."""
    said = ctypes.c_int(0)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_GET, ctypes.byref(said), 0, 0, 0)
    return bool(said.value)
