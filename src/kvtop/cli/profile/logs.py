"""`kvtop profile logs [P]`: the log of a profile's server, from its end; `-f` goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from kvtop.cli import stdio
from kvtop.cli.args import Parser
from kvtop.cli.profile.chosen import name_of, several
from kvtop.errors import KvtopError, UsageError, printable
from kvtop.interrupt import CODE
from kvtop.profiles import folder
from kvtop.profiles.running import client, look, tools
from kvtop.profiles.running import logs as files
from kvtop.profiles.running.look import Seen
from kvtop.profiles.running.runners import runner_of
from kvtop.profiles.running.text import MAX_LINE, Lines
from kvtop.profiles.secret import shown

_POLL_S = 0.25
"""Python's library has no event for a file that grows; four looks a second cost nothing."""
_MOST = 1_000_000


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop profile logs",
        usage="%(prog)s [-h] [PROFILE] [-n N] [-f] [--grep TEXT]",
        description="The log of a profile's server, its last lines. docker, compose and systemd keep theirs themselves "
        "and are asked for it. Secrets are masked. Without PROFILE: of the one that runs, or ran last.",
    )
    parser.add_argument("profile", metavar="PROFILE", nargs="?", help="its name, or the path of its file")
    parser.add_argument("-n", type=int, default=50, metavar="N", help="so many lines (default 50)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    parser.add_argument("--grep", default="", metavar="TEXT", help="only lines with TEXT, whatever its case")
    args = parser.parse_args(argv)
    if not 0 <= args.n <= _MOST:
        raise UsageError(f"-n is 0 to {_MOST}")
    seen = _which(args.profile)
    try:
        code = _from_tool(seen, args.n, args.follow, args.grep)
        return code if code is not None else _from_file(seen, args.n, args.follow, args.grep)
    except KeyboardInterrupt:
        return CODE


def _which(named: str | None) -> Seen:
    if named is not None:
        seen = look.look(name_of(named))
        if seen.record is None:
            entry = folder.find(named)
            name = printable(entry.name, 80)
            if entry.profile is not None and entry.profile.runner == "attach":
                raise KvtopError(f"{name} is only watched: its log is where it was started", "kvtop shows its figures")
            raise KvtopError(f"{name} was never started by kvtop", f"kvtop profile start {name}")
        return seen
    running = client.running()
    if len(running) == 1:
        return running[0]
    if running:
        raise several([seen.name for seen in running], "name one: kvtop profile logs PROFILE")
    past = [seen for seen in look.every() if seen.record is not None]
    if not past:
        raise KvtopError("no profile was ever started", "kvtop profile start PROFILE")
    return max(past, key=lambda seen: seen.record.started_at if seen.record else 0.0)


def _from_tool(seen: Seen, count: int, follow: bool, text: str) -> int | None:
    """None: it is a file."""
    assert seen.record is not None
    words = runner_of(seen.record).log_command(_MOST if text else count, follow)
    if words is None:
        return None
    want, lines = text.casefold(), Lines()
    if not follow:
        try:
            said = tools.log(words)
        except tools.Failed as error:
            raise KvtopError(str(error)) from None
        found = [line for line in lines.feed(said + b"\n") if want in line.casefold()]
        _show(found[-count:] if count else [])
        return 0
    tail = files.CommandTail(words)
    try:
        while data := tail.wait():
            _show([line for line in lines.feed(data) if want in line.casefold()])
        if code := tail.child.wait():
            raise KvtopError(f"{' '.join(words[:2])} failed: exit code {tools.code_of(code)}")
        return 0
    finally:
        tail.close()


def _from_file(seen: Seen, count: int, follow: bool, text: str) -> int:
    assert seen.record is not None
    path = Path(seen.record.log)
    try:
        size = path.stat().st_size
        _show(files.last_lines(path, count, text, size))
    except OSError as error:
        raise KvtopError(
            f"{printable(str(path), 300)}: {error.strerror or error}", "it is made when the server starts"
        ) from None
    if not follow:
        if size <= seen.record.log_offset and seen.state == "failed":
            why = f": {shown(seen.record.why, 400)}" if seen.record.why else ""
            stdio.tell(f"kvtop: the last start of {printable(seen.name, 80)} failed, and wrote nothing{why}")
        return 0
    tail, lines, want = files.FileTail(path, size), Lines(), text.casefold()
    while True:
        while data := tail.read():
            _show([line for line in lines.feed(data) if want in line.casefold()])
        time.sleep(_POLL_S)


def _show(lines: Sequence[str]) -> None:
    for line in lines:
        print(shown(line, MAX_LINE), flush=True)
