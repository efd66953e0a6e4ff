"""`kvtop tap`: the capture tap between the agents and the server. Reads the arguments and picks the job."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from kvtop import paths
from kvtop.capture.control import plan as tap_plan
from kvtop.capture.control import running
from kvtop.capture.control.plan import DEFAULT_LISTEN, DRAIN_S, Leg
from kvtop.capture.store import header
from kvtop.cli.args import Parser, seconds
from kvtop.errors import KvtopError, UsageError, printable

_DESCRIPTION = """\
The capture tap: agents connect to it instead of to the server, every byte is
passed on as it is in both directions, and every turn is recorded on this
machine: kvtop turns lists them. One line for each map when it listens.
Without --upstream: the one vLLM server that is found on this box.
"""

_EPILOG = """\
examples:
  kvtop tap --upstream http://127.0.0.1:8000            listens on 127.0.0.1:8001
  kvtop tap --map 8001=http://127.0.0.1:8000 --map 8002=http://127.0.0.1:9000
  kvtop tap --upstream 8000 --detach; kvtop tap --status; kvtop tap --stop
  kvtop tap --how claude                                lines for an agent

exit code: 0 done; 1 it did not listen, none runs, or one did not end; 2 wrong use.
"""


def parser() -> Parser:
    """The options of the tap. Abbreviations are off: a tap is told by its command line too."""
    out = Parser(
        prog="kvtop tap",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    out.add_argument("--listen", metavar="ADDRESS", help=f"[host:]port, default {DEFAULT_LISTEN}")
    out.add_argument("--upstream", metavar="URL", help="the server, plain HTTP: http://127.0.0.1:8000")
    out.add_argument("--map", action="append", default=[], metavar="LISTEN=UPSTREAM", help="instead; several")
    out.add_argument("--allow-remote", action="store_true", help="addresses beyond this machine's loopback")
    out.add_argument("--name", metavar="NAME", help="what --status calls it, default its first address")
    out.add_argument(
        "--drain", type=seconds, metavar="S", help=f"at its end, wait so long for open streams (default {DRAIN_S:g})"
    )
    record = out.add_mutually_exclusive_group()
    record.add_argument("--store", metavar="PATH", help="where turns are kept, default turns.db in kvtop's data folder")
    record.add_argument("--no-record", action="store_true", help="pass bytes on and record nothing")
    jobs = out.add_mutually_exclusive_group()
    jobs.add_argument("--detach", action="store_true", help="return when it listens; it goes on as its own process")
    jobs.add_argument("--status", action="store_true", help="the taps that run")
    jobs.add_argument("--stop", nargs="?", const="", metavar="WHICH", help="end one, by name or address; or all")
    jobs.add_argument("--how", nargs="?", const="", metavar="AGENT", help="the lines that point an agent at the tap")
    out.add_argument("--json", action="store_true", help="with --status: one JSON list")
    out.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    return out


def main(argv: Sequence[str]) -> int:
    """Run one job; the exit code."""
    args = parser().parse_args(list(argv))
    if args.json and not args.status:
        raise UsageError("--json goes with --status", "kvtop tap --status --json")
    if args.status or args.stop is not None:
        _alone(args, "--status" if args.status else "--stop")
        from kvtop.cli import tap_jobs

        return tap_jobs.status(args.json) if args.status else tap_jobs.stop(args.stop, args.drain)
    if args.how is not None:
        from kvtop.cli import tap_how

        return tap_how.main(args.how, args.listen, args.upstream)
    if args.ready_fd is not None:
        from kvtop.cli import tap_detached

        return tap_detached.child(args)
    return start(args)


def start(args: argparse.Namespace) -> int:
    """In the foreground or detached, after everything that can be checked before."""
    here = running.alive()
    ways = tap_plan.checked(legs(args), here, allow_remote=args.allow_remote)
    name, file = name_of(args, ways), store(args)
    if args.store and file is not None and (problem := header.problem(file)) is not None:
        raise problem  # of a file that was named; for the one of every day traffic comes first
    for record in here:
        if record.name == name:
            what = f"a tap named {printable(name, 80)} runs (process {record.pid})"
            from kvtop.cli import tap_run

            stop = tap_run.stop_command(record, here)
            raise KvtopError(what, f"{stop} ends it; --name and --listen make another one")
    for way in ways:
        tap_plan.check_free(way)
    if args.detach:
        from kvtop.cli import tap_detached

        return tap_detached.start(name, args, ways)
    from kvtop.cli import tap_run

    return tap_run.foreground(name, ways, file, drain_s(args))


def legs(args: argparse.Namespace) -> list[Leg]:
    """The ways as they were asked for, not looked up yet. Raises UsageError."""
    if args.map:
        if args.listen or args.upstream:
            raise UsageError("--map names both ends: without --listen and --upstream", "one --map for each way")
        return [tap_plan.from_map(text) for text in args.map]
    if args.upstream is not None:
        return [tap_plan.leg(args.listen or DEFAULT_LISTEN, args.upstream)]
    return [tap_plan.leg(args.listen or DEFAULT_LISTEN, _only_server())]


def _only_server() -> str:
    """The URL of the one vLLM on this box. Raises KvtopError where there is none, UsageError where there are more."""
    found = tap_plan.servers_here()
    if not found:
        raise KvtopError("no vLLM server found on this box", "name it: kvtop tap --upstream http://127.0.0.1:8000")
    if len(found) > 1:
        names = ", ".join(printable(url, 80) for url in found)
        raise UsageError(f"{len(found)} vLLM servers are here: {names}", "name one: kvtop tap --upstream URL")
    return found[0]


def name_of(args: argparse.Namespace, ways: Sequence[Leg]) -> str:
    """Raises UsageError for a name that is empty or not fit for a line."""
    name = ways[0].listen if args.name is None else str(args.name)
    if not (0 < len(name) <= 64 and name.isascii() and name.isprintable() and " " not in name and name != "all"):
        raise UsageError(f"--name '{printable(name, 80)}': up to 64 ASCII characters without spaces, and not 'all'")
    return name


def store(args: argparse.Namespace) -> Path | None:
    """Where the recorder writes, as a whole path; None: there is no recorder."""
    if args.no_record:
        return None
    if args.store is None:
        return paths.turns_file()
    if not args.store:
        raise UsageError("--store '': an empty name is no file", "leave it out for turns.db in kvtop's data folder")
    return Path(args.store).absolute()


def drain_s(args: argparse.Namespace) -> float:
    return DRAIN_S if args.drain is None else float(args.drain)


def _alone(args: argparse.Namespace, job: str) -> None:
    given = [f"--{n}" for n in ("listen", "upstream", "map", "name", "store") if getattr(args, n)]
    if given:
        raise UsageError(f"{job} and {given[0]} do not go together", "kvtop tap --help tells more")
