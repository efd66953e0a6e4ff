"""`kvtop snapshot`: two scrapes of a server, one document, one table, or one line for a status bar."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvtop import interrupt
from kvtop.cli.args import Parser, seconds
from kvtop.errors import KvtopError, UsageError, printable

if TYPE_CHECKING:
    from kvtop.cli.once import Look

DEFAULT_S = 2.0
SWAPPED = "are the two texts swapped?"

_DESCRIPTION = """\
Two scrapes of a vLLM server some seconds apart, and what happened between them.
Without URL: the first server of config.toml, else one found on this box.
An API key comes only from api_key_env or api_key_file of the [[server]] with this URL.
"""

_EPILOG = """\
examples:
  kvtop snapshot http://127.0.0.1:8000 --json
  kvtop snapshot --from before.txt --to after.txt.gz --seconds 30 --json
  tmux: set -g status-right-length 60
        set -g status-right '#(kvtop snapshot --line)'

exit code: 0 the server is up, sleeping or was reset in the window; 1 it is in
another state (the document says which); 2 wrong use or an unreadable file.
Unknown is null in JSON and – elsewhere, never 0.
"""


def main(argv: Sequence[str]) -> int:
    args = _arguments(argv)
    if args.before is not None:
        return _saved(args)
    interrupt.as_usual()
    return asyncio.run(_live(args))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="kvtop snapshot",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", metavar="URL", help="http://host:port, host:port or a port of this box")
    apart = f"between the two scrapes (default {DEFAULT_S:g}); of saved texts: unknown"
    parser.add_argument("--seconds", type=seconds, metavar="S", help=apart)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON document, printed in every state")
    form.add_argument("--line", action="store_true", help="one line of at most 60 cells, for a status bar")
    parser.add_argument("--from", dest="before", metavar="A", help="a saved /metrics text (plain or gzip) ...")
    parser.add_argument("--to", dest="after", metavar="B", help="... and a later one: no server is asked")
    args = parser.parse_args(list(argv))
    if (args.before is None) != (args.after is None):
        raise UsageError("--from and --to go together", "kvtop snapshot --from A.txt --to B.txt --json")
    if args.before is not None and args.url is not None:
        raise UsageError("a URL and --from cannot both be given: saved texts need no server")
    return args


def _saved(args: argparse.Namespace) -> int:
    from kvtop.cli.once import Look
    from kvtop.cli.saved import read_text
    from kvtop.model import metrics
    from kvtop.model.box import Window
    from kvtop.model.window import between, glance, swapped
    from kvtop.sources.exposition import Reader

    reader = Reader(metrics.wanted)
    before, after = reader.read(read_text(args.before)), reader.read(read_text(args.after))
    bad = [
        (name, seen)
        for name, seen in ((args.before, glance(before)), (args.after, glance(after)))
        if not seen.state.good
    ]
    if bad:  # without both there is no window between them
        detail = "; ".join(f"{printable(name)}: {seen.detail}" for name, seen in bad)
        return _tell(args, Look(Window(bad[-1][1].state, detail, window_s=args.seconds)), None)
    window = between(before, after, args.seconds)
    if swapped(before, after):
        window = replace(window, detail=f"{window.detail}; {SWAPPED}")
    return _tell(args, Look(window), None)


async def _live(args: argparse.Namespace) -> int:
    from kvtop.cli.once import Look, gpu_now, host_now, look
    from kvtop.cli.target import find, named, settings
    from kvtop.model.box import Window
    from kvtop.readings import State

    have = settings()
    target = named(args.url, have)
    if target is None:
        host = await host_now()
        try:
            target = await find(have, host)
        except KvtopError as error:
            if args.line:
                print("no vLLM server")
                return error.exit_code
            if args.json:
                nothing = Window(State.REFUSED, error.what, at=time.time())
                _tell(args, Look(nothing, gpu=await gpu_now(), host=host), None)
            raise
    seen = await look(target, have, args.seconds or DEFAULT_S, machine=not args.line)
    return _tell(args, seen, target.shown)


def _tell(args: argparse.Namespace, look: Look, shown: str | None) -> int:
    from kvtop.cli import words
    from kvtop.model import document
    from kvtop.model.here import sized

    if args.json:
        made = document.snapshot(
            sized(look.window, shown, look.host),
            url=shown,
            facts=look.facts,
            gpu=look.gpu,
            host=look.host,
            age_s=look.age_s,
        )
        print(json.dumps(made, allow_nan=False))
    elif args.line:
        print(words.line(look.window, (shown or "").partition("://")[2] or "saved texts"))
    else:
        print(words.table(look, shown))
    sys.stdout.flush()
    return 0 if look.window.state.good else 1
