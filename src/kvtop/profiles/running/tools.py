"""Other programs, run to their end: pre-start commands, docker, systemctl."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from kvtop import interrupt
from kvtop.profiles.running.family import KILL_S, POLL_S, Pause
from kvtop.profiles.running.spawn import Known, spawn
from kvtop.profiles.running.text import whole_lines
from kvtop.profiles.secret import shown

_ADVICE = re.compile(r"(?:Run|See|Try) ['\"`]|Usage: |For more |WARN|warning: |time=\S+ level=warning", re.IGNORECASE)
_ERROR = re.compile(
    r"\b(?:errors?|unknown|unrecognized|invalid|failed|denied|cannot|can't|could not|unable|refused|no such|not found|"
    r"not a|no space|undefined|must be|is not|already in use)\b",
    re.IGNORECASE,
)
QUICK_S = 15.0
"""For what only asks."""
MOST_SAID = 4000
"""Of an error line: whoever knows the secrets cuts it (`order.Told`)."""
_MAX_BYTES = 4_000_000
"""Of what a command said, from its end."""
LOG_BYTES = 64_000_000
"""Of a log that a runner's own tool gives."""
LOG_S = 60.0
"""For a tool that gives a log."""


class Failed(Exception):
    """Why a start, or a step of it, did not work: one line, fit for a screen."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    """As the shell has it."""
    out: str
    err: str

    @property
    def why(self) -> str:
        """The first line that names an error, else the last that is no advice; fit for a screen, and long. Empty: it
        said nothing."""
        lines = [line.strip() for line in (self.err if self.err.strip() else self.out).splitlines() if line.strip()]
        told = [line for line in lines if not _ADVICE.match(line)]
        error = next((line for line in told if _ERROR.search(line)), told[-1] if told else "")
        return shown(error or (lines[-1] if lines else ""), MOST_SAID)


def run(
    words: Sequence[str] | str,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout_s: float = QUICK_S,
    pause: Pause = time.sleep,
    output: int | None = None,
    known: Known | None = None,
) -> Done:
    """Run it to its end; a text is one for the shell. `output`: where what it says goes, instead of into the answer.
    `known`: as for `spawn`.

    Raises Failed where it cannot be run or takes too long; its process group is killed then, and also where `pause`
    raises.
    """
    name = shown(words if isinstance(words, str) else words[0] if words else "", 80)
    with _file(name) as out, _file(name) as err:
        child: subprocess.Popen[bytes] | None = None
        until = time.monotonic() + timeout_s
        try:
            with interrupt.held():  # else ctrl-c leaves behind what nobody knows yet
                child = spawn(
                    words,
                    known,
                    shell=isinstance(words, str),
                    stdout=out if output is None else output,
                    stderr=err if output is None else output,
                    env=None if env is None else dict(env),
                    cwd=cwd,
                )
            while child.poll() is None:
                if time.monotonic() > until:
                    raise Failed(f"{name} did not end within {round(timeout_s, 1):g} s")
                pause(POLL_S)
        except BaseException as error:
            if child is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # another user's, or stuck in the kernel
                    child.wait(KILL_S)
            elif isinstance(error, OSError | ValueError):
                raise Failed(f"{name} cannot be run: {getattr(error, 'strerror', None) or error}") from None
            raise
        finally:
            if known is not None and (child is None or child.returncode is not None):
                known(None)  # one that cannot be ended stays known
        return Done(code_of(child.returncode), _text(_end(out, _MAX_BYTES)), _text(_end(err, _MAX_BYTES)))


def log(words: Sequence[str], limit: int = LOG_BYTES) -> bytes:
    """What a tool gives of a log: both of its streams in the order in which it wrote them, of a long one the end.

    Raises Failed as `run`, and where its exit code is not 0.
    """
    with _file(shown(words[0], 80)) as file:
        done = run(words, timeout_s=LOG_S, output=file.fileno())
        said = _end(file, limit)
    if done.code:
        why = Done(done.code, _text(said[-_MAX_BYTES:]), "").why
        raise Failed(f"{shown(' '.join(words[:2]), 80)} failed: {why or f'exit code {done.code}'}")
    return said


def code_of(returncode: int) -> int:
    """Of a child, as the shell has it."""
    return returncode if returncode >= 0 else 128 - returncode


def _file(name: str) -> IO[bytes]:
    """Raises Failed: a server is not ended because there is no room for what a question about it would answer."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise Failed(f"{name} cannot be run: no temporary file: {error.strerror or error}") from None


def _text(said: bytes) -> str:
    return said.decode("utf-8", "replace")


def _end(file: IO[bytes], limit: int) -> bytes:
    cut = max(0, os.fstat(file.fileno()).st_size - limit)
    file.seek(cut)
    return whole_lines(file.read(limit)) if cut else file.read(limit)
