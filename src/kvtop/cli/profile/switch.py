"""`kvtop profile switch P`: check the new one, stop what runs, see that what it held is free, start the new one."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from kvtop.cli import stdio
from kvtop.cli.args import Parser
from kvtop.cli.profile import checking, following
from kvtop.cli.profile.answered import Answered
from kvtop.cli.profile.chosen import ONLY, asked, choose, failed, foreign, refuse_other, settle, several, told
from kvtop.cli.profile.start import still_starts
from kvtop.cli.profile.stop import FOREIGN_WAIT_S
from kvtop.errors import KvtopError, UsageError, printable
from kvtop.interrupt import CODE
from kvtop.profiles import folder
from kvtop.profiles.running import adopt, client, look, record
from kvtop.profiles.running.adopt import Foreign
from kvtop.profiles.running.client import Chosen
from kvtop.profiles.running.lock import Lock
from kvtop.profiles.running.look import Seen
from kvtop.profiles.running.record import Who
from kvtop.profiles.running.switch import freed, leaves
from kvtop.profiles.running.unkept import less_owed


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop profile switch",
        usage="%(prog)s [-h] PROFILE [--restart] [--force] [--fallback] [--yes] [--stop-foreign] "
        "[--only WHICH] [--json]",
        description="Stop the server that runs and start that of PROFILE. PROFILE is checked first, and nothing is "
        "stopped for one that would not work. Where the new one fails, kvtop offers to start the former one again. A "
        "server that kvtop did not start is stopped only where it holds the port or a card of PROFILE, and after a "
        "yes to a question that names it.",
    )
    parser.add_argument("profile", metavar="PROFILE", help="its name, or the path of its file")
    parser.add_argument("--restart", action="store_true", help="where PROFILE itself runs: stop it and start it afresh")
    parser.add_argument("--force", action="store_true", help="whatever check says, but for port_taken and gpu_overlap")
    parser.add_argument("--fallback", action="store_true", help="where it fails, start the former one without asking")
    parser.add_argument("--yes", action="store_true", help="start in spite of warnings, without asking")
    parser.add_argument(
        "--stop-foreign", action="store_true", help="also stop a server that kvtop did not start, without asking"
    )
    parser.add_argument("--only", metavar="WHICH", help=ONLY)
    parser.add_argument("--json", action="store_true", help="one JSON document at the end")
    args = parser.parse_args(argv)
    entry = folder.find(args.profile)
    return _Switch(choose(entry), args).run(entry, args.force)


class _Switch:
    """One switch. At any moment it can say what runs and what to do next."""

    def __init__(self, new: Chosen, args: argparse.Namespace) -> None:
        """`args`: as they were typed."""
        self._new = new
        self._restart, self._stop_foreign = bool(args.restart), bool(args.stop_foreign)
        self._fallback, self._yes, self._json = bool(args.fallback), bool(args.yes), bool(args.json)
        self._only: str | None = args.only
        self._name = printable(new.name, 80)
        self._former: Chosen | None = None
        self._old: Seen | Foreign | None = None
        self._stops = False
        """It has begun to change what runs."""

    def run(self, entry: folder.Entry, force: bool) -> int:
        again = self._restart and look.look(self._new.name).state == "running"
        verb = "restarts" if again else "switches to"
        with Lock(f"{verb} {self._new.name}", "wait for it") as lock:
            try:
                self._old = self._running(entry)
                if self._old is not None:
                    refuse_other(self._only, self._old)
                if not self._itself:
                    client.startable(self._new)
                if not checking.allowed(entry, force=force, yes=self._yes, replacing=self._pids()):
                    raise KvtopError("nothing was stopped or started")
                client.has_room(self._new.name)
                self._stops = True
                stdio.outlive_terminal()  # nobody is left between two servers
                self._stop()
                return self._start(lock)
            except KeyboardInterrupt:
                stdio.tell(self._interrupted())
                return CODE

    def _running(self, entry: folder.Entry) -> Seen | Foreign | None:
        """What is to be stopped. Raises KvtopError where it is the new one itself, UsageError for several."""
        ours = client.running()
        itself = next((seen for seen in ours if seen.name == self._new.name), None)
        if itself is not None and self._restart:
            return itself
        if itself is not None:
            raise KvtopError(f"{self._name} runs already", "--restart stops it and starts it afresh")
        if len(ours) > 1:
            raise several([seen.name for seen in ours], "stop one: kvtop profile stop PROFILE")
        if ours:
            if ours[0].state == "starting":
                raise KvtopError(f"{ours[0].name} is starting", f"kvtop profile stop {ours[0].name} ends that")
            return ours[0]
        return self._in_the_way(entry)

    def _in_the_way(self, entry: folder.Entry) -> Foreign | None:
        """The server of somebody else that holds its port or cards, if it may be stopped; none that is not in the way.

        Raises UsageError for several, and where nobody can be asked; KvtopError for a no.
        """
        others = {one.who.pid: one for one in foreign()}
        if not others:
            return None
        from kvtop.profiles.check.facts import gather
        from kvtop.profiles.check.obstacles import in_the_way

        found = [
            (others[server.pid], holds)
            for server, holds in in_the_way(gather(entry, ask_vllm=False))
            if server.pid in others
        ]
        if len(found) > 1:
            words = "; ".join(f"{one.words} holds {holds}" for one, holds in found)
            what = f"{len(found)} servers that kvtop did not start stand in the way of {self._name}: {words}"
            raise UsageError(what, "stop them one by one: kvtop profile stop NUMBER")
        if not found:
            return None
        one, holds = found[0]
        whose = f", with the flags of {printable(one.profile, 60)}" if one.profile else ""
        question = f"{one.words}{whose}, which kvtop did not start, holds {holds}. Stop it for {self._name}?"
        if not asked(question, yes=self._stop_foreign, flag="--stop-foreign"):
            raise KvtopError("nothing was stopped or started")
        return one

    @property
    def _itself(self) -> bool:
        """What is stopped is the one that is started."""
        return isinstance(self._old, Seen) and self._old.name == self._new.name

    @property
    def _why(self) -> str:
        """For the record of what is stopped."""
        return "a restart" if self._itself else f"a switch to {self._new.name}"

    def _pids(self) -> frozenset[int] | None:
        if isinstance(self._old, Seen):
            return leaves(self._old)
        return frozenset(who.pid for who in adopt.family_of(self._old)) if self._old is not None else None

    def _stop(self) -> None:
        if self._old is None:
            return
        held: list[Who] = []
        if isinstance(self._old, Seen):
            old = printable(self._old.name, 80)
            self._former = None if self._itself else _former(self._old)
            held = list(self._old.record.family) if self._old.record is not None else []
            stdio.tell(f"stops {old}")
            ended = client.stop(self._old.name, self._why, locked=True)
            told(less_owed(ended.notes) if self._itself else ended.notes)
        else:
            self._former = _former(self._old)
            stdio.tell(f"stops {self._old.words}")
            held = adopt.family_of(self._old)
            done = adopt.end(self._old, FOREIGN_WAIT_S)
            told(adopt.told(done))
            if done.left:
                raise KvtopError(f"{self._old.words} does not end", "nothing was started")
        left = freed(held)
        if not left.free:
            raise KvtopError(
                f"what was stopped still holds memory: {'; '.join(left.says)}",
                f"nothing runs now; when it is free: kvtop profile start {self._name}",
            )

    def _start(self, lock: Lock) -> int:
        try:
            settle(self._new)
            client.start(self._new, lock, former=_listed(self._former))
        except (KvtopError, OSError) as error:
            # Its record, if it has one, is that of an earlier start.
            return self._failed(_not_started(self._name, error), Seen(self._new.name, "stopped"), lock)
        return self._ended(following.follow(self._new.name), lock)

    def _ended(self, seen: Seen, lock: Lock) -> int:
        if seen.state == "running":
            print(json.dumps(following.document(seen), allow_nan=False) if self._json else following.ready_words(seen))
            return 0
        state = seen.record
        told(state.notes if state is not None else ())
        if seen.state != "failed":
            raise self._answered(failed(seen), seen)
        return self._failed(failed(seen), seen, lock)

    def _failed(self, error: KvtopError, seen: Seen, lock: Lock) -> int:
        """The new one was not started, or failed: what ran before is offered."""
        if self._former is None:
            raise self._answered(error, seen)
        former = printable(self._former.name, 80)
        stdio.tell(f"kvtop: {error}")
        try:
            again = asked(f"Start {former} again?", yes=self._fallback, flag="--fallback")
            if not again and sys.stdin.isatty():  # else its terminal has gone, and nobody said no
                _answered(seen)
        except UsageError:
            again = False
        if not again:
            again_by = _typed(self._former)
            now = KvtopError("nothing runs now", f"kvtop profile start {again_by} starts the former one")
            raise self._answered(now, seen)
        self._new, self._name, self._former, self._old = self._former, former, None, None
        stdio.tell(f"starts {former} again")
        try:
            settle(self._new)
            client.start(self._new, lock)
        except (KvtopError, OSError) as error_again:
            raise self._answered(_not_started(former, error_again), seen) from None
        back = following.follow(self._new.name)
        both = {**following.document(seen), "fallback": following.document(back)}
        if back.state != "running":
            again_failed = failed(back)
            raise Answered(again_failed.what, again_failed.fix, both)
        words = f"{former} runs again: {following.ready_words(back)}"
        if self._json:
            stdio.tell(words)
        print(json.dumps(both, allow_nan=False) if self._json else words)
        return 1

    def _answered(self, error: KvtopError, seen: Seen) -> Answered:
        return Answered(error.what, error.fix, following.document(seen))

    def _interrupted(self) -> str:
        """After ctrl-c: what runs now, and what to do."""
        if not self._stops:
            if self._old is None:
                return "kvtop: nothing was changed"
            here = self._old
            runs = f"{printable(here.name, 80)} runs{here.where}" if isinstance(here, Seen) else f"{here.words} runs"
            return f"kvtop: nothing was changed: {runs}"
        new = look.look(self._new.name)
        if new.state in ("starting", "running") and new.record is not None:
            said = still_starts(self._name, new.record.port)
            if self._fallback and self._former is not None:
                said += f"\n  where it fails, nothing starts {printable(self._former.name, 80)} again now"
            return said
        if new.state == "failed" and self._former is not None:
            return f"kvtop: nothing runs now\n  kvtop profile start {_typed(self._former)} starts the former one"
        if isinstance(self._old, Foreign) and self._old.who.lives:
            return (
                f"kvtop: {self._old.words} lives still, and {self._name} was not started\n"
                f"  kvtop profile stop {self._old.who.pid} ends it"
            )
        if isinstance(self._old, Seen):
            old, name = look.look(self._old.name), printable(self._old.name, 80)
            if old.state == "running":
                return f"kvtop: {name} runs{old.where}, and {self._name} was not started"
            if old.state == "stopping":
                return (
                    f"kvtop: {name} is being stopped, and {self._name} was not started\n"
                    f"  kvtop profile start {self._name}, or kvtop profile start {name}"
                )
        return (
            f"kvtop: nothing runs now: the switch to {self._name} was interrupted\n  kvtop profile start {self._name}"
        )


def _listed(former: Chosen | None) -> str:
    """Its name, for those who know profiles by the list alone; empty where another one has it there."""
    return former.name if former is not None and folder.folder() / f"{former.name}.toml" == Path(former.file) else ""


def _typed(former: Chosen) -> str:
    """What names it on a command line."""
    return printable(former.name, 80) if _listed(former) else shlex.quote(printable(former.file, 300))


def _not_started(name: str, error: KvtopError | OSError) -> KvtopError:
    what = error.what if isinstance(error, KvtopError) else f"{error.filename or ''}: {error.strerror or error}"
    return KvtopError(
        f"{name} was not started: {printable(what, 400)}", f"nothing runs now: kvtop profile start {name}"
    )


def _answered(seen: Seen) -> None:
    """The page of profiles does not ask once more."""
    if seen.record is not None:
        with contextlib.suppress(OSError):
            record.answered(seen.name, seen.record.started_at)


def _former(old: Seen | Foreign) -> Chosen | None:
    """What ran, as its file has it now; None where that cannot be used any more, or it was no one profile's."""
    if isinstance(old, Foreign):
        named = old.profiles[0] if len(old.profiles) == 1 else ""
    else:
        named = old.record.file if old.record is not None and old.record.file else old.name
    try:
        return choose(folder.find(named)) if named else None
    except UsageError:
        return None
