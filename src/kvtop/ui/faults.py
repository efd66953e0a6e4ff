"""Work of a screen that fails for a fault of kvtop's own: its user is told in a line, and everything else goes on."""

from __future__ import annotations

import logging
from typing import Any

from textual.app import App
from textual.worker import Worker, WorkerState

LOG = logging.getLogger("kvtop.ui")


def failed(event: Worker.StateChanged) -> str:
    """What failed, in words, and its traceback in the log; empty where nothing did."""
    if event.state is not WorkerState.ERROR:
        return ""
    error = event.worker.error
    LOG.error("%s failed", event.worker.name, exc_info=error)
    return f"kvtop's own {event.worker.name} failed ({type(error).__name__})"


def say(app: App[Any], event: Worker.StateChanged) -> None:
    """For the screen that began the work: Textual tells nobody else."""
    if wrong := failed(event):
        app.notify(f"{wrong}; kvtop --debug tells more", severity="error", markup=False)
