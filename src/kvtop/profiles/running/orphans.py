"""Processes that lost their parent come to the keeper, instead of to the machine's first process: so a server's are
known for its own, however they left it.
"""

from __future__ import annotations

import contextlib
import ctypes

_SET, _GET = 36, 37
"""PR_SET_CHILD_SUBREAPER and PR_GET_CHILD_SUBREAPER of linux/prctl.h."""


def take() -> None:
    """From now on the descendants of this process that lose their parent become its children. Nothing where the system
    has no such thing."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET, 1, 0, 0, 0)


def taken() -> bool:
    """Whether they come to this process."""
    said = ctypes.c_int(0)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_GET, ctypes.byref(said), 0, 0, 0)
    return bool(said.value)
