"""`kvtop profile`: reads the job and imports only that one's module."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from kvtop.errors import UsageError, printable

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

`kvtop profile JOB --help` tells more. exit code: 0 done; 1 the answer is bad; 2 wrong use.
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
    return int(module.main(args[1:]))
