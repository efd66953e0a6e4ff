"""`kvtop profile logs [P]`: the log of a profile's server, from its end; `-f` goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvtop.cli import stdio
from kvtop.cli.args import Parser
from kvtop.cli.profile.chosen import foreign, name_of, several
from kvtop.errors import KvtopError, UsageError, printable
from kvtop.interrupt import CODE
from kvtop.model.starting import LIVE
from kvtop.model.words import exact
from kvtop.profiles import folder
from kvtop.profiles.running import adopt, client, look, progress, record, tools
from kvtop.profiles.running import logs as files
from kvtop.profiles.running.look import Seen
from kvtop.profiles.running.record import Record
from kvtop.profiles.running.runners import runner_of
from kvtop.profiles.running.text import MAX_LINE, Lines, less_polls
from kvtop.profiles.secret import shown
from kvtop.profiles.standing import launched

_POLL_S = 0.25
"""Python's library has no event for a file that grows; four looks a second cost nothing."""
_MOST = 1_000_000
_AMONG = 100_000
"""Lines of a tool among which those that are no polls are looked for."""
_PAST_S = 10.0
_SILENT_S = 0.5
"""What a tool gives before it says nothing for so long, within _PAST_S, was there already."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop profile logs",
        usage="%(prog)s [-h] [PROFILE] [-n N] [-f] [--grep TEXT] [--all]",
        description="The log of a profile's server, its last lines. docker, compose and systemd keep theirs themselves "
        "and are asked for it. Secrets are masked. Lines that only tell of answered polls, as kvtop "
        "itself asks them every second, are left out, but for --all and --grep. Of a start that came no further than a "
        "sidecar: the sidecar's log. Without PROFILE: of the one that runs, or ran last.",
    )
    parser.add_argument("profile", metavar="PROFILE", nargs="?", help="its name, or the path of its file")
    parser.add_argument("-n", type=int, default=50, metavar="N", help="so many lines (default 50)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    parser.add_argument("--grep", default="", metavar="TEXT", help="only lines with TEXT, whatever its case")
    parser.add_argument(
        "--all", action="store_true", help="also lines that only tell of polls: GET /metrics, /v1/models and such"
    )
    args = parser.parse_args(argv)
    if not 0 <= args.n <= _MOST:
        raise UsageError(f"-n is 0 to {_MOST}")
    seen = _which(args.profile)
    if args.profile is None:
        stdio.tell(f"kvtop: the log of {printable(seen.name, 80)}")
    want = _Want(args.n, args.grep.casefold(), args.all or bool(args.grep))
    past = False
    ends: dict[str, int] = {}
    try:
        while seen.record is not None and seen.record.sidecar_log:
            place, began = printable(seen.record.sidecar_log, 400), seen.record.started_at
            at = "is at" if seen.state == "starting" else "came no further than"
            stdio.tell(f"kvtop: its start {at} a sidecar, whose log is {place}")
            _from_file(replace(seen, record=seen.record.at_sidecar()), want, args.follow, past, ends)
            if not args.follow:
                return 0
            seen, past = look.look(seen.name), True
            if seen.record is not None and seen.record.started_at != began:
                stdio.tell("kvtop: it was started anew")
        if past:
            stdio.tell("kvtop: it is past its sidecars: the log of the server")
        code = _from_tool(seen, want, args.follow)
        return code if code is not None else _from_file(seen, want, args.follow, past, ends)
    except KeyboardInterrupt:
        return CODE


def _which(named: str | None) -> Seen:
    if named is not None:
        return _named(named)
    running = client.running()
    if len(running) == 1:
        return running[0]
    if running:
        raise several([seen.name for seen in running], "name one: kvtop profile logs PROFILE")
    past = [seen for seen in look.every() if seen.record is not None]
    if not past:
        raise KvtopError("no profile was ever started", "kvtop profile start PROFILE")
    return max(past, key=lambda seen: seen.record.started_at if seen.record else 0.0)


def _named(named: str) -> Seen:
    """By its last start; of a server that kvtop did not start by the file that its output goes to, or its unit."""
    seen = look.look(name_of(named))
    name = printable(seen.name, 80)
    other = next((one for one in foreign() if seen.name in one.profiles), None) if seen.state not in LIVE else None
    if other is not None:
        state = adopt.log_of(seen.name, other.who.pid, launched(folder.find(named))[0])
        if state is None:
            what = f"kvtop did not start {name} ({other.words}): its output goes to no file that you may read"
            raise KvtopError(what, "its log is where it was started: a terminal, or journalctl of its unit")
        return Seen(seen.name, "running", state)
    if seen.record is not None:
        return seen
    profile = folder.find(named).profile
    if profile is not None and profile.runner == "attach":
        raise KvtopError(f"{name} is only watched: its log is where it was started", "kvtop shows its figures")
    if profile is not None and profile.runner == "systemd" and profile.systemd.unit:  # started at boot, or by hand
        unit, user = profile.systemd.unit, profile.systemd.user
        return Seen(seen.name, "stopped", Record(name=seen.name, runner="systemd", unit=unit, user_unit=user))
    raise KvtopError(f"{name} was never started by kvtop", f"kvtop profile start {name}")


@dataclass(frozen=True, slots=True)
class _Want:
    """Which lines."""

    count: int
    text: str
    every: bool
    """Also answered polls, of kvtop and of other watchers."""

    def of(self, lines: Iterable[str]) -> tuple[list[str], int]:
        """(those that are wanted, polls that were left out)."""
        found = [line for line in lines if self.text in line.casefold()]
        return (found, 0) if self.every else less_polls(found)

    def among(self) -> int:
        """How many lines a tool is asked for, so that enough are left of them."""
        if self.text:
            return _MOST
        return self.count if self.every or not self.count else max(self.count, _AMONG)


def _from_tool(seen: Seen, want: _Want, follow: bool) -> int | None:
    """None: it is a file."""
    assert seen.record is not None
    name = printable(seen.name, 80)
    runner = runner_of(seen.record)
    if runner.no_log:
        raise KvtopError(f"the last start of {name} has no log: {runner.no_log}", f"kvtop profile check {name}")
    words = runner.log_command(want.among(), follow)
    if words is None:
        return None
    lines = Lines()
    if not follow:
        try:
            said = tools.log(words)
        except tools.Failed as error:
            raise KvtopError(str(error)) from None
        found = [*lines.feed(said + b"\n")]
        _show_last(want, found)
        if not found:
            stdio.tell(f"kvtop: {printable(' '.join(words[:2]), 80)} has nothing of {name}{_why(seen)}")
        return 0
    tail = files.CommandTail(words)
    try:
        past: deque[str] = deque(maxlen=_MOST)
        until = time.monotonic() + _PAST_S
        while want.count and (left := until - time.monotonic()) > 0 and (data := tail.wait(min(left, _SILENT_S))):
            past.extend(lines.feed(data))
        _show_last(want, past)
        while data := tail.wait():
            _show(want.of(lines.feed(data))[0])
        if code := tail.child.wait():
            raise KvtopError(f"{' '.join(words[:2])} failed: exit code {tools.code_of(code)}")
        return 0
    finally:
        tail.close()


def _show_last(want: _Want, lines: Sequence[str]) -> None:
    """The last ones that are wanted, and how many polls stood among them."""
    found: deque[str] = deque()
    polls = 0
    for line in reversed(lines):
        if len(found) >= want.count:
            break
        kept, left_out = want.of([line])
        found.extendleft(kept)
        polls += left_out
    _say_left_out(polls)
    _show(found)


def _from_file(seen: Seen, want: _Want, follow: bool, from_start: bool, ends: dict[str, int]) -> int:
    """`from_start`: all of its last start, instead of the last lines. `ends`: how far each file was shown already."""
    assert seen.record is not None
    if not seen.record.log:
        raise KvtopError(f"where the log of {printable(seen.name, 80)} is, is not known", "its next start has one")
    path = Path(seen.record.log)
    try:
        size = path.stat().st_size
        if from_start:
            size = max(seen.record.log_offset, ends.get(seen.record.log, 0))
        elif want.every:
            _show(files.last_lines(path, want.count, want.text, size))
        else:
            found, polls = files.last_told(path, want.count, size)
            _say_left_out(polls)
            _show(found)
    except BrokenPipeError:
        raise  # whoever reads it has enough
    except OSError as error:
        raise KvtopError(
            f"{printable(str(path), 300)}: {error.strerror or error}", "it is made when the server starts"
        ) from None
    if not follow:
        if size <= seen.record.log_offset and seen.state == "failed":
            stdio.tell(f"kvtop: the last start of {printable(seen.name, 80)} failed, and wrote nothing{_why(seen)}")
        return 0
    tail, lines = files.FileTail(path, size), Lines()
    ended = seen.state != "starting"
    while True:
        while data := tail.read():
            _show(want.of(lines.feed(data))[0])
        ends[seen.record.log] = tail.at
        now = record.read(seen.name) if seen.record.sidecar_log else None
        if now is not None and _is_past(seen.record, now):
            return 0
        if now is not None and now.state in ("stopped", "failed") and not ended:
            ended = True
            stdio.tell(f"kvtop: its start {_ended(now)}; waits for the next one")
        time.sleep(_POLL_S)


def _is_past(state: Record, now: Record) -> bool:
    """Of a log of a sidecar that is followed: the start is at the next one, or at its server; or another start is."""
    at_server = any(stage.name != progress.BEFORE for stage in now.stages)
    another = (now.started_at, now.sidecar_log) != (state.started_at, state.sidecar_log)
    return another and (bool(now.sidecar_log) or at_server)


def _ended(state: Record) -> str:
    return "was stopped" if state.state == "stopped" else f"failed: {shown(state.why, 400)}"


def _why(seen: Seen) -> str:
    """Of a start that failed."""
    return f": {shown(seen.record.why, 400)}" if seen.record is not None and seen.record.why else ""


def _say_left_out(polls: int) -> None:
    if polls:
        many = "1 answered poll" if polls == 1 else f"{exact(polls)} answered polls"
        stdio.tell(f"kvtop: {many} left out (GET /metrics, /v1/models and such); --all shows them")


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        print(shown(line, MAX_LINE), flush=True)
