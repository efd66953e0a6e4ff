"""What is asked of profiles on the screen, done by kvtop's own commands as processes that outlive the screen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvtop import paths
from kvtop.errors import KvtopError, printable

LONGEST_S = 24 * 3600.0
"""A switch goes on until the new server answers: its profile says how long that may take."""
_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    said: tuple[str, ...]
    """What it told on the way: lines that are no error."""
    what: str = ""
    """Its errors, in a line; empty for none."""
    fix: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """What it answered as JSON; empty where it did not."""
        try:
            found = json.loads(self.out)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def run(words: Sequence[str]) -> Done:
    """`kvtop WORDS`, to its end; blocks. In a session of its own: it goes on when kvtop is closed.

    Raises KvtopError where it cannot be started.
    """
    import tempfile

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "kvtop", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=paths.child_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise KvtopError(f"kvtop {words[0]} cannot be run: {error.strerror or error}") from None
        code = child.wait()
        texts = [os.pread(file.fileno(), _MOST, 0).decode("utf-8", "replace") for file in (out, err)]
    return read(code, *texts)


def read(code: int, out: str, err: str) -> Done:
    """The answer and the words of a command of kvtop."""
    errors: list[str] = []
    fix, said = "", []
    for line in err.splitlines():
        if line.startswith("kvtop: "):
            errors.append(printable(line.removeprefix("kvtop: ").strip(), 600))
            fix = ""
        elif errors and not fix and line.startswith("  "):
            fix = printable(line.strip(), 300)
        elif line.strip():
            said.append(printable(line.strip(), 400))
    what = "; ".join(errors)  # the first is the cause, those after it what came of that
    if not code and what:
        said += errors
        what = fix = ""
    if code and not what:
        what = said[-1] if said else f"it ended with exit code {code}"
    return Done(code, out, tuple(said), what, fix)
