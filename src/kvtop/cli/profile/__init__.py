"""`kvtop profile`: reads the job and imports only that one's module."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtop.cli.profile.answered import Answered
from kvtop.errors import KvtopError, UsageError, printable

JOBS = {
    "list": "the profiles: runner, model, port, GPUs, tier, state",
    "show": "one profile in full, and where each value comes from",
    "command": "the exact command line and environment; --diff OTHER: what differs",
    "check": "what would go wrong, each with its fix",
    "start": "start it and follow it to ready",
    "stop": "stop what runs, and see that memory and files are free",
    "switch": "stop what runs, start this one; --fallback: go back where it fails",
    "logs": "the log of its server; -f follows it",
    "import": "make a profile of a command line, script, process, compose service, unit or YAML file",
}
"""Each is a module of this package with `main(argv) -> int`."""

_MODULES = {"import": "importing", "list": "listing"}

_USAGE = """usage: kvtop profile JOB [...]

Profiles are TOML files, one for each way to run `vllm serve`: docs/profiles.md.

jobs:
{jobs}

`kvtop profile JOB --help` tells more. With --json one document is printed, also where it is refused: then with `error`.
exit code: 0 done; 1 the answer is bad; 2 wrong use.
"""


def main(argv: Sequence[str]) -> int:
    """Run one job; the exit code."""
    args = list(argv)
    if args and args[0] in ("-h", "--help"):
        rows = "\n".join(f"  {name:<8}  {words}" for name, words in JOBS.items())
        print(_USAGE.format(jobs=rows), end="")
        return 0
    if not args:
        raise UsageError("kvtop profile: no job was named", f"one of {', '.join(JOBS)}")
    if args[0] not in JOBS:
        raise UsageError(f"kvtop profile: there is no job '{printable(args[0], 40)}'", f"one of {', '.join(JOBS)}")
    module = importlib.import_module(f"kvtop.cli.profile.{_MODULES.get(args[0], args[0])}")
    try:
        return int(module.main(args[1:]))
    except KvtopError as error:
        _answer(args, error)
        raise
    except BrokenPipeError:
        raise
    except OSError as error:
        where = printable(str(error.filename or "kvtop profile"), 300)
        _answer(args, KvtopError(f"{where}: {error.strerror or error}"))
        raise


def _answer(args: Sequence[str], error: KvtopError) -> None:
    if "--json" in args and "--debug" not in args:
        print(json.dumps(_document(args[1:], error), allow_nan=False))


def _document(args: Sequence[str], error: KvtopError) -> dict[str, Any]:
    """What --json answers where there is no other answer; the error itself is told on stderr all the same."""
    if isinstance(error, Answered):
        return {**error.document, "error": error.document.get("error") or error.what, "fix": error.fix or None}
    named = next((word for word in args if not word.startswith("-")), None)
    name = None if named is None else printable(Path(named).stem if "/" in named else named, 100)
    return {"profile": name, "error": error.what, "fix": error.fix or None}
