"""The door: reads the first word and imports only that command's room."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from kvtop import __version__, interrupt
from kvtop.cli import slips, stdio
from kvtop.cli.ending import leave_if_busy
from kvtop.errors import KvtopError, printable

COMMANDS = {
    "demo": "the dashboard on a simulated box: no GPU, no server, no network",
    "snapshot": "two scrapes of a server, one document (or one line for a status bar)",
    "tap": "between agents and server: passes every byte on, records every turn",
    "turns": "single requests: captured by the tap, or told apart from the counters",
    "why": "the verdict on one turn: prompt, engine, queue, long input or decode, with its evidence",
    "diff": "where two turns part, every cause, what it costs and what mends it",
    "replay": "two turns once more, to an idle server: did the prompt or the engine lose the cache",
    "import": "captured traffic of other tools into the store of turns",
    "profile": "ways to run vllm serve, a file each: import, compare, check, start, switch, stop, logs",
    "doctor": "what kvtop can and cannot see here, and what would let it",
}
"""Each is a module of this package with `main(argv) -> int`. No command: the dashboard."""

_MODULES = {"import": "importing"}
"""Of commands whose word can name no module."""

_STILL_IMPORT = ("dashboard", "demo", "doctor", "snapshot")
"""They import more when they run, and then say themselves that ctrl-c is to be taken as usual."""

USAGE = """usage: kvtop [URL ...] [options]
       kvtop COMMAND [...]

The dashboard of the vLLM servers at URL, else of those in config.toml, else of those found on this box.
URL: http://host:8000, host:8000 or 8000. A name alone, without a dot or a digit, is read as a command.

commands:
{commands}

options of the dashboard:
{options}
  --version     print the version
  -h, --help    this text; `kvtop COMMAND --help` tells more
"""

OPTIONS = """  --window W    10s, 1m, 5m, 1h or start
  --theme NAME  see themes/*.toml and the folder themes/ beside config.toml
  --debug       show tracebacks and write a log file"""


def usage() -> str:
    rows = "\n".join(f"  {name:<10}  {words}" for name, words in COMMANDS.items())
    return USAGE.format(commands=rows, options=OPTIONS)


def main(argv: Sequence[str]) -> int:
    """Run one command; the exit code. Errors of kvtop, and of its output, are printed as their one or two lines."""
    args = list(argv)
    try:
        try:
            return _run(args)
        finally:
            stdio.finish()  # argparse leaves by SystemExit
    except KvtopError as error:
        if "--debug" in args:
            raise
        stdio.tell(f"kvtop: {error}")
        return error.exit_code
    except BrokenPipeError:
        stdio.give_up()
        return stdio.PIPE_STATUS
    except OSError as error:
        if "--debug" in args:
            raise
        stdio.give_up()
        what = printable(str(error.filename or "the output could not be written"), 300)
        stdio.tell(f"kvtop: {what}: {error.strerror or error}")
        return 1
    except KeyboardInterrupt:
        return 130


def _run(args: list[str]) -> int:
    if "--version" in args[:1]:
        print(f"kvtop {__version__}")
        return 0
    if args and args[0] in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0
    name, rest = (args[0], args[1:]) if args and args[0] in COMMANDS else ("dashboard", args)
    if name == "dashboard" and args:
        slips.refuse(args[0], COMMANDS)  # before its options, which the dashboard may not have
        slips.late(args, COMMANDS)
    command = importlib.import_module(f"kvtop.cli.{_MODULES.get(name, name)}")
    if name not in _STILL_IMPORT:
        interrupt.as_usual()
    return int(command.main(rest))


def entry() -> None:
    """All of the console script that may take its time to import."""
    stdio.prepare()
    code = main(sys.argv[1:])
    leave_if_busy(code)
    sys.exit(code)
