"""`kvtop profile check P`: what would go wrong with it here and now, each with its fix."""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvtop import interrupt
from kvtop.cli.args import Parser
from kvtop.cli.profile.checking import MARKS, asking
from kvtop.model.words import bare_gib, gib
from kvtop.profiles import folder
from kvtop.profiles.check import Report, report
from kvtop.profiles.check.obstacles import FREED
from kvtop.profiles.check.report import Finding, Memory
from kvtop.profiles.check.sizes import GIB, Size
from kvtop.profiles.running import look
from kvtop.profiles.running.switch import leaves

COLUMNS = 80
_NONE = "–"
_UNIT = re.compile(r"(\d) (GiB|MiB|tokens?)\b")
"""What a line is not broken between."""

_DESCRIPTION = """\
What would go wrong with a profile here and now: its command line held against
the vLLM that is to run, and what it asks for against the memory, cards, ports
and servers of this machine. Each finding with its fix. Nothing is changed; the
first time `vllm serve --help=all` is run, which may take vLLM two minutes.
"""

_EPILOG = """\
marks: × error, refuses a start; ! warning, a start asks; · note
exit code: 0 no error; 1 an error; 2 wrong use. The rules: docs/profiles-checks.md
"""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop profile check",
        usage="%(prog)s [-h] PROFILE [--json] [--verbose]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("profile", metavar="PROFILE", help="its name, or the path of its file")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--verbose", action="store_true", help="also which rules could not tell, and for want of what")
    args = parser.parse_args(list(argv))
    interrupt.as_usual()
    entry = folder.find(args.profile)
    seen = look.look(entry.name)
    word = {"starting": "starts", "running": "runs"}.get(seen.state)
    runs = f"it {word}{seen.where}" if word else ""
    found = report(entry, replacing=leaves(seen) if runs else None, asking=asking)
    if runs:  # what it holds itself is no news
        found = replace(found, findings=tuple(one for one in found.findings if not one.fix.startswith(FREED)))
    if args.json:
        print(json.dumps(found.document(), allow_nan=False))
    else:
        print("\n".join(text(found, verbose=args.verbose, runs=runs)))
    return 0 if found.ok else 1


def text(found: Report, *, verbose: bool = False, runs: str = "") -> Iterator[str]:
    """The report in lines of at most COLUMNS cells; a fix, which may be pasted, is never broken.

    `runs`: that its server runs or starts, and where; empty: it does not.
    """
    summary = ", ".join(filter(None, (found.counts, runs))) if runs else found.summary
    yield f"check {found.profile}: {summary}"
    named = [one.rule for one in found.findings] + [one.rule for one in found.silent if verbose]
    wide = max(map(len, named), default=0)
    for one in found.findings:
        yield from _finding(one, wide)
    yield from _memory(found.memory)
    for size in found.sizes:
        yield f" size     {size_words(size)}"
    if verbose:
        for silent in found.silent:
            yield from _says(_head(_NONE, silent.rule, wide), f"cannot tell: lacks {silent.lacks}")
    elif found.silent:
        rules = len({silent.rule for silent in found.silent})
        many = "1 rule could not tell; --verbose says what it lacks"
        yield f" {many if rules == 1 else f'{rules} rules could not tell; --verbose says what they lack'}"


def _finding(one: Finding, wide: int) -> Iterator[str]:
    head = _head(MARKS[one.level], one.rule, wide)
    yield from _says(head, one.says)
    if one.fix:
        yield f"{' ' * len(head)}fix {one.fix}"


def _head(mark: str, rule: str, wide: int) -> str:
    return f" {mark} {rule:<{wide}}  "


def _says(head: str, says: str) -> Iterator[str]:
    lines = textwrap.wrap(
        _UNIT.sub("\\1\u00a0\\2", says),
        max(COLUMNS, len(head) + 30),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=False,
    )
    yield from (line.replace("\u00a0", " ") for line in lines)


def _memory(found: Memory) -> Iterator[str]:
    """`memory   tier 64.0   /dev/shm 62.8   host free 104.2   GPU free 6.1 + 6.1 of 24 + 24   all in GiB`."""
    parts = [
        f"tier {_gib(found.cpu_tier_bytes)}",
        f"/dev/shm {_gib(found.shm_free_bytes)}",
        f"host free {_gib(found.memory_available_bytes)}",
    ]
    if found.gpu_free_bytes:
        free = " + ".join(_gib(one) for one in found.gpu_free_bytes)
        total = " + ".join(_gib(one, 0) for one in found.gpu_total_bytes or ())
        parts.append(f"GPU free {free} of {total}")
    else:
        parts.append(f"GPU free {_NONE}")
    small = any("iB" in part or "bytes" in part for part in parts)
    yield f" memory   {'   '.join(parts)}   {'all else' if small else 'all'} in GiB"


def _gib(size: int | None, places: int = 1) -> str:
    if size is not None and 0 < size < GIB // 20:
        return gib(size)
    return _NONE if size is None else bare_gib(size, places)


def size_words(size: Size) -> str:
    """--kv-offloading-size: 64.0 GiB in all, 32.0 GiB a GPU, about 640,000 tokens."""
    tokens = "" if size.tokens is None else f", about {size.tokens:,} tokens"
    each = f", {gib(size.per_gpu_bytes)} a GPU" if 0 < size.per_gpu_bytes != size.total_bytes else ""
    return f"{size.flag}: {gib(size.total_bytes)} in all{each}{tokens}"
