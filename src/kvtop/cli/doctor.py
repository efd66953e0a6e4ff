"""`kvtop doctor`: what kvtop can and cannot see here, and what would let it."""

from __future__ import annotations

import argparse
import asyncio
import json
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kvtop import interrupt
from kvtop.cli.args import Parser
from kvtop.errors import printable

if TYPE_CHECKING:
    from kvtop.cli.checks import Check

COLUMNS = 80
_MARKS = {True: "·", False: "!", None: "?"}

_DESCRIPTION = """\
What kvtop can and cannot see here: terminal, configuration, server, its series
and routes, profiles, cards, memory, left-over files. Each gap with the flag,
package or command that would close it. Nothing is sent but a few GETs; nothing is changed.
"""

_EPILOG = """\
marks: · seen, ! not seen, ? cannot be told without more than looking
exit code: 0 it ran, whatever it found; 2 wrong use.
"""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop doctor",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="*", metavar="URL", help="the servers; else those of config.toml, else found here")
    parser.add_argument("--json", action="store_true", help='one JSON document: {"sees": [{what, ok, because, fix}]}')
    args = parser.parse_args(list(argv))

    from kvtop.cli.checks import checks
    from kvtop.cli.evidence import gather

    interrupt.as_usual()
    rows = list(checks(asyncio.run(gather(args.url))))
    if args.json:
        sees = [{"what": named(r), "ok": r.ok, "because": r.because, "fix": r.fix or None} for r in rows]
        print(json.dumps({"sees": sees}))
    else:
        print("\n".join(report(rows)))
    return 0


def named(row: Check) -> str:
    """What it is about: of several servers with the URL of its own."""
    return f"{row.what}, {row.about}" if row.about else row.what


def report(rows: Iterable[Check]) -> list[str]:
    """The checks as lines of at most COLUMNS cells; a command to copy is never broken. Each of several servers is a
    block between empty lines."""
    lines: list[str] = []
    about = ""
    for row in rows:
        if row.about != about:
            lines.append("")
            about = row.about
        head = f" {_MARKS[row.ok]} {row.what:<22} "
        lines += _wrapped(head, row.because)
        if row.fix.startswith("rm "):
            lines.append(f"{'':>10}{printable(row.fix, 100_000)}")
        elif row.fix:
            lines += _wrapped(f"{'':>{len(head) - 2}}→ ", row.fix)
    return lines


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        printable(text, 10_000),
        COLUMNS,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=False,
    )
