"""The end of the process: threads that may hang are waited for a moment, and never torn down half-way."""

from __future__ import annotations

import contextlib
import os
import sys
import time

FINISH_S = 4.0
"""Threads that are no daemons have something to finish, such as the end of a command that kvtop started."""
END_S = 0.3
"""Reads that are under way mostly end within this time."""


def leave_if_busy(code: int) -> None:
    """Returns where no thread of kvtop's own runs any more. Else ends the process here and now with this exit code:
    a thread that is inside a C extension while Python takes itself apart crashes it."""
    threading = sys.modules.get("threading")
    if threading is None:
        return
    deadline = time.monotonic() + FINISH_S
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
    deadline = time.monotonic() + END_S
    beside = [thread for thread in threading.enumerate() if thread.daemon]
    for thread in beside:
        thread.join(max(0.0, deadline - time.monotonic()))
    if threading.active_count() > 1:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
