"""A program that stands in the record before it runs: a keeper may be killed in the next moment, and would leave it to
nobody.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvtop.profiles.running.record import Record, Who

Known = Callable[[Who | None], None]
"""Writes into the record which process runs; None: it has ended."""


def spawn(words: Sequence[str] | str, known: Known | None, **options: Any) -> subprocess.Popen[bytes]:
    """`subprocess.Popen` in a session of its own. `known` is called in the new process, before it becomes the program,
    and in this one; None: with nobody to tell. Raises as Popen does.
    """

    def first() -> None:
        with contextlib.suppress(Exception):  # no record is no reason not to run: this process tells it again
            if known is not None:
                known(Who.of(os.getpid()))

    # The new one runs Python between fork and exec: another thread might hold a lock that it waits for.
    is_alone = len([*Path("/proc/self/task").iterdir()]) == 1
    child = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=first if known is not None and is_alone else None,  # noqa: PLW1509
        **options,
    )
    if known is not None:
        known(Who.of(child.pid, ended=True))  # what it has left behind is its own, however soon it ended
    return child


def as_step(state: Record, save: Callable[[], object]) -> Known:
    """For the command that a start or a stop is at."""

    def known(who: Who | None) -> None:
        state.step = who
        save()

    return known
