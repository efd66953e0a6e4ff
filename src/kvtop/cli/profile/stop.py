"""`kvtop profile stop [P]`: end what runs, and see what it leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence

from kvtop.cli import stdio
from kvtop.cli.args import Parser
from kvtop.cli.profile import following
from kvtop.cli.profile.chosen import ONLY, asked, choose, foreign, name_of, refuse_other, several, told
from kvtop.errors import KvtopError, UsageError, printable
from kvtop.interrupt import CODE
from kvtop.model.words import secs
from kvtop.profiles import folder
from kvtop.profiles.running import adopt, client, look
from kvtop.profiles.running.adopt import Foreign
from kvtop.profiles.running.lock import Lock
from kvtop.profiles.running.look import Seen
from kvtop.profiles.running.record import Record
from kvtop.profiles.running.unkept import less_owed

FOREIGN_WAIT_S = 15.0
_KILLED = 137
"""Exit code of one that SIGKILL ended."""
_NONE = "no server runs that kvtop could stop"


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop profile stop",
        usage="%(prog)s [-h] [PROFILE] [--yes] [--only WHICH] [--json]",
        description="End the server of a profile: one SIGINT, after stop_wait_s SIGKILL to all its processes. Then see "
        "that memory of cards and files in /dev/shm are free. Without PROFILE: the one that runs. Where the keeper was "
        "killed, the after_stop commands of a server that is gone are offered.",
    )
    parser.add_argument("profile", metavar="PROFILE", nargs="?", help="its name, or the number of a server's process")
    parser.add_argument(
        "--yes", action="store_true", help="also a server that kvtop did not start; run after_stop that is owed"
    )
    parser.add_argument("--only", metavar="WHICH", help=ONLY)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    chosen = which(args.profile)
    refuse_other(args.only, chosen)
    if isinstance(chosen, Foreign):
        return _stop_foreign(chosen, args.yes, args.json)
    name = printable(chosen.name, 80)
    if chosen.record is not None and not client.stoppable(chosen):  # after_stop is owed
        run = _owed(chosen.record, args.yes)
        if args.json:
            print(json.dumps(following.document(look.look(chosen.name)), allow_nan=False))
        elif run:
            print(f"{name}: {run}")
        return 0 if run else 1
    try:
        with stdio.meanwhile(f"stops {name}{chosen.where}"):
            mark = chosen.record.mark if chosen.record is not None else None
            state = client.stop(chosen.name, "kvtop profile stop", meant=mark)
    except KeyboardInterrupt:
        now = look.look(chosen.name)
        stdio.tell(f"kvtop: {name} is {now.state}{now.where}, only this command has ended")
        stdio.tell(f"  kvtop profile stop {name} waits for its end")
        return CODE
    if args.json:
        if state.after_owed:
            _owed(state, args.yes)
        print(json.dumps(following.document(look.look(chosen.name)), allow_nan=False))
        return 0 if not state.family else 1
    took = "" if state.ask is None or state.ended_at is None else f" after {secs(state.ended_at - state.ask.at)}"
    print(f"{name} {'was killed' if state.exit_code == _KILLED else 'stopped'}{took}")
    told(less_owed(state.notes) if state.after_owed else state.notes)
    if state.after_owed and (run := _owed(state, args.yes)):
        print(f"{name}: {run}")
    return 0 if not state.family else 1


def _owed(state: Record, yes: bool) -> str:
    """Offer what the keeper would have run; what was run, in words. Empty: nothing, and why is told."""
    try:
        chosen = choose(folder.find(state.file or state.name))
        n = len(chosen.profile.start.after_stop)
        many = f"{n} after_stop command{'s' * (n != 1)}"
        name = printable(state.name, 80)
        if not asked(f"{name} is gone, and its keeper was: {many} did not run to the end. Run now?", yes=yes):
            return ""
    except UsageError as error:
        stdio.tell(f"kvtop: {error}")
        return ""
    try:
        told(client.run_after_stop(chosen))
    except KeyboardInterrupt:
        stdio.tell(f"kvtop: the after_stop of {name} was broken off, and is owed still")
        raise
    return f"{many} run"


def which(named: str | None) -> Seen | Foreign:
    """What is meant. Raises KvtopError where nothing runs, UsageError where it is not clear."""
    if named is None:
        return _only()
    name = name_of(named)
    seen = look.look(name)
    if client.stoppable(seen) or (seen.record is not None and seen.record.after_owed):
        return seen
    found: list[Seen | Foreign] = [one for one in foreign() if name in one.profiles or str(one.who.pid) == named]
    found += [one for one in client.running() if str(one.pid) == named]
    if found:
        return found[0]
    shown = printable(named, 80)
    if seen.record is None and not named.isdecimal():
        profile = folder.find(named).profile  # says that there is no such profile, where there is none
        if profile is not None and profile.runner == "attach":
            raise KvtopError(f"{shown} is only watched: kvtop does not stop it", "stop it where it runs")
    what = (
        f"no vLLM server is process {shown}" if seen.record is None and named.isdecimal() else f"{shown} does not run"
    )
    raise KvtopError(what, "kvtop profile list shows what runs")


def _only() -> Seen:
    ours, others = client.running(), foreign()
    if len(ours) == 1:
        return ours[0]
    if ours:
        raise several([seen.name for seen in ours], "name one: kvtop profile stop PROFILE")
    if others:
        words = ", ".join(one.words for one in others)
        raise KvtopError(
            f"no server of kvtop's runs, only {words}", f"kvtop profile stop {others[0].who.pid} ends that"
        )
    raise KvtopError(_NONE, "kvtop profile list shows the profiles")


def _stop_foreign(one: Foreign, yes: bool, as_json: bool) -> int:
    whose = f", which is the command line of {printable(one.profile, 60)}" if one.profile else ""
    if not asked(f"kvtop did not start {one.words}{whose}. Stop it?", yes=yes):
        raise KvtopError("nothing was stopped")
    with Lock(f"stops process {one.who.pid}"), stdio.meanwhile(f"stops {one.words}"):
        done = adopt.end(one, FOREIGN_WAIT_S)
    notes = adopt.told(done)
    if as_json:
        document = {
            "profile": one.profiles[0] if len(one.profiles) == 1 else None,
            "state": "stopped" if not done.left else "running",
        }
        print(json.dumps({**document, "pid": one.who.pid, "port": one.port, "notes": notes}))
    else:
        print(f"{one.words} stopped after {secs(done.took_s)}" if not done.left else f"{one.words} lives still")
        told(notes)
    return 1 if done.left else 0
