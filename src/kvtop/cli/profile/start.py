"""`kvtop profile start P`: check it, start it, follow it to ready."""

from __future__ import annotations

import json
from collections.abc import Sequence

from kvtop.cli import stdio
from kvtop.cli.args import Parser
from kvtop.cli.profile import checking, following
from kvtop.cli.profile.answered import Answered
from kvtop.cli.profile.chosen import choose, failed, settle, told
from kvtop.errors import KvtopError, printable
from kvtop.interrupt import CODE
from kvtop.profiles import folder
from kvtop.profiles.running import client, look
from kvtop.profiles.running.lock import Lock


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop profile start",
        usage="%(prog)s [-h] PROFILE [--force] [--yes] [--detach] [--json]",
        description="Start the server of a profile and follow it until it answers. It goes on when kvtop ends. "
        "`kvtop profile check` comes first: an error refuses the start, a warning asks.",
    )
    parser.add_argument("profile", metavar="PROFILE", help="its name, or the path of its file")
    parser.add_argument("--force", action="store_true", help="whatever check says, but for port_taken and gpu_overlap")
    parser.add_argument("--yes", action="store_true", help="start in spite of warnings, without asking")
    parser.add_argument("--detach", action="store_true", help="return at once")
    parser.add_argument("--json", action="store_true", help="one JSON document at the end")
    args = parser.parse_args(argv)
    entry = folder.find(args.profile)
    chosen = choose(entry)
    name = printable(chosen.name, 80)
    try:
        with Lock(f"starts {chosen.name}", "wait for it") as lock:
            client.startable(chosen)  # before what takes its time
            if not checking.allowed(entry, force=args.force, yes=args.yes):
                raise KvtopError("nothing was started")
            client.has_room(chosen.name)
            settle(chosen)
            client.start(chosen, lock)
        if args.detach:
            _detached(chosen.name, args.json)
            return 0
        seen = following.follow(chosen.name)
    except KeyboardInterrupt:
        now = look.look(chosen.name)
        if now.state == "stopping":  # it has failed, and what runs after the stop may take its time
            stdio.tell(f"kvtop: {name} is being stopped, only this command has ended")
        elif now.state in ("starting", "running"):
            stdio.tell(still_starts(name, chosen.launch.port))
        else:
            stdio.tell("kvtop: nothing was started")
        return CODE
    if seen.state == "running":
        print(json.dumps(following.document(seen), allow_nan=False) if args.json else following.ready_words(seen))
        return 0
    told(seen.record.notes if seen.record is not None else ())
    error = failed(seen)
    raise Answered(error.what, error.fix, following.document(seen))


def _detached(name: str, as_json: bool) -> None:
    shown = printable(name, 80)
    if as_json:
        print(json.dumps(following.document(look.look(name)), allow_nan=False))
    else:
        print(f"{shown} starts; kvtop profile logs -f {shown} shows how it comes on")


def still_starts(name: str, port: int) -> str:
    """After ctrl-c: what goes on, and what to do."""
    return (
        f"kvtop: {name} goes on starting on port {port}, only this command has ended\n"
        f"  kvtop profile logs -f {name} shows how it comes on\n"
        f"  kvtop profile stop {name} ends it"
    )
