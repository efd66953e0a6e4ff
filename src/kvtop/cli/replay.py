"""`kvtop replay`: two turns sent once more to an idle server, to see whose fault a miss was."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvtop.cli.args import Parser, seconds
from kvtop.cli.stdio import agreed, tell
from kvtop.errors import UsageError, printable
from kvtop.triage.kinds import Verdict

if TYPE_CHECKING:
    from kvtop.triage.replay import Replay
    from kvtop.triage.replayed import Plan, Replayed, Run

WAIT_S = 60.0
LOOK_S = 1.0
_NOBODY = "a replay writes into the server's cache: nobody is here to be asked"


def main(argv: Sequence[str]) -> int:
    from kvtop.triage.fixes import FIXES

    parser = Parser(
        prog="kvtop replay",
        usage="%(prog)s [-h] [NEW | OLD NEW] [--url URL] [--fix KIND] [--wait S] [--force] [--yes] [--json]",
        description="Sends the old turn twice and the new one once, each for one token, under a cache salt that nobody "
        "had: what the new one has from the cache then is what its prompt allows. A difference to what it had when it "
        "was live is the engine's doing. A salt keeps hashes apart, not room: what is written evicts other blocks, so "
        "it first says how many tokens, into what pool, in how many seconds, and asks.",
        epilog=f"KIND: {', '.join(sorted(kind.value for kind in FIXES))}.",
    )
    parser.add_argument("which", metavar="OLD NEW", nargs="*", help="ids of turns, or two files (these need --url)")
    parser.add_argument("--url", help="send to this server, instead of the one that the turns went to")
    parser.add_argument(
        "--fix",
        metavar="KIND",
        action="append",
        default=[],
        help="also send both as they would be without this kind of cause; given again: without all of them",
    )
    parser.add_argument("--wait", metavar="S", type=seconds, default=WAIT_S, help="for an idle server (default: 60)")
    parser.add_argument("--force", action="store_true", help="also to a busy server; counts may then be mixed")
    parser.add_argument("--allow-remote", action="store_true", help="also to a server that is not this machine")
    parser.add_argument("--yes", action="store_true", help="do not ask before writing")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    if len(args.which) > 2:
        raise UsageError("kvtop replay sends two: OLD NEW", "kvtop replay --help tells more")
    return asyncio.run(_replay(args))


async def _replay(args: argparse.Namespace) -> int:
    from kvtop.cli.replaying import prepared
    from kvtop.triage.replay import refused

    async with prepared(args.which, url=args.url, fix=args.fix, remote=args.allow_remote) as replay:
        plan = await _idle(replay, 0.0 if args.force else args.wait)
        if not plan.idle and not args.force:
            raise refused(plan)
        _tell(f"{plan.url}: {plan.sentence}")
        if not args.yes and not agreed("send it?", _NOBODY, "say --yes to mean it"):
            return 1
        try:
            found = await replay.run(force=args.force, told=lambda run: _tell(_row(run)))
        except (asyncio.CancelledError, KeyboardInterrupt):
            _show(replay.so_far(), as_json=args.json)
            return 130
        _show(found, as_json=args.json)
    return 1 if found.verdict is Verdict.UNKNOWN else 0


async def _idle(replay: Replay, wait_s: float) -> Plan:
    """The plan, once the server is idle or the time is over."""
    until, said = time.monotonic() + wait_s, False
    while True:
        plan = await replay.plan()
        if plan.idle or time.monotonic() >= until:
            return plan
        if not said:
            _tell(f"{plan.url} is busy: {plan.busy}; waiting up to {wait_s:g} s")
            said = True
        await asyncio.sleep(LOOK_S)


def _tell(line: str) -> None:
    tell(f"kvtop: {printable(line, 400)}")


def _row(run: Run) -> str:
    from kvtop.model.words import exact, pct, secs

    name = run.name.value.replace("_", " ")
    took = "–" if run.ttft_s is None else secs(run.ttft_s)
    return f"{name}: {exact(run.cached_tokens)} of {exact(run.prompt_tokens)} cached ({pct(run.share)}), {took}"


def _show(found: Replayed, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.document, allow_nan=False))
        return
    print(printable(found.sentence, 1_000))
