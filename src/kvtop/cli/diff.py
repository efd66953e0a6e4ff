"""`kvtop diff`: where two turns part, of what, and what each cause costs."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.cli.args import Parser
from kvtop.errors import UsageError, printable

if TYPE_CHECKING:
    from kvtop.capture.turn import Route
    from kvtop.triage.casebook import Casebook
    from kvtop.triage.differ import Divergence, Sent, Server
    from kvtop.triage.sheet import Sheet

PIPED = 120
"""Columns where no terminal tells."""
MOST_BYTES = 256_000_000
"""Of a file with a request's body."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="kvtop diff",
        usage="%(prog)s [-h] [NEW | OLD NEW] [--url URL] [--json]",
        description="The first difference of two turns, named by section, with every cause, its price in tokens and a "
        "fix. OLD and NEW are ids of turns, or files with a request's JSON body each; default: the last turn and the "
        "one that it continues. Files are compared as texts unless --url names a server that may see them.",
    )
    parser.add_argument("which", metavar="OLD NEW", nargs="*", help="ids of turns, or two files")
    parser.add_argument("--url", help="ask this server for tokens, instead of the one that the turns went to")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    if len(args.which) > 2:
        raise UsageError("kvtop diff compares two: OLD NEW", "kvtop diff --help tells more")
    from kvtop.cli.triaging import files_of

    if files_of(args.which):
        return asyncio.run(_files(*args.which, url=args.url, as_json=args.json))
    return asyncio.run(_turns([int(id) for id in args.which], args.url, as_json=args.json))


async def _turns(ids: Sequence[int], url: str | None, *, as_json: bool) -> int:
    from kvtop import paths
    from kvtop.capture.store.store import Store
    from kvtop.cli.triaging import answered, newest

    with Store.open(paths.turns_file()) as store:
        turn = store.turn(ids[-1]) if ids else newest(store)

        async def work(cases: Casebook) -> tuple[Divergence, Sheet | None]:
            new = cases.turn(ids[-1]) if ids else cases.latest()
            found = await cases.diff(new, cases.turn(ids[0]) if len(ids) == 2 else None)
            return found, None if as_json else await _sheet(found, cases.server, "turn ")

        _tell(*await answered(store, turn, url, work))
    return 0


async def _files(old: str, new: str, *, url: str | None, as_json: bool) -> int:
    from kvtop.cli.target import settings
    from kvtop.cli.triaging import target, tokens_of
    from kvtop.triage.differ import diverge

    one, other = request_of(old), request_of(new)
    if url is None:
        found = await diverge(one, other, None)
        _tell(found, None if as_json else await _sheet(found, None))
        return 0
    async with tokens_of(target(url, settings())) as server:
        found = await diverge(one, other, server)
        found = replace(found, diff=replace(found.diff, exact=False))  # what kind of cache it is, was not asked
        _tell(found, None if as_json else await _sheet(found, server))
    return 0


def request_of(name: str) -> Sent:
    """Raises UsageError for a file that holds no request."""
    from kvtop import files
    from kvtop.triage.differ import Sent
    from kvtop.triage.judge import read

    shown = printable(name, 200)
    try:
        body, _ = files.read_start(Path(name), MOST_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{shown}: {getattr(error, 'strerror', None) or error}", "a file with a request's JSON body"
        ) from None
    try:
        route = _route(body)
        return Sent(name=shown, route=route, prompt=read(body, route), body=body)
    except ValueError as error:
        raise UsageError(f"{shown}: {error}", "a file with one request's JSON body, an object") from None


def _route(body: bytes) -> Route:
    """By what only one API has."""
    from kvtop.capture.api.canonical import decode
    from kvtop.capture.turn import Route

    raw = decode(body)
    if not isinstance(raw, dict):
        raise ValueError("not an object")
    tools = raw.get("tools")
    first = tools[0] if isinstance(tools, list) and tools else None
    if "input" in raw:
        return Route.RESPONSES
    if "messages" not in raw and "prompt" in raw:
        return Route.COMPLETIONS
    if "system" in raw or (isinstance(first, dict) and "input_schema" in first):
        return Route.MESSAGES
    return Route.CHAT


async def _sheet(found: Divergence, server: Server | None, label: str = "") -> Sheet:
    from kvtop.triage import sheets

    old, new = f"{label}{found.diff.old}", f"{label}{found.diff.new}"
    if server is not None and found.counted is not None:
        return await sheets.of_tokens(found, server, old, new)
    return sheets.of_words(found, old, new)


def _tell(found: Divergence, sheet: Sheet | None) -> None:
    """As lines; without a sheet as JSON."""
    if sheet is None:
        from kvtop.triage import document

        print(json.dumps(document.diff(found.diff), allow_nan=False))
        return
    from kvtop.triage import plain

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED
    for line in plain.lines(sheet, width):
        print(line)
