"""A file in its user's editor, which has the terminal meanwhile; kvtop goes on collecting beneath it."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from textual.app import App

from kvtop.ui.terminal import Terminal

EDITORS = ("vi", "nano")
"""Where neither $VISUAL nor $EDITOR is set: the first that is there."""


def editor() -> list[str] | None:
    """The command of the user's editor; None: there is none."""
    for variable in ("VISUAL", "EDITOR"):
        try:
            if wanted := shlex.split(os.environ.get(variable, "")):
                return wanted
        except ValueError:
            continue
    return next(([name] for name in EDITORS if shutil.which(name)), None)


async def edit(app: App[Any], command: list[str], file: Path) -> None:
    """Until the editor is left. Raises SuspendNotSupported, and OSError or ValueError where it cannot be run."""
    driver = app._driver
    lent = driver.lent() if isinstance(driver, Terminal) else nullcontext()
    wrong: Exception | None = None
    with app.suspend(), lent:
        try:
            child = await asyncio.create_subprocess_exec(*command, str(file))
            await child.wait()
        except (OSError, ValueError) as error:  # raised in there, Textual would not take the terminal back
            wrong = error
    app.refresh(layout=True)
    if wrong is not None:
        raise wrong
